//! A slice's pages as the agent uses them, an account for each of its devices. This module turns faults of pages into
//! failures with codes.

use std::path::Path;
use std::time::Duration;

use divvy_ledger::attach::wire::Status;
use divvy_ledger::attach::{self, AttachError, Pages};
use divvy_ledger::{
    Cap, Class, ComputeTerms, Effort, GrantSpec, GrantView, PageError, Process, Refusals, Terms,
    is_process_id,
};
use divvy_model::{Bytes, Code, DeviceShare, Fault, Mode, Policy, ProcessRecord, SliceRecord};

use rustix::io::Errno;

use crate::decide::placement::uuid_bytes;
use crate::life::known::Known;
use crate::life::lives::Lives;

/// The content of a slice's pages at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that its processes hold.
    pub used: Bytes,
    /// Bytes that they hold beyond the share, in the host's memory.
    pub spilled: Bytes,
    /// The most that they held at once.
    pub peak: Bytes,
    /// Their allocations that did not fit.
    pub refusals: Refusals,
    /// Its living processes.
    pub processes: Vec<ProcessRecord>,
    /// The pages cannot be read: `used` is all that the slice may hold.
    pub unknown: bool,
    /// The entries in the pages that the system does not know of, in words.
    pub doubts: Vec<String>,
}

/// The bounds that no honest ledger exceeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// The device's memory.
    pub device_memory: Bytes,
    /// The bytes beyond the share that the grant allows.
    pub spill_limit: Bytes,
}

impl Usage {
    /// Bytes in the ledger without a living process: charges of dead processes for memory that others have open.
    #[must_use]
    pub fn of_the_dead(&self) -> Bytes {
        let living = self.processes.iter().fold(0_u64, |sum, process| {
            sum.saturating_add(process.memory_used_bytes.0)
        });
        match self.unknown {
            true => Bytes(0),
            false => Bytes(self.used.0.saturating_sub(living)),
        }
    }
}

impl Bounds {
    fn check(&self, who: &str, used: Bytes, spilled: Bytes) -> Result<(), Fault> {
        if used > self.device_memory {
            return Err(corrupt(format!(
                "it says that {who} {used} where the device has {}",
                self.device_memory
            )));
        }
        if spilled > self.spill_limit {
            return Err(corrupt(format!(
                "it says that {who} {spilled} beyond the share where {} is allowed",
                self.spill_limit
            )));
        }
        Ok(())
    }
}

fn corrupt(cause: String) -> Fault {
    Fault::new(Code::LedgerCorrupt, "the slice's ledger cannot be read")
        .cause(cause)
        .hint("its programs keep to their limit; `divvy explain D0061` tells more")
}

/// Makes the pages of a slice: an account for each of its devices, in order.
///
/// # Errors
/// [`Code::SharedMemory`] when the system makes no memory files.
pub fn create(record: &SliceRecord) -> Result<Vec<Pages>, Fault> {
    let accounts = u32::try_from(record.shares.count()).unwrap_or(u32::MAX);
    (0..accounts)
        .zip(record.shares.iter())
        .map(|(account, share)| create_account(record, share, account, accounts))
        .collect()
}

fn create_account(
    record: &SliceRecord,
    share: &DeviceShare,
    account: u32,
    accounts: u32,
) -> Result<Pages, Fault> {
    Pages::create(&GrantSpec {
        memory_limit_bytes: share.granted().0,
        device_uuid: uuid_bytes(&share.device_uuid),
        slice_id: &record.id,
        slice_name: &record.name,
        account,
        accounts,
        terms: terms(record, share),
    })
    .map_err(|error| {
        Fault::new(Code::SharedMemory, "cannot make the slice's pages")
            .because(&error)
            .hint("`divvy doctor` checks shared memory")
    })
}

/// The terms of a slice on one of its devices, by its record.
#[must_use]
pub fn terms(record: &SliceRecord, share: &DeviceShare) -> Terms {
    Terms {
        policy: match record.terms.policy {
            Policy::Strict => divvy_ledger::Policy::Strict,
            Policy::BestEffort => divvy_ledger::Policy::BestEffort,
        },
        on_oom_wait: Duration::from_nanos(record.terms.on_oom_wait_ns),
        context_bytes: share.context_bytes.0,
        spill_limit_bytes: share.spill_limit_bytes.0,
        compute: match record.terms.sharing.mode {
            Mode::Lease => compute_terms(&crate::decide::compute::for_arbiter(&record.terms.compute)),
            // Another mechanism than the gate enforces its part.
            Mode::Timeslice | Mode::Mps | Mode::Mig => ComputeTerms::default(),
        },
    }
}

/// The compute share in a grant. A weight promises nothing to any slice, so it is not in the grant.
#[must_use]
pub fn compute_terms(terms: &divvy_arbiter::Terms) -> ComputeTerms {
    ComputeTerms {
        share: terms.share().map_or(0, |share| u32::from(share.parts())),
        cap: match terms.cap {
            divvy_arbiter::Cap::Soft => Cap::Soft,
            divvy_arbiter::Cap::Hard => Cap::Hard,
        },
        class: match terms.class {
            divvy_arbiter::Class::BestEffort => Class::BestEffort,
            divvy_arbiter::Class::Latency { .. } => Class::LatencyCritical,
        },
    }
}

/// Makes the pages of a new slice and hands them to its page server, which listens on `socket`. If an agent died during
/// the handover, the account that the page server already has is taken over.
///
/// # Errors
/// [`Code::SharedMemory`], [`Code::Attach`].
pub fn hand_over(socket: &Path, record: &SliceRecord) -> Result<Vec<Pages>, Fault> {
    let mut handed = Vec::new();
    for (share, made) in record.shares.iter().zip(create(record)?) {
        let declined = |error: &AttachError| matches!(error, AttachError::Declined(Status::Unfit));
        match attach::deliver(socket, &made) {
            Ok(()) => handed.push(made),
            Err(error) if declined(&error) => {
                let account = made.grant.account();
                let pages = recall_account(socket, record, share, account)
                    .map_err(|_| trouble("cannot hand the pages to the slice's page server", &error))?;
                handed.push(pages);
            }
            Err(error) => {
                return Err(trouble(
                    "cannot hand the pages to the slice's page server",
                    &error,
                ));
            }
        }
    }
    Ok(handed)
}

/// Hands one account's pages to the page server that listens on `socket`.
///
/// # Errors
/// [`Code::Attach`].
pub fn deliver(socket: &Path, pages: &Pages) -> Result<(), Fault> {
    attach::deliver(socket, pages)
        .map_err(|error| trouble("cannot hand the pages to the slice's page server", &error))
}

/// The reason why pages could not be recalled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecallFailure {
    /// No process listens: the page server is dead.
    Dead,
    /// The page server lives and waits for its first pages.
    Waiting,
    /// The page server lives and did not answer in time: it is stopped or slow, and may answer later.
    Late(Fault),
    /// The page server lives; its pages cannot be used.
    Unusable(Fault),
}

/// Recalls the pages of all accounts from the page server that listens on `socket`, with new grants of the record's
/// limits and terms. The new grants are delivered before this returns.
///
/// # Errors
/// [`RecallFailure`].
pub fn recall(socket: &Path, record: &SliceRecord) -> Result<Vec<Pages>, RecallFailure> {
    let accounts = (0..).zip(record.shares.iter());
    accounts
        .map(|(account, share)| recall_account(socket, record, share, account))
        .collect()
}

fn recall_account(
    socket: &Path,
    record: &SliceRecord,
    share: &DeviceShare,
    account: u32,
) -> Result<Pages, RecallFailure> {
    let recalled = attach::recall(socket, account).map_err(|error| match error {
        // The system says that no process listens. Any other error is about this process and proves nothing.
        AttachError::System {
            errno: Errno::CONNREFUSED | Errno::NOENT | Errno::CONNRESET,
            ..
        } => RecallFailure::Dead,
        AttachError::Declined(Status::NoPages) => RecallFailure::Waiting,
        AttachError::TimedOut | AttachError::System { .. } => {
            RecallFailure::Late(trouble("the slice's page server does not answer", &error))
        }
        other => RecallFailure::Unusable(trouble("cannot take the slice's pages back", &other)),
    })?;
    let unusable = |fault| RecallFailure::Unusable(fault);
    if !is_of(&recalled.grant, record, share, account) {
        return Err(unusable(
            Fault::new(Code::LedgerCorrupt, "the page server has pages of another slice")
                .hint("`divvy slice delete` or `divvy kill` ends this one"),
        ));
    }
    let pages = recalled
        .adopt()
        .map_err(|error| unusable(page_trouble("cannot make a new grant for the slice", &error)))?;
    // The agent's own record decides, because a page server's copy may come from a hostile user.
    pages.grant.set_memory_limit_bytes(share.granted().0);
    pages.grant.set_terms(&terms(record, share));
    attach::deliver(socket, &pages).map_err(|error| {
        let fault = trouble("cannot hand the pages to the slice's page server", &error);
        match error {
            AttachError::TimedOut => RecallFailure::Late(fault),
            _ => unusable(fault),
        }
    })?;
    Ok(pages)
}

/// Whether a recalled grant is the one that was made for this account of this slice.
fn is_of(grant: &GrantView, record: &SliceRecord, share: &DeviceShare, account: u32) -> bool {
    grant.slice_id().as_str() == record.id
        && grant.account() == account
        && grant.accounts() as usize == record.shares.count()
        && grant.device_uuid() == uuid_bytes(&share.device_uuid)
}

/// The inputs of one look, beside the page itself.
#[derive(Debug)]
pub struct Look<'a> {
    /// The system's answers about the processes.
    pub known: &'a mut Known,
    /// Which of them live.
    pub lives: &'a mut Lives,
    /// Whether the system is asked now. Otherwise its last answers are used.
    pub asks: bool,
}

/// The number of doubts that are listed one by one.
const DOUBTS: usize = 8;

/// Frees the charges of dead processes, and reads those of the living. A tenant can write anything into its ledger: an
/// impossible entry makes the whole page invalid. An entry that the system merely does not know of is reported.
///
/// # Errors
/// [`Code::LedgerCorrupt`].
pub fn usage(pages: &Pages, bounds: Bounds, look: Look<'_>) -> Result<Usage, Fault> {
    let Look { known, lives, asks } = look;
    let ledger = &pages.ledger;
    let effort = || match asks {
        true => Effort::of_a_look(),
        false => Effort::new(0, Duration::ZERO),
    };
    if asks {
        ledger
            .reap_within(&mut effort())
            .map_err(|error| page_trouble("the slice's ledger cannot be read", &error))?;
    }
    let (used, spilled) = (Bytes(ledger.total_used()), Bytes(ledger.total_spilled()));
    bounds.check("all hold", used, spilled)?;
    // It was noted at some moment; now a new peak may be on its way there.
    let peak = Bytes(ledger.peak().min(bounds.device_memory.0)).max(used);
    let mut usage = Usage {
        used,
        spilled,
        peak,
        refusals: ledger.refusals(),
        ..Usage::default()
    };
    let mut more = 0_usize;
    let written: Vec<Process> = ledger.processes_by(|_| true).collect();
    let mut asking = effort();
    lives.look(&written, || asking.may_ask(), |slot| ledger.lives(slot));
    for process in written.into_iter().filter(|process| lives.has(process)) {
        let pid = match process.host_pid {
            0 => process.pid,
            host_pid => host_pid,
        };
        if !is_process_id(pid) || !is_process_id(process.pid) {
            return Err(corrupt(format!(
                "it says that process {pid} is in it, which is no process's number"
            )));
        }
        let (used, spilled) = (Bytes(process.used_bytes), Bytes(process.spilled_bytes));
        bounds.check(&format!("process {pid} holds"), used, spilled)?;
        // The process is looked at again, because it may have ended since.
        let mut still_lives = || {
            let now = asking.may_ask().then(|| ledger.process(process.slot)).flatten();
            now.is_some_and(|now| now.pid == process.pid && now.alive)
        };
        let told = if asks { known.of(pid) } else { known.told(pid) };
        if process.host_pid != 0 && told.is_some_and(|told| told.gone) {
            if usage.doubts.len() == DOUBTS {
                more += 1;
            } else if still_lives() {
                usage.doubts.push(format!(
                    "its ledger tells of process {pid}, which is not to be found on this host"
                ));
            }
        }
        usage.processes.push(ProcessRecord {
            pid,
            command: told.map(|told| told.command.clone()).unwrap_or_default(),
            memory_used_bytes: used,
            memory_spilled_bytes: spilled,
        });
    }
    if more > 0 {
        usage
            .doubts
            .push("its ledger tells of more such processes".into());
    }
    Ok(usage)
}

fn trouble(what: &str, error: &AttachError) -> Fault {
    match error {
        AttachError::Page(error) => page_trouble(what, error),
        AttachError::Version { .. } => Fault::new(Code::PageVersion, what)
            .because(error)
            .hint("another version of Divvy made it: end it (`divvy slice delete`, or `divvy kill`) and make it again"),
        _ => Fault::new(Code::Attach, what).because(error),
    }
}

fn page_trouble(what: &str, error: &PageError) -> Fault {
    let code = match error {
        PageError::Version { .. } | PageError::Foreign { .. } | PageError::Size { .. } => Code::PageVersion,
        PageError::Corrupted { .. } => Code::LedgerCorrupt,
        _ => Code::Attach,
    };
    Fault::new(code, what).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_agent_handed_over_in_part_is_taken_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let uid = rustix::process::getuid().as_raw();
        let run = crate::start::rundir::RunDir::open(&folder.path().join("run")).expect("a run directory");
        let sockets = crate::page_server::make_sockets(&run, "0123abcd", uid, false).expect("sockets");
        let _page_server =
            crate::page_server::PageServer::serve(sockets, attach::PageServer::new()).expect("it serves");
        let control = crate::life::records::control_socket(&run, "0123abcd");
        let socket = run.slice("0123abcd").join("attach.sock");
        let share = |uuid: &str, limit| serde_json::json!({ "device_uuid": uuid, "memory_limit_bytes": limit, "memory_used_bytes": 0 });
        let (one, two) = (
            "GPU-00112233-4455-6677-8899-aabbccddeeff",
            "GPU-ffeeddcc-bbaa-9988-7766-554433221100",
        );
        let record: SliceRecord = serde_json::from_value(serde_json::json!({
            "id": "0123abcd", "name": "two", "uid": uid, "device_uuid": one, "memory_limit_bytes": 4 << 20,
            "memory_used_bytes": 0, "isolation": "cooperative", "policy": "strict", "created_at": "",
            "processes": [], "devices": [share(one, 4 << 20), share(two, 8 << 20)],
        }))
        .expect("a record");
        let died = create(&record).expect("made");
        deliver(&control, &died[0]).expect("the first account");
        assert!(
            attach::connect(&socket, 0).is_err(),
            "a tenant gets all accounts or none"
        );
        assert_eq!(recall(&control, &record).err(), Some(RecallFailure::Waiting));

        let pages = hand_over(&control, &record).expect("taken over");
        let limits: Vec<u64> = (0..2)
            .map(|account| attach::connect(&socket, account).expect("attached"))
            .map(|account| account.grant().memory_limit_bytes())
            .collect();
        assert_eq!((pages.len(), limits), (2, vec![4 << 20, 8 << 20]));
        let again = recall(&control, &record).expect("had back");
        assert_eq!(again.len(), 2);
        // An account of another slice, or of another device, is refused.
        for (field, other) in [("id", "ffff0000"), ("device_uuid", two)] {
            let mut record = serde_json::to_value(&record).expect("a record");
            record[field] = other.into();
            record["devices"][0]["device_uuid"] = if field == "id" { one } else { two }.into();
            let record = serde_json::from_value(record).expect("a record");
            let refused = recall(&control, &record).expect_err("refused");
            assert!(matches!(refused, RecallFailure::Unusable(_)), "{refused:?}");
        }
    }
}

//! The agent's state of leases: the arbiter, and beside each of its tenants the slice's pages. It has no clock and no
//! thread: the caller passes the time, so that tests can.

use std::collections::{BTreeMap, HashMap};

use divvy_arbiter::{
    Arbiter, Cap, DeviceId, Event, MILLISECOND, Nanos, Refused, Settings, Share, TenantId, Terms,
};

use super::account::{Account, Hold};
use super::leaseholder::Leaseholder;
use super::uncharged::Audited;
use super::{Member, shares};
use crate::api::events::EventKind;
use crate::journal::Incident;
use crate::system::procs::Stat;

/// How long a slice that may still use an earlier agent's lease delays the others of its devices. Its processes look
/// for a new agent's grant several times in that time.
pub(super) const DOUBT: Nanos = 250 * MILLISECOND;

/// The leases that run, and the slices that wait.
#[derive(Debug)]
pub(super) struct State {
    pub arbiter: Arbiter,
    /// The devices, in the arbiter's numbering.
    pub devices: Vec<String>,
    pub leaseholders: BTreeMap<u64, Leaseholder>,
    numbers: HashMap<String, u64>,
    next: u64,
    /// The offset added to the arbiter's lease numbers: an earlier agent's are all below it.
    pub epoch_base: u64,
    /// The time at which the last slice in doubt has been waited for; the end of time where none is.
    pub doubts_end_at: Nanos,
    /// The time by which a gate is closed before its lease's end: as long as this machine takes to wake a thread. Work
    /// in flight goes on meanwhile.
    pub early: Nanos,
    /// Slices to look at before anything else.
    pub due: Vec<u64>,
    /// The events to report.
    pub incidents: Vec<Incident>,
    /// The cost of a change of holder on each device, as last told to the arbiter.
    pub refill: HashMap<u32, Nanos>,
    /// Leases that were outlasted so that others were told. The next field counts those after which the device went to
    /// others.
    pub overdue_total: u64,
    /// See above.
    pub expired_total: u64,
    /// The clock of each device in use, as the last look saw it, in MHz.
    pub clocks: HashMap<usize, u32>,
    /// The auditor's findings.
    pub audited: Audited,
    /// Nanoseconds of device use that were charged to no slice.
    pub uncharged_ns: Nanos,
    /// Whether a process is stopped, by the kernel's word.
    pub is_stopped: fn(u32) -> bool,
}

fn is_stopped(pid: u32) -> bool {
    Stat::of(pid).is_ok_and(Stat::is_stopped)
}

impl State {
    pub fn new(settings: Settings, now: Nanos) -> Self {
        Self {
            arbiter: Arbiter::new(settings, 0),
            devices: Vec::new(),
            clocks: HashMap::new(),
            leaseholders: BTreeMap::new(),
            numbers: HashMap::new(),
            next: 0,
            // No agent gives a lease each nanosecond.
            epoch_base: now,
            doubts_end_at: Nanos::MAX,
            early: 0,
            due: Vec::new(),
            incidents: Vec::new(),
            refill: HashMap::new(),
            overdue_total: 0,
            expired_total: 0,
            audited: Audited::default(),
            uncharged_ns: 0,
            is_stopped,
        }
    }

    /// The number by which the arbiter knows a slice.
    pub fn number(&self, id: &str) -> Option<u64> {
        self.numbers.get(id).copied()
    }

    /// Replaces the arbiter's slices with these, each with its terms.
    pub fn sync(&mut self, members: Vec<Member>, now: Nanos) {
        let mut wanted: HashMap<String, Member> = members
            .into_iter()
            .map(|member| (member.id.clone(), member))
            .collect();
        let gone: Vec<u64> = self
            .leaseholders
            .iter()
            .filter(|(_, leaseholder)| {
                let still = wanted.get(&leaseholder.member.id);
                still.is_none_or(|member| {
                    !leaseholder
                        .accounts
                        .iter()
                        .all(|account| account.is_of(&member.pages))
                })
            })
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.dismiss(number, now);
        }
        let mut resized: Vec<(u64, Terms)> = Vec::new();
        for (number, leaseholder) in &mut self.leaseholders {
            if let Some(member) = wanted.remove(&leaseholder.member.id) {
                if member.terms != leaseholder.member.terms {
                    resized.push((*number, member.terms));
                }
                leaseholder.member = member;
            }
        }
        // A slice that gives back comes first and frees what another one gets.
        resized.sort_by_key(|(number, terms)| {
            let before = self
                .leaseholders
                .get(number)
                .map_or(0, |leaseholder| parts(&leaseholder.held_to));
            i32::from(parts(terms)) - i32::from(before)
        });
        for (number, terms) in resized {
            self.resize(number, terms, now);
        }
        let mut newcomers: Vec<Member> = wanted.into_values().collect();
        newcomers.sort_by(|a, b| a.id.cmp(&b.id));
        for member in newcomers {
            self.admit(member, now);
        }
        self.regroup(now);
        self.look_at_due(now);
    }

    fn dismiss(&mut self, number: u64, now: Nanos) {
        if let Some(leaseholder) = self.leaseholders.remove(&number) {
            self.numbers.remove(&leaseholder.member.id);
            self.tell(
                now,
                &Event::Died {
                    tenant: TenantId(number),
                },
            );
            self.due.extend(self.neighbours(&leaseholder));
            for account in &leaseholder.accounts {
                account.listener.iter().for_each(|listener| listener.end());
            }
        }
    }

    /// The slices that have a device in common with this one.
    pub fn neighbours(&self, leaseholder: &Leaseholder) -> Vec<u64> {
        let on = |account: &Account| {
            leaseholder
                .accounts
                .iter()
                .any(|mine| mine.device == account.device)
        };
        self.leaseholders
            .iter()
            .filter(|(_, other)| other.accounts.iter().any(on))
            .map(|(number, _)| *number)
            .collect()
    }

    fn resize(&mut self, number: u64, terms: Terms, now: Nanos) {
        let tenant = TenantId(number);
        let held_to = match self.try_tell(now, &Event::Resized { tenant, terms }) {
            Ok(()) => terms,
            Err(refused) => {
                let terms = self.cannot_promise(number, &terms, refused);
                self.tell(now, &Event::Resized { tenant, terms });
                terms
            }
        };
        if let Some(leaseholder) = self.leaseholders.get_mut(&number) {
            leaseholder.held_to = held_to;
        }
        self.due.push(number);
    }

    fn admit(&mut self, member: Member, now: Nanos) {
        let devices: Vec<DeviceId> = member.devices.iter().map(|uuid| self.device(uuid)).collect();
        let number = self.next;
        self.next += 1;
        let (terms, owner) = (member.terms, member.account);
        let accounts = devices
            .iter()
            .enumerate()
            .map(|(place, device)| Account::new(*device, &member.pages, place, now))
            .collect();
        self.numbers.insert(member.id.clone(), number);
        self.leaseholders.insert(
            number,
            Leaseholder {
                member,
                held_to: terms,
                accounts,
                fresh: true,
                lone: false,
                in_doubt_until: 0,
                asked_at: None,
                queued_ns: 0,
                leases: 0,
                overdue: false,
                overdue_total: 0,
                expired_total: 0,
                is_uncharged: false,
                uncharged_ns: 0,
            },
        );
        let arrived = |terms| Event::Arrived {
            tenant: TenantId(number),
            devices: devices.clone(),
            terms,
        };
        if let Err(refused) = self.try_tell(now, &arrived(terms)) {
            let lesser = self.cannot_promise(number, &terms, refused);
            self.tell(now, &arrived(lesser));
            if let Some(leaseholder) = self.leaseholders.get_mut(&number) {
                leaseholder.held_to = lesser;
            }
        }
        // What root makes is for many: pods, containers. They do not pay for one another.
        if owner != 0 {
            let (tenant, owner) = (TenantId(number), u64::from(owner));
            self.tell(now, &Event::Owned { tenant, owner });
        }
        self.due.push(number);
    }

    /// Admission keeps the promises within the device. This is for exceptions: records of another version, or a part of
    /// a part that was rounded up. The slice then has its part without a promise.
    fn cannot_promise(&mut self, number: u64, terms: &Terms, refused: Refused) -> Terms {
        let lesser = Terms::weight(parts(terms).max(1));
        self.note(
            number,
            None,
            EventKind::SliceResized,
            format!("its share cannot be promised, it has it as a weight: {refused}"),
        );
        lesser
    }

    fn device(&mut self, uuid: &str) -> DeviceId {
        let known = self.devices.iter().position(|device| device == uuid);
        match known {
            Some(place) => DeviceId(place as u32),
            None => {
                self.devices.push(uuid.to_owned());
                self.arbiter.add_device()
            }
        }
    }

    /// Opens the gates of slices that are alone, and makes those lease that no longer are.
    fn regroup(&mut self, now: Nanos) {
        let numbers: Vec<u64> = self.leaseholders.keys().copied().collect();
        for number in numbers {
            let alone = alone(&self.leaseholders, number);
            let Some(leaseholder) = self.leaseholders.get_mut(&number) else {
                continue;
            };
            if std::mem::replace(&mut leaseholder.fresh, false) && !alone {
                // Without a decision of this agent nothing is launched. Work launched under an earlier agent may be in
                // flight.
                leaseholder.accounts.iter_mut().for_each(Account::close);
                if leaseholder
                    .accounts
                    .iter()
                    .any(|account| account.grant().generation() > 1)
                {
                    leaseholder.in_doubt_until = now.saturating_add(DOUBT);
                    self.doubts_end_at = leaseholder.in_doubt_until;
                }
                continue;
            }
            if alone == leaseholder.lone {
                continue;
            }
            leaseholder.lone = alone;
            leaseholder.stop_asking(now);
            for account in &mut leaseholder.accounts {
                account.figures.forget();
            }
            let tenant = TenantId(number);
            if alone {
                (leaseholder.in_doubt_until, leaseholder.overdue) = (0, false);
                leaseholder.accounts.iter_mut().for_each(Account::open);
                self.tell(now, &Event::Idle { tenant });
            } else {
                leaseholder.ask(now);
                // It may have anything in flight: it holds the device until it says otherwise.
                self.tell(now, &Event::Ready { tenant });
                for account in self
                    .leaseholders
                    .get_mut(&number)
                    .into_iter()
                    .flat_map(|leaseholder| &mut leaseholder.accounts)
                {
                    if account.hold == Hold::Nothing {
                        account.close();
                    }
                }
            }
            self.due.push(number);
        }
        self.write_shares();
    }

    /// Tells each slice what it may take without an agent.
    fn write_shares(&mut self) {
        for device in 0..self.devices.len() {
            let here = |account: &Account| account.device.0 as usize == device;
            let (numbers, terms): (Vec<u64>, Vec<Terms>) = self
                .leaseholders
                .iter()
                .filter(|(_, leaseholder)| leaseholder.accounts.iter().any(here))
                .map(|(number, leaseholder)| (*number, leaseholder.held_to))
                .unzip();
            for (number, effective) in numbers.iter().zip(shares::effective(&terms)) {
                let leaseholder = self.leaseholders.get_mut(number);
                let accounts = leaseholder
                    .into_iter()
                    .flat_map(|leaseholder| &mut leaseholder.accounts);
                for account in accounts.filter(|account| here(account)) {
                    account.effective = effective;
                    // No process waits for ever for an agent that is dead.
                    account.grant().set_fallback_share(effective.max(1));
                    account.grant().beat();
                }
            }
        }
    }

    /// Passes an event to the arbiter, and carries out its decisions.
    pub fn tell(&mut self, now: Nanos, event: &Event) {
        if let Err(refused) = self.try_tell(now, event) {
            // Each event is of a registered tenant: an error here is a harmless mistake of the agent's.
            tracing::debug!(?event, %refused, "the arbiter refuses an event");
        }
    }

    fn try_tell(&mut self, now: Nanos, event: &Event) -> Result<(), Refused> {
        let decisions = self.arbiter.handle(now, event)?;
        for decision in decisions {
            self.carry_out(decision, now);
        }
        Ok(())
    }

    /// An event of a slice to report.
    pub fn note(&mut self, number: u64, device: Option<DeviceId>, kind: EventKind, message: String) {
        let member = self
            .leaseholders
            .get(&number)
            .map(|leaseholder| &leaseholder.member);
        self.incidents.push(Incident {
            kind,
            slice: member.map(|member| (member.id.clone(), member.name.clone())),
            owner: member.map(|member| member.uid),
            device: device.and_then(|device| self.devices.get(device.0 as usize).cloned()),
            run: None,
            message,
        });
    }
}

/// Whether a slice is alone on all its devices, and nothing caps it.
fn alone(leaseholders: &BTreeMap<u64, Leaseholder>, number: u64) -> bool {
    let Some(leaseholder) = leaseholders.get(&number) else {
        return false;
    };
    let on = |account: &Account| {
        leaseholder
            .accounts
            .iter()
            .any(|mine| mine.device == account.device)
    };
    // A cap of the whole device is no cap.
    let uncapped =
        leaseholder.held_to.cap == Cap::Soft || parts(&leaseholder.held_to) == Share::WHOLE.parts();
    uncapped
        && leaseholders
            .iter()
            .all(|(other, leaseholder)| *other == number || !leaseholder.accounts.iter().any(on))
}

/// A share, or the weight that stands for one.
fn parts(terms: &Terms) -> u16 {
    terms.share().map_or(0, divvy_arbiter::Share::parts)
}

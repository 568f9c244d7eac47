//! Page servers of lasting slices, which stay while nothing runs in them. Each is a small process of its own, which the
//! agent starts and, when it dies, replaces: the agent holds the pages too. docs/adr/0011 says more.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use divvy_ledger::attach::{self, Pages};
use divvy_model::{Code, Fault, SliceRecord, SliceState};

use crate::journal::Journal;
use crate::life::grants::Grants;
use crate::life::pages;
use crate::life::records::{control_socket, store};
use crate::life::slice::Need;
use crate::life::workers::Workers;
use crate::page_server::make_sockets;
use crate::start::log::open_log;
use crate::start::rundir::{KeepCommand, RunDir};
use crate::state::Shared;
use crate::system::locks::Locks;

/// The time limit for a page server to begin to listen.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The page servers of lasting slices.
pub(crate) struct PageServers {
    pub run: RunDir,
    pub state: Shared,
    pub journal: Arc<Journal>,
    pub grants: Arc<Grants>,
    /// The command that serves a lasting slice's pages.
    pub keep: KeepCommand,
    /// This is held for a slice while its page server is started.
    pub keeping: Locks,
    /// The workers of those that have some.
    pub workers: Arc<Workers>,
    /// The time of the last log line about a page server that could not be started.
    pub said_at: Mutex<Option<Instant>>,
}

impl PageServers {
    /// Makes sure that a lasting slice has pages, a living page server and, where its programs need workers, the process
    /// that starts them.
    ///
    /// # Errors
    /// The reason why it has none; [`Code::SliceGone`] when it was deleted meanwhile.
    pub fn keep_up(&self, id: &str) -> Result<(), Fault> {
        self.keep_pages_up(id)?;
        self.workers.keep_up(id)
    }

    fn keep_pages_up(&self, id: &str) -> Result<(), Fault> {
        // One start at a time for each slice, or it would get two page servers.
        let _alone = self.keeping.hold(id);
        let gone = || Fault::new(Code::SliceGone, "the slice was deleted meanwhile");
        let (record, pages) = {
            let mut state = self.state.lock();
            let slice = state.slices.get_mut(id).ok_or_else(gone)?;
            if !slice.record.lasting {
                return Ok(());
            }
            match slice.need() {
                Need::Nothing => return Ok(()),
                Need::Backoff(fault) => return Err(fault),
                Need::PageServer(pages) => (slice.record.clone(), pages),
            }
        };
        let pages = match pages {
            Some(pages) => pages,
            None => Arc::new(pages::create(&record)?),
        };
        // The state is not locked here: a new process takes its time.
        let mut child = self.start_page_server(&record, &pages)?;
        let mut state = self.state.lock();
        let Some(slice) = state.slices.get_mut(id) else {
            let _ended = child.kill();
            let _reaped = child.wait();
            return Err(gone());
        };
        if self.journal.may_log(record.uid) {
            tracing::info!(
                slice = record.name,
                page_server = child.id(),
                "page server started"
            );
        }
        slice.set_own_page_server(child);
        slice.renew(pages);
        slice.record.state = SliceState::Running;
        let record = slice.stored_form();
        self.grants.lease_out(&state);
        store(&self.run, &record)
    }

    /// Starts a page server and hands it the pages.
    fn start_page_server(&self, record: &SliceRecord, pages: &[Pages]) -> Result<Child, Fault> {
        let cannot = || {
            Fault::new(
                Code::Attach,
                format!("cannot start the page server of slice {}", record.name),
            )
        };
        // These replace the sockets of a page server that is dead, or about to be replaced.
        let sockets = make_sockets(
            &self.run,
            &record.id,
            record.device_uid(),
            // In containers of a slice with workers no process gets the pages.
            record.worker.is_none(),
        )?;
        let socket = control_socket(&self.run, &record.id);
        let (ours, theirs) = UnixStream::pair().map_err(|error| cannot().because(&error))?;
        attach::give(&ours, &sockets).map_err(|error| cannot().because(&error))?;
        // The agent's own descriptors are closed, or a client of a dead page server would wait instead of being
        // refused.
        drop(sockets);
        let mut child = (self.keep)(&self.run, &record.id)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(open_log(&self.run)?)
            .current_dir("/")
            .spawn()
            .map_err(|error| cannot().because(&error))?;
        let begin = Instant::now();
        let mut left = pages.iter();
        let mut next = left.next();
        while let Some(account) = next {
            let refusal = match pages::deliver(&socket, account) {
                Ok(()) => {
                    next = left.next();
                    continue;
                }
                Err(refusal) => refusal,
            };
            let ended = child.try_wait().is_ok_and(|status| status.is_some());
            if ended || begin.elapsed() >= TIMEOUT {
                let _ended = child.kill();
                let _reaped = child.wait();
                return Err(cannot().after(&refusal));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(child)
    }

    /// Replaces the page servers that died, and makes new pages for those that were lost. A failed start is tried again
    /// with the next tick, and logged once a minute.
    pub fn keep_all_up(&self) {
        const SAY_AGAIN: Duration = Duration::from_secs(60);
        let mut lacking: Vec<String> = {
            let mut state = self.state.lock();
            let lasting = state.slices.values_mut().filter(|slice| slice.record.lasting);
            lasting
                .filter_map(|slice| {
                    matches!(slice.need(), Need::PageServer(_)).then(|| slice.record.id.clone())
                })
                .collect()
        };
        for id in self.workers.lacking() {
            if !lacking.contains(&id) {
                lacking.push(id);
            }
        }
        for id in lacking {
            if let Err(fault) = self.keep_up(&id) {
                let mut said = self.said_at.lock().unwrap_or_else(PoisonError::into_inner);
                if said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
                    *said = Some(Instant::now());
                    tracing::error!(slice = id, code = %fault.code, "{fault}: {}", fault.causes.join(": "));
                }
            }
        }
    }
}

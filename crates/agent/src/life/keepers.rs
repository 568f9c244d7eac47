//! Lasting slices: those that stay while nothing runs in them. Their keeper is a small process of its own, which the
//! agent starts and, when it dies, replaces: the agent holds the pages too. docs/adr/0011 says more.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use divvy_ledger::attach::{self, Pages};
use divvy_model::{Code, Fault, RunRecord, SliceRecord, SliceState};

use crate::api::events::EventKind;
use crate::api::{CreatedSlice, Join};
use crate::daemon::{Daemon, State};
use crate::keeper::make_sockets;
use crate::life::pages;
use crate::life::records::{control_socket, discard, store};
use crate::life::slice::Need;
use crate::start::on_demand::open_log;
use crate::system::peer::Peer;

/// How long a keeper may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);

impl Daemon {
    /// Sees to it that a lasting slice has pages and a living keeper.
    ///
    /// # Errors
    /// What keeps it from that; [`Code::SliceGone`] when it was deleted meanwhile.
    pub(crate) fn keep_up(&self, id: &str) -> Result<(), Fault> {
        // One at a time of each, or a slice would get two keepers.
        let _alone = self.keeping.hold(id);
        let gone = || Fault::new(Code::SliceGone, "the slice was deleted meanwhile");
        let (record, pages) = {
            let mut state = self.state();
            let slice = state.slices.get_mut(id).ok_or_else(gone)?;
            if !slice.record.lasting {
                return Ok(());
            }
            match slice.need() {
                Need::Nothing => return Ok(()),
                Need::Patience(fault) => return Err(fault),
                Need::Keeper(pages) => (slice.record.clone(), pages),
            }
        };
        let pages = match pages {
            Some(pages) => pages,
            None => Arc::new(pages::create(&record)?),
        };
        // Not while we hold the state: a new process takes its time.
        let mut child = self.start_keeper(&record, &pages)?;
        let mut state = self.state();
        let Some(slice) = state.slices.get_mut(id) else {
            let _ended = child.kill();
            let _reaped = child.wait();
            return Err(gone());
        };
        if self.may_log(record.uid) {
            tracing::info!(slice = record.name, keeper = child.id(), "keeper started");
        }
        slice.set_own_keeper(child);
        slice.pages = Some(pages);
        slice.write_grants();
        slice.record.state = SliceState::Running;
        let record = slice.stored_form();
        self.lease_out(&state);
        store(&self.run, &record)
    }

    /// Starts a keeper and hands it the pages.
    fn start_keeper(&self, record: &SliceRecord, pages: &[Pages]) -> Result<Child, Fault> {
        let cannot = || {
            Fault::new(
                Code::Attach,
                format!("cannot start the keeper of slice {}", record.name),
            )
        };
        // In the place of those of a keeper that is dead, or about to be replaced.
        let sockets = make_sockets(&self.run, &record.id, record.uid, true)?;
        let socket = control_socket(&self.run, &record.id);
        let (ours, theirs) = UnixStream::pair().map_err(|error| cannot().because(&error))?;
        attach::give(&ours, &sockets).map_err(|error| cannot().because(&error))?;
        // Ours are closed, or whoever connects to a dead keeper would wait instead of being refused.
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
            if ended || begin.elapsed() >= PATIENCE {
                let _ended = child.kill();
                let _reaped = child.wait();
                return Err(cannot().after(&refusal));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(child)
    }

    /// Replaces the keepers that died, and makes pages anew that were lost. One that cannot be had is tried again
    /// with the next tick, and said once a minute.
    pub(crate) fn keep_all_up(&self) {
        const SAY_AGAIN: Duration = Duration::from_secs(60);
        let lacking: Vec<String> = {
            let mut state = self.state();
            let lasting = state.slices.values_mut().filter(|slice| slice.record.lasting);
            lasting
                .filter_map(|slice| matches!(slice.need(), Need::Keeper(_)).then(|| slice.record.id.clone()))
                .collect()
        };
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

    /// Lets the caller, a `divvy run`, put its program into a lasting slice.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::NotLasting`], and what keeps the slice from being joined.
    pub fn join(&self, peer: Peer, which: &str, ask: &Join) -> Result<CreatedSlice, Fault> {
        self.look_at_members_of(peer.uid);
        let id = {
            let mut state = self.state();
            let slice = state.find(which, peer)?;
            peer.may_change(slice.record.uid, self.uid)?;
            let hint = "`divvy slice create` makes slices that several runs can join";
            slice.record.require_lasting(hint)?;
            let id = slice.record.id.clone();
            let parent = self
                .parent(&state, peer, ask.inside.as_deref())?
                .filter(|parent| *parent != id);
            if let Some(parent) = parent.and_then(|parent| state.slices.get(&parent)) {
                return Err(Fault::new(
                    Code::OutsideSlice,
                    format!("this runs inside slice {}", parent.record.name),
                )
                .hint("leave --slice out, or start it from a shell that is in no slice"));
            }
            id
        };
        if !ask.dry_run {
            self.prepare(&id)?;
        }
        self.keep_up(&id)?;
        let mut state = self.state();
        let slice = state.find(&id, peer)?;
        if !ask.dry_run {
            slice.join(RunRecord {
                pid: peer.pid,
                start_ticks: peer.since,
                command: ask.command.clone(),
            });
            let record = slice.stored_form();
            store(&self.run, &record)?;
            if self.may_log(peer.uid) {
                tracing::info!(slice = record.name, run = peer.pid, "joined");
            }
        }
        let shown = slice.shown();
        self.joined(&state, shown)
    }

    /// The answer to one who joins.
    pub(crate) fn joined(&self, state: &State, slice: SliceRecord) -> Result<CreatedSlice, Fault> {
        let devices = slice
            .shares()
            .iter()
            .map(|share| state.device(&share.device_uuid))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(CreatedSlice {
            directory: self.run.slice(&slice.id),
            device: state.device(&slice.device_uuid)?,
            devices,
            slice,
            joined: true,
        })
    }

    /// Deletes a lasting slice in which nothing runs.
    pub(crate) fn delete(&self, state: &mut State, id: &str) -> Result<(), Fault> {
        let Some(slice) = state.slices.get_mut(id) else {
            return Ok(());
        };
        let shown = slice.shown();
        let busy = self.pinned_members(&shown).len().max(shown.runs.len());
        if busy > 0 {
            return Err(Fault::new(
                Code::SliceBusy,
                format!("{busy} processes live in slice `{}`", shown.name),
            )
            .hint("`divvy ps` lists them; `divvy slice delete --yes` ends them first"));
        }
        if let Some(slice) = state.slices.get_mut(id) {
            if slice.may_be_in_use() {
                return Err(Fault::new(
                    Code::SliceBusy,
                    format!("processes may live in slice `{}`", shown.name),
                )
                .cause("the system does not tell")
                .hint("`divvy inspect` says more; try again"));
            }
            slice.end_keeper();
        }
        if self.may_log(shown.uid) {
            tracing::info!(slice = shown.name, "slice deleted");
        }
        self.journal.tell(EventKind::SliceEnded, &shown, "deleted");
        state.slices.remove(id);
        state.ended_at = Some(Instant::now());
        discard(&self.run, id);
        self.compute_changed(state);
        Ok(())
    }
}

//! Requests for slices: what the request resolves to, and what follows admission.

use std::sync::Arc;
use std::time::{Duration, Instant};

use divvy_model::{Code, Fault, Isolation, JobRecord, Mode, RunRecord, SliceRecord, SliceState};

use crate::admission::admit::Admission;
use crate::admission::asked::asked;
use crate::admission::home::Homes;
use crate::admission::queue::Line;
use crate::admission::waiters::{StoredWaiter, Waiter};
use crate::admission::wanted::{Wanted, asks_for_nothing, join_of};
use crate::api::{CreateSlice, CreatedSlice, Join, Standing, Wait};
use crate::holder::PageHolder;
use crate::journal::Journal;
use crate::life::anchor::unix_seconds;
use crate::life::anchors::LifetimeAnchors;
use crate::life::ending::Endings;
use crate::life::names::{default_slice_name, fresh_id, named};
use crate::life::page_servers::PageServers;
use crate::life::records::store;
use crate::modes::keep::Modes;
use crate::start::rundir::RunDir;
use crate::start::settings::Current;
use crate::state::{Shared, State};
use crate::system::peer::Peer;
use crate::system::procs;
use crate::system::watched::Watched;

/// The resolved request.
pub(crate) enum Resolved {
    /// The slice exists already.
    Done(Box<CreatedSlice>),
    /// The slice is to be made.
    Wanted(Box<Wanted>),
}

/// Whether the programs of the slice are to have no device.
fn has_workers(ask: &CreateSlice) -> bool {
    ask.request.terms.isolation == Isolation::Enforced && !ask.request.terms.whole
}

/// Requests for slices: to make one, to wait for one, to join one.
pub(crate) struct Requests {
    pub run: RunDir,
    /// The agent's own user.
    pub uid: u32,
    pub settings: Arc<Current>,
    pub state: Shared,
    pub journal: Arc<Journal>,
    pub admission: Arc<Admission>,
    pub line: Arc<Line>,
    pub homes: Arc<Homes>,
    pub modes: Arc<Modes>,
    pub holder: Arc<PageHolder>,
    pub page_servers: Arc<PageServers>,
    pub endings: Arc<Endings>,
    pub anchors: Arc<LifetimeAnchors>,
}

impl Requests {
    /// Admits a slice for the caller, which is to become its page server; a lasting slice gets a page server of its
    /// own. No waiter is overtaken.
    ///
    /// # Errors
    /// The refusals of policy and admission, [`Code::NotAllowed`], [`Code::NameTaken`], [`Code::RunDir`].
    pub fn create(&self, peer: Peer, ask: &CreateSlice) -> Result<CreatedSlice, Fault> {
        self.admission.may_create(peer)?;
        if let Some(owner) = &ask.for_job {
            let accounts = self.state.lock().accounts.clone();
            accounts.prepare(owner.uid);
        }
        self.homes.members.ask_page_servers(&self.state, peer.uid);
        let wanted = match self.resolve(peer, ask)? {
            Resolved::Done(created) => return self.prepared(*created, ask.dry_run),
            Resolved::Wanted(wanted) => wanted,
        };
        let begin = Instant::now();
        let mut held = None;
        loop {
            let attempt = {
                let mut state = self.state.lock();
                // A container that was just removed no longer has its name.
                self.anchors.delete_unanchored(&mut state);
                let ahead = self.line.serve(&mut state);
                self.admission.try_create(&mut state, peer, &wanted, &ahead)
            };
            match attempt {
                // This is held until the slice has its device, so that nothing is put back meanwhile.
                Err(fault) if held.is_none() && self.modes.instances.may_be_made(&wanted.ask, fault.code) => {
                    held = Some(self.modes.make_instance(&wanted.ask, fault)?);
                }
                Err(fault) if fault.code == Code::DeviceFull && self.memory_may_come_back(begin) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(fault)
                    if fault.code == Code::NameTaken && self.name_may_be_free(begin, peer, &wanted) =>
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                outcome => {
                    drop(held);
                    return self.settled(peer, &wanted, outcome);
                }
            }
        }
    }

    /// Resolves the request: a slice inside another, a share in the user's default slice, or what was asked for.
    pub fn resolve(&self, peer: Peer, ask: &CreateSlice) -> Result<Resolved, Fault> {
        let mut state = self.state.lock();
        if let Some(created) = self.admitted_before(&mut state, peer).filter(|_| !ask.dry_run) {
            return Ok(Resolved::Done(Box::new(created)));
        }
        let wanted = |ask: CreateSlice, parent, then_join| {
            Ok(Resolved::Wanted(Box::new(Wanted {
                ask,
                parent,
                then_join,
            })))
        };
        let Some(parent) = self.homes.of(&state, peer, ask.inside.as_deref())? else {
            drop(state);
            return match self
                .settings
                .get()
                .default_slice
                .filter(|_| asks_for_nothing(ask))
            {
                Some(memory) => {
                    let name = default_slice_name(peer.uid);
                    match self.join_default(peer, ask, &name) {
                        Err(fault) if fault.code == Code::UnknownSlice => {
                            let mut ask = ask.clone();
                            ask.request.name = Some(name);
                            ask.request.memory = Some(memory);
                            ask.lasting = true;
                            wanted(ask, None, true)
                        }
                        outcome => outcome.map(|created| Resolved::Done(Box::new(created))),
                    }
                }
                None if has_workers(ask) && !ask.lasting => {
                    // Its pages are kept from the caller, so a process of the agent's serves them. It goes with the run.
                    let mut ask = ask.clone();
                    ask.lasting = true;
                    ask.attended = true;
                    wanted(ask, None, true)
                }
                None => wanted(ask.clone(), None, false),
            };
        };
        if ask.lasting {
            return Err(Fault::new(
                Code::OutsideSlice,
                "a lasting slice cannot be made inside another one",
            )
            .hint("make it from a shell that is in no slice"));
        }
        let around = state
            .slices
            .get(&parent)
            .map(|slice| slice.record.terms.isolation);
        if has_workers(ask) || (around == Some(Isolation::Enforced) && !asks_for_nothing(ask)) {
            return Err(Fault::new(
                Code::NotEnforceable,
                "an `enforced` slice cannot be inside another one, nor around one",
            )
            .hint("a run without --memory and --isolation shares the slice around it"));
        }
        if asks_for_nothing(ask) {
            // The parent's own limit is enough.
            let slice = state.find(&parent, peer)?;
            if slice.record.lasting {
                drop(state);
                let created = self.join(peer, &parent, &join_of(ask))?;
                return Ok(Resolved::Done(Box::new(created)));
            }
            let shown = slice.shown();
            let created = self.joined(&state, shown)?;
            return Ok(Resolved::Done(Box::new(created)));
        }
        wanted(ask.clone(), Some(parent), false)
    }

    /// Joins the user's default slice; it must be on the device that the request names, if any.
    fn join_default(&self, peer: Peer, ask: &CreateSlice, name: &str) -> Result<CreatedSlice, Fault> {
        if ask.request.device.is_some() {
            let mut state = self.state.lock();
            let before = state.inventory.clone();
            let asked = asked(&mut state.inventory, ask);
            // The request joins an existing slice: nothing is made for it.
            state.inventory = before;
            let chosen = asked?.chosen;
            let home = &state.find(name, peer)?.record;
            if let Some(other) = chosen
                .iter()
                .find(|device| home.shares.on(&device.uuid).is_none())
            {
                return Err(Fault::new(
                    Code::OutsideSlice,
                    format!(
                        "your default slice {name} is on {}, not on {}",
                        home.shares.first.device_uuid, other.uuid
                    ),
                )
                .hint("--memory asks for a slice of your own there"));
            }
        }
        self.join(peer, name, &join_of(ask))
    }

    /// The steps after admission: the page server of a lasting slice, and the user's own entry into a default slice.
    pub fn settled(
        &self,
        peer: Peer,
        wanted: &Wanted,
        outcome: Result<CreatedSlice, Fault>,
    ) -> Result<CreatedSlice, Fault> {
        let name = wanted.ask.request.name.as_deref().unwrap_or_default();
        let created = match outcome {
            // Another run of the same user was faster.
            Err(fault) if fault.code == Code::NameTaken && wanted.then_join && !wanted.ask.attended => {
                return self.join_default(peer, &wanted.ask, name);
            }
            outcome => self.prepared(outcome?, wanted.ask.dry_run)?,
        };
        if !wanted.ask.lasting || wanted.ask.dry_run {
            return Ok(created);
        }
        let id = &created.slice.id;
        if let Err(fault) = self.page_servers.keep_up(id) {
            let _no_longer = self
                .endings
                .delete(&mut self.state.lock(), id, "it could not be served");
            return Err(fault);
        }
        if wanted.then_join {
            return self.join(peer, id, &join_of(&wanted.ask));
        }
        let slice = self.state.lock().find(id, peer)?.shown();
        Ok(CreatedSlice { slice, ..created })
    }

    /// Makes the device ready for a slice; if that fails, the slice is taken back.
    pub fn prepared(&self, created: CreatedSlice, dry_run: bool) -> Result<CreatedSlice, Fault> {
        if !dry_run {
            self.holder.hold_for(&created.slice);
        }
        if dry_run || created.slice.terms.sharing.mode == Mode::Lease {
            return Ok(created);
        }
        let id = &created.slice.id;
        if let Err(fault) = self.modes.prepare(id) {
            if !created.joined {
                self.endings.revoke(id);
            }
            return Err(fault);
        }
        let mut slice = created.slice;
        if let Some(there) = self.state.lock().slices.get(&slice.id) {
            slice.mps_partition.clone_from(&there.record.mps_partition);
        }
        Ok(CreatedSlice { slice, ..created })
    }

    /// A slice that this very process was given and has not taken up: it asks again, because the answer was lost.
    fn admitted_before(&self, state: &mut State, peer: Peer) -> Option<CreatedSlice> {
        let slice = state.slices.values_mut().find(|slice| {
            let record = &slice.record;
            record.state == SliceState::Starting
                && record.page_server_pid == Some(peer.pid)
                && record.uid == peer.uid
                && slice.pages.is_none()
        })?;
        let shown = slice.shown();
        let created = self.joined(state, shown).ok()?;
        Some(CreatedSlice {
            joined: false,
            ..created
        })
    }

    /// A program's memory returns to its device a moment after its slice has ended. A refusal in that moment would be
    /// for memory that no process holds.
    fn memory_may_come_back(&self, begin: Instant) -> bool {
        const MOMENT: Duration = Duration::from_millis(500);
        let ended_at = self.state.lock().ended_at;
        begin.elapsed() < MOMENT && ended_at.is_some_and(|ended| ended.elapsed() < 2 * MOMENT)
    }

    /// A slice whose `divvy run` was killed goes with the next look at it, if no process of it is left. A command that
    /// comes in that moment gets the name.
    fn name_may_be_free(&self, begin: Instant, peer: Peer, wanted: &Wanted) -> bool {
        const MOMENT: Duration = Duration::from_millis(500);
        let state = self.state.lock();
        let name = wanted.ask.request.name.as_deref().unwrap_or_default();
        begin.elapsed() < MOMENT
            && named(&state, peer.uid, name).is_some_and(|slice| !slice.record.lasting && !slice.is_kept())
    }

    /// Gives the caller a place in the queue, or tells how the one it has stands.
    ///
    /// # Errors
    /// A refusal that waiting does not change.
    pub fn wait(&self, peer: Peer, ask: &Wait) -> Result<Standing, Fault> {
        let ticket = {
            let state = self.state.lock();
            let mine = |waiter: &&Waiter| {
                Some(&waiter.stored.ticket) == ask.ticket.as_ref() && waiter.stored.uid == peer.uid
            };
            state
                .queue
                .waiters
                .iter()
                .find(mine)
                .map(|waiter| waiter.stored.ticket.clone())
        };
        let ticket = match ticket {
            Some(ticket) => ticket,
            None => match self.enter(peer, ask)? {
                Ok(ticket) => ticket,
                Err(created) => return Ok(Standing::admitted(created)),
            },
        };
        self.look(peer, &ticket)
    }

    /// A place at the end of the queue, or the slice if one was free without waiting.
    fn enter(&self, peer: Peer, ask: &Wait) -> Result<Result<String, CreatedSlice>, Fault> {
        self.admission.may_create(peer)?;
        self.homes.members.ask_page_servers(&self.state, peer.uid);
        let wanted = match self.resolve(peer, &ask.ask)? {
            Resolved::Done(created) => return self.prepared(*created, ask.ask.dry_run).map(Err),
            Resolved::Wanted(wanted) => *wanted,
        };
        let mut state = self.state.lock();
        let mine = |waiter: &Waiter| waiter.stored.peer() == peer;
        let mut waiters = state.queue.waiters.iter();
        if let Some(same) = waiters.find(|waiter| mine(waiter) && waiter.stored.wanted == wanted) {
            // The answer with its ticket was lost.
            return Ok(Ok(same.stored.ticket.clone()));
        }
        // A process has one place. A second request goes to the end.
        state.queue.waiters.retain(|waiter| !mine(waiter));
        state.queue.require_room(peer, self.uid, &state.accounts)?;
        let ticket = fresh_id(&state)?;
        let stored = StoredWaiter {
            ticket: ticket.clone(),
            uid: peer.uid,
            pid: peer.pid,
            start_ticks: peer.since,
            wanted,
        };
        let watched = Watched::again(peer.pid, peer.since).ok_or_else(|| gone(peer))?;
        state.queue.waiters.push(Waiter::new(stored, watched));
        self.line.serve(&mut state);
        state.queue.unstored = true;
        self.line.store_in_time(&mut state);
        Ok(Ok(ticket))
    }

    /// The state of a place. A place that was served is given up.
    fn look(&self, peer: Peer, ticket: &str) -> Result<Standing, Fault> {
        let mut state = self.state.lock();
        let gone = || Fault::new(Code::Internal, "the place in the queue is gone");
        let at = state
            .queue
            .waiters
            .iter()
            .position(|waiter| waiter.stored.ticket == ticket)
            .ok_or_else(gone)?;
        if state.queue.waiters[at].outcome.is_none() {
            return Ok(state.queue.standing(at));
        }
        let waiter = state.queue.waiters.remove(at);
        drop(state);
        let outcome = waiter.outcome.unwrap_or_else(|| Err(gone()));
        self.settled(peer, &waiter.stored.wanted, outcome)
            .map(Standing::admitted)
    }

    /// Lets the caller, a `divvy run`, put its program into a lasting slice.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::NotLasting`], and what keeps the slice from being joined.
    pub fn join(&self, peer: Peer, which: &str, ask: &Join) -> Result<CreatedSlice, Fault> {
        self.homes.members.ask_page_servers(&self.state, peer.uid);
        let id = {
            let mut state = self.state.lock();
            let slice = state.find(which, peer)?;
            peer.may_change(slice.record.uid, self.uid)?;
            let hint = "`divvy slice create` makes slices that several runs can join";
            slice.record.require_lasting(hint)?;
            self.settings.get().least().check_existing(&slice.record)?;
            crate::decide::life::check_time(&slice.record, unix_seconds())?;
            let id = slice.record.id.clone();
            let parent = self
                .homes
                .of(&state, peer, ask.inside.as_deref())?
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
            self.modes.prepare(&id)?;
        }
        self.page_servers.keep_up(&id)?;
        let mut state = self.state.lock();
        let slice = state.find(&id, peer)?;
        if !ask.dry_run {
            let run = match slice.record.job.is_some() && ask.step {
                true => step_above(peer, slice.record.job.as_ref())?,
                false => Some((peer.pid, peer.since)),
            };
            if let Some((pid, start_ticks)) = run {
                slice.join(RunRecord {
                    pid,
                    start_ticks,
                    command: ask.command.clone(),
                });
            }
            let record = slice.stored_form();
            store(&self.run, &record)?;
            if self.journal.may_log(peer.uid) {
                tracing::info!(slice = record.name, run = peer.pid, "joined");
            }
        }
        let shown = slice.shown();
        self.joined(&state, shown)
    }

    /// The answer to a caller that joins.
    pub fn joined(&self, state: &State, slice: SliceRecord) -> Result<CreatedSlice, Fault> {
        let devices = slice
            .shares
            .iter()
            .map(|share| state.device(&share.device_uuid))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(CreatedSlice {
            directory: self.run.slice(&slice.id),
            device: state.device(&slice.shares.first.device_uuid)?,
            devices,
            slice,
            joined: true,
        })
    }
}

fn gone(peer: Peer) -> Fault {
    Fault::new(Code::NotAllowed, format!("process {} has ended", peer.pid))
}

/// The nearest process above that starts this job's programs, with its start time. Only root has a process of real user 0, so a
/// caller cannot name another one, nor that of another job. Nothing where there is none.
fn step_above(peer: Peer, job: Option<&JobRecord>) -> Result<Option<(u32, u64)>, Fault> {
    let Some(job) = job else { return Ok(None) };
    let sign = format!("slurmstepd: [{}.", job.id);
    let mut above = peer.ancestors()?.into_iter();
    Ok(above.find_map(|pid| {
        // Its life begins before what is read of it, so both are of one process.
        let began = procs::start_ticks(pid)?;
        let is_it = procs::is_roots(pid, "slurmstepd") && procs::command_line(pid).starts_with(&sign);
        (is_it && procs::start_ticks(pid) == Some(began)).then_some((pid, began))
    }))
}

//! Watches the processes of slices that lease: one that dies while it holds a lease gives it back the moment the kernel
//! has taken its memory, its contexts and its place in the ledger down. A process's descriptor becomes readable after all that.
//! Where none is held the dead are looked for by the clock, once a lease has ended: so a watch makes it quicker and no more.
//!
//! The numbers come from a page into which the slice's processes may write anything. So there are a few watches to an account
//! and to the agent, few new ones a second, and each is of a process of the slice's owner.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::listener::{ListenerHandle, MOST};

const STACK: usize = 128 << 10;

/// As many of all accounts: far from what the agent may have open.
const MOST_IN_ALL: usize = 1024;

/// Watches processes.
#[derive(Debug)]
pub(super) struct PidfdWatcher {
    epoll: OwnedFd,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    next: u64,
    processes: HashMap<u64, Watch>,
}

#[derive(Debug)]
struct Watch {
    /// Held for the sake of its place in the epoll set.
    _process: OwnedFd,
    pid: u32,
    listener: Weak<ListenerHandle>,
}

impl PidfdWatcher {
    /// A watcher, and its thread.
    ///
    /// # Errors
    /// The system's reason.
    pub fn start() -> std::io::Result<Arc<Self>> {
        let watcher = Arc::new(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            watched: Mutex::default(),
        });
        let own = watcher.clone();
        // It lives as long as the agent: it has nothing to end for.
        let thread = thread::Builder::new()
            .name("pidfd-watcher".into())
            .stack_size(STACK);
        thread.spawn(move || own.serve())?;
        Ok(watcher)
    }

    /// Has the account's dead looked for when this process ends, if it is of user `uid` (0: anybody's) and there is room
    /// for one more.
    pub fn watch(&self, listener: &Arc<ListenerHandle>, pid: u32, uid: u32) {
        if !self.lock().has_room(listener, pid) {
            return;
        }
        let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return;
        };
        let process = match pidfd_open(raw, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return listener.reap(),
            Err(_) => return,
        };
        // Asked once it is pinned. A number that means another process by now is one more of the same user's.
        let owner = std::fs::metadata(format!("/proc/{pid}"));
        if uid != 0 && owner.is_ok_and(|owner| owner.uid() != uid) {
            return;
        }
        let mut watched = self.lock();
        let key = watched.next;
        watched.next += 1;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        // Under the lock: it may have ended already, and the thread is to find it in the table.
        if watched.has_room(listener, pid)
            && epoll::add(&self.epoll, &process, epoll::EventData::new_u64(key), flags).is_ok()
        {
            let watch = Watch {
                _process: process,
                pid,
                listener: Arc::downgrade(listener),
            };
            watched.processes.insert(key, watch);
        }
    }

    /// Watches none of the account's processes any more.
    pub fn forget(&self, listener: &Arc<ListenerHandle>) {
        self.lock().processes.retain(|_, watch| !watch.is_of(listener));
    }

    /// How many processes are watched.
    #[cfg(test)]
    pub fn watching(&self) -> usize {
        self.lock().processes.len()
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot watch processes; the dead are looked for by the clock");
                    return;
                }
            }
            let mut watched = self.lock();
            let ended: Vec<_> = events
                .drain(..)
                .filter_map(|event: epoll::Event| watched.processes.remove(&event.data.u64()))
                .collect();
            drop(watched);
            for listener in ended.iter().filter_map(|watch| watch.listener.upgrade()) {
                listener.reap();
            }
        }
    }
}

impl Watched {
    fn has_room(&self, listener: &Arc<ListenerHandle>, pid: u32) -> bool {
        let of_rope = || self.processes.values().filter(|watch| watch.is_of(listener));
        self.processes.len() < MOST_IN_ALL
            && of_rope().count() < MOST
            && of_rope().all(|watch| watch.pid != pid)
    }
}

impl Watch {
    fn is_of(&self, listener: &Arc<ListenerHandle>) -> bool {
        std::ptr::eq(self.listener.as_ptr(), Arc::as_ptr(listener))
    }
}

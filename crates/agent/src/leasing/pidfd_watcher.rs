//! Watches the processes of slices that lease. A process that dies while it holds a lease gives the lease back as soon
//! as the kernel has freed its memory, its contexts and its slot in the ledger: a process's descriptor becomes readable
//! after all that. Without a watch, the clock finds dead processes once a lease has ended, so a watch only makes it
//! faster.
//!
//! The numbers come from a page into which the slice's processes may write anything. So each account and the agent have
//! few watches, and few new ones a second; and each is of a process of the slice's owner.

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

/// The watches of all accounts: far below the limit on the agent's open files.
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
    /// This is held to keep its entry in the epoll set.
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
        // The watcher lives as long as the agent, so its thread needs no end.
        let thread = thread::Builder::new()
            .name("pidfd-watcher".into())
            .stack_size(STACK);
        thread.spawn(move || own.serve())?;
        Ok(watcher)
    }

    /// Has the account's dead processes searched for when this process ends. The process must be of user `uid` (0: of
    /// any user), and a watch must be free.
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
        // The owner is read once the process is pinned. If its number means another process by now, that is one more of
        // the same user's.
        let owner = std::fs::metadata(format!("/proc/{pid}"));
        if uid != 0 && owner.is_ok_and(|owner| owner.uid() != uid) {
            return;
        }
        let mut watched = self.lock();
        let key = watched.next;
        watched.next += 1;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        // Under the lock: the process may have ended already, and the thread must find it in the table.
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
        let of_listener = || self.processes.values().filter(|watch| watch.is_of(listener));
        self.processes.len() < MOST_IN_ALL
            && of_listener().count() < MOST
            && of_listener().all(|watch| watch.pid != pid)
    }
}

impl Watch {
    fn is_of(&self, listener: &Arc<ListenerHandle>) -> bool {
        std::ptr::eq(self.listener.as_ptr(), Arc::as_ptr(listener))
    }
}

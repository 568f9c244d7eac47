//! Watches the processes of slices that lease: one that dies while it holds a lease gives it back the moment the kernel
//! has taken its memory, its contexts and its place in the ledger down. A process's descriptor becomes readable after all that.
//! Where one cannot be had (another pid namespace, too many files) the dead are looked for by the clock, once a lease
//! has ended.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::bell::Rope;

const STACK: usize = 128 << 10;

/// Watches processes.
#[derive(Debug)]
pub(super) struct Undertaker {
    epoll: OwnedFd,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    next: u64,
    processes: HashMap<u64, (OwnedFd, Weak<Rope>)>,
}

impl Undertaker {
    /// An undertaker, and its thread.
    ///
    /// # Errors
    /// The system's reason.
    pub fn start() -> std::io::Result<Arc<Self>> {
        let undertaker = Arc::new(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            watched: Mutex::default(),
        });
        let own = undertaker.clone();
        // It lives as long as the agent: it has nothing to end for.
        let thread = thread::Builder::new().name("undertaker".into()).stack_size(STACK);
        thread.spawn(move || own.serve())?;
        Ok(undertaker)
    }

    /// Has the slice's dead looked for when one of these processes ends.
    pub fn watch(&self, rope: &Arc<Rope>, pids: &[u32]) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of slices that have ended.
        watched.processes.retain(|_, (_, rope)| rope.strong_count() > 0);
        for pid in pids {
            let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) else {
                continue;
            };
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
                // It has ended, or is not to be seen from here.
                rope.reap();
                continue;
            };
            let key = watched.next;
            watched.next += 1;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
            if epoll::add(&self.epoll, &process, epoll::EventData::new_u64(key), flags).is_ok() {
                watched.processes.insert(key, (process, Arc::downgrade(rope)));
            }
        }
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
            let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            let ended: Vec<_> = events
                .drain(..)
                .filter_map(|event: epoll::Event| watched.processes.remove(&event.data.u64()))
                .collect();
            drop(watched);
            for rope in ended.iter().filter_map(|(_, rope)| rope.upgrade()) {
                rope.reap();
            }
        }
    }
}

//! The door: a thread of its own takes connections, so that no slow request and no round of the agent delays one. It
//! lets connections in while the gate has places, and refuses the others with an answer.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};

use super::answer;
use super::connection::{self, Caller};
use super::gate::{Gate, Place};
use crate::system::peer::Peer;

/// The number of connections over the limit that get an answer at once; others are closed without one.
const TOLD: usize = 32;
/// The pause of the door where the system has no descriptor for another connection.
const PAUSE: Duration = Duration::from_millis(20);

/// A connection that was let in.
#[derive(Debug)]
pub(super) struct Accepted {
    pub stream: UnixStream,
    pub caller: Caller,
    pub place: Place,
}

/// The connections that were let in and are not served yet, no more than the gate has places; and the door's end.
#[derive(Debug)]
pub(super) struct Door {
    accepted: UnboundedReceiver<Accepted>,
    closing: watch::Sender<bool>,
}

impl Door {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's reason.
    pub fn open(listener: UnixListener, gate: Arc<Gate>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build()?;
        let (into, accepted) = unbounded_channel();
        let closing = watch::Sender::new(false);
        let mut closed = closing.subscribe();
        let serve = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = take(listener, &gate, &into) => {}
                    _ = closed.wait_for(|closed| *closed) => {}
                }
            });
            // The listener is closed before this reports the end.
            drop(into);
        };
        thread::Builder::new().name("door".into()).spawn(serve)?;
        Ok(Self { accepted, closing })
    }

    /// The next connection that was let in; none once the door is closed.
    pub async fn next(&mut self) -> Option<Accepted> {
        self.accepted.recv().await
    }

    /// Closes the door. Nothing listens any more when this returns.
    pub async fn close(mut self) {
        self.closing.send_replace(true);
        while self.accepted.recv().await.is_some() {}
    }
}

/// Takes connections for ever.
async fn take(listener: UnixListener, gate: &Arc<Gate>, into: &UnboundedSender<Accepted>) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the agent's socket cannot be listened on"),
    };
    let refusals = Arc::new(Semaphore::new(TOLD));
    let no_room = answer::no_room();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // The process is out of descriptors, or the connection ended before it was taken: the next may succeed.
                tracing::debug!(%error, "a connection could not be taken");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let who = stream.peer_cred().ok();
        let uid = who.map_or(u32::MAX, |who| who.uid());
        let Some(place) = gate.enter(uid) else {
            if let Ok(permit) = refusals.clone().try_acquire_owned() {
                let no_room = no_room.clone();
                tokio::spawn(async move {
                    connection::refuse(stream, no_room).await;
                    drop(permit);
                });
            }
            continue;
        };
        let peer = who.map(|who| {
            let pid = who.pid().and_then(|pid| pid.try_into().ok()).unwrap_or(0);
            Peer::of_connection(&stream, uid, pid)
        });
        let caller = Caller {
            peer,
            trusted: peer.is_some() && gate.trusts(uid),
            lasts: Arc::default(),
        };
        // A stream belongs to one loop, so this goes to the loop that serves.
        let Ok(stream) = stream.into_std() else { continue };
        if into
            .send(Accepted {
                stream,
                caller,
                place,
            })
            .is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::super::gate::Limits;
    use super::*;

    const AGENT: u32 = 4242;

    #[test]
    fn connections_are_taken_counted_and_refused_while_no_thread_serves() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&path).expect("it listens");
        // Two places for root, one for any other user.
        let limits = Limits {
            per_user: 1,
            foreign: 1,
            reserved: 1,
        };
        let gate = Gate::new(AGENT, limits, Arc::default());
        let mut door = Door::open(listener, gate.clone()).expect("a thread");
        let connect = || UnixStream::connect(&path).expect("it is taken");
        // No loop runs that could serve them: they are let in as far as there are places, and the rest are refused.
        let mut held = vec![connect(), connect()];
        let mut late = connect();
        late.write_all(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n")
            .expect("said");
        let mut heard = String::new();
        late.read_to_string(&mut heard).expect("answered, and closed");
        assert!(heard.starts_with("HTTP/1.1 429 "), "{heard}");

        let accepted = door.accepted.blocking_recv().expect("the first is in");
        let caller = accepted.caller.peer.expect("the kernel tells");
        let own = rustix::process::getuid().as_raw();
        assert_eq!((caller.uid, caller.pid), (own, std::process::id()));
        assert_eq!(accepted.caller.trusted, own == 0);
        drop((accepted, held.pop()));

        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a loop");
        runtime.block_on(door.close());
        assert!(UnixStream::connect(&path).is_err(), "nothing listens");
        assert!(gate.is_empty(), "and none is inside");
    }
}

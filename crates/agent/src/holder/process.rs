//! The holder's process. It has no privilege, opens no file by name, and needs no agent. It stays while an agent is
//! connected, a lasting slice exists, or a program has a slot on one of its devices.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use divvy_ledger::attach::{self, Sockets};
use divvy_model::{Code, Fault};

use super::order::{Answer, Order, receive, send};
use super::shelf::{Device, Rule, Shelf};
use crate::page_server::{confine, door};

/// The number of connections that are served at once, of all users.
const MOST_OF_HOST: usize = 512;
/// The same for one container.
const MOST_OF_CONTAINER: usize = 64;
/// The number for the agent's socket, which only the agent's user can reach.
const MOST_AGENTS: usize = 16;
/// How often it checks whether it is needed.
const LOOK: Duration = Duration::from_secs(1);
/// The time in which the agent that started it must have connected.
const LATEST: Duration = Duration::from_secs(10);

/// The containers' sockets, by name; a shutdown wakes the thread that listens there.
type Doors = Mutex<HashMap<String, OwnedFd>>;

/// Holds emulated devices' pages while they are needed. The agent that starts it hands it the sockets by its standard
/// input.
///
/// # Errors
/// [`Code::Attach`] when it gets no sockets, or cannot give up its privileges.
pub(crate) fn hold() -> Result<(), Fault> {
    let cannot = |error: &dyn std::error::Error| {
        Fault::new(Code::Attach, "cannot hold the emulated devices' pages").because(error)
    };
    // This fails only for a leader of a group, which needs no new session to be safe from the terminal's signals.
    let _session = rustix::process::setsid();
    let stdin = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| cannot(&error))?;
    let Sockets {
        attach, control, uid, ..
    } = attach::take(&UnixStream::from(stdin)).map_err(|error| cannot(&error))?;
    confine::give_up_privileges()?;
    let shelf = Arc::new(Shelf::new(uid));
    start(attach, &shelf, Rule::Host, MOST_OF_HOST).map_err(|error| cannot(&error))?;
    follow(control, &shelf).map_err(|error| cannot(&error))?;
    let begin = Instant::now();
    let mut had_agent = false;
    while shelf.is_needed() || !had_agent && begin.elapsed() < LATEST {
        had_agent |= shelf.agents.load(SeqCst) > 0;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Serves the connections to a listener, from a thread of its own.
fn start(listener: UnixListener, shelf: &Arc<Shelf>, rule: Rule, most: usize) -> std::io::Result<()> {
    let (shelf, rule) = (Arc::clone(shelf), Arc::new(rule));
    std::thread::Builder::new().name("pages".into()).spawn(move || {
        door::serve(
            &listener,
            most,
            |_| true,
            move |stream| shelf.serve(stream, &rule),
        );
    })?;
    Ok(())
}

/// Serves the agents.
fn follow(listener: UnixListener, shelf: &Arc<Shelf>) -> std::io::Result<()> {
    let shelf = Arc::clone(shelf);
    let doors = Arc::new(Doors::default());
    std::thread::Builder::new().name("agents".into()).spawn(move || {
        door::serve(
            &listener,
            MOST_AGENTS,
            |_| true,
            move |stream| {
                shelf.agents.fetch_add(1, SeqCst);
                while let Ok((order, fds)) = receive(stream) {
                    if obey(stream, order, fds, &shelf, &doors).is_err() {
                        break;
                    }
                }
                shelf.agents.fetch_sub(1, SeqCst);
            },
        );
    })?;
    Ok(())
}

fn obey(
    stream: &UnixStream,
    order: Order,
    fds: Vec<OwnedFd>,
    shelf: &Arc<Shelf>,
    doors: &Doors,
) -> std::io::Result<()> {
    let mut fds = fds.into_iter();
    let answer = match order {
        Order::List => Answer::Devices(shelf.list()),
        Order::Take(id) => {
            let sent = shelf.with(id, |device| send(stream, &Answer::Pages, &device.fds()));
            match sent {
                Some(sent) => return sent,
                None => Answer::Failed("the device is not held".into()),
            }
        }
        Order::Hold(id) => {
            let held = shelf.hold(id, || match (fds.next(), fds.next(), fds.next()) {
                (Some(mark), None, None) => Device::new(mark),
                (Some(mark), Some(ledger), Some(engine)) => Ok(Device { ledger, engine, mark }),
                _ => Err("what sets the files aside did not come".into()),
            });
            held.map_or_else(Answer::Failed, |()| Answer::Done)
        }
        Order::Users { users, lasting } => {
            shelf.allow(users);
            shelf.lasts.store(lasting, SeqCst);
            Answer::Done
        }
        Order::Open { door, devices } => match fds.next() {
            None => Answer::Failed("no socket came".into()),
            Some(listener) => open(shelf, doors, door, devices, listener),
        },
        Order::Close(door) => {
            close(doors, &door);
            Answer::Done
        }
    };
    send(stream, &answer, &[])
}

fn open(
    shelf: &Arc<Shelf>,
    doors: &Doors,
    door: String,
    devices: Vec<[u8; 16]>,
    listener: OwnedFd,
) -> Answer {
    let rule = Rule::Container {
        door: door.clone(),
        devices,
    };
    let opened = listener.try_clone().and_then(|own| {
        start(UnixListener::from(listener), shelf, rule, MOST_OF_CONTAINER)?;
        Ok(own)
    });
    match opened {
        Ok(own) => {
            close(doors, &door);
            doors
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(door, own);
            Answer::Done
        }
        Err(error) => Answer::Failed(error.to_string()),
    }
}

fn close(doors: &Doors, door: &str) {
    let mut doors = doors.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(listener) = doors.remove(door) {
        // The accepting thread is woken, and never finds another connection.
        let _shut = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
    }
}

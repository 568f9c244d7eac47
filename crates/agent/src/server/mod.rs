//! The agent's HTTP API: JSON on a unix socket. The kernel identifies the caller, never the caller itself.

mod answer;
mod connection;
mod door;
mod gate;
mod metrics;
mod periodic;
mod routes;
mod stream;
mod turns;

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use divvy_model::{Code, Fault};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::UnixStream;
use tokio::signal::unix::SignalKind;
use tokio::sync::{Notify, watch};

use crate::daemon::Daemon;
use crate::files::Folder;
use crate::start::on_demand::hold_agent_lock;
use crate::start::rundir::SOCKET;
use crate::start::rundir::{KeepCommand, RunDir};
use crate::start::settings::{ReadSettings, Settings};
use crate::start::trust::ADMITS_OTHERS;

use connection::Times;
use door::{Accepted, Door};
use gate::{Gate, Limits};
use turns::Turns;

/// How long connections may take to end once the agent ends.
const FAREWELL: Duration = Duration::from_secs(5);

/// Serves until it is told to stop, or has had no slice and no request for the idle time. `keep` is the command that
/// keeps a lasting slice. On SIGHUP it takes the settings that `read` finds then.
///
/// # Errors
/// [`Code::AgentStart`] when another agent serves this run directory or the socket cannot be made.
pub fn serve_agent(
    run: &RunDir,
    settings: Settings,
    keep: KeepCommand,
    read: ReadSettings,
) -> Result<(), Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(turns::THREADS)
        .build()
        .map_err(|error| Fault::new(Code::AgentStart, "cannot start the agent's loop").because(&error))?;
    // Before all else: a reload that comes while the agent starts must not end it, and is made when it has started.
    let hangup = {
        let _inside = runtime.enter();
        signal(SignalKind::hangup())
    };
    let _lock = hold_agent_lock(run)?;
    let descriptors = raise_descriptors();
    let served = runtime.block_on(listen(run, settings, keep, read, descriptors, hangup));
    // Its threads end before the lock goes.
    drop(runtime);
    served
}

/// Raises this process's limit on descriptors as far as it may; returns the limit.
fn raise_descriptors() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit on descriptors stays as it is");
        limit.current = before;
    }
    limit.current.unwrap_or(u64::MAX)
}

async fn listen(
    run: &RunDir,
    settings: Settings,
    keep: KeepCommand,
    read: ReadSettings,
    descriptors: u64,
    hangup: Signals,
) -> Result<(), Fault> {
    let (idle_timeout, admits_others) = (settings.idle_timeout, settings.admit_others);
    tracing::info!(run_dir = %run.path().display(), version = env!("CARGO_PKG_VERSION"), "agent starts");
    let daemon = Arc::new(Daemon::start(run.clone(), settings, keep)?);
    let agent = Agent {
        turns: Arc::new(Turns::new(daemon.uid, daemon.accounts.clone())),
        daemon,
        stop: Arc::new(Notify::new()),
        requests: Arc::new(AtomicU64::new(0)),
        closing: watch::Sender::new(false),
    };
    if let Err(error) = crate::lookout::requests::start(
        agent.daemon.leasing.wanted(),
        &agent.daemon.audit,
        &agent.daemon.state,
    ) {
        // A caller is refused by the last look's result.
        tracing::error!(%error, "cannot start the thread that looks for tenants");
    }
    crate::page_server::hand_out::start(run, &agent.daemon.state)?;
    if admits_others && let Err(fault) = crate::launch::stage::stage_for_others(run) {
        tracing::warn!(code = %fault.code, "{fault}: {}", fault.causes.join(": "));
    }
    write_admission(run, admits_others)?;
    let listener = bind(run)?;
    let told = std::fs::read_link("/proc/self/ns/pid").and_then(|own| {
        let name = divvy_host::EMULATED_NAMESPACE_FILE;
        run.folder()?
            .write(name, own.as_os_str().as_encoded_bytes(), 0o644)
    });
    if let Err(error) = told {
        tracing::warn!(%error, "processes in namespaces of their own will be shown with the ids they have there");
    }
    let alive = watch::Sender::new(true);
    periodic::start(&agent.daemon, alive.clone())
        .map_err(|error| Fault::new(Code::AgentStart, "cannot start the agent's threads").because(&error))?;
    let gate = Gate::new(
        agent.daemon.uid,
        Limits::within(descriptors),
        agent.daemon.accounts.clone(),
    );
    let mut door = Door::open(listener, gate.clone()).map_err(|error| {
        Fault::new(Code::AgentStart, "cannot start the thread that takes connections").because(&error)
    })?;
    let alive = alive.subscribe();
    let until = ended(agent.clone(), run.clone(), idle_timeout, alive, read, hangup);
    tokio::select! {
        () = welcome(&mut door, &agent) => {}
        () = until => {}
    }
    door.close().await;
    agent.closing.send_replace(true);
    let begin = Instant::now();
    while !gate.is_empty() && begin.elapsed() < FAREWELL {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The last message to the holder: the reasons for it to stay may have ended since the last round.
    agent.daemon.holder.tell_users();
    agent.daemon.line.close();
    Ok(())
}

/// Tells other users' commands whether this agent serves them too. The file stays when the agent ends for lack of work:
/// a later command then learns that no agent runs, and does not start one of its own.
fn write_admission(run: &RunDir, admits_others: bool) -> Result<(), Fault> {
    let tell = |folder: Folder| match admits_others {
        true => folder.write(ADMITS_OTHERS, b"", 0o644),
        false => folder.remove(ADMITS_OTHERS),
    };
    run.folder().and_then(tell).map_err(|error| {
        let marker = run.path().join(ADMITS_OTHERS);
        Fault::new(
            Code::RunDir,
            format!("cannot write or remove `{}`", marker.display()),
        )
        .because(&error)
    })
}

fn forget_admission(run: &RunDir) {
    let _stays = run.folder().and_then(|folder| folder.remove(ADMITS_OTHERS));
}

/// The lock proves that no other agent serves here: an existing socket is a dead agent's.
fn bind(run: &RunDir) -> Result<UnixListener, Fault> {
    // Every process that can reach it may look; the caller's user decides what it may change.
    let listen = || run.folder()?.listen(SOCKET, 0o666);
    listen().map_err(|error| {
        let path = run.socket();
        Fault::new(Code::AgentStart, format!("cannot listen on `{}`", path.display())).because(&error)
    })
}

/// Serves the connections that were let in, for ever.
async fn welcome(door: &mut Door, agent: &Agent) {
    let router = routes::router(agent.clone());
    while let Some(Accepted {
        stream,
        caller,
        place,
    }) = door.next().await
    {
        let Ok(stream) = UnixStream::from_std(stream) else {
            continue;
        };
        let closing = agent.closing.subscribe();
        tokio::spawn(connection::serve(
            stream,
            router.clone(),
            caller,
            place,
            Times::USUAL,
            closing,
        ));
    }
    tracing::error!("the thread that takes connections has ended");
}

/// Waits until the agent should end; the socket is gone when this returns.
async fn ended(
    agent: Agent,
    run: RunDir,
    idle_timeout: Duration,
    mut alive: watch::Receiver<bool>,
    read: ReadSettings,
    mut hangup: Signals,
) {
    let mut terminate = signal(SignalKind::terminate());
    let mut interrupt = signal(SignalKind::interrupt());
    let mut busy_at = Instant::now();
    let mut seen_requests = 0;
    loop {
        tokio::select! {
            () = agent.stop.notified() => { tracing::info!("agent stops: asked to"); forget_admission(&run); break; }
            () = terminate.recv_one() => { tracing::info!("agent stops: SIGTERM"); forget_admission(&run); break; }
            () = interrupt.recv_one() => { tracing::info!("agent stops: SIGINT"); forget_admission(&run); break; }
            // A few small files: this takes no longer than a request.
            () = hangup.recv_one() => agent.daemon.reload(&read),
            // The handle lives as long as the daemon, which this function holds.
            _ = alive.changed() => {}
        }
        let requests = agent.requests.load(Ordering::Relaxed);
        if *alive.borrow_and_update() || requests != seen_requests {
            seen_requests = requests;
            busy_at = Instant::now();
        } else if busy_at.elapsed() >= idle_timeout {
            tracing::info!("agent stops: nothing to look after");
            break;
        }
    }
    // Requests that still run hold the daemon: what is stopped does not wait for them.
    agent.daemon.supervisor.release();
    let _gone = run.folder().and_then(|folder| folder.remove(SOCKET));
}

/// A stream of signals; an endless one without signals where the system gives no handler.
struct Signals(Option<tokio::signal::unix::Signal>);

/// Has these signals come here from now on. The caller is inside a runtime.
fn signal(kind: SignalKind) -> Signals {
    Signals(tokio::signal::unix::signal(kind).ok())
}

impl Signals {
    async fn recv_one(&mut self) {
        match &mut self.0 {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    }
}

#[derive(Clone)]
struct Agent {
    daemon: Arc<Daemon>,
    turns: Arc<Turns>,
    stop: Arc<Notify>,
    requests: Arc<AtomicU64>,
    /// This is set when the agent ends: endless streams end then.
    closing: watch::Sender<bool>,
}

//! How much longer a container runtime takes to make a container where it asks `divvy container nri`: for a pod without annotations,
//! and for a container that gets a slice of its own. This program is the runtime, so that nothing else is in the figure.
//!
//! Run as root: `cargo xtask bench plugin`.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Parser;
use divvy_bench::artifacts;
use divvy_container::nri::frame::{Message, PLUGIN, REQUEST, RESPONSE, RUNTIME, Trunk};
use divvy_container::nri::wire::{Writer, fields};

/// What is added at most, in milliseconds: as to `podman run`.
const MOST: f64 = 30.0;

#[derive(Parser)]
struct Args {
    /// Containers of each kind
    #[arg(long, default_value_t = 50)]
    rounds: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let programs = artifacts::build(&artifacts::PRODUCT)?;
    let folder = tempfile::Builder::new().prefix("divvy-").tempdir()?;
    let mut runtime = Runtime::new(&programs, folder.path())?;
    let (mut plain, mut given) = (Vec::new(), Vec::new());
    // The first slice fills caches.
    for round in 0..=args.rounds {
        let bare = runtime.container(round * 2, None)?;
        let with = runtime.container(round * 2 + 1, Some("1GiB"))?;
        if round > 0 {
            plain.push(bare);
            given.push(with);
        }
    }
    for (what, times) in [
        ("asks for nothing", &mut plain),
        ("gets a slice of its own", &mut given),
    ] {
        times.sort_by(f64::total_cmp);
        println!(
            "a container that {what:<24} {:>6.2} ms  ({:.2} to {:.2}, median of {})",
            times[times.len() / 2],
            times[0],
            times[times.len() - 1],
            times.len()
        );
    }
    let figure = given[given.len() / 2];
    let verdict = if figure <= MOST { "ok" } else { "MISSED" };
    println!("promise +{MOST} ms: {verdict}");
    Ok(())
}

/// A runtime and its plugin.
struct Runtime {
    plugin: Child,
    trunk: Trunk<UnixStream>,
    stream: u32,
}

impl Runtime {
    fn new(programs: &Path, folder: &Path) -> anyhow::Result<Self> {
        let socket = folder.join("nri.sock");
        let listener = UnixListener::bind(&socket)?;
        let plugin = Command::new(programs.join("divvy"))
            .args(["nri", "--socket"])
            .arg(&socket)
            .env("DIVVY_RUN_DIR", folder.join("run"))
            .env("DIVVY_EMULATED", "h100")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("Cannot start divvy")?;
        let mut runtime = Self {
            plugin,
            trunk: Trunk::new(listener.accept()?.0),
            stream: 1,
        };
        let registration = runtime.trunk.receive()?.context("It registers")?;
        runtime.trunk.send(&Message {
            connection: RUNTIME,
            kind: RESPONSE,
            data: Vec::new(),
            ..registration
        })?;
        runtime.ask("Configure", Writer::default().text(2, "bench").number(5, 60_000))?;
        runtime.ask("Synchronize", Writer::default())?;
        Ok(runtime)
    }

    fn ask(&mut self, method: &str, payload: Writer) -> anyhow::Result<()> {
        self.stream += 2;
        let call = Writer::default()
            .text(1, "nri.pkg.api.v1alpha1.Plugin")
            .text(2, method)
            .bytes(3, &payload.into_bytes());
        self.trunk.send(&Message {
            connection: PLUGIN,
            stream: self.stream,
            kind: REQUEST,
            flags: 0,
            data: call.into_bytes(),
        })?;
        let answer = self.trunk.receive()?.context("It answers")?;
        for field in fields(&answer.data) {
            if let (1, status) = field? {
                bail!("{method}: {}", String::from_utf8_lossy(status.bytes()?));
            }
        }
        Ok(())
    }

    /// Milliseconds that the making of a container waits for the plugin. Then the container ends.
    fn container(&mut self, number: usize, memory: Option<&str>) -> anyhow::Result<f64> {
        let of = |writer: Writer| {
            let mut pod = Writer::default()
                .text(1, &format!("pod{number}"))
                .text(2, "bench");
            if let Some(memory) = memory {
                let key = "memory.divvy.dev/container.main";
                pod = pod.message(6, Writer::default().text(1, key).text(2, memory));
            }
            let id = format!("{number:064}");
            writer
                .message(1, pod)
                .message(2, Writer::default().text(1, &id).text(3, "main"))
        };
        let begin = Instant::now();
        self.ask("CreateContainer", of(Writer::default()))?;
        let took = begin.elapsed().as_secs_f64() * 1e3;
        self.ask("StopContainer", of(Writer::default()))?;
        Ok(took)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ended = self.plugin.kill();
        let _reaped = self.plugin.wait();
    }
}

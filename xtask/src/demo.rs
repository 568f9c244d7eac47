//! `cargo xtask demo`: Divvy's main job in one command. Two tenants at once on one device, each in a slice of its own
//! size, and the table of slices while they run. Then each one's checked results, and the refusal of a program that
//! asks for more. At last two programs share the device's time, and the recording of that is kept.

use std::ffi::OsString;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::cargo::{cargo, finish, workspace_root};
use crate::{record, setup};

/// Arguments of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Cargo profile to build with
    #[arg(long, default_value = "dev")]
    profile: String,
    /// The device: without it a GPU of this machine, or an emulated H100 where there is none
    #[arg(long)]
    device: Option<String>,
}

/// A tenant of the demo, running.
struct Tenant {
    name: &'static str,
    what: &'static str,
    child: Child,
    /// Collects what it prints: two tenants writing over a live table would be unreadable.
    output: JoinHandle<std::io::Result<String>>,
}

/// Builds what is needed, runs the tenants, and fails unless both results are right.
pub fn run(args: &Args) -> anyhow::Result<()> {
    setup::for_demo()?;
    let binaries = build(&args.profile)?;

    println!("\nTwo tenants on one device: `pricer`, numba-cuda in 4 GiB; `physics`, Rust in 1 GiB.");
    let python = workspace_root().join(".venv/bin/python");
    let examples = workspace_root().join("examples/python");
    let mut pricer = divvy(&binaries, args, "pricer", "4GiB", &python);
    pricer
        .arg(examples.join("black_scholes.py"))
        .args(["--repeat", "8", "--keep", "1536"]);
    let mut physics = divvy(&binaries, args, "physics", "1GiB", &binaries.join("rust-client"));
    physics.args(["--allocate", "600MiB", "--repeat", "12"]);

    let mut tenants = vec![
        start("pricer", "Monte Carlo option pricer (Python, numba-cuda)", pricer)?,
        start(
            "physics",
            "saxpy, matmul, n-body and more (Rust, cudarc)",
            physics,
        )?,
    ];
    show_table_while_running(&binaries, &mut tenants)?;

    let mut failed = Vec::new();
    for tenant in tenants {
        let (name, status) = tell(tenant)?;
        if !status.success() {
            failed.push(name);
        }
    }

    println!("\nA program that asks for 2 GiB in a slice of 1 GiB:");
    let mut greedy = divvy(&binaries, args, "greedy", "1GiB", &python);
    greedy
        .arg(examples.join("memory.py"))
        .args(["--try", "2048", "--try", "512"]);
    let (name, status) = tell(start("greedy", "memory.py (Python, numba-cuda)", greedy)?)?;
    if !status.success() {
        failed.push(name);
    }

    if !failed.is_empty() {
        bail!("These tenants did not end well: {}", failed.join(", "));
    }
    let recorded = workspace_root().join("target/demo/top.svg");
    println!("\nTwo programs that want the whole device, on an emulated one with a clock of its own:");
    record::record(&binaries, &recorded)?;
    println!(
        "  measured at length: {}",
        workspace_root().join("bench/results/share.svg").display()
    );
    println!(
        "\nAll results are right. Next: `{} --help`",
        binaries.join("divvy").display()
    );
    Ok(())
}

/// Builds the command, its drop-ins and the Rust client; returns the folder they lie in.
pub fn build(profile: &str) -> anyhow::Result<PathBuf> {
    println!("demo: building divvy, its drop-ins and the Rust client (profile {profile})");
    let start = Instant::now();
    let packages = [
        "divvy",
        "limit-cuda",
        "limit-nvml",
        "limit-opencl",
        "emulated-cuda",
        "emulated-nvml",
        "rust-client",
    ];
    finish(
        cargo()
            .args(["build", "--profile", profile])
            .args(packages.iter().flat_map(|name| ["--package", name])),
    )?;
    println!("demo: built after {:.0} s", start.elapsed().as_secs_f64());
    let folder = if profile == "dev" { "debug" } else { profile };
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target"));
    Ok(workspace_root().join(target).join(folder))
}

/// `divvy run --name NAME --memory MEMORY [--device SEL] -- PROGRAM`
fn divvy(binaries: &Path, args: &Args, name: &str, memory: &str, program: &Path) -> Command {
    let mut command = Command::new(binaries.join("divvy"));
    command.args(["run", "--name", name, "--memory", memory]);
    if let Some(device) = &args.device {
        command.args(["--device", device]);
    }
    command.arg("--").arg(program);
    // numba warns that small kernels leave a GPU idle: true, and of no use here.
    command.env("PYTHONWARNINGS", "ignore");
    command
}

fn start(name: &'static str, what: &'static str, mut command: Command) -> anyhow::Result<Tenant> {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| {
            let path = Path::new(word);
            path.strip_prefix(workspace_root())
                .unwrap_or(path)
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    println!("  $ {}", words.join(" "));

    let (mut reader, writer) = std::io::pipe()?;
    let child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("Cannot start {name}"))?;
    // The command still holds the pipe's writing ends; the reader would never see the end.
    drop(command);
    let output = thread::spawn(move || {
        let mut text = Vec::new();
        reader.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    });
    Ok(Tenant {
        name,
        what,
        child,
        output,
    })
}

/// Prints `divvy ps` again and again until every tenant has ended: in place on a terminal, else below each other and
/// less often.
fn show_table_while_running(binaries: &Path, tenants: &mut [Tenant]) -> anyhow::Result<()> {
    let in_place = std::io::stdout().is_terminal();
    let mut lines_shown = 0;
    println!("\n  $ divvy ps");
    loop {
        let mut running = false;
        for tenant in tenants.iter_mut() {
            running |= tenant.child.try_wait()?.is_none();
        }
        if !running {
            return Ok(());
        }
        let output = Command::new(binaries.join("divvy")).arg("ps").output()?;
        let table = String::from_utf8_lossy(&output.stdout);
        if in_place && lines_shown > 0 {
            // Up to the table's first line, then clear to the end of the screen.
            print!("\x1b[{lines_shown}A\x1b[J");
        }
        println!("{}", table.trim_end());
        std::io::stdout().flush()?;
        lines_shown = table.trim_end().lines().count();
        sleep(Duration::from_millis(if in_place { 250 } else { 2000 }));
    }
}

/// Waits for a tenant and prints the end of what it said.
fn tell(mut tenant: Tenant) -> anyhow::Result<(&'static str, ExitStatus)> {
    let status = tenant.child.wait()?;
    let text = tenant.output.join().unwrap_or_else(|_| Ok(String::new()))?;
    println!("\n{}: {}, {status}", tenant.name, tenant.what);
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(8)..] {
        println!("  {line}");
    }
    Ok((tenant.name, status))
}

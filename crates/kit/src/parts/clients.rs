//! What people run, unmodified, in a slice of 4 GiB: each program prints one line of JSON for each thing that it looked at.

use serde_json::Value;

use crate::finding::{Finding, Verdict};
use crate::kit::{Kit, beside, last_words};
use crate::part::Failure;

/// The programs, and the module without which each cannot be tried.
const CLIENTS: [(&str, &str); 5] = [
    ("torch", "torch"),
    ("cupy", "cupy"),
    ("jax", "jax"),
    ("triton", "triton"),
    ("numba", "numba.cuda"),
];

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    for (client, module) in CLIENTS {
        let check = format!("clients.{client}");
        if kit.left().as_secs() < 10 {
            kit.found(&Finding::skipped(check, "no time is left for it"))?;
            continue;
        }
        let mut import = std::process::Command::new(python());
        let has = import.args(["-c", &format!("import {module}")]).output();
        match has {
            Err(error) => {
                kit.found(&Finding::skipped(check, format!("there is no Python: {error}")))?;
            }
            Ok(output) if !output.status.success() => {
                kit.found(&Finding::skipped(check, format!("{module} is not installed")))?;
            }
            Ok(_) => run_client(kit, client)?,
        }
    }
    Ok(())
}

fn run_client(kit: &mut Kit, client: &str) -> Result<(), Failure> {
    let check = format!("clients.{client}");
    let program = programs().join(format!("{client}_in_a_slice.py"));
    let mut command = kit.slice(&["--memory", "4GiB"]);
    let output = command.arg(python()).arg(program).output();
    let output = output.map_err(|error| error.to_string())?;
    let mut lines = 0;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(said) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        lines += 1;
        let name = said["check"].as_str().unwrap_or("unnamed");
        let says = said["says"].as_str().unwrap_or_default();
        let verdict = match said["holds"].as_bool() {
            Some(true) => Verdict::Holds,
            Some(false) => Verdict::Fails,
            None => Verdict::Fact,
        };
        let mut finding = Finding::new(format!("{check}.{name}"), verdict, says);
        if let Some(bytes) = said["bytes"].as_u64() {
            finding = finding.bytes(bytes);
        }
        kit.found(&finding)?;
    }
    let says = match output.status.success() {
        true => format!("it ran to its end, with {lines} findings"),
        false => format!("{}: {}", output.status, last_words(&output)),
    };
    kit.found(&Finding::promise(
        format!("{check}.ran"),
        output.status.success(),
        says,
    ))
}

/// Where the programs are: beside those of an archive, unless the developer says where.
fn programs() -> std::path::PathBuf {
    std::env::var_os("KIT_PROGRAMS").map_or_else(|| beside("../python"), Into::into)
}

/// The machine's own, unless the user says which.
fn python() -> std::ffi::OsString {
    std::env::var_os("KIT_PYTHON").unwrap_or_else(|| "python3".into())
}

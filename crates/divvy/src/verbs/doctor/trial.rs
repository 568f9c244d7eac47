//! A program tried in a slice: it opens `libcuda.so.1` as any CUDA program does, and must find itself in that slice.

use std::process::{Command, Stdio};

use divvy_agent::RunDir;
use divvy_host::probe;
use divvy_model::{Code, Fault};
use serde::{Deserialize, Serialize};

use super::Check;
use crate::output;

/// A size no real device has.
const SLICE: &str = "64MiB";
const SLICE_BYTES: u64 = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct TrialReport {
    driver_version: i32,
    device_count: i32,
    first_device_bytes: u64,
}

/// The other side of [`check`].
pub fn be_the_program() -> Result<u8, Fault> {
    match probe(c"libcuda.so.1") {
        Ok(probe) => {
            let told = TrialReport {
                driver_version: probe.driver_version,
                device_count: probe.device_count,
                first_device_bytes: probe.first_device_bytes,
            };
            let line = serde_json::to_string(&told)
                .map_err(|error| Fault::new(Code::Internal, "cannot write JSON").because(&error))?;
            output::print(&line)?;
            Ok(0)
        }
        Err(why) => Err(Fault::new(Code::DropInLoad, "libcuda.so.1 does not work").cause(why)),
    }
}

/// Runs this very executable in a slice.
pub fn check(run: &RunDir) -> Check {
    match attempt(run) {
        Ok(told) if told.device_count == 1 && told.first_device_bytes == SLICE_BYTES => Check::ok(
            "drop-ins",
            "trial",
            format!(
                "a program sees one device of {SLICE}, CUDA {}.{}",
                told.driver_version / 1000,
                told.driver_version % 1000 / 10
            ),
        ),
        Ok(told) => Check::fail(
            "drop-ins",
            "trial",
            &Fault::new(
                Code::DropInLoad,
                format!(
                    "a program in a slice of {SLICE} sees {} devices, the first of {} B",
                    told.device_count, told.first_device_bytes
                ),
            )
            .hint("something else answers to libcuda.so.1: look at LD_PRELOAD and /etc/ld.so.preload"),
        ),
        Err(fault) => Check::fail("drop-ins", "trial", &fault),
    }
}

fn attempt(run: &RunDir) -> Result<TrialReport, Fault> {
    let cannot = |error: &dyn std::error::Error| {
        Fault::new(Code::DropInLoad, "a program cannot be tried in a slice").because(error)
    };
    let executable = std::env::current_exe().map_err(|error| cannot(&error))?;
    let output = Command::new(&executable)
        .args(["run", "-o", "json", "--memory", SLICE, "--"])
        .arg(&executable)
        .args(["doctor", "--be-tried", "-o", "json"])
        .env("DIVVY_RUN_DIR", run.path())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| cannot(&error))?;
    if output.status.success() {
        return serde_json::from_slice(&output.stdout).map_err(|error| cannot(&error));
    }
    let text = String::from_utf8_lossy(&output.stderr);
    // Remarks may stand before the document.
    let document = text.find('{').map_or("", |at| &text[at..]);
    Err(serde_json::from_str::<Fault>(document).unwrap_or_else(|_| {
        Fault::new(
            Code::DropInLoad,
            format!("a program tried in a slice ended with {}", output.status),
        )
        .cause(text.trim().to_owned())
    }))
}

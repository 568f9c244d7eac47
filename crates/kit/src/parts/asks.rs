//! Which entry points and export tables programs ask the driver for, each on the machine's own driver and without a slice:
//! in one, the limiter asks the driver below it for all that it knows, and the program's own questions are lost among those.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::asked::DriverRequests;
use super::count;
use super::nvcc::{self, Nvcc};
use super::python::{each_installed, program, python};
use crate::ended::within;
use crate::finding::{Failure, Finding, Unit};
use crate::kit::Kit;
use crate::place::{library, own_file};

/// See `dropin/kit-record`.
const RECORDER: &str = "libdivvy_kit_record.so";

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    let recorder = library(RECORDER);
    if !recorder.exists() {
        let why = format!("{RECORDER} is missing beside the kit's libraries");
        return kit.found(&Finding::skipped("asks.recorder", why));
    }
    // The kit's own program asks for all that we know: where nothing is written of it, the loader has taken no recorder.
    let left = kit.left();
    if !ask(kit, ("calls", left), Kit::bare_tenant("calls"), &recorder)? {
        return Ok(());
    }
    each_installed(kit, "asks", |kit, client, limit| {
        let mut command = Command::new(python());
        command.arg(program(client));
        ask(kit, (client, limit), command, &recorder).map(drop)
    })?;
    of_nvcc(kit, &recorder)
}

/// What programs ask for that nvcc makes here.
fn of_nvcc(kit: &mut Kit, recorder: &Path) -> Result<(), Failure> {
    const LEAST: Duration = Duration::from_secs(10);
    if kit.left() < LEAST {
        return kit.no_time("asks.nvcc");
    }
    let nvcc = match Nvcc::of_machine(kit) {
        Ok(nvcc) => nvcc,
        Err(why) => return kit.found(&Finding::skipped("asks.nvcc", why)),
    };
    let folder = nvcc::folder()?;
    for (name, make) in nvcc::PROGRAMS {
        if kit.left() < LEAST {
            kit.no_time(format!("asks.{name}"))?;
            continue;
        }
        match make(&nvcc, &folder) {
            Ok(command) => {
                let left = kit.left();
                ask(kit, (name, left), command, recorder)?;
            }
            Err(why) => kit.found(&Finding::skipped(format!("asks.{name}"), why))?,
        }
    }
    Ok(())
}

/// Runs a program with the recorder. Whether anything was written of it.
fn ask(
    kit: &mut Kit,
    (name, limit): (&str, Duration),
    mut command: Command,
    recorder: &Path,
) -> Result<bool, Failure> {
    let check = format!("asks.{name}");
    let record = own_file(&format!("asked-{name}")).ok_or("this part has no place of its own")?;
    let ended = within(
        command.env("LD_AUDIT", recorder).env("KIT_RECORD_TO", &record),
        limit,
    )?;
    let asked = DriverRequests::read(&String::from_utf8_lossy(&fs::read(&record).unwrap_or_default()));
    if asked.count() == 0 {
        let why = match ended.is_well() {
            true => "nothing was written: its loader takes no LD_AUDIT, or it asked for nothing".to_owned(),
            false => format!("nothing was written: {}", ended.why()),
        };
        return kit.found(&Finding::skipped(check, why)).map(|()| false);
    }
    // What it says of its slice is nothing here, as it has none. One that ended early may have asked for less.
    let early = match ended.is_well() {
        true => String::new(),
        false => format!("; it ended early, {}", ended.why()),
    };
    kit.found(
        &Finding::fact(&check, format!("{}{early}", asked.says()))
            .figure(count(asked.count()), Unit::Count)
            .details(asked.details()),
    )?;
    let unknown = asked.unknown();
    let finding = Finding::fact(format!("{check}.unknown"), "names that our tables do not have")
        .figure(count(unknown.len()), Unit::Count)
        .details(json!({"names": unknown}));
    kit.found(&finding).map(|()| true)
}

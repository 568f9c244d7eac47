//! Which entry points and export tables programs ask the driver for, each on the machine's own driver and without a slice:
//! in one, the limiter asks the driver below it for all that it knows, and the program's own questions are lost among those.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use super::asked::Asked;
use super::count;
use super::python::{each_installed, program, python};
use crate::finding::{Failure, Finding, Unit};
use crate::kit::{Kit, last_words};
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
    if !ask(kit, "calls", Kit::bare_tenant("calls"), &recorder)? {
        return Ok(());
    }
    each_installed(kit, "asks", |kit, client| {
        let mut command = Command::new(python());
        command.arg(program(client));
        ask(kit, client, command, &recorder).map(drop)
    })
}

/// Runs a program with the recorder. Whether anything was written of it.
fn ask(kit: &mut Kit, name: &str, mut command: Command, recorder: &Path) -> Result<bool, Failure> {
    let check = format!("asks.{name}");
    let record = own_file(&format!("asked-{name}")).ok_or("this part has no place of its own")?;
    let output = command
        .env("LD_AUDIT", recorder)
        .env("KIT_RECORD_TO", &record)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name} does not start: {error}"))?;
    let asked = Asked::read(&String::from_utf8_lossy(&fs::read(&record).unwrap_or_default()));
    if asked.count() == 0 {
        let why = match output.status.success() {
            true => "nothing was written: its loader takes no LD_AUDIT, or it asked for nothing".to_owned(),
            false => format!("nothing was written: {}", last_words(&output.stderr)),
        };
        return kit.found(&Finding::skipped(check, why)).map(|()| false);
    }
    // What it says of its slice is nothing here, as it has none. One that ended early may have asked for less.
    let ended = match output.status.success() {
        true => String::new(),
        false => format!(
            "; it ended early, {}: {}",
            output.status,
            last_words(&output.stderr)
        ),
    };
    kit.found(
        &Finding::fact(&check, format!("{}{ended}", asked.says()))
            .figure(count(asked.count()), Unit::Count)
            .details(asked.details()),
    )?;
    let unknown = asked.unknown();
    let finding = Finding::fact(format!("{check}.unknown"), "names that our tables do not have")
        .figure(count(unknown.len()), Unit::Count)
        .details(json!({"names": unknown}));
    kit.found(&finding).map(|()| true)
}

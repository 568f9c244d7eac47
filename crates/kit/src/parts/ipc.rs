//! Memory of one program that another one opens, each in a slice of its own.

use std::time::Duration;

use serde_json::Value;

use super::Card;
use crate::conversation::Conversation;
use crate::finding::{Failure, Finding};
use crate::kit::Kit;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// What the first program has, in parts of this size, in bytes.
const HELD: u64 = 3 * GIB;
const PART: u64 = 64 * MIB;
/// The slice of the one that opens it, in bytes: too small for all of it.
const LIMIT: u64 = 2 * GIB;
/// It is not begun with less time than this.
const LEAST: Duration = Duration::from_secs(6);

pub(super) fn run(kit: &mut Kit, card: Option<&Card>) -> Result<(), Failure> {
    const CHECK: &str = "memory.ipc";
    if kit.left() < LEAST {
        return kit.no_time(CHECK);
    }
    if card
        .and_then(Card::free)
        .is_some_and(|free| free < HELD + 2 * GIB)
    {
        return kit.found(&Finding::skipped(CHECK, "less than 5 GiB of the card is free"));
    }
    match opened(kit, card) {
        Ok(()) => Ok(()),
        Err(why) => kit.found(&Finding::promise(CHECK, false, why)),
    }
}

fn opened(kit: &mut Kit, card: Option<&Card>) -> Result<(), Failure> {
    let (mut first, _) = Conversation::start(kit.tenant(&["--memory", "4GiB"], "memory"), kit.left())?;
    first.ask(&format!("fill plain {PART} {HELD}"))?;
    let exported = first.ask("export")?;
    let handles: Vec<String> = match serde_json::from_value(exported["handles"].clone()) {
        Ok(handles) => handles,
        Err(_) => return kit.found(&Finding::skipped("memory.ipc.limit", refusal(&exported))),
    };
    let (mut second, hello) = Conversation::start(kit.tenant(&["--memory", "2GiB"], "memory"), kit.left())?;
    let mut got = 0;
    let mut last = Value::Null;
    for handle in &handles {
        last = second.ask(&format!("open {handle}"))?;
        if !last["error"].is_null() {
            break;
        }
        got += PART;
    }
    let is_full = last["out_of_memory"] == Value::Bool(true);
    if got == 0 && !is_full {
        return kit.found(&Finding::skipped("memory.ipc.limit", refusal(&last)));
    }
    let says = "what a program opens of another one's stays inside its own slice";
    kit.found(&Finding::promise("memory.ipc.limit", got <= LIMIT, says).bytes(got))?;
    kit.found(&Finding::promise(
        "memory.ipc.error",
        is_full,
        format!(
            "more is refused as CUDA refuses it: {}",
            last["error"].as_str().unwrap_or("none")
        ),
    ))?;
    let pid = hello["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    if let (Some(card), Some(pid)) = (card, pid) {
        let says = "what NVML says of a program that has opened another one's memory stays inside its slice";
        match card.held_by(&[pid]) {
            Some(held) => {
                kit.found(&Finding::promise("memory.ipc.nvml", held <= LIMIT, says).bytes(held))?;
            }
            None => kit.found(&Finding::skipped(
                "memory.ipc.nvml",
                "NVML does not tell of this process",
            ))?,
        }
    }
    drop(second);
    let freed = first.ask("free")?;
    let again = first.ask(&format!("fill plain {PART} {HELD}"))?;
    kit.found(&Finding::promise(
        "memory.ipc.freed",
        freed["error"].is_null() && again["error"].is_null(),
        "what was given back can be had again when the one that opened it has ended",
    ))
}

fn refusal(answer: &Value) -> String {
    format!(
        "the driver refuses it: {}",
        answer["error"].as_str().unwrap_or("no reason given")
    )
}

//! Every way of getting memory in a slice, held against what NVML says of the process from outside.

use std::time::Duration;

use serde_json::Value;

use super::Card;
use crate::conversation::Conversation;
use crate::finding::{Failure, Finding};
use crate::gpu::Way;
use crate::kit::{Kit, output};

const GIB: u64 = 1 << 30;
/// The slice's limit.
const LIMIT: u64 = 4 * GIB;
/// A way is not begun with less time than this.
const LEAST: Duration = Duration::from_secs(4);

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    let card = Card::of(kit);
    if let Err(why) = &card {
        kit.found(&Finding::skipped("memory.nvml", why.clone()))?;
    }
    for way in Way::ALL {
        if kit.left() < LEAST {
            let check = format!("memory.{}", way.name());
            kit.no_time(check)?;
            continue;
        }
        match one_way(kit, card.as_ref().ok(), way) {
            Ok(()) => {}
            Err(why) => kit.found(&Finding::promise(format!("memory.{}", way.name()), false, why))?,
        }
    }
    if super::may_share(kit) {
        super::ipc::run(kit, card.as_ref().ok())?;
    }
    nothing_is_left(kit, "memory.left")
}

fn one_way(kit: &mut Kit, card: Option<&Card>, way: Way) -> Result<(), Failure> {
    let check = |what: &str| format!("memory.{}.{what}", way.name());
    let free = card.and_then(Card::free);
    // Managed memory may go to the host where the card is full: never more is asked for than is free.
    if free.is_some_and(|free| free < LIMIT + GIB) {
        return kit.found(&Finding::skipped(
            check("limit"),
            "less than 5 GiB of the card is free",
        ));
    }
    let command = kit.tenant(&["--memory", "4GiB"], "memory");
    let (mut tenant, hello) = Conversation::start(command, kit.left())?;
    let total = hello["total"].as_u64().unwrap_or(0);
    kit.found(
        &Finding::promise(
            check("total"),
            total == LIMIT,
            "the slice is all the memory that the program sees",
        )
        .bytes(total),
    )?;
    let step = if kit.is_short { 128 << 20 } else { 64 << 20 };
    let answer = tenant.ask(&format!("fill {} {step} {}", way.name(), LIMIT + GIB))?;
    let got = answer["got"].as_u64().unwrap_or(0);
    let error = answer["error"].as_str().unwrap_or("none").to_owned();
    if got == 0 && answer["out_of_memory"] != Value::Bool(true) {
        return kit.found(&Finding::skipped(
            check("limit"),
            format!("the driver refuses it: {error}"),
        ));
    }
    kit.found(
        &Finding::promise(
            check("limit"),
            got <= LIMIT,
            "what was got stays inside the slice",
        )
        .bytes(got),
    )?;
    kit.found(&Finding::promise(
        check("error"),
        answer["out_of_memory"] == Value::Bool(true),
        format!("more is refused as CUDA refuses it: {error}"),
    ))?;
    if let (Some(card), Some(pid)) = (card, hello["pid"].as_u64()) {
        let pid = u32::try_from(pid).unwrap_or(0);
        match card.held_by(&[pid]) {
            Some(held) => {
                let says = "what NVML says of the process stays inside the slice";
                kit.found(&Finding::promise(check("nvml"), held <= LIMIT, says).bytes(held))?;
            }
            None => kit.found(&Finding::skipped(
                check("nvml"),
                "NVML does not tell of this process",
            ))?,
        }
    }
    let freed = tenant.ask("free")?;
    let again = tenant.ask(&format!("fill {} {step} {step}", way.name()))?;
    kit.found(&Finding::promise(
        check("freed"),
        freed["error"].is_null() && again["error"].is_null(),
        "what was given back can be had again",
    ))
}

/// After a part's programs have ended, no slice is left.
pub(crate) fn nothing_is_left(kit: &mut Kit, check: &str) -> Result<(), Failure> {
    let mut left = Vec::new();
    for _ in 0..50 {
        let text = output(&mut Kit::divvy(&["ps", "-o", "json"]))?;
        let listed: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        left = listed["items"].as_array().cloned().unwrap_or_default();
        if left.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let says = format!("{} slices are left when their programs have ended", left.len());
    kit.found(&Finding::promise(check, left.is_empty(), says))
}

//! Programs that are killed under load leave nothing behind.

use rustix::process::{Pid, Signal, kill_process};

use super::Card;
use super::memory::nothing_is_left;
use crate::conversation::Conversation;
use crate::finding::{Failure, Finding, Unit};
use crate::kit::Kit;

/// Deaths of a whole run.
const DEATHS: u32 = 200;
/// Memory that may stay in use after all of them, in bytes: less than one allocation of theirs.
const SLACK: u64 = 1 << 20;

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    let card = Card::of(kit).ok();
    let used = |card: &Option<Card>| {
        let card = card.as_ref()?;
        Some(card.nvml.memory(card.handle).ok()?.used)
    };
    let before = used(&card);
    let wanted = if kit.is_emulated() { 20 } else { DEATHS };
    let mut deaths = 0;
    while deaths < wanted && kit.left().as_secs() > 10 {
        let command = kit.tenant(&["--memory", "1GiB", "--compute", "50%"], "churn");
        let (tenant, hello) = Conversation::start(command)?;
        // At some moment of its work: later in each round, over a tenth of a second.
        std::thread::sleep(std::time::Duration::from_millis(u64::from(deaths) * 7 % 100));
        let inner = hello["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        // By turns the program alone, and the `divvy run` around it with it.
        for pid in [inner, (deaths % 2 == 1).then(|| tenant.pid().cast_signed())] {
            if let Some(pid) = pid.and_then(Pid::from_raw) {
                let _gone = kill_process(pid, Signal::KILL);
            }
        }
        drop(tenant);
        deaths += 1;
    }
    let finding = Finding::fact("deaths.killed", "programs were killed under load")
        .figure(f64::from(deaths), Unit::Count);
    kit.found(&finding)?;
    nothing_is_left(kit, "deaths.slices")?;
    let (Some(before), Some(after)) = (before, used(&card)) else {
        return kit.found(&Finding::skipped(
            "deaths.memory",
            "NVML does not tell what is used",
        ));
    };
    let more = after.saturating_sub(before);
    kit.found(
        &Finding::promise(
            "deaths.memory",
            more <= SLACK,
            "memory in use after them, beyond what was before",
        )
        .bytes(more),
    )
}

//! Programs that are killed under load leave nothing behind.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Card;
use super::memory::nothing_is_left;
use crate::conversation::Conversation;
use crate::finding::{Failure, Finding, Unit};
use crate::kit::{Kit, ROOM};

/// Deaths of a whole run.
const DEATHS: usize = 200;
/// Programs at once. Their shares and their memory have room beside each other on every card.
const AT_ONCE: usize = 8;
const COMPUTE: &str = "10%";
/// Memory that may stay in use after all of them, in bytes: less than one allocation of theirs.
const SLACK: u64 = 1 << 20;
/// The driver gives back what a killed program held when it comes to it.
const LATER: Duration = Duration::from_secs(5);
/// What the look at the rest takes.
const REST: Duration = Duration::from_secs(10);

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    let card = Card::of(kit).ok();
    let used = || {
        let card = card.as_ref()?;
        Some(card.nvml.memory(card.handle).ok()?.used)
    };
    let is_busy = card.as_ref().is_some_and(|card| {
        let others = card.nvml.processes(card.handle);
        others.is_ok_and(|others| !others.is_empty())
    });
    let before = used();
    let wanted = if kit.is_emulated() { 24 } else { DEATHS };
    let at_once = if super::may_share(kit) { AT_ONCE } else { 1 };
    let (mut deaths, mut unstarted) = (0, None);
    while deaths < wanted && kit.left() > REST {
        let (mut tenants, why) = start(kit, at_once.min(wanted - deaths));
        // What the others leave is looked at all the same.
        unstarted = unstarted.or(why);
        if tenants.is_empty() {
            break;
        }
        for (tenant, hello) in &mut tenants {
            // At some moment of its work: later in each round, over a tenth of a second.
            thread::sleep(Duration::from_millis((deaths * 7 % 100) as u64 / at_once as u64));
            let inner = hello["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
            // By turns the program alone, and the `divvy run` around it with it.
            for pid in [inner, (deaths % 2 == 1).then(|| tenant.pid().cast_signed())] {
                if let Some(pid) = pid.and_then(Pid::from_raw) {
                    let _gone = kill_process(pid, Signal::KILL);
                }
            }
            deaths += 1;
        }
    }
    let is_started = unstarted.is_none();
    if let Some(why) = unstarted {
        kit.found(&Finding::promise("deaths.start", false, why))?;
    }
    if deaths < wanted && is_started {
        kit.is_cut = true;
    }
    if deaths == 0 && is_started {
        return kit.no_time("deaths.killed");
    }
    let says = match deaths < wanted && is_started {
        true => format!("programs were killed under load; no time was left for {wanted}"),
        false => "programs were killed under load".to_owned(),
    };
    kit.found(&Finding::fact("deaths.killed", says).figure(super::count(deaths), Unit::Count))?;
    nothing_is_left(kit, "deaths.slices")?;
    let Some(before) = before else {
        return kit.found(&Finding::skipped(
            "deaths.memory",
            "NVML does not tell what is used",
        ));
    };
    let begun = Instant::now();
    let mut more = u64::MAX;
    while more > SLACK && begun.elapsed() < LATER {
        thread::sleep(Duration::from_millis(50));
        more = used().unwrap_or(u64::MAX).saturating_sub(before);
    }
    let says = "memory in use after them, beyond what was before";
    let finding = match is_busy && more > SLACK {
        true => Finding::skipped("deaths.memory", format!("{says}; other programs use the card")),
        false => Finding::promise("deaths.memory", more <= SLACK, says),
    };
    kit.found(&finding.bytes(more))
}

/// Starts so many programs, each in a slice of its own, all at once: most of a start is waiting for the driver. Those that
/// started, and why the first that did not has not.
fn start(kit: &Kit, number: usize) -> (Vec<(Conversation, serde_json::Value)>, Option<Failure>) {
    let left = kit.left();
    thread::scope(|scope| {
        let starting: Vec<_> = (0..number)
            .map(|_| {
                let command = kit.tenant(&["--memory", ROOM, "--compute", COMPUTE], "churn");
                scope.spawn(move || Conversation::start(command, left))
            })
            .collect();
        let ended = starting.into_iter().map(|one| {
            let outcome = one.join();
            outcome.unwrap_or_else(|_| Err("a start was not followed to its end".into()))
        });
        let (mut started, mut why) = (Vec::new(), None);
        for one in ended {
            match one {
                Ok(tenant) => started.push(tenant),
                Err(failure) => why = why.or(Some(failure)),
            }
        }
        (started, why)
    })
}

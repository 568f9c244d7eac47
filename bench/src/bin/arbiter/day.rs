//! A simulated day: tenants arrive, are resized, are killed and leave; two stay, and their shares must not drift.

use std::time::Instant;

use divvy_arbiter::sim::{Actor, Lengths, Load, Outcome, Random, Scenario, Sharing, Step, Turn, run};
use divvy_arbiter::{MILLISECOND, Nanos, SECOND, Share, Terms};

use super::shares::share;

const HOUR: Nanos = 3600 * SECOND;

/// Prints the shares of those who stay, by the hour, and what is left of those who went.
pub fn print(hours: u64) -> anyhow::Result<()> {
    let scenario = scenario(hours);
    let others = scenario.actors.len() - 2;
    let began = Instant::now();
    let outcome = run(&scenario);
    let took = began.elapsed().as_secs_f64();
    println!(
        "\nA day: {hours} simulated hours, {others} tenants that come, are resized, and are killed, beside two that stay"
    );
    let (mut worst, mut first, mut last) = (0.0_f64, 0.0, 0.0);
    for hour in 0..hours {
        let error = error(&outcome, hour * HOUR, (hour + 1) * HOUR);
        worst = worst.max(error);
        if hour == 0 {
            first = error;
        }
        last = error;
    }
    println!(
        "  share error of the two (30 % and 40 % hard), by the hour: first {first:.3}, last {last:.3}, worst {worst:.3} points"
    );
    println!(
        "  kept {:.2} %, {} events, {} refusals",
        outcome.conservation(),
        outcome.events,
        outcome.refusals.len()
    );
    println!(
        "  tenants still registered: {} of {} (the two)",
        outcome.registered,
        others + 2
    );
    println!(
        "  {took:.0} s: {:.0} x real time",
        outcome.lasted as f64 / 1e9 / took
    );
    anyhow::ensure!(
        outcome.registered == 2 && outcome.refusals.is_empty(),
        "Something was left behind"
    );
    Ok(())
}

fn error(outcome: &Outcome, from: Nanos, to: Nanos) -> f64 {
    let off = |actor: usize, share: f64| (outcome.percent(actor, from, to) - share).abs();
    off(0, 30.0).max(off(1, 40.0))
}

fn scenario(hours: u64) -> Scenario {
    let kernels = |n: u64| match n % 3 {
        0 => Lengths::Fixed(MILLISECOND),
        1 => Lengths::Uniform(MILLISECOND / 4, 4 * MILLISECOND),
        _ => Lengths::Fixed(10 * MILLISECOND),
    };
    let mut random = Random::new(24);
    let mut actors = vec![
        Actor::new(Terms::hard(share(30.0)), Load::Greedy(kernels(1))),
        Actor::new(Terms::hard(share(40.0)), Load::Greedy(kernels(0))),
    ];
    let mut steps = Vec::new();
    // One short-lived tenant a minute or so, for half a minute: never two with a share at once, so that none is
    // refused.
    let mut at = 10 * SECOND;
    while at + 60 * SECOND < hours * HOUR {
        let n = actors.len() as u64;
        let other = actors.len();
        let terms = |random: &mut Random| {
            let share = Share::new(random.between(500, 3000) as u16).unwrap_or(Share::WHOLE);
            [Terms::soft(share), Terms::hard(share), Terms::weight(1)][random.between(0, 2) as usize]
        };
        let load = match n % 4 {
            3 => Load::Bursts {
                kernels: 3,
                lengths: kernels(n),
                think: 20 * MILLISECOND,
            },
            _ => Load::Greedy(kernels(n)),
        };
        actors.push(Actor::new(terms(&mut random), load).from(at));
        let stays = random.between(5 * SECOND, 40 * SECOND);
        steps.push(Step {
            at: at + stays / 2,
            actor: other,
            turn: Turn::Resize(terms(&mut random)),
        });
        steps.push(Step {
            at: at + stays,
            actor: other,
            turn: Turn::Kill,
        });
        at += stays + random.between(SECOND, 40 * SECOND);
    }
    Scenario {
        lasts: hours * HOUR,
        bin: SECOND,
        steps,
        ..Scenario::new(Sharing::leases(), actors)
    }
}

//! Hours of the device's time in minutes: its clock leaps over what would be waited for. Two stay, others come, are resized, fail and
//! go; shares do not drift, and nothing is left behind.
//!
//! `DIVVY_TEST_HOURS=24` makes it a day: bench/results/day.txt has one. It takes a minute where there is a processor to be had.

use std::fs;
use std::path::Path;

use divvy_device::EngineUsage;
use divvy_tests::clients::spinner;
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::processes;
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use rustix::process::Signal;

use crate::compute::{engine_of, had};

const DEVICE: &str = "h100,timing=model,fast-forward";
/// A kernel's length: the device leaps over it.
const KERNEL_US: &str = "1000000";
const MINUTE: u64 = 60_000_000_000;
const HOUR: u64 = 60 * MINUTE;

fn hours() -> u64 {
    let wanted = std::env::var("DIVVY_TEST_HOURS").ok();
    wanted.and_then(|hours| hours.parse().ok()).unwrap_or(1)
}

fn tenant(host: &Host, name: &str, compute: &str) -> Tenant {
    let mut command = host.divvy(["run", "--name", name, "--memory", "256MiB", "--compute", compute]);
    command.arg("--").arg(spinner()).arg(KERNEL_US);
    Tenant::start(command)
}

/// What an agent has that could grow: descriptors, threads, resident KiB; and the files of its run directory.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    threads: usize,
    resident_kib: u64,
    files: usize,
}

impl Held {
    fn by(agent: u32, run: &Path) -> Self {
        let count = |path: String| fs::read_dir(path).map_or(0, Iterator::count);
        let status = fs::read_to_string(format!("/proc/{agent}/status")).expect("the agent lives");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|line| line.split_whitespace().next()?.parse().ok());
        Self {
            descriptors: count(format!("/proc/{agent}/fd")),
            threads: count(format!("/proc/{agent}/task")),
            resident_kib: kib.expect("a resident size"),
            files: files_below(run),
        }
    }
}

fn files_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => 1 + files_below(&entry.path()),
            _ => 1,
        })
        .sum()
}

/// The two who stay, and what the first of them had of what both had, in percent, hour by hour.
struct Stayers {
    both: [Tenant; 2],
    from: EngineUsage,
    parts: Vec<f64>,
}

impl Stayers {
    fn look(&mut self, now: EngineUsage) -> EngineUsage {
        if now.now_ns - self.from.now_ns >= HOUR {
            let each = had(&self.from, &now, &[&self.both[0], &self.both[1]]);
            self.parts
                .push(each[0] as f64 * 100.0 / each.iter().sum::<u64>() as f64);
            self.from = now.clone();
        }
        now
    }
}

#[test]
fn hours_of_coming_and_going_leave_shares_as_they_were_and_nothing_behind() {
    let host = Host::with_devices(DEVICE);
    let usage = || engine_of(&host, DEVICE, 0);
    let both = [tenant(&host, "stays", "30%"), tenant(&host, "stays-too", "50%")];
    let mut stayers = Stayers {
        both,
        from: usage(),
        parts: Vec::new(),
    };
    let begin = stayers.from.now_ns;
    let agent = host.agents()[0];
    let mut early = None;
    let mut others = 0_u64;
    while stayers.parts.len() < hours() as usize {
        others += 1;
        let name = format!("other{others}");
        let mut other = tenant(&host, &name, ["20%", "5%", "12%"][others as usize % 3]);
        let mut minutes = |minutes: u64| {
            let from = usage().now_ns;
            until("the device's time goes on", || {
                let now = stayers.look(usage());
                (now.now_ns - from > minutes * MINUTE).then_some(())
            });
        };
        minutes(2);
        succeeded(&finish(&mut host.divvy(["resize", &name, "--compute", "10%"])));
        minutes(2);
        match others % 4 {
            0 => other.signal(Signal::KILL),
            1 => processes::signal(other.page_server(), Signal::KILL),
            2 => drop(other.ask("fault")),
            _ => {}
        }
        if others % 4 == 3 {
            assert!(other.end().success());
        } else if others % 4 == 1 {
            // Its page server is gone: it goes on under its limit until it ends.
            minutes(1);
            other.signal(Signal::KILL);
            let _page_server = other.wait();
        } else {
            let _failed = other.wait();
        }
        until("the slice of the tenant that came is gone", || {
            (host.slices().len() == 2).then_some(())
        });
        minutes(1);
        if others == 4 {
            early = Some(Held::by(agent, &host.run_directory()));
        }
    }
    let late = Held::by(agent, &host.run_directory());
    let early = early.unwrap_or(late);
    let parts = &stayers.parts;
    let mean_of = |parts: &[f64]| parts.iter().sum::<f64>() / parts.len() as f64;
    let (least, most) = parts.iter().fold((100.0_f64, 0.0_f64), |(least, most), part| {
        (least.min(*part), most.max(*part))
    });
    let mean = mean_of(parts);
    eprintln!(
        "{:.2} h of the device's time, {others} other tenants; the first of the two who stay had of what both had (37.5 %): first hour \
         {:.2} %, last {:.2}, mean {mean:.2}, from {least:.2} to {most:.2}; the agent after 4 of them {early:?}, at the end {late:?}",
        (usage().now_ns - begin) as f64 / HOUR as f64,
        parts[0],
        parts[parts.len() - 1],
    );
    // Leases are of the machine's time, and the device leaps over its own. On a busy machine one lease has more kernels
    // than another, and an hour has too few leases for that to even out.
    let off = |from: f64, part: f64| (part - from).abs();
    assert!(parts.iter().all(|part| off(37.5, *part) <= 10.0), "{parts:.2?}");
    if parts.len() >= 12 {
        assert!(off(37.5, mean) <= 3.0, "{parts:.2?}");
        let (first, second) = parts.split_at(parts.len() / 2);
        let (first, second) = (mean_of(first), mean_of(second));
        eprintln!("half by half {first:.2} and {second:.2} %; hour by hour {parts:.1?}");
        assert!(off(first, second) <= 3.0, "they drift: {parts:.2?}");
    }
    assert!(late.descriptors <= early.descriptors + 2, "{early:?} {late:?}");
    assert!(late.threads <= early.threads + 2, "{early:?} {late:?}");
    assert!(late.files <= early.files + 2, "{early:?} {late:?}");
    assert!(
        late.resident_kib < early.resident_kib + 16 * 1024,
        "{early:?} {late:?}"
    );
    assert_eq!(usage().processes.len(), 2, "places of the engine");
    let [one, two] = stayers.both;
    assert!(one.end().success() && two.end().success());
    until("no slice is left", || host.slices().is_empty().then_some(()));
}

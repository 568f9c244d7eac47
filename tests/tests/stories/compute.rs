//! Compute shares from `divvy run --compute` to the device: judged by what its engine did for each process, in its own
//! time.

use divvy_device::{EngineUsage, devices, engine_usage_in};
use divvy_tests::clients::spinner;
use divvy_tests::host::Host;
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use rustix::process::Signal;
use serde_json::Value;

pub(crate) const DEVICE: &str = "h100,timing=model";
pub(crate) const MS: u64 = 1_000_000;

/// A program that always has kernels of 1 ms for its device, in a slice with these terms.
pub(crate) fn spinning(host: &Host, name: &str, terms: &[&str]) -> Tenant {
    let mut command = host.divvy(["run", "--name", name, "--memory", "1GiB"]);
    command.args(terms).arg("--").arg(spinner()).arg("1000");
    Tenant::start(command)
}

pub(crate) fn engine(host: &Host) -> EngineUsage {
    engine_of(host, DEVICE, 0)
}

/// The same of one of several devices.
pub(crate) fn engine_of(host: &Host, specification: &str, place: usize) -> EngineUsage {
    let directory = host.run_directory();
    let device = devices(specification, &directory).expect("emulated devices")[place].uuid;
    engine_usage_in(&directory, device).expect("its engine's page")
}

pub(crate) fn busy(usage: &EngineUsage, tenant: &Tenant) -> u64 {
    let mut processes = usage.processes.iter();
    let found = processes.find(|process| process.pid == tenant.device_pid());
    found.map_or(0, |process| process.busy_ns)
}

/// What each has had of the engine since `from`, nanoseconds.
pub(crate) fn had(from: &EngineUsage, to: &EngineUsage, tenants: &[&Tenant]) -> Vec<u64> {
    let had = |tenant: &&Tenant| busy(to, tenant).saturating_sub(busy(from, tenant));
    tenants.iter().map(had).collect()
}

/// Waits until all of them have run on the engine, and answers what it had done by then.
pub(crate) fn until_all_run(host: &Host, tenants: &[&Tenant]) -> EngineUsage {
    let before = engine(host);
    until("all have run", || {
        let now = engine(host);
        had(&before, &now, tenants)
            .iter()
            .all(|ns| *ns > 50 * MS)
            .then_some(now)
    })
}

/// Where a slice stands by the agent's account, as `divvy top` prints it.
pub(crate) fn standing(host: &Host, name: &str) -> Value {
    let list = host.json(["top", "--once"]);
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items
        .into_iter()
        .find(|item| item["slice"] == name)
        .unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[test]
fn shares_are_what_was_asked_for_and_a_killed_ones_goes_to_the_other() {
    let host = Host::with_devices(DEVICE);
    let small = spinning(&host, "small", &["--compute", "30%"]);
    let mut large = spinning(&host, "large", &["--compute", "70%"]);
    let both = [&small, &large];
    let from = until_all_run(&host, &both);
    let each = until("they have had a second and a half", || {
        let each = had(&from, &engine(&host), &both);
        (each.iter().sum::<u64>() > 1500 * MS).then_some(each)
    });
    let part = each[0] as f64 * 100.0 / each.iter().sum::<u64>() as f64;
    assert!(
        (24.0..=36.0).contains(&part),
        "{part:.1} % instead of 30: {each:?}"
    );
    // The agent's account of it.
    for (name, share) in [("small", 0.3), ("large", 0.7)] {
        let mut last = Value::Null;
        until("the agent has charged a second by the shares", || {
            last = standing(&host, name);
            let used = last["used_1s_ratio"].as_f64()?;
            ((used - share).abs() < 0.06).then_some(())
        });
        assert_eq!(last["share"], format!("{:.0}%", share * 100.0), "{last}");
    }

    large.signal(Signal::KILL);
    assert_eq!(large.wait().code(), Some(137));
    until("the slice is gone", || (host.slices().len() == 1).then_some(()));
    // Alone and without a hard cap: use is not counted, and the whole device is its own.
    assert_eq!(standing(&host, "small")["standing"], "open");
    let mut from = engine(&host);
    until("what is left has nearly all of the device", || {
        let now = engine(&host);
        let lasted = now.now_ns - from.now_ns;
        if lasted < 200 * MS {
            return None;
        }
        let all = busy(&now, &small) - busy(&from, &small);
        from = now;
        (all * 10 > lasted * 8).then_some(())
    });
    assert!(small.end().success());
}

#[test]
fn a_hard_cap_holds_on_an_idle_device() {
    let host = Host::with_devices(DEVICE);
    let capped = spinning(&host, "capped", &["--compute", "30%", "--cap", "hard"]);
    let from = until_all_run(&host, &[&capped]);
    let to = until("two seconds of the device's are over", || {
        let now = engine(&host);
        (now.now_ns - from.now_ns > 2000 * MS).then_some(now)
    });
    let part = busy(&to, &capped).saturating_sub(busy(&from, &capped)) as f64 * 100.0
        / (to.now_ns - from.now_ns) as f64;
    // How much less it gets depends on the machine; that it gets no more does not.
    assert!((3.0..=35.0).contains(&part), "{part:.1} %");
    assert!(capped.end().success());
}

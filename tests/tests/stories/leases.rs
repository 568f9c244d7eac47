//! Leases when something is unusual: a program that fails, one on several devices, memory that is paged, an agent that dies again
//! and again. The engine itself counts what the device did.

use divvy_device::EngineUsage;
use divvy_tests::GIB;
use divvy_tests::clients::spinner;
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use serde_json::Value;

use crate::compute::{DEVICE, MS, busy, engine, engine_of, had, spinning, standing, until_all_run};

/// What the agent says of a slice on its first device.
fn compute(host: &Host, name: &str) -> Value {
    let list: Value = serde_json::from_str(&host.get("/v1/compute")).expect("JSON");
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let found = items.into_iter().find(|item| item["slice"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

/// Waits until these have had so much of the engine since `from`.
fn until_had(host: &Host, from: &EngineUsage, tenants: &[&Tenant], ns: u64) -> Vec<u64> {
    until("they have had that much", || {
        let each = had(from, &engine(host), tenants);
        (each.iter().sum::<u64>() > ns).then_some(each)
    })
}

#[test]
fn a_fatal_error_of_one_does_not_touch_the_others() {
    let host = Host::with_devices(DEVICE);
    let mut bad = spinning(&host, "bad", &["--compute", "50%"]);
    let good = spinning(&host, "good", &["--compute", "50%"]);
    let from = until_all_run(&host, &[&bad, &good]);
    let said = bad.ask("fault");
    assert_eq!(said["error"], "CUDA_ERROR_ILLEGAL_ADDRESS", "{said}");
    assert!(!bad.wait().success(), "its next launch fails, and it says so");
    // The other one goes on, soon alone, and newcomers come in: under MPS they would fail and be refused.
    until_had(&host, &from, &[&good], 200 * MS);
    let next = spinning(&host, "next", &["--compute", "50%"]);
    until_all_run(&host, &[&good, &next]);
    assert!(good.end().success() && next.end().success());
}

#[test]
fn a_program_on_two_devices_has_its_part_of_both() {
    a_gang_has_its_part(1000, 1000);
}

/// Each of its launches outlasts any quantum, on both devices at once.
#[test]
fn a_program_on_two_devices_with_long_launches_has_its_part_of_both() {
    a_gang_has_its_part(80_000, 10_000);
}

/// A program on two devices, with kernels of so many microseconds, beside one program on each of them.
fn a_gang_has_its_part(kernel_us: u32, beside_us: u32) {
    let host = Host::with_devices("h100*2,timing=model");
    let one = |name: &str, device: &str, us: u32, count: &str| {
        let mut command = host.divvy(["run", "--name", name, "--memory", "1GiB", "--device", device]);
        command.args(["--compute", "50%", "--"]).arg(spinner());
        command.args([&us.to_string(), count]);
        Tenant::start(command)
    };
    // They come first: what a program launches while it is alone is not counted, and is in flight for long.
    let beside = [
        one("first", "0", beside_us, "1"),
        one("second", "1", beside_us, "1"),
    ];
    let both = one("both", "0,1", kernel_us, "2");
    let usage = |place: usize| engine_of(&host, "h100*2,timing=model", place);
    let from = until("all of them run", || {
        let now = [usage(0), usage(1)];
        let runs =
            |place: usize| busy(&now[place], &both) > 50 * MS && busy(&now[place], &beside[place]) > 50 * MS;
        (runs(0) && runs(1)).then_some(now)
    });
    // With few processors one device's turn comes when the program waits at the other's gate: a second may be all the one's or
    // all the other's. Debt is repaid.
    until("it has had half of each device in all", || {
        let now = [usage(0), usage(1)];
        let each = |place: usize| had(&from[place], &now[place], &[&both, &beside[place]]);
        let each = [each(0), each(1)];
        if each.iter().any(|each| each.iter().sum::<u64>() < 1500 * MS) {
            return None;
        }
        let parts = each.map(|each| each[0] as f64 * 100.0 / each.iter().sum::<u64>() as f64);
        eprintln!("{parts:?} % of the devices");
        parts
            .iter()
            .all(|part| (35.0..=65.0).contains(part))
            .then_some(())
    });
    // The gang's leases come together: as many here as there, and never one alone.
    let records: Value = serde_json::from_str(&host.get("/v1/compute")).expect("JSON");
    let standings = records["items"].as_array().expect("records");
    assert_eq!(standings.iter().filter(|item| item["slice"] == "both").count(), 2);
    let [first, second] = beside;
    assert!(both.end().success() && first.end().success() && second.end().success());
}

/// Each has launches of its own, longer than any quantum, and the slice's share is of both together.
#[test]
fn two_processes_of_one_slice_with_long_launches_have_its_share_and_neither_starves() {
    let host = Host::with_devices(DEVICE);
    succeeded(&finish(&mut host.divvy([
        "slice",
        "create",
        "pair",
        "--memory",
        "2GiB",
        "--compute",
        "50%",
    ])));
    // It comes first: what a program launches while it is alone is not counted, and is in flight for long. Its kernels need a
    // processor seldom: on a busy machine it uses what it is given.
    let mut command = host.divvy(["run", "--name", "other", "--memory", "1GiB", "--compute", "50%"]);
    command.arg("--").arg(spinner()).arg("10000");
    let other = Tenant::start(command);
    let of_pair = || {
        let mut command = host.divvy(["run", "--slice", "pair", "--"]);
        command.arg(spinner()).arg("80000");
        Tenant::start(command)
    };
    let (one, two) = (of_pair(), of_pair());
    let all = [&one, &two, &other];
    let from = until_all_run(&host, &all);
    until("the pair has had half, and each of it a part", || {
        let each = had(&from, &engine(&host), &all);
        let used: u64 = each.iter().sum();
        if used < 2000 * MS {
            return None;
        }
        let percent = |ns: u64, of: u64| ns * 100 / of.max(1);
        let pair = each[0] + each[1];
        let is_shared = (40..=60).contains(&percent(pair, used));
        (is_shared && each[..2].iter().all(|ns| percent(*ns, pair) >= 30)).then_some(())
    });
    assert!(one.end().success() && two.end().success() && other.end().success());
}

#[test]
fn leases_are_longer_while_memory_is_paged() {
    let host = Host::with_devices(DEVICE);
    let mut pages = spinning(&host, "pages", &["--compute", "50%", "--oversubscribe=3x"]);
    let other = spinning(&host, "other", &["--compute", "50%"]);
    let lease = |from: &Value, to: &Value| {
        let more = |key: &str| to[key].as_u64().expect("a number") - from[key].as_u64().expect("a number");
        more("charged_ns") / more("leases").max(1)
    };
    until_all_run(&host, &[&pages, &other]);
    let from = compute(&host, "other");
    let usual = until("it has had twenty leases", || {
        let now = compute(&host, "other");
        (now["leases"].as_u64()? >= from["leases"].as_u64()? + 20).then(|| lease(&from, &now))
    });
    assert!(usual < 20 * MS, "{usual} ns a lease");
    // Two GiB beyond the share: some 180 ms to bring them back, which is to be a tenth of a lease at most.
    for bytes in [GIB, GIB] {
        let said = pages.ask(&format!("hold {bytes}"));
        assert!(said["error"].is_null(), "{said}");
    }
    until("the agent says so", || {
        let events = finish(&mut host.divvy(["events", "-o", "json"]));
        succeeded(&events).contains("\"thrashing\"").then_some(())
    });
    let from = compute(&host, "other");
    until("a lease lasts ten times as long", || {
        let now = compute(&host, "other");
        let leases = now["leases"].as_u64()? - from["leases"].as_u64()?;
        (leases >= 2 && lease(&from, &now) > 10 * usual).then_some(())
    });
    assert!(pages.end().success() && other.end().success());
}

#[test]
fn metrics_tell_what_each_slice_has_had() {
    let host = Host::with_devices(DEVICE);
    let small = spinning(&host, "small", &["--compute", "30%"]);
    let large = spinning(&host, "large", &["--compute", "70%"]);
    until_all_run(&host, &[&small, &large]);
    let figure = |name: &str, slice: &str| -> f64 {
        let text = host.get("/metrics");
        let label = format!("{name}{{slice=\"{slice}\"");
        let line = text.lines().find(|line| line.starts_with(&label));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or_else(|| panic!("no {label} in {text}"))
    };
    let charged = |slice: &str| figure("divvy_slice_charged_seconds_total", slice);
    let from = (charged("small"), charged("large"));
    until("both were charged by their shares for a second", || {
        let (small, large) = (charged("small") - from.0, charged("large") - from.1);
        (small + large > 1.0 && (small / (small + large) - 0.3).abs() < 0.06).then_some(())
    });
    assert_eq!(figure("divvy_slice_effective_share", "small"), 0.3);
    assert!(figure("divvy_slice_leases_total", "large") > 10.0);
    assert!(host.get("/metrics").lines().any(|line| line == "divvy_slices 2"));
    assert!(small.end().success() && large.end().success());
}

#[test]
fn the_quantum_is_the_agents_to_choose() {
    let host = Host::with_devices(DEVICE);
    let refused = finish(&mut host.divvy(["agent", "serve", "--quantum", "31ms"]));
    assert!(
        stderr(&refused).contains("from 1ms to 30ms"),
        "{}",
        stderr(&refused)
    );
    let mut agent = host.divvy(["agent", "serve", "--quantum", "30ms"]);
    let mut agent = agent
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    until("it serves", || {
        (host.agents().len() == 1 && host.run_directory().join("agent.sock").exists()).then_some(())
    });
    let one = spinning(&host, "one", &["--compute", "50%"]);
    let two = spinning(&host, "two", &["--compute", "50%"]);
    until_all_run(&host, &[&one, &two]);
    let from = compute(&host, "one");
    let lease = until("it has had ten leases", || {
        let now = compute(&host, "one");
        let more = |key: &str| Some(now[key].as_u64()? - from[key].as_u64()?);
        let (leases, charged) = (more("leases")?, more("charged_ns")?);
        (leases >= 10).then(|| charged / leases)
    });
    assert!((20 * MS..=45 * MS).contains(&lease), "{lease} ns a lease");
    assert!(one.end().success() && two.end().success());
    succeeded(&finish(&mut host.divvy(["agent", "stop"])));
    agent.wait().expect("it ends");
}

/// How often an agent is killed under load: more where `DIVVY_TEST_RESTARTS` says so.
fn restarts() -> u32 {
    let wanted = std::env::var("DIVVY_TEST_RESTARTS").ok();
    wanted.and_then(|count| count.parse().ok()).unwrap_or(6)
}

#[test]
fn agents_die_under_load_again_and_again_and_shares_hold() {
    let host = Host::with_devices(DEVICE);
    let small = spinning(&host, "small", &["--compute", "30%"]);
    let large = spinning(&host, "large", &["--compute", "70%"]);
    let both = [&small, &large];
    until_all_run(&host, &both);
    let first = engine(&host);
    let mut gaps = Vec::new();
    for _ in 0..restarts() {
        let from = engine(&host);
        host.kill_agent();
        // The next command that asks starts another.
        host.slices();
        let mut last = (from.now_ns, had(&from, &engine(&host), &both).iter().sum::<u64>());
        let mut longest = 0;
        until("they have worked for 300 ms", || {
            let now = engine(&host);
            let done: u64 = had(&from, &now, &both).iter().sum();
            if done > last.1 {
                last = (now.now_ns, done);
            }
            longest = longest.max(now.now_ns - last.0);
            (done > 300 * MS).then_some(())
        });
        gaps.push(longest / MS);
    }
    eprintln!("longest time in which no tenant had the device, by restart: {gaps:?} ms");
    let part = |each: &[u64]| each[0] as f64 * 100.0 / each.iter().sum::<u64>() as f64;
    let meanwhile = had(&first, &engine(&host), &both);
    eprintln!("{:.1} % meanwhile, where 30 are due", part(&meanwhile));
    // And the last one keeps them exactly, but while a program gets no processor and launches nothing.
    until("the small one has its 30 % of a second and a half", || {
        let each = until_had(&host, &engine(&host), &both, 1500 * MS);
        eprintln!("{:.1} % of a second and a half", part(&each));
        (24.0..=36.0).contains(&part(&each)).then_some(())
    });
    assert_eq!(host.agents().len(), 1);
    assert!(small.end().success() && large.end().success());
}

#[test]
fn top_shows_what_the_device_did_and_not_what_was_leased() {
    let host = Host::with_devices(DEVICE);
    // One alone is not counted by leases, and the device tells all the same.
    let alone = spinning(&host, "alone", &[]);
    until("its use is shown", || {
        let item = standing(&host, "alone");
        (item["standing"] == "open" && item["busy_1s_ratio"].as_f64()? > 0.6).then_some(())
    });
    let lazy = {
        let mut command = host.divvy(["run", "--name", "lazy", "--memory", "1GiB", "--", "sh", "-c"]);
        command.arg("echo '{\"pid\": '$$'}'; read line; true");
        Tenant::start(command)
    };
    until("both are counted", || {
        let item = standing(&host, "alone");
        (item["used_1s_ratio"].as_f64()? > 0.6 && item["busy_1s_ratio"].as_f64()? > 0.6).then_some(())
    });
    until("one that computes nothing has used nothing", || {
        (standing(&host, "lazy")["busy_1s_ratio"].as_f64()? < 0.01).then_some(())
    });
    let table = succeeded(&finish(&mut host.divvy(["top", "--once"])));
    assert!(table.contains("USE 1s"), "{table}");
    assert!(alone.end().success() && lazy.end().success());
}

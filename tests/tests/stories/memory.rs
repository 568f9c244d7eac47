//! Memory limits: each tenant's own, the sum on the device, races inside a slice, and changing a limit while it holds.

use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};

#[test]
fn two_tenants_at_once_each_have_their_own_limit() {
    let host = Host::new();
    let mut small = host.probe("small", "1GiB");
    let mut large = host.probe("large", "3GiB");
    assert_eq!(small.memory().1, GIB);
    assert_eq!(large.memory().1, 3 * GIB);

    assert_eq!(small.allocate(900 * MIB), Ok(()));
    assert_eq!(large.allocate(2800 * MIB), Ok(()));
    assert_eq!(small.allocate(200 * MIB), Err("CUDA_ERROR_OUT_OF_MEMORY".into()));
    assert_eq!(large.allocate(300 * MIB), Err("CUDA_ERROR_OUT_OF_MEMORY".into()));
    // One tenant's refusal does not affect the other.
    assert_eq!(large.allocate(200 * MIB), Ok(()));
    assert!(small.copies() && large.copies());

    // Memory that the copies freed in stream order comes back when the tenant looks, waits or allocates again.
    until("what the copies freed is back", || {
        let _looked = (small.memory(), large.memory());
        let used = |name| host.slice(name).memory_used_bytes;
        (used("small") == 900 * MIB && used("large") == 3000 * MIB).then_some(())
    });
    let (small, large) = (host.slice("small"), host.slice("large"));
    assert_eq!(small.memory_limit_bytes, GIB);
    assert_eq!(large.memory_limit_bytes, 3 * GIB);
    assert_eq!(small.memory_used_bytes, 900 * MIB);
    assert_eq!(large.memory_used_bytes, 3000 * MIB);
    assert_eq!(small.device_uuid, large.device_uuid);
}

#[test]
fn the_most_that_was_used_and_what_was_refused_are_told() {
    let host = Host::new();
    let mut tenant = host.probe("one", "1GiB");
    assert_eq!(tenant.allocate(700 * MIB), Ok(()));
    for _ in 0..2 {
        assert!(tenant.allocate(500 * MIB).is_err());
    }
    tenant.free();
    let shown = host.json(["inspect", "one"]);
    // A pool's growth is charged in steps, of which some come back at once.
    let peak = shown["memory_peak_bytes"].as_u64().expect("a number");
    assert!((700 * MIB..=710 * MIB).contains(&peak), "{peak}");
    assert_eq!(shown["refused_allocations"], 2);
    let told = until("it is told", || {
        let events = succeeded(&finish(&mut host.divvy(["events"])));
        events
            .lines()
            .find(|line| line.contains("oom"))
            .map(str::to_owned)
    });
    assert!(
        told.contains("an allocation of 500 MiB was refused to process ") && told.contains(" of 1 GiB"),
        "{told}"
    );
}

#[test]
fn contexts_come_out_of_the_slice() {
    let host = Host::with_devices("h100,context=300MiB");
    let mut tenant = host.probe("one", "1GiB");
    assert_eq!(tenant.memory(), (GIB - 300 * MIB, GIB));
    assert_eq!(host.slice("one").memory_used_bytes, 300 * MIB);
    assert!(tenant.allocate(725 * MIB).is_err());
    assert_eq!(tenant.allocate(724 * MIB), Ok(()));
    // One that has no space for a context is of no use.
    let refused = finish(host.run("299MiB", "true").stdin(std::process::Stdio::null()));
    assert!(stderr(&refused).contains("300 MiB"), "{}", stderr(&refused));
}

#[test]
fn the_device_is_not_promised_twice() {
    let host = Host::with_devices("a100-40gb");
    let _first = host.probe("first", "20GiB");
    let _second = host.probe("second", "15GiB");
    let refused = finish(host.run("10GiB", "true").stdin(std::process::Stdio::null()));
    assert_eq!(refused.status.code(), Some(125));
    let message = stderr(&refused);
    assert!(message.contains("error[D0012]"), "{message}");
    // Who holds the rest, and what to do.
    assert!(
        message.contains("first") && message.contains("second"),
        "{message}"
    );
    assert!(message.contains("hint:"), "{message}");
    // A request that fits is still granted.
    succeeded(&finish(&mut host.run("1GiB", "true")));
}

#[test]
fn eight_processes_racing_in_one_slice_never_pass_its_limit() {
    let host = Host::new();
    let mut tenant = host.probe("herd", "1GiB");
    assert_eq!(tenant.start_children(8).len(), 8);
    let given =
        |answers: &[serde_json::Value]| answers.iter().filter(|answer| answer["error"].is_null()).count();

    for _ in 0..4 {
        // All of it fits, so no request may be refused.
        assert_eq!(given(&tenant.ask_children(&format!("allocate {}", 100 * MIB))), 8);
        assert_eq!(tenant.memory(), (GIB - 800 * MIB, GIB));
        assert_eq!(host.slice("herd").memory_used_bytes, 800 * MIB);
        assert_eq!(given(&tenant.ask_children("free")), 8);
        assert_eq!(tenant.memory(), (GIB, GIB));

        // Five times 200 MiB fit, in any order.
        assert_eq!(given(&tenant.ask_children(&format!("allocate {}", 200 * MIB))), 5);
        assert_eq!(tenant.memory(), (GIB - 1000 * MIB, GIB));
        assert_eq!(given(&tenant.ask_children("free")), 8);

        // A large request that is refused does not stand in the way of a small one that fits. Whole pages of the
        // device: of parts of them, the agent may count the rest as overhead until its next look, off the space below.
        assert_eq!(tenant.allocate(1000 * MIB), Ok(()));
        let answers = tenant.ask_children(&format!("allocate {}", 2 * MIB));
        assert_eq!(given(&answers), 8, "{answers:?}");
        tenant.free();
        assert_eq!(given(&tenant.ask_children("free")), 8);
    }
    assert_eq!(host.slice("herd").processes.len(), 9);
}

/// Random calls of four programs of one slice against a count of ours: what fits is given, what does not is refused, and
/// the slice, its programs and the device say the same of it. On each isolation level alike.
#[test]
fn what_programs_hold_after_random_calls_is_what_slice_and_device_say() {
    let host = Host::new();
    let mut tenant = host.probe("random", "1GiB");
    assert_eq!(tenant.start_children(3).len(), 3);
    let on_device = || host.json(["devices"])["items"][0]["memory_used_bytes"].as_u64();
    // What contexts take comes beside.
    let contexts = on_device().expect("a figure");
    let mut held: [Vec<u64>; 4] = Default::default();
    let (mut dice, mut refused) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    let mut below = |end: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % end
    };
    for round in 0..120 {
        let who = usize::try_from(below(4)).expect("small");
        // Two of three ask for more, so that the limit is met.
        let bytes = match below(3) {
            0 => None,
            _ => Some(2 * MIB * (1 + below(80))),
        };
        let line = bytes.map_or("free".to_owned(), |bytes| format!("allocate {bytes}"));
        let answer = match who {
            0 => tenant.ask(&line),
            _ => tenant.ask(&format!("child {} {line}", who - 1)),
        };
        let sum: u64 = held.iter().flatten().sum();
        match bytes {
            None => drop(held[who].pop()),
            Some(bytes) if sum + bytes <= GIB => {
                assert!(
                    answer["error"].is_null(),
                    "round {round}: {bytes} fit beside {sum}: {answer}"
                );
                held[who].push(bytes);
            }
            Some(bytes) => {
                let error = &answer["error"];
                assert_eq!(
                    error, "CUDA_ERROR_OUT_OF_MEMORY",
                    "round {round}: {bytes} beside {sum}"
                );
                refused += 1;
            }
        }
        let sum: u64 = held.iter().flatten().sum();
        assert_eq!(tenant.memory(), (GIB - sum, GIB), "round {round}");
        if round % 20 == 19 {
            host.until_used("random", sum);
            assert_eq!(on_device(), Some(contexts + sum), "round {round}");
        }
    }
    assert!((5..100).contains(&refused), "{refused} refused");
}

#[test]
fn a_running_program_sees_its_slice_grow_and_shrink() {
    let host = Host::new();
    let mut tenant = host.probe("elastic", "1GiB");
    assert!(tenant.allocate(1500 * MIB).is_err());

    succeeded(&finish(
        &mut host.divvy(["resize", "elastic", "--memory", "2GiB"]),
    ));
    assert_eq!(tenant.memory(), (2 * GIB, 2 * GIB));
    assert_eq!(tenant.allocate(1500 * MIB), Ok(()));

    // Below what it holds: it keeps that, and gets nothing more.
    succeeded(&finish(
        &mut host.divvy(["resize", "elastic", "--memory", "512MiB"]),
    ));
    assert_eq!(tenant.memory(), (0, 512 * MIB));
    assert!(tenant.allocate(MIB).is_err());
    tenant.free();
    assert_eq!(tenant.allocate(400 * MIB), Ok(()));
    assert_eq!(host.slice("elastic").memory_limit_bytes, 512 * MIB);
}

#[test]
fn a_slice_cannot_grow_past_its_neighbour() {
    let host = Host::with_devices("a100-40gb");
    let mut tenant = host.probe("wide", "10GiB");
    let _neighbour = host.probe("neighbour", "20GiB");
    let refused = finish(&mut host.divvy(["resize", "wide", "--memory", "25GiB"]));
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("error[D00"), "{}", stderr(&refused));
    assert_eq!(tenant.memory().1, 10 * GIB);
}

#[test]
fn memory_comes_back_when_a_program_ends_well() {
    let host = Host::with_devices("a100-40gb");
    let other = host.probe("other", "1GiB");
    for _ in 0..3 {
        // Each of these needs most of the device: the former one's slice must be gone.
        let mut tenant = host.probe("passing", "30GiB");
        assert_eq!(tenant.allocate(100 * MIB), Ok(()));
        assert!(tenant.end().success());
        until("the slice is gone", || {
            host.slices()
                .iter()
                .all(|slice| slice.name != "passing")
                .then_some(())
        });
    }
    assert!(other.end().success());
}

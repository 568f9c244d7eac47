//! F13. Seen on the old code: one dry run of alice's put sixteen emulated devices into root's agent, for everybody. root's next
//! slice of 60 GiB was admitted on her made-up H100, where the machine has an L4.

use divvy_tests::host::finish;
use divvy_tests::system::System;
use serde_json::json;

#[test]
fn f13_what_a_caller_says_of_emulated_devices_is_nothing_to_the_others() {
    let Some(system) = System::with(&[("DIVVY_EMULATED", "l4")]) else {
        return;
    };
    let alice = &system.users.alice;
    let count = || {
        system.json(["devices"])["items"]
            .as_array()
            .expect("devices")
            .len()
    };
    assert_eq!(count(), 1);
    for dry_run in [true, false] {
        let body = json!({
            "request": { "memory": { "bytes": 1_u64 << 30 } }, "command": [],
            "emulated": "h100*16", "dry_run": dry_run, "lasting": true,
        });
        let said = finish(&mut system.attacker_as(alice, ["http", "POST", "/v1/slices", &body.to_string()]));
        println!("{}", String::from_utf8_lossy(&said.stdout));
        assert_eq!(
            count(),
            1,
            "alice's request made devices for everybody (dry run: {dry_run})"
        );
    }
    for memory in ["--memory=60GiB", "--memory=100%"] {
        let shown = finish(&mut system.divvy(["slice", "create", "roots", memory]));
        let on = system.json(["ps"]).to_string();
        assert!(
            !shown.status.success() || !on.contains("64424509440"),
            "60 GiB were admitted on an L4: {on}"
        );
    }
    system.holds();
}

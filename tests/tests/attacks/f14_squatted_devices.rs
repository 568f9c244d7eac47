//! F14. Seen on the old code: a user who is nothing to Divvy bound the abstract name of a device before the agent's first slice
//! of it. root was refused: "owned by the agent ... of user 65534".

use divvy_tests::host::{finish, stderr};
use divvy_tests::hostile::Hostile;
use divvy_tests::system::System;

#[test]
fn f14_a_users_claim_on_a_device_refuses_root_nothing() {
    let Some(system) = System::unused(&[]) else { return };
    let uuid = system.json(["devices"])["items"][0]["uuid"]
        .as_str()
        .expect("a UUID")
        .to_owned();
    let squat = || {
        let squatter = Hostile::start(&mut system.attacker_as(&system.users.mallory, ["squat", &uuid]));
        println!("{}", squatter.line().unwrap_or_default());
        squatter
    };
    let create = |name: &str| {
        let made = finish(&mut system.divvy(["slice", "create", name, "--memory", "1GiB"]));
        assert!(
            made.status.success(),
            "root was refused {name}: {}",
            stderr(&made)
        );
    };
    // While the agent has handed out nothing yet.
    let squatter = squat();
    create("first");
    drop(squatter);
    // And while none runs.
    system.stop_agent();
    let squatter = squat();
    system.start_agent();
    create("second");
    drop(squatter);
    system.holds();
}

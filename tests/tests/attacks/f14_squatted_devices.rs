//! F14. Seen on the old code: a user who is nothing to Divvy bound the abstract name of a device before the agent's first slice
//! of it. root was refused: "owned by the agent ... of user 65534".

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use divvy_tests::host::{finish, stderr};
use divvy_tests::hostile::Hostile;
use divvy_tests::system::System;

/// The user that has the name of a device now, as the kernel tells it.
fn claimant(uuid: &str) -> Option<u32> {
    let address = SocketAddr::from_abstract_name(format!("divvy/device/{uuid}")).expect("a name");
    let stream = UnixStream::connect_addr(&address).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).expect("a peer");
    Some(peer.uid.as_raw())
}

#[test]
fn f14_a_users_claim_on_a_device_refuses_root_nothing() {
    let Some(system) = System::unused(&[]) else { return };
    let (mallory, agent) = (&system.users.mallory, &system.users.agent);
    let uuid = system.json(["devices"])["items"][0]["uuid"]
        .as_str()
        .expect("a UUID")
        .to_owned();
    let squat = || Hostile::start(&mut system.attacker_as(mallory, ["squat", &uuid]));
    let create = |name: &str| {
        let made = finish(&mut system.divvy(["slice", "create", name, "--memory", "1GiB"]));
        assert!(
            made.status.success(),
            "root was refused {name}: {}",
            stderr(&made)
        );
    };
    // An agent that has handed out nothing yet has the name all the same.
    let late = squat();
    assert_eq!(late.line().as_deref(), Some("refused"));
    assert_eq!(claimant(&uuid), Some(agent.uid));
    create("first");
    drop(late);
    // While no agent runs the name is free for everybody.
    system.stop_agent();
    let claim = squat();
    assert_eq!(claim.line().as_deref(), Some("squats"));
    system.start_agent();
    assert_eq!(claimant(&uuid), Some(mallory.uid), "her claim stands");
    create("second");
    assert_eq!(claimant(&uuid), Some(mallory.uid), "her claim stood meanwhile");
    drop(claim);
    system.holds();
}

//! F12. Seen on the old code: a container that said `divvy.dev/slice: fc` was let into bob's slice, whose id begins so.
//! Names belonged to no user, so a container of root's that asked for "alice" was put into a slice that mallory had
//! called so.

use divvy_tests::containers::Podman;
use divvy_tests::host::finish;
use divvy_tests::system::System;

use super::containers::image;

#[test]
fn f12_a_container_joins_no_other_users_slice_by_a_name_or_a_part_of_an_id() {
    let Some(system) = System::new() else { return };
    let Some(podman) = Podman::new(&system) else {
        return;
    };
    let image = image(&system);
    let bobs = system.slice_of(&system.users.bob, "bobs", "1GiB");
    let mallorys = system.slice_of(&system.users.mallory, "alice", "1GiB");
    for asked in [&bobs[..2], &bobs, "bobs", "alice", &mallorys[..3]] {
        let annotation = format!("divvy.dev/slice={asked}");
        let look = [
            "/bin/sh",
            "-c",
            "ls /run/divvy/slice; /bin/attacker limit /run/divvy/slice/attach.sock",
        ];
        let mut run = podman.run_over_wrapper(&[], &["--annotation", &annotation], &image, &look);
        let seen = finish(&mut run);
        let seen = String::from_utf8_lossy(&seen.stdout);
        assert!(
            !seen.contains("attach.sock"),
            "`{asked}` led into another user's slice: {seen}"
        );
    }
    system.holds();
}

//! F3. Seen on the old code: user 0 was taken for the agent, and a container's root is user 0. Over the socket that is
//! mounted in it a container brought its slice's page server a grant of its own: 1024 MiB became 80,896 MiB.

use divvy_tests::GIB;
use divvy_tests::containers::Podman;
use divvy_tests::host::{Host, finish, succeeded};

use super::containers::{HARDENED, image, slice};

#[test]
fn f03_a_containers_root_cannot_bring_its_slice_a_grant_of_its_own() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let (image, device) = (image(&host), slice(&host, &podman, "own", "1GiB"));
    let attack = "/bin/attacker deliver /run/divvy/slice/attach.sock 84825604096; \
                  for socket in /run/divvy/slice/*; do /bin/attacker deliver $socket 84825604096; done; \
                  echo limit; /bin/attacker limit /run/divvy/slice/attach.sock; echo info | /bin/probe";
    let flags = [&HARDENED[..], &["--device", &device]].concat();
    let seen = succeeded(&finish(&mut podman.run(
        &flags,
        &image,
        &["/bin/sh", "-c", attack],
    )));
    println!("{seen}");
    let mut after = seen.lines().skip_while(|line| *line != "limit").skip(1);
    assert_eq!(after.next(), Some(GIB.to_string().as_str()), "{seen}");
    let told = after.last().expect("the tenant's answer");
    assert!(told.contains(&format!("\"total_bytes\":{GIB}")), "{seen}");
    // Nor is it cut off from the agent: the next container finds what root changes.
    succeeded(&finish(&mut host.divvy(["resize", "own", "--memory", "2GiB"])));
    let look = ["/bin/attacker", "limit", "/run/divvy/slice/attach.sock"];
    let seen = succeeded(&finish(&mut podman.run(&flags, &image, &look)));
    assert_eq!(seen.trim(), (2 * GIB).to_string());
}

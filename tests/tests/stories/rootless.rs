//! Engines without root: a user's own podman, over slices of his own agent.

use divvy_tests::host::Host;
use divvy_tests::rootless::Rootless;
use divvy_tests::tenant::Tenant;
use divvy_tests::{GIB, MIB};

use crate::containers::image;

/// He may not write where podman looks for CDI files, and is told what he can do: the wrapper needs no file.
#[test]
fn a_users_podman_gets_slices_of_his_own_agent_by_the_wrapper() {
    let host = Host::new();
    let image = image(&host);
    let Some(nobody) = Rootless::new(&host, &image, "runc") else {
        return;
    };
    let flags = ["-i", "--annotation", "divvy.dev/memory=1GiB"];
    let mut tenant = Tenant::start_in_container(nobody.run(&flags, &image, &["/bin/probe"]));
    assert_eq!(tenant.memory(), (GIB, GIB));
    assert_eq!(tenant.allocate(700 * MIB), Ok(()));
    assert!(tenant.allocate(700 * MIB).is_err());
    // Open: `divvy ps` of the user outside podman's user namespace does not list this slice any more.
    assert!(tenant.end().success());
}

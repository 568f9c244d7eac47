//! Engines without root: a user's own podman, over slices of his own agent.

use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::rootless::Rootless;
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};
use serde_json::Value;

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
    let shown = || -> Value {
        let text = succeeded(&finish(&mut nobody.divvy(&["ps", "-o", "json"])));
        serde_json::from_str(&text).expect("JSON")
    };
    assert_eq!(shown()["items"][0]["memory_used_bytes"], 700 * MIB);
    assert!(tenant.end().success());
    let none = || shown()["items"].as_array().is_some_and(Vec::is_empty);
    until("the slice is gone", || none().then_some(()));

    let mut words = vec!["podman".to_owned()];
    words.extend(nobody.flags(false));
    words.extend(["run", "--memory", "1GiB", "image"].map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let refused = finish(&mut nobody.divvy(&words));
    let said = stderr(&refused);
    assert!(
        said.contains("error[D0047]")
            && said.contains("--annotation divvy.dev/memory")
            && said.contains("--cdi-directory"),
        "{said}"
    );
    assert_eq!(refused.status.code(), Some(125));
    assert!(none(), "nothing is left");
    // The user that started it says where it is: no other process looks there.
    succeeded(&finish(&mut nobody.divvy(&["agent", "stop"])));
}

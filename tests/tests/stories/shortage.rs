//! What happens when a slice is short of memory, by the user's choice: refused at once, after a wait, or beyond the
//! share.

use divvy_tests::MIB;
use divvy_tests::clients::{python_tenant, system_python};
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use serde_json::{Value, json};

/// The Python tenant that takes so many MiB each, in a slice of 1 GiB under these flags; its first line.
fn hold(host: &Host, flags: &[&str], sizes: &[&str]) -> Option<(Tenant, Value)> {
    let mut command = host.divvy(["run", "--name", "short", "--memory", "1GiB"]);
    command.args(flags).arg("--").arg(system_python()?);
    command.arg(python_tenant()).arg("hold").args(sizes);
    Some(Tenant::start_with_line(command))
}

#[test]
fn by_default_what_does_not_fit_is_refused_at_once() {
    let host = Host::new();
    let Some((_tenant, first)) = hold(&host, &[], &["600", "600"]) else {
        return;
    };
    assert_eq!(first["errors"], json!([0, 2]));
}

#[test]
fn beyond_the_share_there_is_the_hosts_memory() {
    let host = Host::new();
    let Some((mut tenant, first)) = hold(&host, &["--oversubscribe=2x"], &["600", "600", "300", "600"])
    else {
        return;
    };
    // Within, beyond, within again, and then neither has 600 MiB left.
    assert_eq!(first["errors"], json!([0, 0, 0, 2]));
    assert_eq!(first["usable"], json!([0, 0, 0]));
    assert_eq!(first["total"], json!(2048));
    // The share pays for 900 MiB, and the host for 600.
    host.until_used("short", 900 * MIB);
    let shown = &host.json(["ps"])["items"][0];
    assert_eq!(shown["memory_spilled_bytes"], 600 * MIB, "{shown}");
    assert_eq!(shown["devices"][0]["memory_spilled_bytes"], 600 * MIB);
    assert_eq!(shown["processes"][0]["memory_spilled_bytes"], 600 * MIB);
    assert_eq!(shown["conditions"], json!(["spilled"]));
    for (words, said) in [
        (&["ps"][..], " spilled "),
        (&["ps", "-o", "wide"], " 600 MiB "),
        (&["inspect", "short"], "spilled      600 MiB of that is used"),
        (
            &["inspect", "short"],
            "holds 900 MiB, and 600 MiB beyond the share",
        ),
    ] {
        let text = succeeded(&finish(&mut host.divvy(words.iter().copied())));
        assert!(text.contains(said), "{words:?}: {text}");
    }
    assert_eq!(tenant.ask("")["freed"], json!([0, 0, 0]));
    host.until_used("short", 0);
    let shown = &host.json(["ps"])["items"][0];
    assert!(shown["memory_spilled_bytes"].is_null(), "{shown}");
}

#[test]
fn who_waits_has_the_room_that_a_neighbour_gives_back() {
    let Some(python) = system_python() else { return };
    let host = Host::new();
    // One holds what the other waits for, and gives it back when it is told to.
    let mut command = host.divvy([
        "run", "--name", "short", "--memory", "1GiB", "--on-oom", "wait=10m", "--", "sh", "-c",
    ]);
    command.arg("exec 3<&0; \"$1\" \"$2\" hold 600 <&3 & \"$1\" \"$2\" hold 600 <&3; wait");
    command.arg("sh").arg(&python).arg(python_tenant());
    let (mut tenant, first) = Tenant::start_with_line(command);
    assert_eq!(first["errors"], json!([0]), "one of the two fits");
    until("the other waits", || {
        let shown = host.json(["ps"]).to_string();
        shown.contains("waiting").then_some(())
    });
    host.until_used("short", 600 * MIB);
    // The waiting tenant may have its memory before the one that freed it reports that.
    let answers = [tenant.ask(""), tenant.answer()];
    let said = |key| answers.iter().any(|answer| answer[key] == json!([0]));
    assert!(said("freed"), "{answers:?}");
    assert!(said("errors"), "it had only to wait: {answers:?}");
    assert!(tenant.end().success());
}

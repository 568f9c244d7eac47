//! Programs of several processes: forks before and after the first call, worker pools by every start method, programs
//! that become others. One limit holds for all of them together, and what each held comes back.

use divvy_tests::MIB;
use divvy_tests::clients::{python_tenant, system_python};
use divvy_tests::host::Host;
use divvy_tests::tenant::Tenant;
use rustix::process::Signal;
use serde_json::{Value, json};

/// The Python tenant in this part, in a slice `pool` of 1 GiB; its first line.
fn start(host: &Host, part: &[&str]) -> Option<(Tenant, Value)> {
    let mut command = host.divvy(["run", "--name", "pool", "--memory", "1GiB", "--"]);
    command.arg(system_python()?).arg(python_tenant()).args(part);
    Some(Tenant::start_with_line(command))
}

#[test]
fn a_forked_child_has_no_context_and_leaves_the_parents_charges_alone() {
    let host = Host::new();
    let Some((mut tenant, first)) = start(&host, &["fork_after_use"]) else {
        return;
    };
    // CUDA_ERROR_NOT_INITIALIZED, as over any driver.
    assert_eq!(first["child"][0], json!(3));
    assert_ne!(
        first["child"][1],
        json!(0),
        "nor does it free its parent's memory"
    );
    assert_eq!(first["more"], json!(true));
    host.until_used("pool", 200 * MIB);
    assert_eq!(tenant.ask("")["freed"], json!([0, 0]));
}

#[test]
fn children_of_a_parent_that_has_not_begun_come_in_by_themselves() {
    let host = Host::new();
    let Some((mut tenant, first)) = start(&host, &["fork_before_use"]) else {
        return;
    };
    assert_eq!(first["errors"], json!([0, 0, 2]), "two of 400 MiB fit 1 GiB");
    host.until_used("pool", 800 * MIB);
    assert_eq!(tenant.ask("")["ended"], json!(true));
}

fn a_pool_shares_one_limit(method: &str) {
    let host = Host::new();
    let Some((mut tenant, first)) = start(&host, &["pool", method]) else {
        return;
    };
    assert_eq!(first["errors"], json!([0, 0, 0, 2]), "three of 300 MiB fit 1 GiB");
    host.until_used("pool", 900 * MIB);
    assert_eq!(tenant.ask("")["ended"], json!(true));
}

#[test]
fn a_pool_that_spawns_shares_one_limit() {
    a_pool_shares_one_limit("spawn");
}

#[test]
fn a_pool_that_forks_shares_one_limit() {
    a_pool_shares_one_limit("fork");
}

#[test]
fn a_pool_of_a_fork_server_shares_one_limit() {
    a_pool_shares_one_limit("forkserver");
}

#[test]
fn a_program_that_becomes_another_comes_in_again() {
    let host = Host::new();
    let Some((mut tenant, first)) = start(&host, &["execute"]) else {
        return;
    };
    assert_eq!((&first["first"], &first["second"]), (&json!(0), &json!(0)));
    host.until_used("pool", 800 * MIB);
    assert_eq!(tenant.ask("")["ended"], json!(true));
}

#[test]
fn a_killed_worker_gives_back_what_it_held() {
    let host = Host::new();
    let mut tenant = host.probe("pool", "1GiB");
    let children = tenant.start_children(3);
    let answers = tenant.ask_children(&format!("allocate {}", 300 * MIB));
    assert!(
        answers.iter().all(|answer| answer["error"].is_null()),
        "{answers:?}"
    );
    assert!(tenant.allocate(300 * MIB).is_err());
    divvy_tests::processes::signal(children[0], Signal::KILL);
    host.until_used("pool", 600 * MIB);
    assert_eq!(tenant.allocate(300 * MIB), Ok(()));
}

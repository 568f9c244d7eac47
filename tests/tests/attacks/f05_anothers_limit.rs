//! F5. Seen on the old code: alice put a link to bob's socket where her own keeper was to listen. The agent followed it, took
//! bob's pages for hers, and gave his keeper a grant with her limit: bob's tenants had 300 MiB in the place of 2 GiB.

use divvy_tests::GIB;
use divvy_tests::host::{finish, succeeded};
use divvy_tests::system::System;

#[test]
fn f05_a_user_who_leads_the_agent_to_anothers_keeper_changes_nothing_there() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let id = system.slice_of(bob, "bobs", "2GiB");
    assert_eq!(system.limit_seen_by(bob, &id), 2 * GIB);
    for name in ["attach.sock", "control.sock"] {
        let mut redirect = system.attacker_as(alice, ["redirect"]);
        let said = finish(redirect.arg(system.slice_folder(&id).join(name)));
        println!("{}", String::from_utf8_lossy(&said.stdout));
        assert_eq!(system.limit_seen_by(bob, &id), 2 * GIB, "bob's limit is alice's");
    }
    // What root and bob change reaches bob's tenants still.
    succeeded(&finish(
        &mut system.divvy_as(bob, ["resize", "bobs", "--memory", "3GiB"]),
    ));
    assert_eq!(system.limit_seen_by(bob, &id), 3 * GIB);
    system.holds();
}

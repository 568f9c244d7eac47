//! F5. Seen on the old code: alice put a link to bob's socket where her own page server was to listen. The agent
//! followed it, took bob's pages for hers, and gave his page server a grant with her limit: bob's tenants had 300 MiB
//! in the place of 2 GiB.

//!
//! A user can put no link there any more. So root puts it there, and the agent still has to see whose pages it is given.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use divvy_tests::GIB;
use divvy_tests::host::{finish, succeeded};
use divvy_tests::hostile::Hostile;
use divvy_tests::system::System;
use divvy_tests::users::User;

/// Has the user lead the agent to this socket of another's page server; what the agent answers.
fn redirected(system: &System, user: &User, other: &Path) -> String {
    let mut redirect = system.attacker_as(user, ["redirect"]);
    let attack = Hostile::start(redirect.arg(other));
    let line = || attack.line().expect("it goes on");
    for name in ["attach.sock", "control.sock"] {
        let said = line();
        assert_eq!(
            said,
            format!("{name} not linked: Permission denied (os error 13)")
        );
    }
    let place = PathBuf::from(line()).join("control.sock");
    symlink(other, &place).expect("root may");
    assert_eq!(line(), "stands true", "the link was there when the agent came");
    line()
}

#[test]
fn f05_a_user_who_leads_the_agent_to_anothers_page_server_changes_nothing_there() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let id = system.slice_of(bob, "bobs", "2GiB");
    assert_eq!(system.limit_seen_by(bob, &id), 2 * GIB);
    // In the words of bob's page server: the agent was led there.
    for (name, refusal) in [
        ("attach.sock", "does not allow this"),
        ("control.sock", "finds the pages unfit"),
    ] {
        let said = redirected(&system, alice, &system.slice_folder(&id).join(name));
        assert_eq!(system.limit_seen_by(bob, &id), 2 * GIB, "bob's limit is alice's");
        assert!(said.contains(refusal), "{said}");
    }
    // Changes by root and bob still reach bob's tenants.
    succeeded(&finish(
        &mut system.divvy_as(bob, ["resize", "bobs", "--memory", "3GiB"]),
    ));
    assert_eq!(system.limit_seen_by(bob, &id), 3 * GIB);
    system.holds();
}

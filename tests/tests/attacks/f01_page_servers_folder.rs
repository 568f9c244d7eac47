//! F1. Seen on the old code: the page server of a lasting slice ran as root in the user's own folder. A link at `box`
//! made root chmod what it led to: a file of root's was 0755 within a second. A link in the place of the socket,
//! between bind and chown, gave a file of root's to the user, at the first try.

use std::time::{Duration, Instant};

use divvy_tests::host::{finish, succeeded};
use divvy_tests::hostile::Hostile;
use divvy_tests::system::System;

/// Looks until this is over.
const LOOK: Duration = Duration::from_secs(3);

#[test]
fn f01_a_link_in_the_place_of_the_box_leads_root_nowhere() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let id = system.slice_of(alice, "own", "1GiB");
    let victim = system.victim("shadow");
    // In the old layout the box lies in her folder; where it is now she may change nothing.
    let run = system.run_directory();
    let attack = "cd \"$1/slices/$2\" 2>/dev/null && mv box x; ln -s \"$3\" box; rm -f attach.sock; \
                  cd \"$1/boxes\" 2>/dev/null && mv \"$2\" x && ln -s \"$3\" \"$2\"; true";
    system.script_as(alice, attack, &[&run, id.as_ref(), victim.path()]);
    let begin = Instant::now();
    while begin.elapsed() < LOOK && victim.harm().is_none() {
        std::thread::sleep(Duration::from_millis(50));
    }
    victim.is_unharmed();
    system.holds();
}

#[test]
fn f01_a_link_in_the_place_of_the_socket_is_not_given_away() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let id = system.slice_of(alice, "own", "1GiB");
    let victim = system.victim("shadow");
    let folder = system.slice_folder(&id);
    let mut swap = system.attacker_as(alice, ["swap"]);
    swap.arg(&folder)
        .arg("attach.sock")
        .arg(victim.path())
        .arg(LOOK.as_secs().to_string());
    let swap = Hostile::start(&mut swap);
    let begin = Instant::now();
    while begin.elapsed() < LOOK && victim.harm().is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    victim.is_unharmed();
    println!("{}", swap.rest().join(" "));
    // Whatever she did to herself, others go on.
    succeeded(&finish(&mut system.divvy_as(
        &system.users.bob,
        ["slice", "create", "bobs", "--memory", "1GiB"],
    )));
    system.holds();
}

//! F9. Seen on the old code: sixteen threads served everybody, and each could wait two seconds for a caller's own page
//! server. One tenant with 200 requests at once made `divvy agent status` take 20 seconds, and the agent's own rounds
//! with it.

use std::time::{Duration, Instant};

use divvy_tests::hostile::Hostile;
use divvy_tests::system::System;

#[test]
fn f09_page_servers_that_accept_nothing_delay_no_other_user() {
    let Some(system) = System::new() else { return };
    let stuck = Hostile::start(&mut system.attacker_as(&system.users.alice, ["stuck", "200"]));
    assert_eq!(stuck.line().as_deref(), Some("begins"));
    // The agent has given up waiting for that page server once: so its requests do wait.
    let said = stuck.line().unwrap_or_default();
    assert!(said.contains("in time"), "the agent was to wait: {said}");
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        let begin = Instant::now();
        let answered = system.answers(&system.users.bob, Duration::from_secs(6));
        longest = longest.max(begin.elapsed());
        assert!(answered, "bob's `divvy ps` had no answer within 6 s");
    }
    println!("bob's `divvy ps` took {longest:?} at most");
    assert!(longest < Duration::from_secs(3), "bob waited {longest:?}");
    assert!(system.answers_root(Duration::from_secs(3)));
    drop(stuck);
    system.holds();
}

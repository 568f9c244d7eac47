use std::collections::HashMap;

use divvy_model::LifetimeAnchor;

use crate::decide::life::{Ending, Sight, ending, missed_rounds, sight_of};

#[test]
fn a_slice_ends_when_nothing_keeps_or_uses_it() {
    assert_eq!(ending(false, false, || false), Ending::Ends);
    assert_eq!(ending(false, false, || true), Ending::Orphaned);
    assert_eq!(
        ending(false, true, || panic!("its page server lives")),
        Ending::Stays
    );
    assert_eq!(ending(true, false, || panic!("it is lasting")), Ending::Stays);
}

#[test]
fn a_container_comes_in_time_or_is_missed() {
    let waits = |taken| LifetimeAnchor::Containers {
        until_unix_s: 100,
        taken,
    };
    assert_eq!(sight_of(&waits(false), true, 200), Sight::Taken);
    assert_eq!(
        sight_of(&waits(false), false, 99),
        Sight::Nothing,
        "it is waited for"
    );
    assert_eq!(sight_of(&waits(false), false, 100), Sight::Missed);
    assert_eq!(sight_of(&waits(true), true, 0), Sight::Nothing);
    assert_eq!(sight_of(&waits(true), false, 0), Sight::Missed, "it had its time");
    let other = LifetimeAnchor::Path("/x".into());
    assert_eq!(sight_of(&other, false, 200), Sight::Nothing);
}

#[test]
fn two_rounds_in_a_row_make_sure_that_containers_are_gone() {
    let first = missed_rounds(&HashMap::new(), vec!["a".into(), "b".into()]);
    assert!(first.over.is_empty() && first.is_unsure);
    let second = missed_rounds(&first.missed, vec!["a".into()]);
    assert_eq!(
        (second.over.as_slice(), second.is_unsure),
        (&["a".to_owned()][..], false)
    );
    let third = missed_rounds(&second.missed, vec!["b".into()]);
    assert!(third.over.is_empty(), "b was seen in between");
    assert!(!missed_rounds(&third.missed, Vec::new()).is_unsure);
}

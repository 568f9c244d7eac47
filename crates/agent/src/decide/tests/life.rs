use std::collections::HashMap;
use std::time::Duration;

use divvy_model::{Code, LifetimeAnchor, SliceRecord};

use crate::decide::life::{
    Ending, Expiry, Sight, bound, check_time, ending, expiry, gone_within, idled_out, missed_rounds, sight_of,
};
use crate::start::settings::Settings;

#[test]
fn a_slice_whose_time_is_over_is_asked_to_end_and_then_killed() {
    let mut record = SliceRecord::default();
    let second = Duration::from_secs(1);
    assert_eq!(expiry(&record, u64::MAX, None), None);
    record.expires_unix_s = Some(100);
    assert_eq!(expiry(&record, 99, None), None);
    assert_eq!(expiry(&record, 100, None), Some(Expiry::Ask));
    assert_eq!(expiry(&record, 101, Some(second)), Some(Expiry::Wait));
    assert_eq!(expiry(&record, 110, Some(10 * second)), Some(Expiry::Kill));
    assert_eq!(expiry(&record, 115, Some(15 * second)), Some(Expiry::TakeBack));
    assert!(check_time(&record, 99).is_ok() && check_time(&record, 100).is_err());
}

#[test]
fn a_slice_whose_time_is_over_says_within_how_long_it_is_gone() {
    let mut record = SliceRecord::default();
    assert_eq!(gone_within(&record, u64::MAX), None);
    record.expires_unix_s = Some(100);
    let seconds = |now| gone_within(&record, now).map(|left| left.as_secs());
    assert_eq!(
        (seconds(99), seconds(100), seconds(105), seconds(200)),
        (None, Some(17), Some(12), Some(1))
    );
    let hint = check_time(&record, 105).expect_err("over").hint;
    assert!(hint.is_some_and(|hint| hint.contains("within 12 s")));
}

#[test]
fn only_a_lasting_slice_that_goes_with_no_path_idles_out() {
    let mut record = SliceRecord {
        lasting: true,
        ..SliceRecord::default()
    };
    let hour = Duration::from_secs(3600);
    assert!(!idled_out(&record, hour), "it has no limit");
    record.terms.idle_ttl_s = 3600;
    assert!(!idled_out(&record, hour - Duration::from_secs(1)) && idled_out(&record, hour));
    record.lifetime_anchor = Some(LifetimeAnchor::Path("/x".into()));
    assert!(!idled_out(&record, hour));
    let others = [
        LifetimeAnchor::Process {
            pid: 1,
            start_ticks: 0,
        },
        LifetimeAnchor::Containers {
            until_unix_s: u64::MAX,
            taken: false,
        },
    ];
    for anchor in others {
        record.lifetime_anchor = Some(anchor);
        assert!(idled_out(&record, hour), "{record:?}: a tenant may have named it");
    }
    record.lifetime_anchor = None;
    record.lasting = false;
    assert!(!idled_out(&record, hour));
}

#[test]
fn a_users_slice_lives_as_long_as_the_settings_say_at_most() {
    let settings = Settings {
        user_ttl: Some(Duration::from_secs(100)),
        idle_ttl: Some(Duration::from_secs(10)),
        ..Settings::default()
    };
    let bounded = |ttl_s: u64, idle_ttl_s: u64, lasting: bool, is_trusted: bool| {
        let mut record = SliceRecord {
            lasting,
            ..SliceRecord::default()
        };
        record.terms.ttl_s = ttl_s;
        record.terms.idle_ttl_s = idle_ttl_s;
        let outcome = bound(&mut record, &settings, is_trusted);
        outcome.map(|()| (record.terms.ttl_s, record.terms.idle_ttl_s))
    };
    assert_eq!(bounded(0, 0, true, false).expect("less"), (100, 10));
    assert_eq!(bounded(50, 20, true, false).expect("less"), (50, 10));
    assert_eq!(bounded(0, 5, false, false).expect("less"), (100, 0));
    assert_eq!(
        bounded(101, 0, true, false).expect_err("more").code,
        Code::QuotaFull
    );
    assert_eq!(bounded(500, 0, true, true).expect("trusted"), (500, 0));
}

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

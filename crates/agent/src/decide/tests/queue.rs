use std::collections::HashSet;

use divvy_model::{Code, SliceRequest};

use super::*;
use crate::decide::queue::{
    ALL, Ahead, FOREIGN, PER_USER, Party, Turn, WaitsFor, may_change, require_place, standing, turn,
};

fn devices(uuids: &[&str]) -> HashSet<String> {
    uuids.iter().map(|uuid| (*uuid).to_owned()).collect()
}

/// Serves these requests in order, as the agent does: each is tried, and one that waits is ahead of later ones.
fn serve(host: &mut Played, settings: &Settings, requests: &[SliceRequest]) -> Vec<Turn> {
    let mut ahead = Ahead::default();
    let mut turns = Vec::new();
    for request in requests {
        let outcome = host.place(settings, request, &ahead, vec![vec![gpu(0)]]);
        let code = outcome.as_ref().err().map(|fault| fault.code);
        let turn = turn(code, false, false);
        if let (Turn::Waits, Some(code)) = (turn, code) {
            ahead.add(&WaitsFor::of(None, ALICE, code, || devices(&["GPU-0"])));
        }
        if let Ok(placed) = outcome {
            let held = placed[0].1.0 >> 30;
            host.tenants.0.push(tenant("new", ALICE, &[("GPU-0", held)]));
        }
        turns.push(turn);
    }
    turns
}

#[test]
fn a_small_slice_does_not_overtake_a_large_one() {
    let settings = settings();
    let there = vec![tenant("there", BOB, &[("GPU-0", 40)])];
    let mut host = Played::with(there.clone());
    let turns = serve(&mut host, &settings, &[request(60), request(1)]);
    assert_eq!(
        turns,
        [Turn::Waits, Turn::Waits],
        "there is room for the small one"
    );
    let mut host = Played::with(there);
    let turns = serve(&mut host, &settings, &[request(40), request(1)]);
    assert_eq!(turns, [Turn::Served, Turn::Waits], "the first fits, and fills it");
    let mut host = Played::with(Vec::new());
    let turns = serve(&mut host, &settings, &[request(81), request(80)]);
    assert_eq!(
        turns,
        [Turn::Served; 2],
        "what can never be is told at once, and is in no one's way"
    );
}

#[test]
fn a_users_own_quota_keeps_only_that_user_waiting() {
    let own = WaitsFor::of(None, ALICE, Code::QuotaFull, || panic!("no device is waited for"));
    assert_eq!(own, WaitsFor::Account(ALICE));
    let mut ahead = Ahead::default();
    ahead.add(&own);
    assert!(ahead.devices.is_empty() && ahead.parents.is_empty());
    let settings = settings();
    let mut host = Played::with(Vec::new());
    let refusal = host.place(&settings, &request(1), &ahead, vec![vec![gpu(0)]]);
    assert_eq!(refusal.expect_err("hers wait").code, Code::QuotaFull);
}

#[test]
fn inside_a_slice_only_that_slice_is_waited_for() {
    for code in [Code::SliceFull, Code::QuotaFull, Code::DeviceFull] {
        let inside = WaitsFor::of(Some("home"), ALICE, code, || panic!("no device is waited for"));
        assert_eq!(inside, WaitsFor::Parent("home".into()));
    }
    let mut ahead = Ahead::default();
    ahead.add(&WaitsFor::Parent("home".into()));
    assert_eq!(ahead.parents, devices(&["home"]));
    assert!(ahead.devices.is_empty() && ahead.accounts.is_empty());
}

#[test]
fn waiters_are_counted_by_device() {
    let mut ahead = Ahead::default();
    ahead.add(&WaitsFor::Devices(devices(&["GPU-0", "GPU-1"])));
    ahead.add(&WaitsFor::Devices(devices(&["GPU-1"])));
    assert_eq!((ahead.devices["GPU-0"], ahead.devices["GPU-1"]), (1, 2));
}

#[test]
fn only_what_others_give_back_is_worth_waiting_for() {
    use Code::{ComputeFull, DeviceFull, OtherMode, QuotaFull, SliceFull, TooManySlices};
    for code in [
        DeviceFull,
        ComputeFull,
        OtherMode,
        TooManySlices,
        QuotaFull,
        SliceFull,
    ] {
        assert!(may_change(code), "{code}");
        assert_eq!(
            turn(Some(code), false, true),
            Turn::Waits,
            "whatever is known of the caller"
        );
    }
    for code in [
        Code::OverDevice,
        Code::OverQuota,
        Code::OverSlice,
        Code::BadMemory,
        Code::NoMig,
    ] {
        assert!(!may_change(code), "{code}");
        assert_eq!(turn(Some(code), true, false), Turn::Served, "{code}");
    }
    assert_eq!(
        turn(Some(Code::Driver), true, false),
        Turn::Waits,
        "it may come back"
    );
    assert_eq!(turn(Some(Code::Driver), false, false), Turn::Served);
    assert_eq!(turn(Some(Code::NotAllowed), false, true), Turn::Undecided);
    assert_eq!(turn(None, false, true), Turn::Served, "it has its slice");
}

#[test]
fn places_are_few_for_a_user_and_kept_for_root_and_the_agent() {
    const AGENT: u32 = 500;
    let party = |account| Party {
        account,
        is_trusted: [0, AGENT].contains(&account),
    };
    let full = |waiting: &[u32], uid| {
        let waiting: Vec<Party> = waiting.iter().copied().map(party).collect();
        require_place(&waiting, party(uid)).map_err(|fault| fault.code)
    };
    let own = vec![ALICE; PER_USER];
    assert_eq!(full(&own[1..], ALICE), Ok(()));
    assert_eq!(full(&own, ALICE), Err(Code::QueueFull));
    assert_eq!(full(&own, BOB), Ok(()));
    let many = vec![AGENT; PER_USER];
    assert_eq!(
        full(&many, AGENT),
        Ok(()),
        "no such bound for the agent's own user"
    );
    let mut foreign: Vec<u32> = (0..).map(|n| 2000 + n).take(FOREIGN - 1).collect();
    foreign.extend([AGENT, 0, 0]);
    assert_eq!(full(&foreign, ALICE), Ok(()), "trusted ones are not counted");
    foreign.push(BOB);
    assert_eq!(full(&foreign, ALICE), Err(Code::QueueFull));
    assert_eq!((full(&foreign, 0), full(&foreign, AGENT)), (Ok(()), Ok(())));
    foreign.resize(ALL - 1, 0);
    assert_eq!(full(&foreign, 0), Ok(()));
    foreign.push(0);
    assert_eq!(full(&foreign, 0), Err(Code::QueueFull), "for all");
}

#[test]
fn a_place_is_counted_among_those_that_wait_for_the_same() {
    let (a, b, ab) = (devices(&["a"]), devices(&["b"]), devices(&["a", "b"]));
    let waiters = [Some(&a), Some(&b), None, Some(&ab), Some(&b)];
    assert_eq!(standing(&waiters, 0), (1, 2));
    assert_eq!(standing(&waiters, 1), (1, 3));
    assert_eq!(standing(&waiters, 3), (3, 4));
    assert_eq!(standing(&waiters, 4), (3, 3));
    assert_eq!(standing(&waiters, 2), (1, 1), "served");
}

use std::collections::HashSet;

use divvy_model::{Code, MemoryAmount, Selector, SliceRecord, SliceRequest};

use super::*;
use crate::decide::family::Family;
use crate::decide::nesting::{Caller, Membership, Parent, check_loan, check_reach, home};
use crate::decide::placement::PlacementRequest;

/// Members by slice and number: `divvy run`s, and processes that attached.
#[derive(Default)]
struct Known {
    runs: Vec<(&'static str, u32)>,
    attached: Vec<(&'static str, u32)>,
}

impl Membership for Known {
    fn is_run(&self, id: &str, pid: u32) -> bool {
        self.runs.iter().any(|(one, number)| *one == id && *number == pid)
    }

    fn is_attached(&self, id: &str, pid: u32) -> bool {
        self.attached
            .iter()
            .any(|(one, number)| *one == id && *number == pid)
    }
}

fn slices() -> Vec<SliceRecord> {
    vec![
        record("outer", None, &[("GPU-0", 40)]),
        record("inner", Some("outer"), &[("GPU-0", 10)]),
        record("deep", Some("inner"), &[("GPU-0", 5)]),
        SliceRecord {
            uid: BOB,
            ..record("bobs", None, &[("GPU-0", 10)])
        },
        SliceRecord {
            terms: unlimited(),
            ..record("free", None, &[("GPU-0", 10)])
        },
        record("orphan", Some("gone"), &[("GPU-0", 1)]),
    ]
}

#[test]
fn the_nearest_slice_above_a_caller_is_its_home() {
    let slices = slices();
    let family = Family::of(&slices);
    let known = Known {
        runs: vec![("outer", 10), ("inner", 20), ("free", 30), ("bobs", 40)],
        attached: vec![("outer", 50), ("bobs", 51)],
    };
    let of = |pid, ancestors: &[u32], named| {
        let caller = Caller {
            uid: ALICE,
            pid,
            ancestors,
            named,
        };
        home(&family, caller, &known).map(|record| record.id.as_str())
    };
    assert_eq!(of(99, &[21, 20, 10, 1], None), Some("inner"));
    assert_eq!(
        of(99, &[10, 1], Some("inner")),
        Some("outer"),
        "no variable hides it"
    );
    assert_eq!(
        of(99, &[30, 10], None),
        Some("outer"),
        "one that limits nothing is none"
    );
    assert_eq!(of(99, &[40, 1], None), Some("bobs"), "of any user");
    assert_eq!(of(50, &[20, 1], None), Some("outer"), "it attached itself");
    assert_eq!(of(99, &[50, 1], None), Some("outer"), "its parent attached");
    assert_eq!(of(51, &[1], None), None, "another user's, by a container");
    assert_eq!(of(99, &[1], Some("inner")), Some("inner"));
    assert_eq!(of(99, &[1], Some("bobs")), None, "that says a variable only");
    assert_eq!(of(99, &[1], Some("free")), None);
    assert_eq!(of(99, &[1], Some("none")), None);
    assert_eq!(of(99, &[1], None), None);
}

#[test]
fn a_caller_in_a_slice_reaches_only_what_is_inside() {
    let slices = slices();
    let family = Family::of(&slices);
    check_reach(&family, None, "outer").expect("from outside");
    check_reach(&family, Some("outer"), "inner").expect("inside");
    check_reach(&family, Some("outer"), "deep").expect("at any depth");
    for id in ["outer", "bobs", "orphan"] {
        let refusal = check_reach(&family, Some("outer"), id).expect_err("not inside");
        assert_eq!(refusal.code, Code::OutsideSlice);
        assert_eq!(refusal.message, "this runs inside slice outer");
    }
    assert!(
        check_reach(&family, Some("inner"), "outer").is_err(),
        "the other way round"
    );
}

#[test]
fn a_slice_whose_parent_is_gone_is_outermost() {
    let slices = slices();
    let family = Family::of(&slices);
    let outermost: HashSet<&str> = family.outermost().map(|record| record.id.as_str()).collect();
    assert_eq!(outermost, HashSet::from(["outer", "bobs", "free", "orphan"]));
    let inside: Vec<&str> = family.inside("outer").map(|record| record.id.as_str()).collect();
    assert_eq!(inside, ["inner"], "directly");
}

fn place(
    parent: &Parent<'_>,
    request: &SliceRequest,
    chosen: &[DeviceRecord],
    ahead: &Ahead,
) -> Result<Placed, Fault> {
    let settings = settings();
    let asked = PlacementRequest {
        request,
        visible: None,
        chosen: chosen.to_vec(),
        own: Vec::new(),
    };
    parent.place(
        &rules(&settings),
        &inventory(&[gpu(0), gpu(1), gpu(2)]),
        &asked,
        ahead,
    )
}

#[test]
fn a_slice_inside_another_gets_what_is_free_there_and_never_more() {
    let mut record = record("outer", None, &[("GPU-0", 40)]);
    record.shares.first = share("GPU-0", gib(40), gib(10));
    let parent = Parent {
        record: &record,
        used: vec![gib(5)],
        is_unknown: false,
    };
    let ahead = Ahead::default();
    let of = |memory| place(&parent, &request(memory), &[], &ahead);
    assert_eq!(uuids(&of(25).expect("exactly what is free")), [("GPU-0", 25)]);
    let refusal = of(26).expect_err("its programs and slices have the rest");
    assert_eq!(refusal.code, Code::SliceFull);
    assert_eq!(
        refusal.causes,
        ["its programs hold 5 GiB, slices inside it 10 GiB"]
    );
    assert_eq!(of(41).expect_err("more than its parent").code, Code::OverSlice);
    let half = SliceRequest {
        memory: Some(MemoryAmount::Share(5000)),
        ..SliceRequest::default()
    };
    let placed = place(&parent, &half, &[], &ahead);
    assert_eq!(uuids(&placed.expect("of its parent")), [("GPU-0", 20)]);
    let mut behind = Ahead::default();
    behind.parents.insert("outer".into());
    let refusal = place(&parent, &request(1), &[], &behind).expect_err("others wait");
    assert_eq!(refusal.code, Code::SliceFull);
    let whole = SliceRequest {
        terms: whole(),
        ..request(1)
    };
    assert_eq!(
        place(&parent, &whole, &[], &ahead).expect_err("a device").code,
        Code::OutsideSlice
    );
    let unknown = Parent {
        is_unknown: true,
        ..parent
    };
    let refusal = place(&unknown, &request(1), &[], &ahead).expect_err("nothing is known");
    assert_eq!(refusal.code, Code::SliceGone);
}

#[test]
fn inside_a_slice_of_two_devices_the_first_with_room_is_taken() {
    let record = record("outer", None, &[("GPU-0", 10), ("GPU-2", 40)]);
    let parent = Parent {
        record: &record,
        used: vec![gib(10), gib(0)],
        is_unknown: false,
    };
    let ahead = Ahead::default();
    let placed = place(&parent, &request(5), &[], &ahead).expect("on the second");
    assert_eq!(uuids(&placed), [("GPU-2", 5)]);
    let mut one = request(5);
    one.select(vec![Selector::Index(0)]);
    assert_eq!(
        place(&parent, &one, &[gpu(0)], &ahead).expect_err("full").code,
        Code::SliceFull
    );
    assert_eq!(
        place(&parent, &one, &[gpu(1)], &ahead)
            .expect_err("not its device")
            .code,
        Code::OutsideSlice
    );
    let placed = place(&parent, &request(0), &[gpu(2)], &ahead);
    assert_eq!(placed.expect_err("nothing at all").code, Code::BadMemory);
}

#[test]
fn growing_inside_a_slice_takes_the_difference() {
    let mut record = record("outer", None, &[("GPU-0", 40)]);
    record.shares.first = share("GPU-0", gib(40), gib(10));
    let parent = Parent {
        record: &record,
        used: vec![gib(5)],
        is_unknown: false,
    };
    let grow = |share| {
        parent
            .regrow("GPU-0", gib(10), gib(share))
            .map_err(|fault| fault.code)
    };
    assert_eq!(grow(35), Ok(()), "25 more");
    assert_eq!(grow(36), Err(Code::SliceFull));
    assert_eq!(grow(41), Err(Code::OverSlice));
    assert_eq!(grow(1), Ok(()), "less is always possible");
    let elsewhere = parent.regrow("GPU-1", gib(1), gib(2));
    assert_eq!(elsewhere.expect_err("not its device").code, Code::SliceGone);
}

#[test]
fn a_loan_is_refused_that_programs_have_taken_meanwhile() {
    let (before, more) = (share("GPU-0", gib(40), gib(10)), share("GPU-0", gib(40), gib(20)));
    check_loan("outer", &before, &more, gib(20)).expect("exactly what is left");
    let refusal = check_loan("outer", &before, &more, Bytes(gib(20).0 + 1)).expect_err("taken");
    assert_eq!(refusal.code, Code::SliceFull);
    check_loan("outer", &more, &before, gib(40)).expect("it gives back");
    check_loan("outer", &more, &more, gib(40)).expect("nothing new");
}

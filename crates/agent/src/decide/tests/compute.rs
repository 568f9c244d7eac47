use divvy_arbiter::Part;
use divvy_model::{Cap, Class, Code, Compute, ComputeTerms, Mode, SliceRecord, Weight};

use super::*;
use crate::decide::compute::{cap_of, check_weight};
use crate::decide::family::Family;

fn share_of(parts: u16) -> ComputeTerms {
    ComputeTerms {
        share: Some(Compute(parts)),
        ..ComputeTerms::default()
    }
}

fn with(record: SliceRecord, terms: ComputeTerms) -> SliceRecord {
    let mut record = record;
    record.terms.compute = terms;
    record
}

fn parts(slices: &[SliceRecord], id: &str) -> Option<u16> {
    let terms = Family::of(slices).compute_terms();
    terms.get(id).map(|terms| match terms.part {
        Part::Share(share) => share.parts(),
        Part::Weight(weight) => weight,
    })
}

#[test]
fn slices_inside_one_another_divide_the_outermost_ones_part() {
    let slices = [
        with(record("outer", None, &[("GPU-0", 40)]), share_of(4000)),
        with(record("inner", Some("outer"), &[("GPU-0", 10)]), share_of(5000)),
        with(record("deep", Some("inner"), &[("GPU-0", 5)]), share_of(5000)),
    ];
    let all = ["outer", "inner", "deep"].map(|id| parts(&slices, id));
    assert_eq!(all, [Some(2000), Some(1000), Some(1000)]);
}

#[test]
fn a_cap_is_the_outermost_slices() {
    let hard = ComputeTerms {
        cap: Cap::Hard,
        ..share_of(4000)
    };
    let slices = [
        with(record("outer", None, &[("GPU-0", 40)]), hard),
        record("inner", Some("outer"), &[("GPU-0", 10)]),
        with(record("other", None, &[("GPU-0", 10)]), share_of(1000)),
    ];
    let terms = Family::of(&slices).compute_terms();
    let caps = ["outer", "inner", "other"].map(|id| cap_of(&terms[id]));
    assert_eq!(caps, [Cap::Hard, Cap::Hard, Cap::Soft]);
}

#[test]
fn a_slice_without_leases_has_no_terms() {
    let free = SliceRecord {
        terms: unlimited(),
        ..record("free", None, &[("GPU-0", 1)])
    };
    let whole = SliceRecord {
        terms: whole(),
        ..record("whole", None, &[("GPU-0", 80)])
    };
    let turns = SliceRecord {
        terms: sharing(Mode::Timeslice),
        ..record("turns", None, &[("GPU-0", 1)])
    };
    let slices = [free, whole, turns, record("plain", None, &[("GPU-0", 1)])];
    let all = ["free", "whole", "turns", "plain"].map(|id| parts(&slices, id));
    assert_eq!(all, [None, None, None, Some(100)]);
}

#[test]
fn a_slice_gives_no_more_compute_than_it_has() {
    let slices = [
        with(record("outer", None, &[("GPU-0", 40)]), share_of(4000)),
        with(record("inner", Some("outer"), &[("GPU-0", 10)]), share_of(6000)),
    ];
    let family = Family::of(&slices);
    let ask = |terms, without| family.compute_inside("outer", terms, without);
    assert_eq!(ask(share_of(4000), None).expect("the rest"), share_of(4000));
    let refusal = ask(share_of(4001), None).expect_err("one part too much");
    assert_eq!(refusal.code, Code::SliceFull);
    assert_eq!(refusal.hint.as_deref(), Some("40% is free in it; see divvy ps"));
    ask(share_of(10_000), Some("inner")).expect("in the place of what it has");
    let critical = ComputeTerms {
        class: Class::Latency,
        ..share_of(1)
    };
    assert_eq!(
        ask(critical, None).expect_err("outer is not").code,
        Code::BadCompute
    );
    let hard = ComputeTerms {
        cap: Cap::Hard,
        ..share_of(1)
    };
    assert_eq!(
        ask(hard, None).expect_err("outer has none").code,
        Code::BadCompute
    );
    family
        .compute_inside("gone", share_of(10_000), None)
        .expect("it is outermost by now");
}

#[test]
fn what_is_inside_takes_over_cap_and_may_take_over_class() {
    let terms = ComputeTerms {
        cap: Cap::Hard,
        class: Class::Latency,
        ..share_of(4000)
    };
    let outer = with(record("outer", None, &[("GPU-0", 40)]), terms);
    let family = Family::of(std::slice::from_ref(&outer));
    let critical = ComputeTerms {
        class: Class::Latency,
        ..share_of(5000)
    };
    let got = family
        .compute_inside("outer", critical, None)
        .expect("as the outer one");
    assert_eq!((got.cap, got.class), (Cap::Hard, Class::Latency));
    let turns = SliceRecord {
        terms: sharing(Mode::Mps),
        ..record("outer", None, &[("GPU-0", 40)])
    };
    let family = Family::of(std::slice::from_ref(&turns));
    let refusal = family.compute_inside("outer", share_of(1), None);
    assert_eq!(refusal.expect_err("there are no leases").code, Code::BadCompute);
    family
        .compute_inside("outer", ComputeTerms::default(), None)
        .expect("nothing is asked for");
}

#[test]
fn only_those_in_charge_give_a_weight_above_the_usual() {
    let weight = |weight| ComputeTerms {
        weight: Some(Weight(weight)),
        ..ComputeTerms::default()
    };
    check_weight(ALICE, BOB, &weight(100)).expect("the usual");
    check_weight(ALICE, BOB, &ComputeTerms::default()).expect("none");
    check_weight(0, BOB, &weight(101)).expect("root");
    check_weight(BOB, BOB, &weight(101)).expect("the agent's own user");
    let refusal = check_weight(ALICE, BOB, &weight(101)).expect_err("another user");
    assert_eq!(refusal.code, Code::NotAllowed);
}

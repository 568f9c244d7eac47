use divvy_model::{Class, Code, Compute, ComputeTerms, MemoryAmount, Mode, SliceRecord, Weight};

use super::*;
use crate::decide::family::Family;
use crate::decide::nesting::Parent;
use crate::decide::resize::{Change, check_whole, compute_resized};

fn of(memory: u64) -> MemoryAmount {
    MemoryAmount::Bytes(gib(memory))
}

/// Resizes a slice of 30 GiB, of which 5 are lent, on a device where another user has `other` GiB.
fn resized(settings: &Settings, other: u64, ask: MemoryAmount, answers: bool) -> Result<u64, Code> {
    let record = record("a", None, &[("GPU-0", 30)]);
    let tenants = Tenants(vec![
        tenant("a", ALICE, &[("GPU-0", 30)]),
        tenant("b", BOB, &[("GPU-0", other)]),
    ]);
    let change = Change {
        rules: rules(settings),
        record: &record,
        device: &gpu(0),
        share: &share("GPU-0", gib(30), gib(5)),
        before: gib(30),
        used: UsedOn::default(),
        tenants: &tenants,
    };
    let silence = || Err(Fault::new(Code::Driver, "it does not answer"));
    let outcome = change.outside(ask, || if answers { Ok(()) } else { silence() });
    outcome.map(|share| share.0 >> 30).map_err(|fault| fault.code)
}

#[test]
fn growing_counts_the_difference_and_shrinking_keeps_what_is_lent() {
    let settings = settings();
    assert_eq!(resized(&settings, 40, of(40), true), Ok(40), "exactly full");
    assert_eq!(resized(&settings, 40, of(41), true), Err(Code::DeviceFull));
    assert_eq!(resized(&settings, 40, of(81), true), Err(Code::OverDevice));
    assert_eq!(
        resized(&settings, 40, of(5), true),
        Ok(5),
        "what slices inside it have"
    );
    assert_eq!(resized(&settings, 40, of(4), true), Err(Code::BadMemory));
    assert_eq!(
        resized(&settings, 40, MemoryAmount::Share(5000), true),
        Ok(40),
        "of the device"
    );
    assert_eq!(resized(&settings, 40, of(31), false), Err(Code::Driver));
    assert_eq!(
        resized(&settings, 40, of(30), false),
        Ok(30),
        "no more is promised"
    );
}

#[test]
fn growing_stays_inside_the_users_quota() {
    let settings = Settings {
        user_memory: Some(of(35)),
        user_slices: Some(1),
        ..settings()
    };
    assert_eq!(
        resized(&settings, 0, of(35), true),
        Ok(35),
        "no new slice comes of it"
    );
    assert_eq!(resized(&settings, 0, of(36), true), Err(Code::OverQuota));
    let record = record("a", None, &[("GPU-0", 10)]);
    let own = [
        tenant("a", ALICE, &[("GPU-0", 10)]),
        tenant("c", ALICE, &[("GPU-0", 20)]),
    ];
    let (device, held) = (gpu(0), share("GPU-0", gib(10), Bytes(0)));
    let change = Change {
        rules: rules(&settings),
        record: &record,
        device: &device,
        share: &held,
        before: gib(10),
        used: UsedOn::default(),
        tenants: &Tenants(own.to_vec()),
    };
    let ask = |memory| change.outside(of(memory), || Ok(())).map_err(|fault| fault.code);
    assert_eq!(ask(16), Err(Code::QuotaFull), "both count");
    let settings = Settings {
        user_slices: Some(2),
        ..settings.clone()
    };
    let change = Change {
        rules: rules(&settings),
        ..change
    };
    let ask = |memory| change.outside(of(memory), || Ok(())).map_err(|fault| fault.code);
    assert_eq!(ask(15), Ok(gib(15)), "exactly all");
    // The slice of a subordinate user counts for its account, by any caller.
    let mut subordinate = own.to_vec();
    subordinate[0].accounts = vec![BOB];
    let change_of_bobs = Change {
        tenants: &Tenants(subordinate.clone()),
        ..change
    };
    let ask_for_bob = |memory| {
        change_of_bobs
            .outside(of(memory), || Ok(()))
            .map_err(|fault| fault.code)
    };
    assert_eq!(ask_for_bob(35), Ok(gib(35)), "it has nothing else");
    subordinate[0].accounts.push(ALICE);
    let change_of_both = Change {
        tenants: &Tenants(subordinate),
        ..change
    };
    let refused = change_of_both
        .outside(of(16), || Ok(()))
        .map_err(|fault| fault.code);
    assert_eq!(refused, Err(Code::QuotaFull), "each of them must have room");
    assert_eq!(ask(16), Err(Code::QuotaFull));
}

#[test]
fn a_slice_inside_another_is_resized_within_that() {
    let settings = settings();
    let outer = record("outer", None, &[("GPU-0", 40)]);
    let inner = record("inner", Some("outer"), &[("GPU-0", 10)]);
    let tenants = Tenants::default();
    let device = gpu(0);
    let own = share("GPU-0", gib(10), Bytes(0));
    let change = Change {
        rules: rules(&settings),
        record: &inner,
        device: &device,
        share: &own,
        before: gib(10),
        used: UsedOn::default(),
        tenants: &tenants,
    };
    let mut lending = outer.clone();
    lending.shares.first = share("GPU-0", gib(40), gib(10));
    let parent = Parent {
        record: &lending,
        used: vec![gib(20)],
        is_unknown: false,
    };
    let ask = |memory| change.inside(&parent, memory).map_err(|fault| fault.code);
    assert_eq!(ask(of(20)), Ok(gib(20)), "what is free in it");
    assert_eq!(ask(of(21)), Err(Code::SliceFull));
    assert_eq!(ask(of(41)), Err(Code::OverSlice));
    assert_eq!(ask(MemoryAmount::Share(5000)), Ok(gib(20)), "of its parent");
}

#[test]
fn a_whole_device_has_one_size() {
    let whole = SliceRecord {
        terms: whole(),
        ..record("a", None, &[("GPU-0", 80)])
    };
    assert_eq!(check_whole(&whole).expect_err("no other").code, Code::BadMemory);
    check_whole(&record("a", None, &[("GPU-0", 80)])).expect("a share of all is one");
}

#[test]
fn a_live_slices_compute_changes_within_what_is_promised() {
    let settings = Settings {
        user_compute: Some(Compute(6000)),
        ..settings()
    };
    let terms = |parts| ComputeTerms {
        share: Some(Compute(parts)),
        ..ComputeTerms::default()
    };
    let all = inventory(&[gpu(0)]);
    let hard = |parts| ComputeTerms {
        cap: divvy_model::Cap::Hard,
        ..terms(parts)
    };
    let mut own = tenant("a", ALICE, &[("GPU-0", 1)]);
    own.holds[0].1.compute = hard(3000);
    let mut other = tenant("b", BOB, &[("GPU-0", 1)]);
    other.holds[0].1.compute = hard(5000);
    let tenants = Tenants(vec![own, other]);
    let mut slice = record("a", None, &[("GPU-0", 1)]);
    slice.terms.compute = hard(3000);
    let change = |slice: &SliceRecord, inside: &[SliceRecord], to: ComputeTerms| {
        let family = Family::of(inside.iter().chain([slice]));
        compute_resized(&rules(&settings), 0, &all, &family, &tenants, slice, to).map_err(|fault| fault.code)
    };
    assert_eq!(change(&slice, &[], hard(5000)), Ok(hard(5000)), "exactly full");
    assert_eq!(change(&slice, &[], hard(5001)), Err(Code::ComputeFull));
    assert_eq!(change(&slice, &[], terms(6001)), Err(Code::OverQuota));
    assert_eq!(change(&slice, &[], terms(0)), Err(Code::BadCompute));
    let mut free = slice.clone();
    free.terms.isolation = Isolation::Env;
    assert_eq!(change(&free, &[], terms(1)), Err(Code::NotEnforceable));
    assert_eq!(change(&free, &[], hard(3000)), Ok(hard(3000)), "nothing changes");
    let mut turns = slice.clone();
    turns.terms.sharing.mode = Mode::Mps;
    assert_eq!(change(&turns, &[], terms(1)), Err(Code::BadCompute));
    let heavy = ComputeTerms {
        weight: Some(Weight(101)),
        ..ComputeTerms::default()
    };
    assert_eq!(change(&slice, &[], heavy), Err(Code::NotAllowed));
    let mut critical = record("inner", Some("a"), &[("GPU-0", 1)]);
    critical.terms.compute.class = Class::Latency;
    assert_eq!(
        change(&slice, &[critical], terms(1)),
        Err(Code::BadCompute),
        "it could not stay so"
    );
    let inner = record("inner", Some("a"), &[("GPU-0", 1)]);
    assert_eq!(
        change(&slice, std::slice::from_ref(&inner), terms(1)),
        Ok(terms(1))
    );
    let to = change(&inner, std::slice::from_ref(&slice), terms(10_000)).expect("all of its parent's");
    assert_eq!(to.cap, divvy_model::Cap::Hard, "its parent's cap");
}

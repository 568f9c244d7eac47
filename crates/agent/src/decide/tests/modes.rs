use divvy_model::{Cap, Code, Compute, ComputeTerms, Mode, ModeTerms, SliceRecord, SliceRequest, TimeSlice};

use super::*;
use crate::decide::in_use::InUse;
use crate::decide::modes::{check, check_inside, part_of_gpu, part_of_memory};

fn terms(mode: Mode, replicas: Option<u32>) -> ModeTerms {
    ModeTerms {
        mode,
        replicas,
        time_slice: None,
    }
}

fn sharing(id: &str, terms: ModeTerms, partitioned: bool) -> Tenant {
    let mut tenant = tenant(id, BOB, &[("GPU-0", 1)]);
    tenant.holds[0].1.mode = Some(HeldMode { terms, partitioned });
    tenant
}

fn admit(tenants: &[Tenant], asked: ModeTerms, cap: Cap) -> Result<ModeTerms, Fault> {
    let settings = settings();
    let device = gpu(0);
    let compute = ComputeTerms {
        cap,
        ..ComputeTerms::default()
    };
    let view = rules(&settings).view(&device, UsedOn::default(), &Tenants(tenants.to_vec()));
    view.admit_mode(asked, &compute, 4)
}

#[test]
fn the_first_slice_decides_how_a_device_is_shared() {
    for mode in [Mode::Lease, Mode::Mps] {
        assert_eq!(
            admit(&[], terms(mode, None), Cap::Soft).expect("alone"),
            terms(mode, None)
        );
    }
    let lease = [sharing("a", terms(Mode::Lease, None), false)];
    let refusal = admit(&lease, terms(Mode::Mps, None), Cap::Soft).expect_err("it must change");
    assert_eq!(refusal.code, Code::OtherMode);
    assert_eq!(refusal.causes, ["slice a of user 1001 shares it by lease"]);
    admit(&lease, terms(Mode::Lease, None), Cap::Soft).expect("the same");
    let free = {
        let mut free = sharing("free", terms(Mode::Lease, None), false);
        free.holds[0].1.mode = None;
        [free]
    };
    admit(&free, terms(Mode::Mps, None), Cap::Soft).expect("one that is kept to nothing shares in no way");
}

#[test]
fn multiprocessors_are_set_apart_for_all_or_for_none() {
    let plain = [sharing("a", terms(Mode::Mps, None), false)];
    let apart = [sharing("a", terms(Mode::Mps, None), true)];
    let ask = |there: &[Tenant], cap| admit(there, terms(Mode::Mps, None), cap).map_err(|fault| fault.code);
    assert_eq!(ask(&plain, Cap::Hard), Err(Code::OtherMode));
    assert_eq!(ask(&apart, Cap::Soft), Err(Code::OtherMode));
    assert!(ask(&plain, Cap::Soft).is_ok() && ask(&apart, Cap::Hard).is_ok());
}

#[test]
fn equal_turns_are_set_by_the_first_and_taken_up_by_the_others() {
    let turns = |replicas| terms(Mode::Timeslice, replicas);
    assert_eq!(
        admit(&[], turns(None), Cap::Soft).expect("by default"),
        turns(Some(4))
    );
    assert_eq!(
        admit(&[], turns(Some(2)), Cap::Soft).expect("as asked"),
        turns(Some(2))
    );
    let one = [sharing("a", turns(Some(2)), false)];
    assert_eq!(
        admit(&one, turns(None), Cap::Soft).expect("the second"),
        turns(Some(2))
    );
    admit(&one, turns(Some(2)), Cap::Soft).expect("the same");
    assert_eq!(
        admit(&one, turns(Some(3)), Cap::Soft).expect_err("set").code,
        Code::OtherMode
    );
    let long = ModeTerms {
        time_slice: Some(TimeSlice::Long),
        ..turns(None)
    };
    assert_eq!(
        admit(&one, long, Cap::Soft).expect_err("set").code,
        Code::OtherMode
    );
    let two = [one[0].clone(), sharing("b", turns(Some(2)), false)];
    assert_eq!(
        admit(&two, turns(None), Cap::Soft).expect_err("full").code,
        Code::TooManySlices
    );
}

#[test]
fn a_mig_instance_has_one_slice_or_is_shared_in_turn() {
    let settings = settings();
    let (whole, part) = (gpu(0), instance(1, 0, gib(10), 16));
    let ask = |device: &DeviceRecord, mode, tenants: &[Tenant]| {
        let view = rules(&settings).view(device, UsedOn::default(), &Tenants(tenants.to_vec()));
        let asked = view.admit_mode(terms(mode, None), &ComputeTerms::default(), 4);
        asked.map(drop).map_err(|fault| fault.code)
    };
    assert_eq!(ask(&part, Mode::Mig, &[]), Ok(()));
    assert_eq!(ask(&whole, Mode::Mig, &[]), Err(Code::NoMig));
    assert_eq!(ask(&part, Mode::Mps, &[]), Err(Code::OtherMode));
    let there = [tenant("a", BOB, &[("MIG-1", 1)])];
    assert_eq!(ask(&part, Mode::Mig, &there), Err(Code::OtherMode), "taken");
    let mut alone = there.clone();
    alone[0].holds[0].1.mode = Some(HeldMode {
        terms: terms(Mode::Mig, None),
        partitioned: false,
    });
    assert_eq!(
        ask(&part, Mode::Mig, &alone),
        Err(Code::OtherMode),
        "for one slice"
    );
    assert_eq!(ask(&part, Mode::Lease, &there), Ok(()));
}

#[test]
fn what_does_not_go_together_is_refused_whatever_the_device() {
    let refused = |change: &dyn Fn(&mut SliceRequest)| {
        let mut request = SliceRequest::default();
        change(&mut request);
        check(&request).map_err(|fault| fault.code)
    };
    let bad = Err(Code::BadCompute);
    assert_eq!(refused(&|_| {}), Ok(()));
    assert_eq!(
        refused(&|one| one.terms.sharing.replicas = Some(2)),
        bad,
        "of turns only"
    );
    assert_eq!(
        refused(&|one| one.terms.sharing.time_slice = Some(TimeSlice::Long)),
        bad
    );
    let mode = |mode: Mode, change: &dyn Fn(&mut SliceRequest)| {
        refused(&|one| {
            one.terms.sharing.mode = mode;
            change(one);
        })
    };
    assert_eq!(
        mode(Mode::Timeslice, &|one| one.terms.sharing.replicas = Some(2)),
        Ok(())
    );
    assert_eq!(
        mode(Mode::Timeslice, &|one| one.terms.sharing.replicas = Some(0)),
        bad
    );
    assert_eq!(
        mode(Mode::Timeslice, &|one| one.terms.compute.share = Some(Compute(1))),
        bad
    );
    assert_eq!(mode(Mode::Mps, &|one| one.terms.whole = true), bad);
    assert_eq!(
        mode(Mode::Mps, &|one| one.terms.isolation = Isolation::Env),
        Err(Code::NotEnforceable)
    );
    assert_eq!(
        mode(Mode::Mps, &|one| one.terms.compute.class =
            divvy_model::Class::Latency),
        bad
    );
    assert_eq!(mode(Mode::Mps, &|one| one.terms.compute.cap = Cap::Hard), Ok(()));
    assert_eq!(mode(Mode::Mig, &|one| one.terms.compute.cap = Cap::Hard), bad);
    let two = |one: &mut SliceRequest| {
        one.select(vec![
            divvy_model::Selector::Index(0),
            divvy_model::Selector::Index(1),
        ]);
    };
    assert_eq!(mode(Mode::Mps, &two), Err(Code::OneSlice));
    assert_eq!(mode(Mode::Lease, &two), Ok(()));
}

#[test]
fn inside_a_slice_its_way_of_sharing_holds() {
    let parent = SliceRecord {
        terms: super::sharing(Mode::Mps),
        ..record("outer", None, &[("GPU-0", 1)])
    };
    check_inside(&parent, Mode::Lease).expect("nothing is asked for");
    check_inside(&parent, Mode::Mps).expect("the same");
    let refusal = check_inside(&parent, Mode::Timeslice).expect_err("another");
    assert_eq!(refusal.code, Code::OutsideSlice);
}

#[test]
fn parts_of_devices() {
    assert_eq!(part_of_memory(&gpu(0), 4), gib(20));
    assert_eq!(part_of_memory(&gpu(0), 0), gib(80));
    let all = [gpu(0), instance(1, 0, gib(10), 33)];
    assert_eq!(part_of_gpu(&all[1], &all), Some(Compute(2500)));
    assert_eq!(part_of_gpu(&all[0], &all), None, "no instance");
    assert_eq!(part_of_gpu(&all[1], &all[1..]), None, "its GPU is not here");
}

#[test]
fn what_no_slice_needs_any_more_is_put_back() {
    let shared = |id: &str, mode, time_slice, device: &str| {
        let mut record = record(id, None, &[(device, 1)]);
        record.terms.sharing.mode = mode;
        record.terms.sharing.time_slice = time_slice;
        record
    };
    let slices = [
        shared("a", Mode::Mps, None, "GPU-0"),
        shared("b", Mode::Timeslice, Some(TimeSlice::Long), "GPU-1"),
        shared("c", Mode::Timeslice, None, "GPU-2"),
        shared("d", Mode::Lease, None, "GPU-3"),
    ];
    let in_use = InUse::by(&slices);
    let daemons = ["GPU-0", "GPU-1", "GPU-3"].map(|uuid| in_use.needs_daemon(ALICE, uuid));
    assert_eq!(daemons, [true, false, false]);
    assert!(!in_use.needs_daemon(BOB, "GPU-0"), "each user has one");
    let turns = ["GPU-0", "GPU-1", "GPU-2"].map(|uuid| in_use.needs_turns(uuid));
    assert_eq!(turns, [false, true, false], "as the driver likes needs nothing");
    assert!(in_use.needs_partition("d") && !in_use.needs_partition("e"));
    assert!(!InUse::by(&[]).needs_daemon(ALICE, "GPU-0"));
}

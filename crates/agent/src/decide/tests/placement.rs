use divvy_host::EmulatedDevice;
use divvy_model::{
    Code, Compute, DeviceKind, DeviceRecord, Isolation, MemoryAmount, Mode, Selector, SliceRequest,
};

use super::*;
use crate::decide::placement::{
    PlacementRequest, Refusals, candidates, choose, device_of, shown_inside, uuid_bytes,
};

fn each_alone(devices: &[DeviceRecord]) -> Vec<Vec<DeviceRecord>> {
    devices.iter().map(|device| vec![device.clone()]).collect()
}

fn asked<'a>(
    request: &'a SliceRequest,
    visible: Option<&'a str>,
    chosen: &[DeviceRecord],
) -> PlacementRequest<'a> {
    PlacementRequest {
        request,
        visible,
        chosen: chosen.to_vec(),
        own: Vec::new(),
    }
}

fn names(candidates: &[Vec<DeviceRecord>]) -> Vec<Vec<&str>> {
    candidates
        .iter()
        .map(|devices| devices.iter().map(|device| device.uuid.as_str()).collect())
        .collect()
}

#[test]
fn the_first_device_with_room_is_taken_and_a_full_one_is_passed_over() {
    let settings = settings();
    let mut host = Played::with(vec![tenant("a", BOB, &[("GPU-0", 70)])]);
    let ahead = Ahead::default();
    let devices = [gpu(0), gpu(1)];
    let mut place = |memory| host.place(&settings, &request(memory), &ahead, each_alone(&devices));
    assert_eq!(uuids(&place(10).expect("exactly full")), [("GPU-0", 10)]);
    assert_eq!(uuids(&place(11).expect("the next one")), [("GPU-1", 11)]);
    assert_eq!(uuids(&place(80).expect("all of it")), [("GPU-1", 80)]);
    let refusal = place(81).expect_err("more than a device has");
    assert_eq!(refusal.code, Code::OverDevice);
}

#[test]
fn a_refusal_that_time_may_change_counts_before_the_others() {
    let settings = settings();
    let small = DeviceRecord {
        memory_total_bytes: gib(20),
        ..gpu(0)
    };
    let mut host = Played::with(vec![tenant("a", BOB, &[("GPU-1", 60)])]);
    let refusal = host
        .place(
            &settings,
            &request(30),
            &Ahead::default(),
            each_alone(&[small, gpu(1)]),
        )
        .expect_err("neither has room");
    assert_eq!(refusal.code, Code::DeviceFull, "it is worth waiting for");
    let refusal = host
        .place(&settings, &request(30), &Ahead::default(), Vec::new())
        .expect_err("nowhere");
    assert_eq!(refusal.code, Code::NoDevice);
    let mut refusals = Refusals::default();
    refusals.add(Fault::new(Code::DeviceFull, "first"));
    refusals.add(Fault::new(Code::ComputeFull, "second"));
    assert_eq!(refusals.tell().expect("one").message, "first");
}

#[test]
fn two_devices_are_had_together_or_not_at_all() {
    let settings = settings();
    let mut host = Played::with(vec![tenant("a", BOB, &[("GPU-1", 50)])]);
    let both = || vec![vec![gpu(0), gpu(1)]];
    let placed = host.place(&settings, &request(30), &Ahead::default(), both());
    assert_eq!(uuids(&placed.expect("both")), [("GPU-0", 30), ("GPU-1", 30)]);
    let refusal = host.place(&settings, &request(31), &Ahead::default(), both());
    assert_eq!(refusal.expect_err("the second is full").code, Code::DeviceFull);
}

#[test]
fn what_can_never_be_is_said_before_any_look() {
    let settings = settings();
    let mut host = Played::with(Vec::new());
    host.taken.push("GPU-0".into());
    let refusal = host.place(&settings, &request(1), &Ahead::default(), vec![vec![gpu(0)]]);
    assert_eq!(refusal.expect_err("another agent's").code, Code::DeviceTaken);
    let refusal = host.place(&settings, &request(1), &Ahead::default(), vec![vec![divided(1)]]);
    assert_eq!(refusal.expect_err("its instances only").code, Code::MigMode);
    let over = host.place(&settings, &request(81), &Ahead::default(), vec![vec![gpu(2)]]);
    assert_eq!(over.expect_err("never").code, Code::OverDevice);
    assert!(host.looked.is_empty());
    host.silent.push("GPU-2".into());
    let refusal = host.place(&settings, &request(1), &Ahead::default(), vec![vec![gpu(2)]]);
    assert_eq!(refusal.expect_err("its driver hangs").code, Code::Driver);
}

#[test]
fn programs_outside_any_slice_and_dead_memory_take_room() {
    let settings = settings();
    let mut host = Played::with(Vec::new());
    let used = UsedOn {
        device: gib(30),
        unmanaged: gib(20),
        unheld: gib(10),
    };
    host.used.insert("GPU-0".into(), used);
    let mut place = |memory| host.place(&settings, &request(memory), &Ahead::default(), vec![vec![gpu(0)]]);
    place(50).expect("what they leave");
    assert_eq!(place(51).expect_err("one more").code, Code::DeviceFull);
}

#[test]
fn a_slice_without_limits_is_placed_without_a_look() {
    let settings = settings();
    let mut host = Played::with(vec![tenant("a", BOB, &[("GPU-0", 80)])]);
    let free = SliceRequest {
        terms: unlimited(),
        memory: None,
        ..SliceRequest::default()
    };
    host.place(&settings, &free, &Ahead::default(), vec![vec![gpu(0)]])
        .expect("it is promised nothing");
    assert!(host.looked.is_empty());
    let whole = SliceRequest {
        terms: whole(),
        ..SliceRequest::default()
    };
    let refusal = host.place(&settings, &whole, &Ahead::default(), vec![vec![gpu(0)]]);
    assert_eq!(refusal.expect_err("one is there").code, Code::DeviceFull);
    host.tenants = Tenants::default();
    let placed = host.place(&settings, &whole, &Ahead::default(), vec![vec![gpu(0)]]);
    assert_eq!(uuids(&placed.expect("alone")), [("GPU-0", 80)]);
}

#[test]
fn a_users_quota_counts_what_the_user_has_and_nothing_else() {
    let settings = Settings {
        user_memory: Some("50%".parse().expect("a share")),
        user_slices: Some(2),
        user_compute: Some(Compute(5000)),
        ..settings()
    };
    let others = tenant("b", BOB, &[("GPU-0", 10)]);
    let mut host = Played::with(vec![tenant("a", ALICE, &[("GPU-0", 30)]), others.clone()]);
    let mut place = |request: &SliceRequest| {
        host.place(&settings, request, &Ahead::default(), vec![vec![gpu(0)]])
            .map(|placed| placed.len())
            .map_err(|fault| fault.code)
    };
    assert_eq!(place(&request(10)), Ok(1), "exactly all");
    assert_eq!(place(&request(11)), Err(Code::QuotaFull));
    assert_eq!(place(&request(41)), Err(Code::OverQuota), "no waiting helps");
    let compute = |parts| {
        let mut request = request(1);
        request.terms.compute.share = Some(Compute(parts));
        request
    };
    assert_eq!(place(&compute(5000)), Ok(1));
    assert_eq!(place(&compute(5001)), Err(Code::OverQuota));
    let elsewhere = tenant("c", ALICE, &[("GPU-1", 1)]);
    host.tenants = Tenants(vec![tenant("a", ALICE, &[("GPU-0", 30)]), elsewhere, others]);
    let refusal = host.place(&settings, &request(1), &Ahead::default(), vec![vec![gpu(0)]]);
    assert_eq!(refusal.expect_err("two slices").code, Code::QuotaFull);
}

#[test]
fn those_before_in_the_queue_come_first() {
    let settings = settings();
    let mut host = Played::with(Vec::new());
    let mut ahead = Ahead::default();
    ahead.devices.insert("GPU-0".into(), 2);
    let refusal = host
        .place(&settings, &request(1), &ahead, vec![vec![gpu(0)]])
        .expect_err("they wait for it");
    assert_eq!(refusal.code, Code::DeviceFull);
    assert!(
        refusal.message.starts_with("2 runs wait for room on GPU-0"),
        "{refusal:?}"
    );
    assert!(host.looked.is_empty(), "room or not");
    let placed = host.place(&settings, &request(1), &ahead, each_alone(&[gpu(0), gpu(1)]));
    assert_eq!(uuids(&placed.expect("not for this one")), [("GPU-1", 1)]);
    ahead.accounts.insert(ALICE);
    let refusal = host.place(&settings, &request(1), &ahead, vec![vec![gpu(1)]]);
    assert_eq!(refusal.expect_err("her own runs").code, Code::QuotaFull);
    ahead.accounts = [BOB].into();
    host.place(&settings, &request(1), &ahead, vec![vec![gpu(1)]])
        .expect("another's quota");
}

#[test]
fn equal_turns_give_equal_parts() {
    let settings = settings();
    let turns = |memory| SliceRequest {
        terms: sharing(Mode::Timeslice),
        memory,
        ..SliceRequest::default()
    };
    let mut host = Played::with(Vec::new());
    let mut place =
        |request: &SliceRequest| host.place(&settings, request, &Ahead::default(), vec![vec![gpu(0)]]);
    assert_eq!(uuids(&place(&turns(None)).expect("a quarter")), [("GPU-0", 20)]);
    let some = turns(Some(MemoryAmount::Bytes(gib(5))));
    assert_eq!(uuids(&place(&some).expect("as asked")), [("GPU-0", 5)]);
    let all = SliceRequest::default();
    assert_eq!(uuids(&place(&all).expect("the device's")), [("GPU-0", 80)]);
}

#[test]
fn one_slice_shares_all_its_devices_in_one_way() {
    let settings = settings();
    let request = SliceRequest {
        terms: sharing(Mode::Timeslice),
        ..SliceRequest::default()
    };
    let question = Question {
        rules: rules(&settings),
        request: &request,
        isolation: Isolation::Cooperative,
        ahead: &Ahead::default(),
    };
    let mut there = tenant("a", BOB, &[("GPU-0", 10)]);
    there.holds[0].1.mode = Some(HeldMode {
        terms: divvy_model::ModeTerms {
            mode: Mode::Timeslice,
            replicas: Some(8),
            time_slice: None,
        },
        partitioned: false,
    });
    let tenants = Tenants(vec![there]);
    let devices = [gpu(0), gpu(1)];
    let terms = question.mode_of(&devices[..1], &tenants).expect("as it is");
    assert_eq!(terms.replicas, Some(8));
    let terms = question.mode_of(&devices[1..], &tenants).expect("by default");
    assert_eq!(terms.replicas, Some(4));
    let refusal = question.mode_of(&devices, &tenants).expect_err("8 and 4");
    assert_eq!(refusal.code, Code::OtherMode);
    assert_eq!(question.mode_of([], &tenants).expect("none"), Default::default());
}

#[test]
fn the_variable_shows_devices_in_its_order_and_hides_others() {
    let all = inventory(&[gpu(0), gpu(1), gpu(2)]);
    let any = SliceRequest::default();
    let found = candidates(&all, &asked(&any, None, &[])).expect("all");
    assert_eq!(names(&found), [["GPU-0"], ["GPU-1"], ["GPU-2"]]);
    let found = candidates(&all, &asked(&any, Some("2,0"), &[])).expect("two");
    assert_eq!(names(&found), [["GPU-2"], ["GPU-0"]]);
    let refusal = candidates(&all, &asked(&any, Some(""), &[])).expect_err("none");
    assert_eq!(refusal.code, Code::NotVisible);
    let mut one = SliceRequest::default();
    one.select(vec![Selector::Index(1)]);
    let found = candidates(&all, &asked(&one, Some("1"), &[gpu(1)])).expect("it is shown");
    assert_eq!(names(&found), [["GPU-1"]]);
    let refusal = candidates(&all, &asked(&one, Some("2,0"), &[gpu(1)])).expect_err("hidden");
    assert_eq!(refusal.code, Code::NotVisible);
    assert!(refusal.hint.expect("a hint").contains("2 (GPU-2), 0 (GPU-0)"));
}

#[test]
fn inside_a_slice_the_variable_shows_devices_of_that() {
    let all = inventory(&[gpu(0), gpu(1), gpu(2)]);
    let any = SliceRequest::default();
    let own = ["GPU-0".to_owned(), "GPU-2".to_owned()];
    let shown = |text| shown_inside(&all, &asked(&any, text, &[]), &own);
    assert_eq!(shown(None).expect("all"), own);
    assert_eq!(shown(Some("GPU-0,GPU-2")).expect("what the slice says"), own);
    assert_eq!(shown(Some("2,1")).expect("one of them"), ["GPU-2"]);
    assert_eq!(shown(Some("1")).expect_err("none").code, Code::NotVisible);
}

#[test]
fn divided_and_emulated_devices_come_last_and_foreign_ones_not_at_all() {
    let emulated = |index, profile: &str| DeviceRecord {
        kind: DeviceKind::Emulated,
        profile: Some(profile.into()),
        ..gpu(index)
    };
    let mut all = inventory(&[divided(0), gpu(1), emulated(2, "h100")]);
    all.emulated.push(EmulatedDevice {
        record: emulated(2, "h100"),
        spec: "h100".into(),
    });
    let any = SliceRequest::default();
    let found = candidates(&all, &asked(&any, None, &[])).expect("its own");
    assert_eq!(
        names(&found),
        [["GPU-1"], ["GPU-0"]],
        "the other was asked for by name"
    );
    all.own_spec = Some("h100".into());
    let found = candidates(&all, &asked(&any, None, &[])).expect("its own");
    assert_eq!(names(&found), [["GPU-1"], ["GPU-0"], ["GPU-2"]]);
    let mine = PlacementRequest {
        own: vec!["GPU-2".into(), "GPU-9".into()],
        ..asked(&any, None, &[])
    };
    assert_eq!(names(&candidates(&all, &mine).expect("hers")), [["GPU-2"]]);
}

#[test]
fn devices_of_one_slice_have_a_driver_in_common() {
    let long = |digit: &str| DeviceRecord {
        uuid: format!("GPU-{}", digit.repeat(32)),
        ..gpu(0)
    };
    let (a, b) = (long("1"), long("2"));
    let any = SliceRequest::default();
    let together = |all: &[DeviceRecord], chosen: &[DeviceRecord]| {
        candidates(&inventory(all), &asked(&any, None, chosen)).map(|found| found.len())
    };
    assert_eq!(
        together(&[a.clone(), b.clone()], &[a.clone(), b.clone()]).expect("both"),
        1
    );
    let refused = |chosen: &[DeviceRecord]| {
        let refusal = together(chosen, chosen).expect_err("refused");
        assert_eq!(refusal.code, Code::OneSlice);
        refusal.message
    };
    assert!(refused(&[a.clone(), instance(7, 0, gib(10), 16)]).contains("is a MIG instance"));
    assert!(refused(&[a.clone(), gpu(1)]).contains("has no UUID"));
    let numbered = |n: u32| DeviceRecord {
        uuid: format!("GPU-{n:032x}"),
        ..gpu(n)
    };
    let many: Vec<DeviceRecord> = (1..=divvy_ledger::MAX_ACCOUNTS + 1).map(numbered).collect();
    assert!(refused(&many).contains("devices are too many"));
    let mut two = inventory(&[a.clone(), b.clone()]);
    two.emulated.push(EmulatedDevice {
        record: b.clone(),
        spec: "h100".into(),
    });
    let refusal = candidates(&two, &asked(&any, None, &[a, b])).expect_err("one is emulated");
    assert!(refusal.message.contains("no driver in common"), "{refusal:?}");
}

#[test]
fn the_smallest_instance_that_is_large_enough_comes_first() {
    let all = [
        divided(0),
        instance(1, 0, gib(40), 60),
        instance(2, 0, gib(10), 16),
        instance(3, 0, gib(20), 32),
        instance(4, 9, gib(10), 16),
    ];
    let mig = |memory: Option<u64>, compute: Option<u16>| {
        let mut request = SliceRequest {
            memory: memory.map(|memory| MemoryAmount::Bytes(gib(memory))),
            terms: sharing(Mode::Mig),
            ..SliceRequest::default()
        };
        request.terms.compute.share = compute.map(Compute);
        request
    };
    let found = |request: &SliceRequest, chosen: &[DeviceRecord]| {
        let found = candidates(&inventory(&all), &asked(request, None, chosen));
        found.map(|found| names(&found).concat().join(" "))
    };
    assert_eq!(
        found(&mig(None, None), &[]).expect("all"),
        "MIG-2 MIG-4 MIG-3 MIG-1"
    );
    assert_eq!(
        found(&mig(Some(20), None), &[]).expect("large ones"),
        "MIG-3 MIG-1"
    );
    assert_eq!(
        found(&mig(None, Some(2400)), &[]).expect("wide ones"),
        "MIG-4 MIG-3 MIG-1"
    );
    assert_eq!(
        found(&mig(None, None), &all[..1]).expect("of that GPU"),
        "MIG-2 MIG-3 MIG-1"
    );
    assert_eq!(found(&mig(None, None), &all[3..4]).expect("that one"), "MIG-3");
    let refusal = found(&mig(Some(41), Some(100)), &[]).expect_err("none");
    assert_eq!(refusal.code, Code::NoMig);
    assert_eq!(
        refusal.message,
        "there is no MIG instance of 41 GiB and 1% of a device here"
    );
}

#[test]
fn a_device_is_chosen_once_and_of_one_product_the_next_is_meant() {
    let emulated = |index| DeviceRecord {
        profile: Some("h100".into()),
        ..gpu(index)
    };
    let all = inventory(&[emulated(0), emulated(1)]);
    let mut chosen = Vec::new();
    let product = Selector::Emulated("h100".into());
    choose(&all, &mut chosen, &product, emulated(0)).expect("the first");
    choose(&all, &mut chosen, &product, emulated(0)).expect("the next");
    let uuids: Vec<&str> = chosen.iter().map(|device| device.uuid.as_str()).collect();
    assert_eq!(uuids, ["GPU-0", "GPU-1"]);
    let third = choose(&all, &mut chosen, &product, emulated(0)).expect_err("there are two");
    assert_eq!(third.code, Code::OneSlice);
    let again = choose(&all, &mut chosen, &Selector::Index(1), emulated(1)).expect_err("twice");
    assert_eq!(again.message, "device 1 (GPU-1) is asked for twice");
    assert_eq!(device_of(&all, "GPU-1").expect("here").index, 1);
    assert_eq!(
        device_of(&all, "GPU-2").expect_err("gone").code,
        Code::UnknownDevice
    );
}

#[test]
fn a_uuid_is_sixteen_bytes() {
    let bytes = uuid_bytes("GPU-00112233-4455-6677-8899-aabbccddeeff");
    assert_eq!(bytes[..4], [0, 0x11, 0x22, 0x33]);
    assert_eq!(bytes[15], 0xff);
    assert_eq!(uuid_bytes("GPU-12"), [0; 16]);
}

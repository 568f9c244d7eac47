use divvy_host::mig::{ComputeInstance, Geometry, GpuInstance, Least, MigDevice, Tenant as Program};
use divvy_model::{Code, Compute, MemoryAmount, Mode, SliceRequest};

use super::*;
use crate::decide::family::Family;
use crate::decide::mig::{
    ModeAfter, PutBack, gpus_to_divide, least, may_be_divided, may_help, mode_after, put_back,
};

fn mig_device(mode: Option<bool>, instances: &[u32]) -> MigDevice {
    let instance = |id: &u32| GpuInstance {
        id: *id,
        profile_id: 0,
        start: 0,
        compute: vec![ComputeInstance {
            id: 0,
            slices: 1,
            start: 0,
            uuid: Some(format!("MIG-{id}")),
            tenants: Vec::new(),
        }],
    };
    MigDevice {
        index: 0,
        uuid: "GPU-0".into(),
        name: "test".into(),
        pci_device: 0,
        mode,
        geometry: Geometry::default(),
        instances: instances.iter().map(instance).collect(),
        tenants: Vec::new(),
    }
}

#[test]
fn an_instance_is_made_only_where_one_is_lacking() {
    let mig = SliceRequest {
        terms: sharing(Mode::Mig),
        ..SliceRequest::default()
    };
    assert!(may_help(&mig, Code::NoMig) && may_help(&mig, Code::OtherMode));
    assert!(!may_help(&mig, Code::QuotaFull) && !may_help(&mig, Code::DeviceFull));
    assert!(!may_help(&SliceRequest::default(), Code::OtherMode));
}

#[test]
fn the_least_of_an_instance_is_what_was_asked_for() {
    let mut some = request(7);
    some.terms.compute.share = Some(Compute(2500));
    let expected = Least {
        memory_bytes: 7 << 30,
        compute: 2500,
    };
    assert_eq!(
        (least(&some).memory_bytes, least(&some).compute),
        (expected.memory_bytes, expected.compute)
    );
    let share = SliceRequest {
        memory: Some(MemoryAmount::Share(5000)),
        ..SliceRequest::default()
    };
    assert_eq!(
        (least(&share).memory_bytes, least(&share).compute),
        (0, 0),
        "a share is of the instance"
    );
}

#[test]
fn idle_gpus_are_divided_first_and_instances_never() {
    let slices = [record("a", None, &[("GPU-0", 1)])];
    let devices = vec![gpu(0), instance(5, 0, gib(10), 16), gpu(1)];
    let found = gpus_to_divide(devices, &Family::of(&slices));
    let found: Vec<(&str, bool)> = found
        .iter()
        .map(|(gpu, taken)| (gpu.uuid.as_str(), *taken))
        .collect();
    assert_eq!(found, [("GPU-1", false), ("GPU-0", true)]);
}

#[test]
fn mig_mode_is_turned_on_where_no_one_is_only() {
    assert!(
        may_be_divided(&mig_device(Some(true), &[1]), true),
        "it is on already"
    );
    assert!(may_be_divided(&mig_device(Some(false), &[]), false));
    assert!(
        !may_be_divided(&mig_device(Some(false), &[]), true),
        "a slice has it"
    );
    let mut used = mig_device(Some(false), &[]);
    used.tenants.push(Program {
        pid: Some(7),
        name: "train".into(),
    });
    assert!(!may_be_divided(&used, false), "a program has it");
    assert!(
        !may_be_divided(&mig_device(None, &[]), false),
        "it has no such mode"
    );
}

#[test]
fn an_instance_is_put_back_after_its_last_slice() {
    let gpu = mig_device(Some(true), &[3, 4]);
    let has = |uuids: &'static [&'static str]| move |uuid: &str| uuids.contains(&uuid);
    assert_eq!(put_back(Some(&gpu), Some(3), has(&["MIG-3"])), PutBack::Keep);
    assert_eq!(put_back(Some(&gpu), Some(3), has(&["MIG-4"])), PutBack::Remove(3));
    assert_eq!(put_back(Some(&gpu), Some(9), has(&[])), PutBack::IsRemoved);
    assert_eq!(
        put_back(Some(&gpu), None, has(&[])),
        PutBack::IsRemoved,
        "it was never made"
    );
    assert_eq!(put_back(None, Some(3), has(&[])), PutBack::Forget);
}

#[test]
fn the_last_instance_takes_mig_mode_with_it() {
    let (empty, other) = (mig_device(Some(true), &[]), mig_device(Some(true), &[4]));
    assert_eq!(mode_after(true, Some(&empty)), ModeAfter::TurnOff);
    assert_eq!(mode_after(true, Some(&other)), ModeAfter::HandOn);
    assert_eq!(
        mode_after(true, Some(&mig_device(Some(false), &[]))),
        ModeAfter::HandOn
    );
    assert_eq!(mode_after(true, None), ModeAfter::HandOn);
    assert_eq!(
        mode_after(false, Some(&empty)),
        ModeAfter::Stays,
        "it was on before"
    );
}

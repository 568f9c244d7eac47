//! MIG mode, GPU instances and MIG devices, as entry points.

use divvy_abi::nvml::*;
use divvy_model::MigProfile;

use super::args::{Device, In, Out, field};
use super::divisible::{Divisible, code};
use super::mig::Inner;
use super::{Result, state};

/// The profile of NVML's number.
fn by_number(device: &Device, number: u32) -> Result<&'static MigProfile> {
    let on = Divisible::of(device.get()?)?;
    if number >= NVML_GPU_INSTANCE_PROFILE_COUNT {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    on.divided()?;
    let mut profiles = on.product.profiles.iter();
    profiles
        .find(|profile| profile.nvml_number() == number)
        .ok_or(NVML_ERROR_NOT_SUPPORTED)
}

/// Writes a profile in the layout that the program's record has.
fn describe(profile: &MigProfile, info: &Out<nvmlGpuInstanceProfileInfo_v2_t>) -> Result {
    let [copy, decode, jpeg, flow] = profile.engines.map(u32::from);
    let second = nvmlGpuInstanceProfileInfo_v2_t {
        version: info.version()?,
        id: profile.id,
        isP2pSupported: 0,
        sliceCount: profile.compute_slices.into(),
        instanceCount: profile.max.into(),
        multiprocessorCount: profile.sm_count,
        copyEngineCount: copy,
        decoderCount: decode,
        encoderCount: 0,
        jpegCount: jpeg,
        ofaCount: flow,
        memorySizeMB: profile.memory_mib,
        name: field(&format!("MIG {}", profile.name)),
    };
    match second.version {
        version if version == nvmlGpuInstanceProfileInfo_v2 => info.set(second),
        version if version == nvmlGpuInstanceProfileInfo_v3 => {
            info.set_older(nvmlGpuInstanceProfileInfo_v3_t {
                version: second.version,
                id: second.id,
                sliceCount: second.sliceCount,
                instanceCount: second.instanceCount,
                multiprocessorCount: second.multiprocessorCount,
                copyEngineCount: copy,
                decoderCount: decode,
                encoderCount: 0,
                jpegCount: jpeg,
                ofaCount: flow,
                memorySizeMB: second.memorySizeMB,
                name: second.name,
                capabilities: 0,
            })
        }
        _ => Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH),
    }
}

fn placements(
    device: &Device,
    profile: u32,
    places: &Out<nvmlGpuInstancePlacement_t>,
    count: &Out<u32>,
) -> Result {
    let on = Divisible::of(device.get()?)?;
    on.divided()?;
    let kind = on.profile(profile)?;
    count.required()?;
    // Without a list only their number is asked for.
    if !places.is_null() {
        if (count.before()? as usize) < kind.starts.len() {
            count.set(kind.starts.len() as u32)?;
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        for (at, start) in kind.starts.iter().enumerate() {
            let place = nvmlGpuInstancePlacement_t {
                start: u32::from(*start),
                size: kind.size.into(),
            };
            places.set_at(at, place)?;
        }
    }
    count.set(kind.starts.len() as u32)
}

fn create(device: &Device, profile: u32, place: Option<u8>, made: &Out<nvmlGpuInstance_t>) -> Result {
    made.required()?;
    let on = Divisible::of(device.get()?)?;
    let id = on.change(|state| state.create(on.product, profile, place).map_err(code))?;
    made.set(Inner::of_id(on, id)?.handle())
}

nvml_entry! {
    fn nvmlDeviceGetMigMode(device: Device, current: Out<u32>, pending: Out<u32>) {
        let state = Divisible::of(device.get()?)?.state()?;
        pending.required()?;
        current.set(u32::from(state.on))?;
        pending.set(u32::from(state.pending))
    }

    fn nvmlDeviceSetMigMode(device: Device, mode: u32, activation: Out<nvmlReturn_t>) {
        let on = Divisible::of(device.get()?)?;
        activation.required()?;
        if mode != NVML_DEVICE_MIG_DISABLE && mode != NVML_DEVICE_MIG_ENABLE {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        activation.set(on.set_mode(mode == NVML_DEVICE_MIG_ENABLE)?)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Device, count: Out<u32>) {
        // None where the product has no MIG, or the mode is off.
        let on = Divisible::of(device.get()?).ok();
        let divided = on.filter(|on| on.divided().is_ok());
        count.set(divided.map_or(0, |on| on.product.compute_slices.into()))
    }

    fn nvmlDeviceIsMigDeviceHandle(device: Device, is_mig: Out<u32>) {
        is_mig.set(u32::from(device.any()?.instance.is_some()))
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Device, index: u32, found: Out<nvmlDevice_t>) {
        found.required()?;
        let on = Divisible::of(device.get()?)?;
        let devices = on.devices()?;
        if index >= u32::from(on.product.compute_slices) {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let device = devices.get(index as usize).ok_or(NVML_ERROR_NOT_FOUND)?;
        found.set(state::mig_handle(device))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Device, parent: Out<nvmlDevice_t>) {
        let gpu = device.any()?.instance.ok_or(NVML_ERROR_INVALID_ARGUMENT)?.gpu;
        let found = state::devices()?.iter().find(|device| device.uuid == gpu);
        parent.set(state::handle(found.ok_or(NVML_ERROR_NOT_FOUND)?))
    }

    fn nvmlDeviceGetGpuInstanceId(device: Device, id: Out<u32>) {
        id.set(device.any()?.instance.ok_or(NVML_ERROR_INVALID_ARGUMENT)?.gpu_instance)
    }

    fn nvmlDeviceGetComputeInstanceId(device: Device, id: Out<u32>) {
        id.set(device.any()?.instance.ok_or(NVML_ERROR_INVALID_ARGUMENT)?.compute_instance)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfo(
        device: Device,
        number: u32,
        info: Out<nvmlGpuInstanceProfileInfo_t>,
    ) {
        let profile = by_number(&device, number)?;
        let [copy, decode, jpeg, flow] = profile.engines.map(u32::from);
        info.set(nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.compute_slices.into(),
            instanceCount: profile.max.into(),
            multiprocessorCount: profile.sm_count,
            copyEngineCount: copy,
            decoderCount: decode,
            encoderCount: 0,
            jpegCount: jpeg,
            ofaCount: flow,
            memorySizeMB: profile.memory_mib,
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        device: Device,
        number: u32,
        info: Out<nvmlGpuInstanceProfileInfo_v2_t>,
    ) {
        describe(by_number(&device, number)?, &info)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        device: Device,
        id: u32,
        info: Out<nvmlGpuInstanceProfileInfo_v2_t>,
    ) {
        let on = Divisible::of(device.get()?)?;
        on.divided()?;
        describe(on.profile(id)?, &info)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements | nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: Device,
        profile: u32,
        places: Out<nvmlGpuInstancePlacement_t>,
        count: Out<u32>,
    ) {
        placements(&device, profile, &places, &count)
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: Device, profile: u32, count: Out<u32>) {
        let on = Divisible::of(device.get()?)?;
        let state = on.divided()?;
        count.set(state.remaining(on.product, on.profile(profile)?))
    }

    fn nvmlDeviceCreateGpuInstance(device: Device, profile: u32, made: Out<nvmlGpuInstance_t>) {
        create(&device, profile, None, &made)
    }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: Device,
        profile: u32,
        place: In<nvmlGpuInstancePlacement_t>,
        made: Out<nvmlGpuInstance_t>,
    ) {
        let place = place.get()?;
        let kind = Divisible::of(device.get()?)?.profile(profile)?;
        let start = u8::try_from(place.start).ok().filter(|_| place.size == u32::from(kind.size));
        create(&device, profile, Some(start.ok_or(NVML_ERROR_INVALID_ARGUMENT)?), &made)
    }

    fn nvmlDeviceGetGpuInstances(
        device: Device,
        profile: u32,
        instances: Out<nvmlGpuInstance_t>,
        count: Out<u32>,
    ) {
        let on = Divisible::of(device.get()?)?;
        let state = on.divided()?;
        let kind = on.profile(profile)?;
        count.required()?;
        let mut found = 0;
        for instance in state.instances.into_iter().filter(|held| held.profile == profile) {
            let inner = Inner { on, instance, profile: kind };
            instances.set_at(found, inner.handle())?;
            found += 1;
        }
        count.set(found as u32)
    }

    fn nvmlDeviceGetGpuInstanceById(device: Device, id: u32, instance: Out<nvmlGpuInstance_t>) {
        let on = Divisible::of(device.get()?)?;
        instance.set(Inner::of_id(on, id)?.handle())
    }

    fn nvmlGpuInstanceGetInfo(instance: nvmlGpuInstance_t, info: Out<nvmlGpuInstanceInfo_t>) {
        let inner = Inner::of_handle(instance)?;
        info.set(nvmlGpuInstanceInfo_t {
            device: state::handle(inner.on.gpu),
            id: inner.instance.id,
            profileId: inner.profile.id,
            placement: nvmlGpuInstancePlacement_t {
                start: inner.instance.start.into(),
                size: inner.profile.size.into(),
            },
        })
    }

    fn nvmlGpuInstanceDestroy(instance: nvmlGpuInstance_t) {
        Inner::of_handle(instance)?.destroy()
    }

    // For a MIG device the attributes of its part of the GPU. A GPU with MIG reports its parts also while MIG is off.
    fn nvmlDeviceGetAttributes_v2(device: Device, attributes: Out<nvmlDeviceAttributes_t>) {
        let device = device.any()?;
        device.mig_product().ok_or(NVML_ERROR_NOT_SUPPORTED)?;
        let whole = nvmlDeviceAttributes_t {
            multiprocessorCount: device.sm_count(),
            sharedCopyEngineCount: device.copy_engines(),
            memorySizeMB: device.memory_bytes() >> 20,
            ..nvmlDeviceAttributes_t::default()
        };
        attributes.set(match device.instance {
            None => whole,
            Some(instance) => {
                let [_, decode, jpeg, flow] = instance.profile.engines.map(u32::from);
                nvmlDeviceAttributes_t {
                    sharedDecoderCount: decode,
                    sharedJpegCount: jpeg,
                    sharedOfaCount: flow,
                    gpuInstanceSliceCount: instance.profile.compute_slices.into(),
                    computeInstanceSliceCount: instance.slices.into(),
                    ..whole
                }
            }
        })
    }
}

//! Compute instances, as entry points.

use divvy_abi::nvml::*;

use super::Result;
use super::args::{In, Out, field};
use super::divisible::code;
use super::mig::{Inner, compute_of_handle, destroy_compute};
use super::state;
use crate::mig::{ComputeInstance, ComputeKind, State};

/// The kind of NVML's number in a GPU instance.
fn by_number(inner: &Inner, number: u32, engines: u32) -> Result<ComputeKind> {
    if number >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT
    {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    inner.kind(number).map_err(|_| NVML_ERROR_NOT_SUPPORTED)
}

fn create(
    instance: nvmlGpuInstance_t,
    profile: u32,
    place: Option<u8>,
    made: &Out<nvmlComputeInstance_t>,
) -> Result {
    made.required()?;
    let inner = Inner::of_handle(instance)?;
    let id = inner.on.change(|state| {
        let made = state.create_compute(inner.on.product, inner.instance.id, profile, place);
        made.map_err(code)
    })?;
    let inner = Inner::of_id(inner.on, inner.instance.id)?;
    let compute = find(&inner, id).ok_or(NVML_ERROR_NOT_FOUND)?;
    made.set(inner.compute_handle(&compute))
}

fn find(inner: &Inner, id: u32) -> Option<ComputeInstance> {
    inner
        .instance
        .compute
        .iter()
        .copied()
        .find(|compute| compute.id == id)
}

fn info(handle: nvmlComputeInstance_t, info: &Out<nvmlComputeInstanceInfo_t>) -> Result {
    let (inner, compute) = compute_of_handle(handle)?;
    let mut kinds = inner.kinds().into_iter();
    let kind = kinds.find(|kind| kind.slices == compute.slices);
    info.set(nvmlComputeInstanceInfo_t {
        device: state::handle(inner.on.gpu),
        gpuInstance: inner.handle(),
        id: compute.id,
        profileId: kind.ok_or(NVML_ERROR_UNKNOWN)?.id,
        placement: nvmlComputeInstancePlacement_t {
            start: compute.start.into(),
            size: compute.slices.into(),
        },
    })
}

nvml_entry! {
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: nvmlGpuInstance_t,
        number: u32,
        engines: u32,
        info: Out<nvmlComputeInstanceProfileInfo_t>,
    ) {
        let inner = Inner::of_handle(instance)?;
        let kind = by_number(&inner, number, engines)?;
        let [copy, decode, jpeg, flow] = inner.profile.engines.map(u32::from);
        info.set(nvmlComputeInstanceProfileInfo_t {
            id: kind.id,
            sliceCount: kind.slices.into(),
            instanceCount: kind.most.into(),
            multiprocessorCount: kind.sm_count,
            sharedCopyEngineCount: copy,
            sharedDecoderCount: decode,
            sharedEncoderCount: 0,
            sharedJpegCount: jpeg,
            sharedOfaCount: flow,
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance: nvmlGpuInstance_t,
        number: u32,
        engines: u32,
        info: Out<nvmlComputeInstanceProfileInfo_v2_t>,
    ) {
        let inner = Inner::of_handle(instance)?;
        let kind = by_number(&inner, number, engines)?;
        let [copy, decode, jpeg, flow] = inner.profile.engines.map(u32::from);
        let second = nvmlComputeInstanceProfileInfo_v2_t {
            version: info.version()?,
            id: kind.id,
            sliceCount: kind.slices.into(),
            instanceCount: kind.most.into(),
            multiprocessorCount: kind.sm_count,
            sharedCopyEngineCount: copy,
            sharedDecoderCount: decode,
            sharedEncoderCount: 0,
            sharedJpegCount: jpeg,
            sharedOfaCount: flow,
            name: field(&inner.kind_name(kind)),
        };
        match second.version {
            version if version == nvmlComputeInstanceProfileInfo_v2 => info.set(second),
            version if version == nvmlComputeInstanceProfileInfo_v3 => info.set_older(nvmlComputeInstanceProfileInfo_v3_t {
                version: second.version,
                id: second.id,
                sliceCount: second.sliceCount,
                instanceCount: second.instanceCount,
                multiprocessorCount: second.multiprocessorCount,
                sharedCopyEngineCount: copy,
                sharedDecoderCount: decode,
                sharedEncoderCount: 0,
                sharedJpegCount: jpeg,
                sharedOfaCount: flow,
                name: second.name,
                capabilities: 0,
            }),
            _ => Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH),
        }
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        instance: nvmlGpuInstance_t,
        profile: u32,
        count: Out<u32>,
    ) {
        let inner = Inner::of_handle(instance)?;
        let kind = inner.kind(profile)?;
        count.set(State::compute_room(&inner.instance, kind).len() as u32)
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance: nvmlGpuInstance_t,
        profile: u32,
        places: Out<nvmlComputeInstancePlacement_t>,
        count: Out<u32>,
    ) {
        let kind = Inner::of_handle(instance)?.kind(profile)?;
        count.required()?;
        let starts: Vec<u8> = kind.starts().collect();
        if !places.is_null() {
            if (count.before()? as usize) < starts.len() {
                count.set(starts.len() as u32)?;
                return Err(NVML_ERROR_INSUFFICIENT_SIZE);
            }
            for (at, start) in starts.iter().enumerate() {
                let place = nvmlComputeInstancePlacement_t { start: u32::from(*start), size: kind.slices.into() };
                places.set_at(at, place)?;
            }
        }
        count.set(starts.len() as u32)
    }

    fn nvmlGpuInstanceCreateComputeInstance(
        instance: nvmlGpuInstance_t,
        profile: u32,
        made: Out<nvmlComputeInstance_t>,
    ) {
        create(instance, profile, None, &made)
    }

    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        instance: nvmlGpuInstance_t,
        profile: u32,
        place: In<nvmlComputeInstancePlacement_t>,
        made: Out<nvmlComputeInstance_t>,
    ) {
        let place = place.get()?;
        let kind = Inner::of_handle(instance)?.kind(profile)?;
        let start = u8::try_from(place.start).ok().filter(|_| place.size == u32::from(kind.slices));
        create(instance, profile, Some(start.ok_or(NVML_ERROR_INVALID_ARGUMENT)?), &made)
    }

    fn nvmlGpuInstanceGetComputeInstances(
        instance: nvmlGpuInstance_t,
        profile: u32,
        instances: Out<nvmlComputeInstance_t>,
        count: Out<u32>,
    ) {
        let inner = Inner::of_handle(instance)?;
        let kind = inner.kind(profile)?;
        count.required()?;
        let mut found = 0;
        for compute in inner.instance.compute.iter().filter(|compute| compute.slices == kind.slices) {
            instances.set_at(found, inner.compute_handle(compute))?;
            found += 1;
        }
        count.set(found as u32)
    }

    fn nvmlGpuInstanceGetComputeInstanceById(
        instance: nvmlGpuInstance_t,
        id: u32,
        compute: Out<nvmlComputeInstance_t>,
    ) {
        let inner = Inner::of_handle(instance)?;
        let found = find(&inner, id).ok_or(NVML_ERROR_NOT_FOUND)?;
        compute.set(inner.compute_handle(&found))
    }

    fn nvmlComputeInstanceGetInfo
        | nvmlComputeInstanceGetInfo_v2(instance: nvmlComputeInstance_t, out: Out<nvmlComputeInstanceInfo_t>) {
        info(instance, &out)
    }

    fn nvmlComputeInstanceDestroy(instance: nvmlComputeInstance_t) {
        destroy_compute(instance)
    }
}

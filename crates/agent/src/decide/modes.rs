//! The ways of sharing at admission: one device is shared in one way at a time. docs/adr/0026.

use divvy_model::{
    Bytes, Cap, Class, Code, Compute, ComputeTerms, DeviceRecord, Fault, Isolation, Mode, ModeTerms,
    SliceRecord, SliceRequest,
};

use crate::decide::admission::{DeviceView, Hold};
use crate::decide::held::{HeldMode, is_partitioned};

/// Refuses options that contradict each other on any device.
///
/// # Errors
/// [`Code::BadCompute`], [`Code::OneSlice`], [`Code::NotEnforceable`].
pub fn check(request: &SliceRequest) -> Result<(), Fault> {
    let bad = |message: String, hint: &str| Err(Fault::new(Code::BadCompute, message).hint(hint));
    let (mode, terms) = (request.terms.sharing.mode, request.terms.compute);
    let of_turns = request.terms.sharing.replicas.is_some() || request.terms.sharing.time_slice.is_some();
    if of_turns && mode != Mode::Timeslice {
        let message = format!("{mode} has no set number of equal turns");
        return bad(message, "--replicas and --time-slice go with --share timeslice");
    }
    if request.terms.sharing.replicas == Some(0) {
        return bad(
            "a device is shared by one slice at least".into(),
            "--replicas 4, for example",
        );
    }
    if mode != Mode::Lease && request.terms.whole {
        return bad("a whole device is for a single slice".into(), "leave --share out");
    }
    if mode != Mode::Lease && request.terms.isolation == Isolation::Env {
        let message = format!("the `env` isolation enforces no part under {mode}");
        return Err(Fault::new(Code::NotEnforceable, message).hint("leave --isolation out"));
    }
    match mode {
        Mode::Timeslice if !terms.is_default() => bad(
            "the hardware's turns are all equal".into(),
            "leave --compute, --cap, --class and --weight out, or take --share lease",
        ),
        Mode::Mps | Mode::Mig if terms.class == Class::Latency || terms.weight.is_some() => bad(
            format!("no slice goes first under {mode}"),
            "leave --class and --weight out, or take --share lease",
        ),
        Mode::Mig if terms.cap == Cap::Hard => bad(
            "an instance is a hard cap by itself".into(),
            "leave --cap out: --compute asks for an instance of that part of the device at least",
        ),
        Mode::Mps | Mode::Mig if request.selectors().count() > 1 => Err(Fault::new(
            Code::OneSlice,
            format!("under {mode} a program has one device"),
        )
        .hint("make a slice of each device")),
        _ => Ok(()),
    }
}

/// Refuses a sharing mode that differs from that of the slice around it.
///
/// # Errors
/// [`Code::OutsideSlice`].
pub fn check_inside(parent: &SliceRecord, asked: Mode) -> Result<(), Fault> {
    if asked == Mode::Lease || asked == parent.terms.sharing.mode {
        return Ok(());
    }
    let message = format!(
        "this runs inside slice {}, which shares by {}",
        parent.name, parent.terms.sharing.mode
    );
    Err(Fault::new(Code::OutsideSlice, message)
        .hint("leave --share out, or start it from a shell that is in no slice"))
}

/// The size of one of so many equal parts of a device's memory.
pub fn part_of_memory(device: &DeviceRecord, replicas: u32) -> Bytes {
    Bytes(device.memory_usable_bytes().0 / u64::from(replicas.max(1)))
}

impl DeviceView<'_> {
    /// The number of turns into which the hardware divides this device, where it does so or is asked to.
    pub fn replicas(&self, asked: ModeTerms, by_default: u32) -> Option<u32> {
        let mut sharing = self.holds.iter().filter_map(|hold| hold.mode);
        let there = sharing.next().and_then(|there| there.terms.replicas);
        let replicas = there.or(asked.replicas).unwrap_or(by_default);
        (asked.mode == Mode::Timeslice).then_some(replicas)
    }

    /// Whether a slice may share the device in the mode that it asks for, and the resulting terms. The first slice on a
    /// device decides its mode. (A MIG instance is a device of its own: several slices may take turns on it, or one may
    /// have it.)
    ///
    /// # Errors
    /// [`Code::OtherMode`], which names the slices and their mode; [`Code::TooManySlices`]; [`Code::NoMig`].
    pub fn admit_mode(
        &self,
        asked: ModeTerms,
        compute: &ComputeTerms,
        replicas_by_default: u32,
    ) -> Result<ModeTerms, Fault> {
        let wanted = HeldMode {
            terms: asked,
            partitioned: is_partitioned(asked.mode, compute.cap),
        };
        if self.device.mig_instance().is_some() && asked.mode == Mode::Mps {
            return Err(
                Fault::new(Code::OtherMode, "MPS on a MIG instance is not offered")
                    .hint("--share lease shares an instance in turn; --share mig takes it for one slice"),
            );
        }
        if asked.mode == Mode::Mig {
            let uuid = &self.device.uuid;
            if self.device.mig_instance().is_none() {
                return Err(
                    Fault::new(Code::NoMig, format!("{uuid} is no MIG instance")).hint(
                        "`divvy gpu mig list` shows what there is; `divvy gpu mig apply` makes instances",
                    ),
                );
            }
            if self.holds.iter().any(|hold| hold.mode.is_some()) {
                return Err(self.other(&format!("instance {uuid} is taken")));
            }
        }
        let mut sharing = self.holds.iter().filter_map(|hold| hold.mode);
        let Some(there) = sharing.next() else {
            return Ok(match asked.mode {
                Mode::Timeslice => ModeTerms {
                    replicas: Some(asked.replicas.unwrap_or(replicas_by_default)),
                    ..asked
                },
                _ => asked,
            });
        };
        let count = 1 + sharing.count() as u64;
        if there.terms.mode != asked.mode {
            return Err(self.other(&format!("{} is not shared by {}", self.device.uuid, asked.mode)));
        }
        if there.partitioned != wanted.partitioned {
            return Err(self.other(&format!(
                "under MPS {} is shared either with multiprocessors set apart (--cap hard) or without",
                self.device.uuid
            )));
        }
        if asked.mode != Mode::Timeslice {
            return Ok(asked);
        }
        let differs = asked
            .replicas
            .is_some_and(|replicas| Some(replicas) != there.terms.replicas)
            || asked
                .time_slice
                .is_some_and(|length| Some(length) != there.terms.time_slice);
        if differs {
            return Err(self.other(&format!("the turns of {} are set already", self.device.uuid)));
        }
        let replicas = there.terms.replicas.unwrap_or(replicas_by_default);
        if count >= u64::from(replicas) {
            return Err(Fault::new(
                Code::TooManySlices,
                format!("all {replicas} parts of {} are taken", self.device.uuid),
            )
            .cause(self.sharers())
            .hint("wait for one to end with --wait, or choose another device; see divvy ps"));
        }
        Ok(there.terms)
    }

    fn other(&self, message: &str) -> Fault {
        Fault::new(Code::OtherMode, message)
            .cause(self.sharers())
            .hint("choose another device, or wait with --wait; `divvy explain sharing` compares the ways")
    }

    /// The slices that share the device, and their modes.
    fn sharers(&self) -> String {
        let with_mode = self.holds.iter().filter_map(|hold| Some((hold, hold.mode?)));
        let words = with_mode.map(|(hold, mode)| self.sharer(hold, mode));
        crate::decide::admission::first_few(words.collect())
    }

    fn sharer(&self, hold: &Hold, mode: HeldMode) -> String {
        let terms = mode.terms;
        let mut how = terms.mode.to_string();
        if let Some(replicas) = terms.replicas {
            how.push_str(&format!(" in {replicas}"));
        }
        if let Some(length) = terms.time_slice {
            how.push_str(&format!(", {} turns", length.name()));
        }
        if mode.partitioned {
            how.push_str(" with multiprocessors set apart");
        }
        format!("slice {}{} shares it by {how}", hold.name, self.whose(hold))
    }
}

/// How much of its GPU an instance is, by multiprocessors, if both are known.
pub fn part_of_gpu(instance: &DeviceRecord, devices: &[DeviceRecord]) -> Option<Compute> {
    let gpu = &instance.mig_instance()?.gpu_uuid;
    let gpu = devices.iter().find(|device| device.uuid == *gpu)?;
    let parts = u64::from(instance.sm_count) * u64::from(Compute::WHOLE.0) / u64::from(gpu.sm_count.max(1));
    Some(Compute(
        u16::try_from(parts).unwrap_or(u16::MAX).min(Compute::WHOLE.0),
    ))
}

//! `divvy run` on AMD's devices, of which no slices can be had: the limiter works in CUDA programs. The message offers
//! variables that show a program its devices and keep it to some compute units.

use divvy_host::visible::{Seen, Target, settings};
use divvy_model::{Code, Compute, DeviceKind, DeviceRecord, Fault, Isolation, Selector, Vendor};

use crate::verbs::environment::masks;

/// Whether the kernel has AMD's compute driver: cheap to ask, on every start of a program.
pub fn are_here() -> bool {
    std::path::Path::new("/sys/class/kfd/kfd/topology/nodes").exists()
}

/// The variables of a program for which AMD's devices were chosen, or are all there are; None where slices can be had.
///
/// # Errors
/// [`Code::NotEnforceable`] for more than variables can do.
pub fn variables(
    devices: &[DeviceRecord],
    chosen: &[Selector],
    isolation: Isolation,
    share: Option<Compute>,
) -> Result<Option<Vec<(&'static str, String)>>, Fault> {
    let is_amd = |device: &DeviceRecord| {
        let facts = device.hardware.as_ref();
        facts.is_some_and(|facts| facts.kfd_node.is_some())
    };
    let has_slices = |device: &DeviceRecord| {
        let facts = device.hardware.as_ref();
        let nvidia = facts.is_none_or(|facts| facts.vendor == Vendor::Nvidia);
        device.kind == DeviceKind::Emulated || nvidia
    };
    let mut places = Vec::new();
    for selector in chosen {
        // The agent answers for devices that are made on demand, or are not there.
        let found = match selector {
            Selector::Emulated(_) => None,
            other => other.choose(devices).ok(),
        };
        match found.and_then(|found| devices.iter().position(|device| device.uuid == found.uuid)) {
            Some(place) => places.push(place),
            None => return Ok(None),
        }
    }
    if chosen.is_empty() && !devices.iter().any(has_slices) {
        places.extend(devices.iter().position(is_amd));
    }
    let Some(first) = places
        .iter()
        .map(|place| &devices[*place])
        .find(|device| is_amd(device))
    else {
        return Ok(None);
    };
    let called = format!("device {} ({})", first.index, first.name);
    if let Some(other) = places
        .iter()
        .map(|place| &devices[*place])
        .find(|device| !is_amd(device))
    {
        return Err(Fault::new(
            Code::OneSlice,
            format!("{called} and device {} have no driver in common", other.index),
        )
        .hint("run a program on the devices of one vendor"));
    }
    if isolation != Isolation::Env {
        return Err(Fault::new(
            Code::NotEnforceable,
            format!("{called} is AMD's: Divvy's limiter works in CUDA programs, and keeps no program to a part of it"),
        )
        .hint(
            "--isolation env shows the program this device and no other, and --compute then keeps it to some compute \
             units; `divvy gpu partition` divides the device itself",
        ));
    }
    let mut variables = settings(&Seen::of(devices), &places, Target::All)?;
    if let Some(share) = share {
        variables.extend(masks(&places, devices, share)?);
    }
    Ok(Some(variables))
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_host::built::Built;
    use divvy_host::machine::{Sysroot, read};

    fn asked(
        devices: &[DeviceRecord],
        selectors: &[&str],
        isolation: Isolation,
        share: Option<Compute>,
    ) -> Result<Option<Vec<(&'static str, String)>>, Fault> {
        let selectors: Vec<Selector> = selectors
            .iter()
            .map(|word| word.parse().expect("a selector"))
            .collect();
        variables(devices, &selectors, isolation, share)
    }

    #[test]
    fn on_amds_devices_a_program_gets_variables_or_a_clear_answer() {
        let folder = tempfile::tempdir().expect("a folder");
        let amd = read(&Sysroot::at(Built::mi300x(folder.path(), 1).root())).devices;
        for chosen in [&[][..], &["0"], &["GPU-5a3f000000001003"]] {
            let refusal = asked(&amd, chosen, Isolation::Cooperative, None).expect_err("no limiter");
            assert_eq!(refusal.code, Code::NotEnforceable);
            assert!(refusal.hint.expect("a way out").contains("--isolation env"));
        }
        let shown = asked(&amd, &["5", "2"], Isolation::Env, Some(Compute(5000)))
            .expect("variables can do that")
            .expect("AMD's");
        let value = |name: &str| {
            let found = shown.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| value.as_str())
        };
        let both = "GPU-5a3f000000001005,GPU-5a3f000000001002";
        assert_eq!(value("ROCR_VISIBLE_DEVICES"), Some(both));
        assert_eq!(value("HIP_VISIBLE_DEVICES"), Some("0,1"));
        assert_eq!(value("HSA_CU_MASK"), Some("0:0-151;1:0-151"));
        let first = asked(&amd, &[], Isolation::Env, None)
            .expect("shown")
            .expect("AMD's");
        assert_eq!(first[0].1, "GPU-5a3f000000001000", "one, as slices have");
        // The agent answers for devices that are emulated, or unknown.
        for chosen in ["emulated:h100", "77"] {
            assert_eq!(asked(&amd, &[chosen], Isolation::Cooperative, None), Ok(None));
        }
    }

    #[test]
    fn beside_other_devices_only_who_chooses_amds_is_told() {
        let (one, two) = (
            tempfile::tempdir().expect("a folder"),
            tempfile::tempdir().expect("a folder"),
        );
        let mut all = read(&Sysroot::at(Built::h100(one.path(), 1).root())).devices;
        all.extend(read(&Sysroot::at(Built::mi300x(two.path(), 1).root())).devices);
        for (index, device) in (0..).zip(&mut all) {
            device.index = index;
        }
        assert_eq!(asked(&all, &[], Isolation::Cooperative, None), Ok(None));
        assert_eq!(asked(&all, &["0"], Isolation::Cooperative, None), Ok(None));
        assert!(asked(&all, &["1"], Isolation::Cooperative, None).is_err());
        let refusal = asked(&all, &["0", "1"], Isolation::Env, None).expect_err("two vendors");
        assert_eq!(refusal.code, Code::OneSlice);
    }
}

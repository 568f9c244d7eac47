//! How MIG instances are offered to schedulers: not at all, as whole GPUs, or each by its profile.

use std::collections::BTreeMap;

use divvy_model::{Code, Fault, words};

use super::compute::part_name;
use super::driver::MigDevice;

/// A strategy, by the words of NVIDIA's device plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Instances are not offered; a GPU counts as one whether or not it is divided.
    #[default]
    None,
    /// Every device is divided, all into the same profile, and each instance is offered as `nvidia.com/gpu`.
    Single,
    /// Each instance is offered as `nvidia.com/mig-<profile>`, undivided GPUs as `nvidia.com/gpu`.
    Mixed,
}

words! { Strategy, "strategy": None "none", Single "single", Mixed "mixed" }

/// Resources that a machine with these devices offers, and how many of each.
///
/// # Errors
/// [`Code::MigFit`] where `single` is wanted of devices that are not divided alike.
pub fn resources(devices: &[MigDevice], strategy: Strategy) -> Result<BTreeMap<String, u32>, Fault> {
    let mut offered: BTreeMap<String, u32> = BTreeMap::new();
    let mut profiles: Vec<String> = Vec::new();
    for device in devices {
        let divided = device.mode == Some(true);
        if !divided || strategy == Strategy::None {
            *offered.entry("nvidia.com/gpu".into()).or_default() += 1;
            continue;
        }
        for instance in &device.instances {
            let profile = device
                .geometry
                .profiles
                .iter()
                .find(|profile| profile.id == instance.profile_id);
            let name = profile.map_or_else(
                || format!("id-{}", instance.profile_id),
                |profile| profile.name.clone(),
            );
            let whole = profile.map_or(0, |profile| profile.compute_slices);
            // A program runs in a compute instance.
            for compute in &instance.compute {
                let name = part_name(&name, compute.slices, whole);
                let resource = match strategy {
                    Strategy::Mixed => format!("nvidia.com/mig-{}", name.replace('+', ".")),
                    Strategy::Single | Strategy::None => "nvidia.com/gpu".into(),
                };
                *offered.entry(resource).or_default() += 1;
                profiles.push(name);
            }
        }
    }
    if strategy == Strategy::Single {
        let undivided = devices.iter().any(|device| device.mode != Some(true));
        profiles.sort();
        profiles.dedup();
        let divided = devices.iter().any(|device| device.mode == Some(true));
        if divided && (undivided || profiles.len() > 1) {
            return Err(Fault::new(
                Code::MigFit,
                "the strategy `single` wants every device divided alike",
            )
            .cause(format!(
                "there are {}{}",
                profiles.join(", "),
                if undivided { " and undivided devices" } else { "" }
            ))
            .hint("use the strategy `mixed`, or make the devices alike with `divvy gpu mig apply`"));
        }
    }
    Ok(offered)
}

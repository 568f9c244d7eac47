//! NVIDIA_VISIBLE_DEVICES and AMD_VISIBLE_DEVICES, as the vendors' own runtimes read them.
//!
//! Facts: github.com/NVIDIA/nvidia-container-toolkit, internal/config/image; github.com/ROCm/container-toolkit,
//! internal/gpu-tracker and internal/oci.

use std::collections::BTreeMap;

/// What a container asks of NVIDIA's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Nvidia {
    /// Nothing at all.
    #[default]
    Void,
    /// The driver's files, and no device.
    None,
    /// All devices.
    All,
    /// These, by index, UUID, `gpu:mig` or a MIG instance's UUID.
    Some(Vec<String>),
}

/// Reads NVIDIA_VISIBLE_DEVICES.
#[must_use]
pub fn nvidia(environment: &BTreeMap<String, String>) -> Nvidia {
    let set = |name: &str| environment.get(name).is_some_and(|value| !value.is_empty());
    match environment.get("NVIDIA_VISIBLE_DEVICES") {
        // Images from before 2017 say their CUDA version and no more.
        None if set("CUDA_VERSION") && !set("NVIDIA_REQUIRE_CUDA") => Nvidia::All,
        None => Nvidia::Void,
        Some(text) => of_list(text.split(',').map(str::trim)),
    }
}

/// Devices from a list, of a variable or of mounts.
pub fn of_list<'a>(words: impl Iterator<Item = &'a str>) -> Nvidia {
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    if words.is_empty() || words.contains(&"void") {
        return Nvidia::Void;
    }
    match words.iter().find(|word| matches!(**word, "all" | "none")) {
        Some(&"all") => Nvidia::All,
        Some(_) => Nvidia::None,
        None => Nvidia::Some(words.into_iter().map(str::to_owned).collect()),
    }
}

/// The devices that AMD_VISIBLE_DEVICES shows, by index and in ascending order, where devices have these unique ids.
/// Docker's swarm says the same in variables of its own. Words that name no device are ignored.
#[must_use]
pub fn amd(environment: &BTreeMap<String, String>, unique_ids: &[Option<u64>]) -> Vec<usize> {
    let swarm = environment
        .iter()
        .find(|(name, _)| name.starts_with("DOCKER_RESOURCE_"))
        .map(|(_, value)| value);
    let Some(text) = environment.get("AMD_VISIBLE_DEVICES").or(swarm) else {
        return Vec::new();
    };
    if matches!(text.as_str(), "all" | "All" | "ALL") {
        return (0..unique_ids.len()).collect();
    }
    // As Go's Atoi: a sign is a part of the number.
    let number = |text: &str| {
        text.parse::<i64>()
            .ok()
            .and_then(|number| usize::try_from(number).ok())
    };
    let mut found = Vec::new();
    for word in text.split(',') {
        let hexadecimal = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"));
        let bare = word.len() > 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        if hexadecimal.is_some() || bare {
            // A prefix is none: the vendor compares whole texts of lower-case digits without leading zeros.
            let digits = hexadecimal.unwrap_or(word).to_ascii_lowercase();
            let same = |id: &Option<u64>| id.is_some_and(|id| format!("{id:x}") == digits);
            let places = unique_ids.iter().enumerate().filter(|(_, id)| same(id));
            found.extend(places.map(|(place, _)| place));
        } else if let Some((first, last)) = word.split_once('-') {
            if let (Some(first), Some(last)) = (number(first), number(last))
                && last < unique_ids.len()
            {
                found.extend(first..=last);
            }
        } else {
            found.extend(number(word).filter(|place| *place < unique_ids.len()));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

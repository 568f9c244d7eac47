//! What several variables do to each other, which none of them shows alone.

use super::number::canonical;
use super::{Environment, Seen};

/// What `CUDA_DEVICE_ORDER` does to the numbers of CUDA's devices.
pub fn cuda_order(environment: &Environment, seen: &Seen, gpus: &[usize]) -> Option<String> {
    let order = environment.get("CUDA_DEVICE_ORDER").map(String::as_str);
    match order {
        Some("PCI_BUS_ID") => Some("CUDA_DEVICE_ORDER=PCI_BUS_ID: numbered by PCI address".into()),
        _ if alike(seen, gpus) => None,
        _ => Some(
            "CUDA_DEVICE_ORDER is not PCI_BUS_ID: the fastest device is number 0; which one that is, only the driver \
             knows, so PCI order is assumed here"
                .into(),
        ),
    }
}

fn alike(seen: &Seen, places: &[usize]) -> bool {
    let mut names = places.iter().map(|place| &seen.devices[*place].name);
    let first = names.next();
    names.all(|name| Some(name) == first)
}

/// What OpenMP makes of its default device.
pub fn openmp_default(value: Option<&str>, shown: &[usize], seen: &Seen) -> (String, Option<String>) {
    let Some(value) = value else {
        return (
            "OMP_DEFAULT_DEVICE is not set: device 0 of these is the default".into(),
            None,
        );
    };
    match value.trim().parse::<usize>().ok().and_then(|at| shown.get(at)) {
        Some(place) => (
            format!(
                "OMP_DEFAULT_DEVICE={value}: device {} of `divvy devices` is the default; the variable hides nothing",
                seen.devices[*place].index
            ),
            None,
        ),
        None => (
            format!(
                "OMP_DEFAULT_DEVICE={value}: there is no such device among the {} visible",
                shown.len()
            ),
            Some(format!(
                "OMP_DEFAULT_DEVICE={value} is an index within what is visible, and {} devices are",
                shown.len()
            )),
        ),
    }
}

/// Warnings about variables that work on one another. `left` is how many devices ROCr leaves.
pub fn across(environment: &Environment, seen: &Seen, left: usize) -> Vec<String> {
    let value = |name: &str| {
        environment
            .get(name)
            .map(String::as_str)
            .filter(|text| !text.is_empty())
    };
    let mut warnings = Vec::new();
    let rocr = value("ROCR_VISIBLE_DEVICES");
    let amd = !seen.rocr().is_empty();
    let second = [
        ("HIP_VISIBLE_DEVICES", value("HIP_VISIBLE_DEVICES")),
        (
            "CUDA_VISIBLE_DEVICES",
            value("CUDA_VISIBLE_DEVICES").filter(|_| value("HIP_VISIBLE_DEVICES").is_none()),
        ),
        ("GPU_DEVICE_ORDINAL", value("GPU_DEVICE_ORDINAL")),
    ];
    for (name, list) in second {
        let (Some(rocr), Some(list), true) = (rocr, list, amd) else {
            continue;
        };
        if !counts_up(list, left) {
            warnings.push(format!(
                "double filtering: {name}={list} indexes the {left} devices that ROCR_VISIBLE_DEVICES={rocr} leaves, \
                 numbered from 0"
            ));
        }
    }
    if let (Some(hip), Some(cuda), true) = (value("HIP_VISIBLE_DEVICES"), value("CUDA_VISIBLE_DEVICES"), amd)
        && hip != cuda
        && !seen.devices.iter().any(|device| device.cuda)
    {
        warnings.push(format!(
            "HIP_VISIBLE_DEVICES={hip} and CUDA_VISIBLE_DEVICES={cuda} differ: HIP reads the first, some frameworks \
             the second"
        ));
    }
    let gpus = seen.cuda();
    let by_number = value("CUDA_VISIBLE_DEVICES")
        .is_some_and(|list| list.split(',').any(|entry| canonical(entry.trim()).is_some()));
    let ordered = value("CUDA_DEVICE_ORDER") == Some("PCI_BUS_ID");
    if by_number && !ordered && !alike(seen, &gpus) {
        warnings.push(
            "CUDA_VISIBLE_DEVICES names devices by number and CUDA_DEVICE_ORDER is not PCI_BUS_ID: the numbers are \
             not those of `divvy devices`"
                .into(),
        );
    }
    warnings
}

/// Whether a list is 0, 1, 2 … below `left`, which is safe behind another filter.
fn counts_up(list: &str, left: usize) -> bool {
    list.split(',')
        .enumerate()
        .all(|(at, entry)| canonical(entry) == Some(at) && at < left)
}

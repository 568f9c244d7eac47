//! Variables that make every runtime show the same devices, in the same order.
//!
//! ROCr is told by UUID, and what stands on it counts up from 0 within what ROCr leaves; CUDA is told by UUID, in PCI
//! order. Where a UUID does not tell two devices apart (partitions of one accelerator, devices without an id) ROCr is
//! told by number.

use divvy_model::{Code, Fault};

use super::{Runtime, Seen};

/// The programs that the variables are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// One runtime.
    One(Runtime),
    /// All of them at once.
    All,
}

impl Target {
    fn wants(self, runtime: Runtime) -> bool {
        self == Self::All || self == Self::One(runtime)
    }
}

/// The variables, in order, that show the devices at `places` of `seen` and no others.
///
/// # Errors
/// [`Code::Visible`] where no variables can do that: a device of another vendor's, several MIG devices for CUDA.
pub fn settings(seen: &Seen, places: &[usize], target: Target) -> Result<Vec<(&'static str, String)>, Fault> {
    let mut variables = Vec::new();
    let nodes = seen.rocr();
    let gpus = seen.cuda();
    let of = |all: &[usize]| -> Vec<usize> {
        places
            .iter()
            .copied()
            .filter(|place| all.contains(place))
            .collect()
    };
    let (ours, theirs) = (of(&nodes), of(&gpus));
    if let Target::One(runtime) = target {
        let known = match runtime {
            Runtime::Rocm | Runtime::Hip | Runtime::OpenCl => &ours,
            Runtime::Cuda => &theirs,
            Runtime::OpenMp => &places.to_vec(),
        };
        if let Some(place) = places.iter().find(|place| !known.contains(place)) {
            let device = &seen.devices[*place];
            return Err(refusal(format!(
                "{runtime} does not see device {} ({})",
                device.index, device.name
            ))
            .hint("choose devices of its own, or --for all"));
        }
    }
    let rocm = [Runtime::Rocm, Runtime::Hip, Runtime::OpenCl]
        .into_iter()
        .any(|runtime| target.wants(runtime));
    let emulated_only = nodes.iter().all(|place| seen.devices[*place].cuda);
    let wants_rocr = rocm || (target.wants(Runtime::OpenMp) && !emulated_only);
    if wants_rocr && !nodes.is_empty() {
        variables.push(("ROCR_VISIBLE_DEVICES", rocr_list(seen, &nodes, &ours)));
    }
    let counting = match ours.len() {
        // An empty list would hide nothing.
        0 => "-1".to_owned(),
        count => (0..count).map(|at| at.to_string()).collect::<Vec<_>>().join(","),
    };
    if !nodes.is_empty() {
        if target.wants(Runtime::Hip) {
            variables.push(("HIP_VISIBLE_DEVICES", counting.clone()));
        }
        if target.wants(Runtime::OpenCl) {
            variables.push(("GPU_DEVICE_ORDINAL", counting.clone()));
        }
    }
    let wants_cuda = target.wants(Runtime::Cuda) || target.wants(Runtime::OpenMp);
    if wants_cuda && !gpus.is_empty() {
        let instances = theirs
            .iter()
            .filter(|place| seen.devices[**place].instance.is_some());
        if instances.count() > 0 && theirs.len() > 1 {
            return Err(
                refusal("a CUDA program sees one MIG device and no other device beside it")
                    .hint("name one device, and start a program for each"),
            );
        }
        let list: Vec<&str> = theirs
            .iter()
            .map(|place| seen.devices[*place].uuid.as_str())
            .collect();
        variables.push(("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into()));
        variables.push(("CUDA_VISIBLE_DEVICES", list.join(",")));
    } else if target == Target::All && !nodes.is_empty() {
        // Frameworks on HIP read either, and must find the same.
        variables.push(("CUDA_VISIBLE_DEVICES", counting));
    }
    if target.wants(Runtime::OpenMp) && !places.is_empty() {
        variables.push(("OMP_DEFAULT_DEVICE", "0".into()));
    }
    Ok(variables)
}

/// By UUID where that names each device, else by number.
fn rocr_list(seen: &Seen, nodes: &[usize], chosen: &[usize]) -> String {
    let unique = |place: &usize| {
        let id = seen.devices[*place].unique_id;
        id != 0
            && nodes
                .iter()
                .filter(|node| seen.devices[**node].unique_id == id)
                .count()
                == 1
    };
    let word = |place: &usize| {
        if chosen.iter().all(unique) {
            format!("GPU-{:016x}", seen.devices[*place].unique_id)
        } else {
            nodes
                .iter()
                .position(|node| node == place)
                .map_or_else(String::new, |at| at.to_string())
        }
    };
    chosen.iter().map(word).collect::<Vec<_>>().join(",")
}

fn refusal(message: impl Into<String>) -> Fault {
    Fault::new(Code::Visible, message)
}

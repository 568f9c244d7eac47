//! What a program with this environment would see, runtime by runtime, step by step.

use super::{Environment, Filtered, Runtime, Seen, cuda, hip, rocr, warn};

/// What one runtime would show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The runtime.
    pub runtime: Runtime,
    /// Indices of the devices it shows, as `divvy devices` numbers them, in the program's order.
    pub visible: Vec<u32>,
    /// How it comes to that.
    pub steps: Vec<String>,
}

/// What every runtime would show, and what is likely not meant so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explained {
    /// One for each of [`Runtime::ALL`].
    pub views: Vec<View>,
    /// Each once, the gravest first.
    pub warnings: Vec<String>,
}

impl Explained {
    /// The view of one runtime.
    #[must_use]
    pub fn of(&self, runtime: Runtime) -> Option<&View> {
        self.views.iter().find(|view| view.runtime == runtime)
    }
}

/// Explains an environment on these devices.
#[must_use]
pub fn explain(environment: &Environment, seen: &Seen) -> Explained {
    let value = |name: &str| environment.get(name).map(String::as_str);
    let mut explained = Explained::default();

    let nodes = seen.rocr();
    let mut rocm = rocr::filter(value(rocr::VARIABLE), &seen.unique_ids(&nodes));
    let shown = through(&nodes, &rocm.chosen);
    explained.warnings.append(&mut rocm.warnings);
    if nodes.is_empty() {
        rocm.steps.push("ROCr finds no devices on this machine".into());
    }
    explained.push(Runtime::Rocm, seen, &shown, rocm.steps.clone());

    let above = |variable: &str| {
        let mut filtered = hip::filter(variable, value(variable), &seen.unique_ids(&shown));
        let mut steps = rocm.steps.clone();
        steps.push(format!("ROCr leaves {} devices, numbered from 0", shown.len()));
        steps.append(&mut filtered.steps);
        Filtered { steps, ..filtered }
    };
    // clr takes the second where the first is unset or empty.
    let chosen = match value("HIP_VISIBLE_DEVICES") {
        None | Some("") if value(cuda::VARIABLE).is_some_and(|text| !text.is_empty()) => cuda::VARIABLE,
        _ => "HIP_VISIBLE_DEVICES",
    };
    for (runtime, variable) in [(Runtime::Hip, chosen), (Runtime::OpenCl, "GPU_DEVICE_ORDINAL")] {
        let mut filtered = above(variable);
        if variable == cuda::VARIABLE {
            let at = filtered.steps.len() - 1;
            filtered.steps.insert(
                at.min(rocm.steps.len() + 1),
                "HIP_VISIBLE_DEVICES is not set: HIP reads CUDA_VISIBLE_DEVICES".into(),
            );
        }
        if !nodes.is_empty() {
            explained.warnings.append(&mut filtered.warnings);
        }
        explained.push(runtime, seen, &through(&shown, &filtered.chosen), filtered.steps);
    }

    let gpus = seen.cuda();
    let mut native = cuda::filter(value(cuda::VARIABLE), &seen.cuda_devices(&gpus));
    if gpus.is_empty() {
        native
            .steps
            .push("the CUDA driver finds no devices on this machine".into());
    } else {
        explained.warnings.append(&mut native.warnings);
    }
    native
        .steps
        .splice(0..0, warn::cuda_order(environment, seen, &gpus));
    let cuda_shown = through(&gpus, &native.chosen);

    // OpenMP's plugins stand on ROCr for AMD and on the CUDA driver for NVIDIA; an emulated device is a CUDA device.
    let only_rocr = shown.iter().copied().filter(|place| !seen.devices[*place].cuda);
    let openmp: Vec<usize> = only_rocr.chain(cuda_shown.iter().copied()).collect();
    let mut steps = Vec::new();
    if nodes.iter().any(|place| !seen.devices[*place].cuda) {
        steps.extend(rocm.steps);
    }
    if !gpus.is_empty() {
        steps.extend(native.steps.iter().cloned());
    }
    let (step, warning) = warn::openmp_default(value("OMP_DEFAULT_DEVICE"), &openmp, seen);
    steps.push(step);
    explained.warnings.extend(warning);
    explained.push(Runtime::OpenMp, seen, &openmp, steps);
    explained.push(Runtime::Cuda, seen, &cuda_shown, native.steps);

    explained
        .warnings
        .extend(warn::across(environment, seen, shown.len()));
    let mut known = std::collections::HashSet::new();
    explained.warnings.retain(|warning| known.insert(warning.clone()));
    explained
}

impl Explained {
    fn push(&mut self, runtime: Runtime, seen: &Seen, places: &[usize], mut steps: Vec<String>) {
        let visible: Vec<u32> = places.iter().map(|place| seen.devices[*place].index).collect();
        let words: Vec<String> = visible.iter().map(u32::to_string).collect();
        steps.push(match words.as_slice() {
            [] => "sees no devices".into(),
            [one] => format!("sees device {one} of `divvy devices`"),
            many => format!(
                "sees devices {} of `divvy devices`, in this order",
                many.join(", ")
            ),
        });
        self.views.push(View {
            runtime,
            visible,
            steps,
        });
    }
}

/// The places that `chosen` picks out of `from`.
fn through(from: &[usize], chosen: &[usize]) -> Vec<usize> {
    chosen.iter().map(|place| from[*place]).collect()
}

//! The environment of a program in a slice: the drop-ins in front, the driver below, the slice's socket.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use divvy_host::mps::{ClientLimits, Mps, PARTITION};
use divvy_host::visible::{Seen, Target, settings};
use divvy_host::{DriverBelow, find_driver};
use divvy_model::{Code, DeviceKind, DeviceRecord, Fault, Isolation, Mode, Policy, SliceRecord};

use super::{Launch, Plan};
use crate::api::CreatedSlice;
use crate::launch::stage::{DropIns, Stage, stage};
use crate::start::rundir::RunDir;

/// The inputs of a program's environment.
pub(super) struct Parts {
    drop_ins: DropIns,
    limiter: Stage,
    /// The limiter in front of OpenCL's drivers.
    layer: PathBuf,
    emulated: Stage,
    /// The split driver, where this installation has it.
    remote: Option<Stage>,
    /// Our CUDA runtimes, for drivers that are not NVIDIA's.
    runtimes: PathBuf,
    /// A driver that the user named.
    named: Option<DriverBelow>,
}

impl Parts {
    pub fn find(run: &RunDir, launch: &Launch) -> Result<Self, Fault> {
        let drop_ins = DropIns::find()?;
        let named = launch
            .driver
            .as_deref()
            .map(|path| find_driver(Some(path), std::slice::from_ref(&drop_ins.limiter.cuda)))
            .transpose()?;
        Ok(Self {
            limiter: stage(run, &drop_ins.limiter.links())?,
            layer: {
                let link = drop_ins.layer_link();
                stage(run, &[link])?.folder.join(link.0)
            },
            emulated: stage(run, &drop_ins.emulated.links())?,
            remote: match &drop_ins.remote {
                Some(_) => Some(stage(run, &drop_ins.remote_links()?)?),
                None => None,
            },
            runtimes: stage(run, &drop_ins.runtime_links())?.folder,
            drop_ins,
            named,
        })
    }

    fn driver_for(&self, device: &DeviceRecord) -> Result<DriverBelow, Fault> {
        match (&self.named, device.kind) {
            (Some(named), _) => Ok(named.clone()),
            (None, DeviceKind::Emulated) => Ok(DriverBelow {
                path: self.drop_ins.emulated.cuda.clone(),
                origin: "emulated",
            }),
            (None, _) => find_driver(None, std::slice::from_ref(&self.drop_ins.limiter.cuda)),
        }
    }

    /// The NVML that belongs to a driver: the emulated device's own, else the library beside the driver. Where there is
    /// none, limit-nvml looks for NVIDIA's by itself.
    fn nvml_for(&self, driver: &DriverBelow) -> Option<PathBuf> {
        if driver.path == self.drop_ins.emulated.cuda {
            return Some(self.drop_ins.emulated.nvml.clone());
        }
        let beside = driver.path.with_file_name("libnvidia-ml.so.1");
        beside.is_file().then_some(beside)
    }

    pub fn plan(&self, run: &RunDir, created: &CreatedSlice, socket: &Path) -> Result<Plan, Fault> {
        let inherited = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        if created.slice.terms.isolation == Isolation::Enforced {
            return self.without_device(run, created, inherited);
        }
        let driver = self.driver_for(&created.device)?;
        // Without the limiter, an emulated device is still seen through its own driver.
        let front = match (created.slice.terms.isolation, driver.origin) {
            (Isolation::Env, "emulated") => Some(&self.emulated),
            (Isolation::Env, _) => None,
            _ => Some(&self.limiter),
        };
        let mut environment = environment(
            run,
            created,
            (&driver.path, self.nvml_for(&driver)),
            front,
            (driver.origin == "emulated").then_some(&self.runtimes),
            socket,
            inherited,
        );
        if created.slice.terms.isolation != Isolation::Env {
            let layers = in_front(self.layer.as_os_str(), inherited(LAYERS), ":");
            environment.push((LAYERS.into(), layers));
        }
        Ok(Plan {
            environment,
            slice: created.slice.clone(),
            device: created.device.clone(),
            devices: created.devices.clone(),
            remarks: Vec::new(),
            driver,
        })
    }
}

impl Parts {
    /// For a program whose calls a worker makes.
    fn without_device(
        &self,
        run: &RunDir,
        created: &CreatedSlice,
        inherited: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Plan, Fault> {
        if let Some(named) = &self.named {
            return Err(Fault::new(
                Code::NotEnforceable,
                format!("`{}` cannot be the workers' driver", named.path.display()),
            )
            .hint("leave --driver and the setting `driver` out: the agent chooses the driver of workers"));
        }
        let Some(stage) = &self.remote else {
            // Says what is missing.
            return Err(self
                .drop_ins
                .remote_links()
                .map_or_else(|fault| fault, |_| missing()));
        };
        let socket = created.directory.join("worker.sock");
        let mut environment = of_worker(stage, &self.runtimes, &socket, inherited);
        let uuids: Vec<&str> = created
            .devices
            .iter()
            .map(|device| device.uuid.as_str())
            .collect();
        // The library chooses among the worker's devices by it.
        environment.push(("CUDA_VISIBLE_DEVICES".into(), uuids.join(",").into()));
        // A run inside the program finds its slice and this agent by these.
        environment.push(("DIVVY_SLICE".into(), created.directory.join("attach.sock").into()));
        environment.push(("DIVVY_RUN_DIR".into(), run.path().into()));
        Ok(Plan {
            environment,
            slice: created.slice.clone(),
            device: created.device.clone(),
            devices: created.devices.clone(),
            remarks: Vec::new(),
            driver: DriverBelow {
                path: self
                    .drop_ins
                    .remote
                    .clone()
                    .map(|remote| remote.cuda)
                    .unwrap_or_default(),
                origin: "a worker's",
            },
        })
    }
}

/// The split driver in front, and the socket of the worker that makes the program's calls.
fn of_worker(
    stage: &Stage,
    runtimes: &Path,
    socket: &Path,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> Vec<(String, OsString)> {
    vec![
        (
            "LD_PRELOAD".into(),
            among_preloads(&stage.preload, inherited("LD_PRELOAD")),
        ),
        (
            "LD_LIBRARY_PATH".into(),
            in_front(
                &joined(&stage.folder, runtimes),
                inherited("LD_LIBRARY_PATH"),
                ":",
            ),
        ),
        ("DIVVY_REMOTE".into(), socket.into()),
    ]
}

/// The environment of a program whose worker is behind this socket, on whatever host.
///
/// # Errors
/// [`Code::DropIn`], [`Code::RunDir`].
pub fn remote_environment(run: &RunDir, socket: &Path) -> Result<Vec<(String, OsString)>, Fault> {
    let found = DropIns::find()?;
    let runtimes = stage(run, &found.runtime_links())?.folder;
    let stage = stage(run, &found.remote_links()?)?;
    let inherited = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    Ok(of_worker(&stage, &runtimes, socket, inherited))
}

/// Two folders of libraries, the first one in front.
pub(super) fn joined(first: &Path, second: &Path) -> OsString {
    let mut folders = first.as_os_str().to_os_string();
    folders.push(":");
    folders.push(second);
    folders
}

fn missing() -> Fault {
    Fault::new(Code::DropIn, "the split driver is missing")
}

/// The variables of the program. What the user set for the loader stays.
fn environment(
    run: &RunDir,
    created: &CreatedSlice,
    (driver, nvml): (&Path, Option<PathBuf>),
    front: Option<&Stage>,
    runtimes: Option<&PathBuf>,
    socket: &Path,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> Vec<(String, OsString)> {
    let mut variables: Vec<(String, OsString)> = Vec::new();
    let mut set = |name: &str, value: OsString| variables.push((name.into(), value));
    if let Some(stage) = front {
        set(
            "LD_PRELOAD",
            among_preloads(&stage.preload, inherited("LD_PRELOAD")),
        );
        let mut folders = stage.folder.clone().into_os_string();
        if created.slice.terms.isolation != Isolation::Env && created.slice.terms.policy == Policy::Strict {
            folders.push(":");
            folders.push(&stage.refusals);
        }
        // NVIDIA's runtime asks the driver for a proof that only NVIDIA's gives: over another one ours takes its place.
        if let Some(runtimes) = runtimes {
            folders.push(":");
            folders.push(runtimes);
        }
        set(
            "LD_LIBRARY_PATH",
            in_front(&folders, inherited("LD_LIBRARY_PATH"), ":"),
        );
        set("DIVVY_DRIVER", driver.into());
        if let Some(nvml) = nvml {
            set("DIVVY_NVML", nvml.into());
        }
    }
    if created.slice.terms.isolation != Isolation::Env {
        set("DIVVY_SLICE", socket.into());
    }
    if let Some(spec) = &created.slice.emulated_spec {
        set("DIVVY_EMULATED", spec.into());
    }
    // An emulated device accounts for its memory itself, and a run inside the program must find this agent.
    set("DIVVY_RUN_DIR", run.path().into());
    if created.slice.terms.isolation == Isolation::Env {
        // No limiter keeps the program to its device, so every runtime is told, each in its own way.
        let shown = Seen::of(&created.devices);
        let places: Vec<usize> = (0..created.devices.len()).collect();
        let told = settings(&shown, &places, Target::All).unwrap_or_default();
        variables.extend(
            told.into_iter()
                .map(|(name, value)| (name.to_owned(), value.into())),
        );
    } else {
        set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into());
        let uuids: Vec<&str> = created
            .devices
            .iter()
            .map(|device| device.uuid.as_str())
            .collect();
        set("CUDA_VISIBLE_DEVICES", uuids.join(",").into());
        for (name, value) in of_mode(run, &created.slice) {
            set(name, value.into());
        }
    }
    variables
}

/// The variables that the sharing mode needs in a program.
fn of_mode(run: &RunDir, slice: &SliceRecord) -> Vec<(&'static str, String)> {
    if slice.terms.sharing.mode != Mode::Mps {
        return Vec::new();
    }
    let mps = Mps::of_user(&slice.shares.first.device_uuid, run.path(), slice.uid);
    let mut variables = mps.client_environment(ClientLimits {
        compute: slice
            .terms
            .compute
            .share
            .filter(|_| slice.mps_partition.is_none()),
        memory: Some(slice.shares.first.memory_limit_bytes),
    });
    variables.extend(slice.mps_partition.clone().map(|name| (PARTITION, name)));
    variables
}

/// The user's own preloads, then `ours`: a sanitizer's runtime has to come first, and a profiler's functions call the
/// next ones, which are ours. In a nested run ours are there already; another stage's limiter goes behind.
pub(super) fn among_preloads(ours: &str, inherited: Option<OsString>) -> OsString {
    let inherited = inherited.unwrap_or_default();
    let is_ours = |entry: &&[u8]| ours.split(':').any(|own| own.as_bytes() == *entry);
    let is_staged = |entry: &&[u8]| entry.windows(STAGES.len()).any(|part| part == STAGES);
    // ld.so(8): separated by spaces or colons.
    let entries: Vec<&[u8]> = inherited
        .as_bytes()
        .split(|byte| matches!(byte, b' ' | b':'))
        .filter(|entry| !entry.is_empty() && !is_ours(entry))
        .collect();
    let (others, users): (Vec<&[u8]>, Vec<&[u8]>) = entries.into_iter().partition(is_staged);
    let all: Vec<&[u8]> = users.into_iter().chain([ours.as_bytes()]).chain(others).collect();
    OsString::from_vec(all.join(&b':'))
}

/// The layers that OpenCL's loader puts in front of every driver, by path.
const LAYERS: &str = "OPENCL_LAYERS";

/// In the path of every staged drop-in.
const STAGES: &[u8] = b"/stages/";

/// `ours`, then the earlier value, without a second `ours`: for a run inside a run.
pub(super) fn in_front(ours: &OsStr, inherited: Option<OsString>, separator: &str) -> OsString {
    let mut value = ours.to_os_string();
    let mut already = ours.to_os_string();
    already.push(separator);
    let behind =
        |rest: &OsString| rest != ours && !rest.as_encoded_bytes().starts_with(already.as_encoded_bytes());
    if let Some(all) = inherited.as_ref().filter(|rest| !behind(rest)) {
        return all.clone();
    }
    if let Some(rest) = inherited {
        value.push(separator);
        value.push(rest);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_preloads_come_first_and_ours_once() {
        let ours = "/run/stages/1/$LIB/libcuda.so.1:/run/stages/1/$LIB/libnvidia-ml.so.1";
        let among = |inherited: &str| {
            let inherited = (!inherited.is_empty()).then(|| inherited.into());
            among_preloads(ours, inherited).into_string().expect("text")
        };
        assert_eq!(among(""), ours);
        assert_eq!(
            among("libasan.so.8 /opt/p.so"),
            format!("libasan.so.8:/opt/p.so:{ours}")
        );
        // A run inside a run, with a profiler between the two.
        assert_eq!(among(&format!("/opt/p.so:{ours}")), format!("/opt/p.so:{ours}"));
        let other = "/other/stages/2/$LIB/libcuda.so.1";
        assert_eq!(
            among(&format!("a.so:{other}:b.so")),
            format!("a.so:b.so:{ours}:{other}")
        );
    }
}

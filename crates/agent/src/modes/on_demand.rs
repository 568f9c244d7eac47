//! MIG instances that are made at admission, where the agent's settings let it, and removed after their slice.
//!
//! What is made is noted in a file first, so that an agent that comes after one that died removes it. An instance that
//! somebody made by hand is never removed, and nothing that is there is moved.

use std::io;
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};

use divvy_host::mig::{Alone, Least, MigDevice, MigDriver, NewInstance, NvmlMig, Patient, room_for};
use divvy_model::{Code, DeviceKind, Fault, MemoryAmount, Mode, SliceRequest};
use serde::{Deserialize, Serialize};

use crate::api::CreateSlice;
use crate::daemon::Daemon;
use crate::decide::placement::meant;
use crate::files::Folder;
use crate::system::privilege::{self, HelperMig};

/// An instance that this agent made, or one before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    gpu: String,
    /// The driver's id of it; none until it is made.
    instance: Option<u32>,
    /// MIG mode was off.
    turned_on: bool,
    /// The specification of an emulated GPU.
    emulated: Option<String>,
}

/// A GPU that may be divided for a request.
struct Gpu {
    uuid: String,
    emulated: Option<String>,
    /// Slices have it as a whole.
    taken: bool,
}

impl Daemon {
    /// Whether an instance may be made for a request that was refused so.
    pub(crate) fn may_cut(&self, ask: &CreateSlice, refusal: Code) -> bool {
        let wants_one =
            ask.request.share_mode == Mode::Mig && matches!(refusal, Code::NoMig | Code::OtherMode);
        self.settings.mig_instances && wants_one && !ask.dry_run
    }

    /// Makes the smallest instance that a request can be content with. While what this answers is held nothing is put back.
    ///
    /// # Errors
    /// `refusal`, where there is no room for one; what the driver refuses with.
    pub(crate) fn cut(&self, ask: &CreateSlice, refusal: Fault) -> Result<MutexGuard<'_, ()>, Fault> {
        let held = self.grounds.lock().unwrap_or_else(PoisonError::into_inner);
        for gpu in self.gpus_to_divide(ask)? {
            let _alone = alone(self.run.path(), gpu.emulated.is_some())?;
            let mut driver = driver(self.run.path(), gpu.emulated.as_deref())?;
            let Some(device) = find(&mut driver, &gpu.uuid)? else {
                continue;
            };
            let idle = device.mode == Some(true) || (!gpu.taken && device.tenants.is_empty());
            if device.mode.is_some()
                && idle
                && make(self.run.path(), &mut driver, &device, &gpu, &ask.request)?
            {
                self.state().inventory.refresh(&self.nvidia);
                return Ok(held);
            }
        }
        Err(refusal.cause("and no GPU has room for an instance that could be made for it"))
    }

    fn gpus_to_divide(&self, ask: &CreateSlice) -> Result<Vec<Gpu>, Fault> {
        let mut state = self.state();
        let devices = meant(&mut state, ask)?;
        let whole = devices.into_iter().filter(|device| {
            device.mig_instance().is_none() && matches!(device.kind, DeviceKind::Gpu | DeviceKind::Emulated)
        });
        let mut gpus: Vec<Gpu> = whole
            .map(|device| Gpu {
                emulated: state.inventory.emulated_spec(&device.uuid).map(str::to_owned),
                taken: state
                    .slices
                    .values()
                    .any(|slice| slice.record.place_of(&device.uuid).is_some()),
                uuid: device.uuid,
            })
            .collect();
        gpus.sort_by_key(|gpu| gpu.taken);
        Ok(gpus)
    }

    /// Removes the instances that were made for slices that have ended. The caller holds the grounds.
    pub(super) fn put_instances_back(&self) -> Result<(), Fault> {
        let run = self.run.path();
        let mut first = Ok(());
        for note in names(run).unwrap_or_default() {
            // Read now: the one before may have handed it the end of MIG mode.
            let Some(made) = read(run, &note) else {
                continue;
            };
            let outcome = self.put_back(&note, &made);
            first = first.and(outcome);
        }
        first
    }

    fn put_back(&self, note: &str, made: &Made) -> Result<(), Fault> {
        let _alone = alone(self.run.path(), made.emulated.is_some())?;
        let mut driver = driver(self.run.path(), made.emulated.as_deref())?;
        let Some(device) = find(&mut driver, &made.gpu)? else {
            return forget(self.run.path(), note);
        };
        let there = |device: &MigDevice| {
            let mut instances = device.instances.clone().into_iter();
            instances.find(|instance| Some(instance.id) == made.instance)
        };
        if let Some(instance) = there(&device) {
            let uuids: Vec<String> = instance
                .compute
                .iter()
                .filter_map(|one| one.uuid.clone())
                .collect();
            let has_one = |uuid: &String| {
                let state = self.state();
                state
                    .slices
                    .values()
                    .any(|slice| slice.record.place_of(uuid).is_some())
            };
            if uuids.iter().any(has_one) {
                return Ok(());
            }
            driver.destroy(&made.gpu, instance.id)?;
        }
        let now = find(&mut driver, &made.gpu)?;
        let empty = now.is_some_and(|device| device.mode == Some(true) && device.instances.is_empty());
        if made.turned_on && empty {
            driver.set_mode(&made.gpu, false)?;
        } else if made.turned_on {
            // Who goes last turns it off.
            hand_on(self.run.path(), note, &made.gpu)?;
        }
        forget(self.run.path(), note)?;
        self.state().inventory.refresh(&self.nvidia);
        Ok(())
    }
}

/// Makes an instance, if there is room for one.
fn make(
    run: &Path,
    driver: &mut dyn MigDriver,
    device: &MigDevice,
    gpu: &Gpu,
    request: &SliceRequest,
) -> Result<bool, Fault> {
    let least = Least {
        memory_bytes: match request.memory {
            Some(MemoryAmount::Bytes(bytes)) => bytes.0,
            Some(MemoryAmount::Share(_)) | None => 0,
        },
        compute: request.compute.map_or(0, |compute| u64::from(compute.0)),
    };
    let Some((profile, start)) = room_for(device, least) else {
        return Ok(false);
    };
    let mut made = Made {
        gpu: gpu.uuid.clone(),
        instance: None,
        turned_on: device.mode == Some(false),
        emulated: gpu.emulated.clone(),
    };
    let note = format!("{}-{start}", gpu.uuid);
    // Noted first: what is made and not noted would never be removed.
    write(run, &note, &made)?;
    let active = match made.turned_on {
        true => driver.set_mode(&gpu.uuid, true),
        false => Ok(true),
    };
    let created = match active {
        Ok(true) => {
            let new = NewInstance {
                profile_id: profile.id,
                start,
                size: profile.size,
                parts: vec![profile.compute_slices],
            };
            driver.create(&gpu.uuid, &new).map(Some)
        }
        // It waits for a reset, which is not ours to do.
        Ok(false) => driver.set_mode(&gpu.uuid, false).map(|_| None),
        Err(fault) => Err(fault),
    };
    match created {
        Ok(Some(id)) => {
            made.instance = Some(id);
            write(run, &note, &made).map(|()| true)
        }
        Ok(None) => forget(run, &note).map(|()| false),
        Err(fault) => {
            if made.turned_on {
                driver.set_mode(&gpu.uuid, false)?;
            }
            forget(run, &note)?;
            Err(fault)
        }
    }
}

/// Whether anything was made that may have to be removed.
pub(super) fn is_in_use(run: &Path) -> bool {
    names(run).is_ok_and(|names| !names.is_empty())
}

fn driver(run: &Path, emulated: Option<&str>) -> Result<Patient, Fault> {
    let driver = match emulated {
        Some(spec) => NvmlMig::emulated(spec, run),
        None => NvmlMig::open(),
    }?;
    if emulated.is_none() && privilege::is_separate() {
        return Ok(Patient::over(HelperMig(driver), Patient::LOOK, Patient::CHANGE));
    }
    Ok(Patient::over(driver, Patient::LOOK, Patient::CHANGE))
}

fn alone(run: &Path, emulated: bool) -> Result<Alone, Fault> {
    match emulated {
        true => Alone::wait(&run.join(Alone::NAME), Alone::PATIENCE),
        false => Alone::wait(Path::new(Alone::OF_MACHINE), Alone::PATIENCE),
    }
}

fn find(driver: &mut dyn MigDriver, gpu: &str) -> Result<Option<MigDevice>, Fault> {
    Ok(driver.devices()?.into_iter().find(|device| device.uuid == gpu))
}

/// A file for each instance.
const MADE: &str = "mig-made";

fn names(run: &Path) -> io::Result<Vec<String>> {
    Folder::open(run)?.below(MADE)?.names()
}

fn read(run: &Path, note: &str) -> Option<Made> {
    let bytes = Folder::open(run).ok()?.below(MADE).ok()?.read(note).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Another instance of the same GPU that is noted is the one with which MIG mode goes.
fn hand_on(run: &Path, from: &str, gpu: &str) -> Result<(), Fault> {
    let others = names(run).unwrap_or_default().into_iter();
    let mut made = others.filter_map(|note| {
        let made = read(run, &note)?;
        Some((note, made))
    });
    match made.find(|(note, made)| note != from && made.gpu == gpu) {
        Some((note, made)) => write(
            run,
            &note,
            &Made {
                turned_on: true,
                ..made
            },
        ),
        None => Ok(()),
    }
}

fn write(run: &Path, note: &str, made: &Made) -> Result<(), Fault> {
    let text = serde_json::to_vec(made).unwrap_or_default();
    Folder::open(run)
        .and_then(|run| run.folder(MADE, 0o755)?.write(note, &text, 0o600))
        .map_err(|error| cannot("write", run, note, &error))
}

fn forget(run: &Path, note: &str) -> Result<(), Fault> {
    Folder::open(run)
        .and_then(|run| run.below(MADE)?.remove(note))
        .map_err(|error| cannot("remove", run, note, &error))
}

fn cannot(what: &str, run: &Path, note: &str, error: &io::Error) -> Fault {
    let note = run.join(MADE).join(note);
    Fault::new(Code::RunDir, format!("cannot {what} `{}`", note.display())).because(error)
}

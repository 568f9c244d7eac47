//! MIG instances that are made at admission, where the agent's settings allow it, and removed after their slice.
//!
//! A new instance is noted in a file first, so that the successor of a dead agent removes it. An instance that a person
//! made is never removed, and no instance is moved.

use std::io;
use std::path::Path;
use std::sync::Arc;

use divvy_host::Nvidia;
use divvy_host::mig::{Alone, MigDevice, MigDriver, MigWithTimeout, NewInstance, NvmlMig, room_for};
use divvy_model::{Code, Fault, SliceRequest};
use serde::{Deserialize, Serialize};

use crate::admission::asked::asked;
use crate::api::CreateSlice;
use crate::decide::mig::{self, ModeAfter, PutBack};
use crate::decide::placement::meant;
use crate::files::Folder;
use crate::start::rundir::RunDir;
use crate::state::Shared;
use crate::system::privilege::{self, HelperMig};

/// An instance that this agent or an earlier one made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    gpu: String,
    /// The driver's id of it; none until it exists.
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

/// The instances that the agent makes.
pub(crate) struct Instances {
    pub run: RunDir,
    pub nvidia: Arc<Nvidia>,
    pub state: Shared,
    /// The settings allow it.
    pub are_made: bool,
}

impl Instances {
    /// Whether an instance may be made for a request that was refused with this code.
    pub fn may_be_made(&self, ask: &CreateSlice, refusal: Code) -> bool {
        self.are_made && !ask.dry_run && mig::may_help(&ask.request, refusal)
    }

    /// Makes the smallest instance that is enough for a request.
    ///
    /// # Errors
    /// `refusal`, where there is no space for one; the driver's own refusals.
    pub fn make(&self, ask: &CreateSlice, refusal: Fault) -> Result<(), Fault> {
        for gpu in self.gpus_to_divide(ask)? {
            let _alone = alone(self.run.path(), gpu.emulated.is_some())?;
            let mut driver = driver(self.run.path(), gpu.emulated.as_deref())?;
            let Some(device) = find(&mut driver, &gpu.uuid)? else {
                continue;
            };
            if mig::may_be_divided(&device, gpu.taken)
                && make(self.run.path(), &mut driver, &device, &gpu, &ask.request)?
            {
                self.state.lock().inventory.refresh(&self.nvidia);
                return Ok(());
            }
        }
        Err(refusal.cause("and no GPU has room for an instance that could be made for it"))
    }

    fn gpus_to_divide(&self, ask: &CreateSlice) -> Result<Vec<Gpu>, Fault> {
        let mut state = self.state.lock();
        let asked = asked(&mut state.inventory, ask)?;
        let devices = meant(&state.inventory, &asked);
        let family = state.family();
        let gpus = mig::gpus_to_divide(devices, &family).into_iter();
        let gpus = gpus.map(|(device, taken)| Gpu {
            emulated: state.inventory.emulated_spec(&device.uuid).map(str::to_owned),
            taken,
            uuid: device.uuid,
        });
        Ok(gpus.collect())
    }

    /// Removes the instances of slices that have ended. Nothing else may be prepared or undone meanwhile.
    ///
    /// # Errors
    /// The first of the driver's refusals; the other instances are removed all the same.
    pub fn put_back(&self) -> Result<(), Fault> {
        let run = self.run.path();
        let mut first = Ok(());
        for note in names(run).unwrap_or_default() {
            // The note is read now: an earlier removal may have handed it the end of MIG mode.
            let Some(made) = read(run, &note) else {
                continue;
            };
            let outcome = self.put_one_back(&note, &made);
            first = first.and(outcome);
        }
        first
    }

    fn put_one_back(&self, note: &str, made: &Made) -> Result<(), Fault> {
        let run = self.run.path();
        let _alone = alone(run, made.emulated.is_some())?;
        let mut driver = driver(run, made.emulated.as_deref())?;
        let device = find(&mut driver, &made.gpu)?;
        let has_slice = |uuid: &str| {
            let state = self.state.lock();
            let mut slices = state.slices.values();
            slices.any(|slice| slice.record.shares.place_of(uuid).is_some())
        };
        match mig::put_back(device.as_ref(), made.instance, has_slice) {
            PutBack::Forget => return forget(run, note),
            PutBack::Keep => return Ok(()),
            PutBack::Remove(instance) => driver.destroy(&made.gpu, instance)?,
            PutBack::IsRemoved => {}
        }
        let now = find(&mut driver, &made.gpu)?;
        match mig::mode_after(made.turned_on, now.as_ref()) {
            ModeAfter::Stays => {}
            ModeAfter::TurnOff => driver.set_mode(&made.gpu, false).map(drop)?,
            ModeAfter::HandOn => hand_on(run, note, &made.gpu)?,
        }
        forget(run, note)?;
        self.state.lock().inventory.refresh(&self.nvidia);
        Ok(())
    }
}

/// Makes an instance, if there is space for one.
fn make(
    run: &Path,
    driver: &mut dyn MigDriver,
    device: &MigDevice,
    gpu: &Gpu,
    request: &SliceRequest,
) -> Result<bool, Fault> {
    let Some((profile, start)) = room_for(device, mig::least(request)) else {
        return Ok(false);
    };
    let mut made = Made {
        gpu: gpu.uuid.clone(),
        instance: None,
        turned_on: device.mode == Some(false),
        emulated: gpu.emulated.clone(),
    };
    let note = format!("{}-{start}", gpu.uuid);
    // The note comes first: an instance without a note would never be removed.
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
        // The mode waits for a reset, which the agent does not make.
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
pub fn is_in_use(run: &Path) -> bool {
    names(run).is_ok_and(|names| !names.is_empty())
}

fn driver(run: &Path, emulated: Option<&str>) -> Result<MigWithTimeout, Fault> {
    let driver = match emulated {
        Some(spec) => NvmlMig::emulated(spec, run),
        None => NvmlMig::open(),
    }?;
    if emulated.is_none() && privilege::is_separate() {
        return Ok(MigWithTimeout::over(
            HelperMig(driver),
            MigWithTimeout::LOOK,
            MigWithTimeout::CHANGE,
        ));
    }
    Ok(MigWithTimeout::over(
        driver,
        MigWithTimeout::LOOK,
        MigWithTimeout::CHANGE,
    ))
}

fn alone(run: &Path, emulated: bool) -> Result<Alone, Fault> {
    match emulated {
        true => Alone::wait(&run.join(Alone::NAME), Alone::TIMEOUT),
        false => Alone::wait(Path::new(Alone::OF_MACHINE), Alone::TIMEOUT),
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

/// If another instance of the same GPU is noted, MIG mode is turned off with that one.
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

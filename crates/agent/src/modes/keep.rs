//! The agent's part in sharing modes: it prepares a device for a new slice, and undoes that after the last one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use divvy_host::EmulatedTools;
use divvy_host::tool::{HostTools, Tools};
use divvy_model::{Code, DeviceKind, Fault, Mode, SliceRecord};

use super::on_demand::Instances;
use super::prerequisites;
use super::untidy::Untidy;
use crate::api::CreateSlice;
use crate::decide::in_use::InUse;
use crate::life::records::store;
use crate::start::rundir::RunDir;
use crate::state::{Shared, State};
use crate::system::privilege::{self, HelperTools};

/// The devices, prepared as slices' sharing modes need them.
pub(crate) struct Modes {
    pub run: RunDir,
    /// The agent's own user.
    pub uid: u32,
    pub state: Shared,
    /// This is held while a device is prepared for a sharing mode, and while that is undone.
    pub alone: Mutex<()>,
    /// The number of tries to undo what no slice needs any more.
    pub untidy: Arc<Untidy>,
    pub instances: Instances,
}

impl Modes {
    /// Makes the smallest instance that is enough for a request. While the returned guard is held nothing is undone.
    ///
    /// # Errors
    /// As [`Instances::make`].
    pub fn make_instance(&self, ask: &CreateSlice, refusal: Fault) -> Result<MutexGuard<'_, ()>, Fault> {
        let held = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        self.instances.make(ask, refusal).map(|()| held)
    }

    /// Prepares a slice's device for its sharing mode. Blocks for as long as the vendors' tools may take.
    ///
    /// # Errors
    /// As [`prerequisites::prepare`]; [`Code::SliceGone`] where the slice has ended meanwhile.
    pub fn prepare(&self, id: &str) -> Result<(), Fault> {
        let record = {
            let state = self.state.lock();
            let Some(slice) = state.slices.get(id) else {
                return Ok(());
            };
            slice.record.clone()
        };
        if matches!(record.terms.sharing.mode, Mode::Lease | Mode::Mig) {
            return Ok(());
        }
        // One preparation at a time, and never while something is undone: the state has the present needs by now.
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        let mut partition = None;
        for share in record.shares.iter() {
            let device = self.state.lock().device(&share.device_uuid)?;
            let mut tools = self.tools_for(device.kind == DeviceKind::Emulated, record.uid);
            partition = prerequisites::prepare(self.run.path(), &record, &device, tools.as_mut())?;
        }
        if partition == record.mps_partition {
            return Ok(());
        }
        let mut state = self.state.lock();
        let gone = || Fault::new(Code::SliceGone, "the slice ended meanwhile");
        let slice = state.slices.get_mut(id).ok_or_else(gone)?;
        slice.record.mps_partition = partition;
        let record = slice.stored_form();
        store(&self.run, &record)
    }

    /// Whether something may have to be undone.
    pub fn is_untidy(&self) -> bool {
        self.untidy.is_asked()
    }

    /// Undoes what no slice needs any more. A refusal is tried again some times; the next agent tries again.
    pub fn tidy(&self) {
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        let round = self.untidy.begin();
        let (in_use, emulated) = {
            let state = self.state.lock();
            let records: Vec<&SliceRecord> = state.slices.values().map(|slice| &slice.record).collect();
            (InUse::by(records), emulated_uuids(&state))
        };
        let run = self.run.path();
        let tools_of = |device: &str, uid: u32| {
            // A device that was emulated on demand may be gone from the list.
            let mps = divvy_host::mps::Mps::of_user(device, run, uid);
            let is_emulated =
                emulated.iter().any(|uuid| uuid == device) || divvy_host::is_emulated_daemon(&mps);
            self.tools_for(is_emulated, uid)
        };
        let outcome = prerequisites::put_back(run, &in_use, &tools_of);
        match outcome.and(self.instances.put_back()) {
            Ok(()) => self.untidy.done(round),
            Err(fault) => {
                if self.untidy.failed(round) {
                    tracing::error!(code = %fault.code, "{fault}: {}", fault.causes.join(": "));
                }
            }
        }
    }

    /// The vendor's tools for a device, run as one user where the agent may start such processes.
    fn tools_for(&self, emulated: bool, uid: u32) -> Box<dyn Tools> {
        if emulated {
            let environment = move |pid| privilege::environment(pid, uid);
            return Box::new(EmulatedTools::of(self.run.path()).with_environments(environment));
        }
        if privilege::is_separate() {
            return Box::new(HelperTools::new(uid));
        }
        let user = (uid != self.uid).then(|| (uid, crate::life::names::group_of(uid).unwrap_or(uid)));
        Box::new(HostTools {
            user,
            ..HostTools::default()
        })
    }
}

fn emulated_uuids(state: &State) -> Vec<String> {
    let devices = state.inventory.devices.iter();
    let emulated = devices.filter(|device| device.kind == DeviceKind::Emulated);
    emulated.map(|device| device.uuid.clone()).collect()
}

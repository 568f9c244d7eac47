//! The agent of this node, as the DRA driver asks it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use divvy_agent::api::CreateSlice;
use divvy_container::cdi;
use divvy_kube::kept::Host;
use divvy_model::{Code, DeviceRecord, Fault, SliceRecord, SliceRequest};

use crate::context::Context;
use crate::verbs::container::cdi::described;

/// See the module.
pub struct ThisNode {
    context: Context,
    directory: PathBuf,
}

impl ThisNode {
    /// With CDI files in this directory.
    pub fn new(context: Context, directory: PathBuf) -> Self {
        Self { context, directory }
    }
}

impl Host for ThisNode {
    fn uid(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn devices(&self) -> Result<Vec<DeviceRecord>, Fault> {
        let mut found = self.context.agent()?.devices()?.body.items;
        // The kernel knows where each sits; the agent does not ask it.
        if let Ok(survey) = self.context.survey(None) {
            for device in &mut found {
                let known = survey.devices.iter().find(|known| known.uuid == device.uuid);
                if let Some(known) = known.and_then(|known| known.hardware.clone()) {
                    let told = device.hardware.replace(known);
                    // What the agent knows of the device's health stays beside what the kernel says.
                    let health = &mut device.hardware.get_or_insert_default().health;
                    for words in told.into_iter().flat_map(|facts| facts.health) {
                        if !health.contains(&words) {
                            health.push(words);
                        }
                    }
                }
            }
        }
        Ok(found)
    }

    fn slices(&self) -> Result<Vec<SliceRecord>, Fault> {
        Ok(self.context.agent()?.slices()?.body.items)
    }

    fn make(&self, ask: &SliceRequest, words: &[String]) -> Result<SliceRecord, Fault> {
        let ask = CreateSlice {
            request: ask.clone(),
            command: words.to_vec(),
            emulated: self.context.config.text("emulated").map(str::to_owned),
            lasting: true,
            ..CreateSlice::default()
        };
        Ok(self.context.agent()?.create(&ask)?.slice)
    }

    fn describe(&self, slice: &SliceRecord) -> Result<String, Fault> {
        described(slice, &self.directory, &self.context)
    }

    fn end(&self, slice: &SliceRecord) -> Result<(), Fault> {
        /// The kubelet asks again. Processes of a container that has ended may take a moment to be gone.
        const TIMEOUT: Duration = Duration::from_secs(5);
        let begin = Instant::now();
        loop {
            match self.context.agent()?.end(&slice.id) {
                Ok(()) => break,
                Err(fault) if fault.code == Code::UnknownSlice => break,
                Err(fault) if begin.elapsed() >= TIMEOUT => return Err(fault),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        // The agent has removed the file, unless it was never told of it.
        cdi::remove(&self.directory.join(cdi::slice_file(slice)))
    }
}

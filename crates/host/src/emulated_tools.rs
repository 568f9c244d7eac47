//! The vendor's tools for emulated devices: the same words and answers as NVIDIA's, so that nothing above knows the
//! difference. An emulated MPS daemon is a file `control` in its pipe folder that names its device. The emulated driver
//! of a process is a client where `CUDA_MPS_PIPE_DIRECTORY` holds one. That folder is never the client's.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use divvy_model::{Code, Fault};

use crate::emulated::emulated_processes;
use crate::emulated_daemon as daemon;
use crate::tool::Tools;

/// The daemon itself: it names its device.
const CONTROL: &str = "control";
/// What it has set apart.
const PARTITIONS: &str = "partitions";

/// Reads the environment that a process was started with.
type Environments = Arc<dyn Fn(u32) -> io::Result<Vec<u8>> + Send + Sync>;

/// See the module.
#[derive(Clone)]
pub struct EmulatedTools {
    run_dir: PathBuf,
    environments: Environments,
}

impl fmt::Debug for EmulatedTools {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("EmulatedTools")
            .field("run_dir", &self.run_dir)
            .finish_non_exhaustive()
    }
}

impl EmulatedTools {
    /// The tools of the emulated devices of a run directory.
    #[must_use]
    pub fn of(run_dir: &Path) -> Self {
        Self {
            run_dir: run_dir.into(),
            environments: Arc::new(|pid| std::fs::read(format!("/proc/{pid}/environ"))),
        }
    }

    /// The same, with another way to read the environments of other users' processes.
    #[must_use]
    pub fn with_environments(
        self,
        environments: impl Fn(u32) -> io::Result<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            environments: Arc::new(environments),
            ..self
        }
    }
}

impl Tools for EmulatedTools {
    fn run(
        &mut self,
        tool: &str,
        words: &[&str],
        environment: &[(&str, String)],
        input: &str,
    ) -> Result<String, Fault> {
        let variable = |wanted: &str| {
            let mut all = environment.iter();
            all.find(|(name, _)| *name == wanted)
                .map(|(_, value)| value.as_str())
        };
        match (tool, words) {
            ("nvidia-smi", ["compute-policy", ..]) => {
                let length = words
                    .iter()
                    .find_map(|word| word.strip_prefix("--set-timeslice="));
                self.time_slice(words.get(2).copied().unwrap_or_default(), length)
            }
            ("nvidia-cuda-mps-control", words) => {
                let pipe = variable("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_default();
                let pipe = Path::new(pipe);
                if words.contains(&"-d") {
                    let device = variable("CUDA_VISIBLE_DEVICES").unwrap_or_default();
                    let kind = if words.contains(&"-S") { " partitioned" } else { "" };
                    daemon::write(pipe, CONTROL, &format!("{device}{kind}\n"))
                        .map_err(|error| failed(&error))?;
                    return Ok(String::new());
                }
                self.control(pipe, input.trim())
            }
            _ => Err(Fault::new(
                Code::Tool,
                format!("an emulated device has no `{tool}`"),
            )),
        }
    }
}

impl EmulatedTools {
    fn time_slice(&self, device: &str, length: Option<&str>) -> Result<String, Fault> {
        let Some(uuid) = divvy_device::Uuid::parse(device) else {
            return Ok(format!("Invalid device {device}\n"));
        };
        match length.and_then(|length| length.parse::<u8>().ok()) {
            Some(code @ 0..=3) => {
                divvy_device::set_time_slice(&self.run_dir, uuid, code.into()).map_err(|error| {
                    Fault::new(Code::Tool, "the emulated device's time slice cannot be set").because(&error)
                })?;
                let name = ["Default", "Short", "Medium", "Long"][usize::from(code)];
                Ok(format!("Successfully set TimeSlice value to {name}\n"))
            }
            _ => Ok("Invalid TimeSlice value\n".into()),
        }
    }

    /// A word to the daemon.
    fn control(&self, pipe: &Path, line: &str) -> Result<String, Fault> {
        let said = match daemon::read(pipe, CONTROL) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok("Cannot find MPS control daemon process\n".into());
            }
            said => said.map_err(|error| failed(&error))?,
        };
        let (device, partitioned) = match said.trim().split_once(' ') {
            Some((device, _)) => (device, true),
            None => (said.trim(), false),
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["quit", ..] => {
                for name in [PARTITIONS, CONTROL] {
                    daemon::remove(pipe, name).map_err(|error| failed(&error))?;
                }
                Ok(String::new())
            }
            // Its server is no real process: its number is that of none.
            ["get_server_list"] => Ok(if self.clients(pipe, device).is_empty() {
                String::new()
            } else {
                "0\n".into()
            }),
            ["get_client_list", _] => Ok(self
                .clients(pipe, device)
                .iter()
                .map(|pid| format!("{pid}\n"))
                .collect()),
            ["set_default_active_thread_percentage", _] | ["set_default_device_pinned_mem_limit", ..] => {
                Ok(String::new())
            }
            ["sm_partition", "add", device, chunks] if partitioned => {
                Self::add_partition(pipe, device, chunks)
            }
            ["sm_partition", "rm", name] if partitioned => {
                let mut held = partitions(pipe);
                held.retain(|(held, _)| held != name);
                store(pipe, &held)?;
                Ok(String::new())
            }
            _ => Ok(format!("Unknown command: {line}\n")),
        }
    }

    /// Sets chunks apart, of as many as there are: what an H100 has.
    fn add_partition(pipe: &Path, device: &str, chunks: &str) -> Result<String, Fault> {
        const CHUNKS: u32 = 16;
        let mut held = partitions(pipe);
        let used: u32 = held.iter().map(|(_, chunks)| chunks).sum();
        let Ok(chunks) = chunks.parse::<u32>() else {
            return Ok("Invalid number of chunks\n".into());
        };
        if chunks == 0 || used + chunks > CHUNKS {
            return Ok("Failed: not enough free chunks\n".into());
        }
        let mut free = (0..).map(|number: u32| format!("{device}/{number:x}"));
        let name = free
            .find(|name| held.iter().all(|(held, _)| held != name))
            .unwrap_or_default();
        held.push((name.clone(), chunks));
        store(pipe, &held)?;
        Ok(format!("{name}\n"))
    }

    /// The processes on the device whose environment names this daemon.
    fn clients(&self, pipe: &Path, device: &str) -> Vec<u32> {
        let ours = format!("CUDA_MPS_PIPE_DIRECTORY={}", pipe.display());
        let is_client = |pid: &u32| {
            let environment = (self.environments)(*pid).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == ours.as_bytes())
        };
        let on_device = emulated_processes(&self.run_dir, device).into_iter();
        on_device.map(|(pid, _)| pid).filter(is_client).collect()
    }
}

/// The partitions that were set apart: name and chunks.
fn partitions(pipe: &Path) -> Vec<(String, u32)> {
    let text = daemon::read(pipe, PARTITIONS).unwrap_or_default();
    let line = |line: &str| {
        let (name, chunks) = line.split_once(' ')?;
        Some((name.to_owned(), chunks.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn store(pipe: &Path, partitions: &[(String, u32)]) -> Result<(), Fault> {
    let text: String = partitions
        .iter()
        .map(|(name, chunks)| format!("{name} {chunks}\n"))
        .collect();
    daemon::write(pipe, PARTITIONS, &text).map_err(|error| failed(&error))
}

fn failed(error: &std::io::Error) -> Fault {
    Fault::new(Code::Tool, "the emulated MPS daemon failed").because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mps::{Mps, TimeSlice, set_time_slice};

    #[test]
    fn an_emulated_daemon_understands_what_a_real_one_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut tools = EmulatedTools::of(folder.path());
        let mps = Mps::of_user("GPU-1a2b3c4d", folder.path(), 7);
        assert!(!mps.state(&mut tools).expect("none").running);
        mps.start(&mut tools, false).expect("started");
        assert!(mps.state(&mut tools).expect("a state").running);
        assert!(
            mps.add_partition(&mut tools, 2).is_err(),
            "it was not started for that"
        );
        mps.stop(&mut tools, false).expect("stopped");
        mps.start(&mut tools, true).expect("for partitions");
        let one = mps.add_partition(&mut tools, 10).expect("ten chunks");
        assert!(mps.add_partition(&mut tools, 7).is_err(), "sixteen in all");
        mps.remove_partition(&mut tools, &one).expect("given back");
        mps.add_partition(&mut tools, 16).expect("all of them");
        mps.stop(&mut tools, true).expect("stopped");
        assert!(!mps.state(&mut tools).expect("none").running);
        let device = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        set_time_slice(&mut tools, device, TimeSlice::Long).expect("set");
        assert!(
            set_time_slice(&mut tools, "GPU-1", TimeSlice::Long).is_err(),
            "no such device"
        );
    }
}

//! The vendor's tools for emulated devices: the same words and answers as NVIDIA's, so that nothing above knows the
//! difference. An emulated MPS daemon is a file `control` in its pipe folder that names its device; the emulated driver
//! of a process takes itself for a client where `CUDA_MPS_PIPE_DIRECTORY` holds one.

use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};

use crate::emulated::emulated_processes;
use crate::tool::Tools;

/// See the module.
#[derive(Clone, Debug)]
pub struct EmulatedTools {
    run_dir: PathBuf,
}

impl EmulatedTools {
    /// The tools of the emulated devices of a run directory.
    #[must_use]
    pub fn of(run_dir: &Path) -> Self {
        Self {
            run_dir: run_dir.into(),
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
                let control = Path::new(pipe).join("control");
                if words.contains(&"-d") {
                    let device = variable("CUDA_VISIBLE_DEVICES").unwrap_or_default();
                    let kind = if words.contains(&"-S") { " partitioned" } else { "" };
                    std::fs::write(&control, format!("{device}{kind}\n")).map_err(|error| failed(&error))?;
                    return Ok(String::new());
                }
                self.control(&control, input.trim())
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
        let Some(uuid) = divvy_emulator::Uuid::parse(device) else {
            return Ok(format!("Invalid device {device}\n"));
        };
        match length.and_then(|length| length.parse::<u8>().ok()) {
            Some(code @ 0..=3) => {
                divvy_emulator::set_time_slice(&self.run_dir, uuid, code.into()).map_err(|error| {
                    Fault::new(Code::Tool, "the emulated device's time slice cannot be set").because(&error)
                })?;
                let name = ["Default", "Short", "Medium", "Long"][usize::from(code)];
                Ok(format!("Successfully set TimeSlice value to {name}\n"))
            }
            _ => Ok("Invalid TimeSlice value\n".into()),
        }
    }

    /// A word to the daemon.
    fn control(&self, control: &Path, line: &str) -> Result<String, Fault> {
        let Ok(said) = std::fs::read_to_string(control) else {
            return Ok("Cannot find MPS control daemon process\n".into());
        };
        let (device, partitioned) = match said.trim().split_once(' ') {
            Some((device, _)) => (device, true),
            None => (said.trim(), false),
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["quit", ..] => {
                let _none = std::fs::remove_file(control.with_file_name("partitions"));
                std::fs::remove_file(control).map_err(|error| failed(&error))?;
                Ok(String::new())
            }
            // Its server is nobody's process: it goes by the number of none.
            ["get_server_list"] => Ok(if self.clients(control, device).is_empty() {
                String::new()
            } else {
                "0\n".into()
            }),
            ["get_client_list", _] => Ok(self
                .clients(control, device)
                .iter()
                .map(|pid| format!("{pid}\n"))
                .collect()),
            ["set_default_active_thread_percentage", _] | ["set_default_device_pinned_mem_limit", ..] => {
                Ok(String::new())
            }
            ["sm_partition", "add", device, chunks] if partitioned => {
                Self::add_partition(control, device, chunks)
            }
            ["sm_partition", "rm", name] if partitioned => {
                let mut held = partitions(control);
                held.retain(|(held, _)| held != name);
                store(control, &held)?;
                Ok(String::new())
            }
            _ => Ok(format!("Unknown command: {line}\n")),
        }
    }

    /// Sets chunks apart, of as many as there are: what an H100 has.
    fn add_partition(control: &Path, device: &str, chunks: &str) -> Result<String, Fault> {
        const CHUNKS: u32 = 16;
        let mut held = partitions(control);
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
        store(control, &held)?;
        Ok(format!("{name}\n"))
    }

    /// The processes on the device whose environment names this daemon.
    fn clients(&self, control: &Path, device: &str) -> Vec<u32> {
        let pipe = control.parent().unwrap_or(control);
        let ours = format!("CUDA_MPS_PIPE_DIRECTORY={}", pipe.display());
        let is_client = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == ours.as_bytes())
        };
        let on_device = emulated_processes(&self.run_dir, device).into_iter();
        on_device.map(|(pid, _)| pid).filter(is_client).collect()
    }
}

/// The partitions that were set apart: name and chunks.
fn partitions(control: &Path) -> Vec<(String, u32)> {
    let text = std::fs::read_to_string(control.with_file_name("partitions")).unwrap_or_default();
    let line = |line: &str| {
        let (name, chunks) = line.split_once(' ')?;
        Some((name.to_owned(), chunks.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn store(control: &Path, partitions: &[(String, u32)]) -> Result<(), Fault> {
    let text: String = partitions
        .iter()
        .map(|(name, chunks)| format!("{name} {chunks}\n"))
        .collect();
    std::fs::write(control.with_file_name("partitions"), text).map_err(|error| failed(&error))
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

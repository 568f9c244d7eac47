//! What a device is divided into, and how that is written down.

use std::fmt;

/// The layout's number. A version that reads another layout has a file of its own.
pub const VERSION: u32 = 1;

/// More than any product holds.
const MOST: usize = 64;

/// What a device is divided into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Whether MIG mode is on.
    pub on: bool,
    /// Whether it is to be on when the device is next idle.
    pub pending: bool,
    /// The GPU instances, by id.
    pub instances: Vec<GpuInstance>,
}

/// A GPU instance: memory of its own, and compute slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its id on the device.
    pub id: u32,
    /// Id of its profile.
    pub profile: u32,
    /// First memory slice.
    pub start: u8,
    /// The compute instances in it, by id.
    pub compute: Vec<ComputeInstance>,
}

/// A compute instance: some or all compute slices of a GPU instance, whose memory it shares with the others there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeInstance {
    /// Its id in the GPU instance.
    pub id: u32,
    /// Compute slices.
    pub slices: u8,
    /// First compute slice.
    pub start: u8,
}

/// Line `0` of a state file, from 1, is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub usize);

impl State {
    /// The GPU instance of this id.
    pub fn instance(&self, id: u32) -> Option<&GpuInstance> {
        self.instances.iter().find(|instance| instance.id == id)
    }

    /// The same, to be changed.
    pub fn instance_mut(&mut self, id: u32) -> Option<&mut GpuInstance> {
        self.instances.iter_mut().find(|instance| instance.id == id)
    }

    /// Reads what [`fmt::Display`] writes.
    ///
    /// # Errors
    /// `Malformed`: the text is not of that form.
    pub fn parse(text: &str) -> Result<State, Malformed> {
        let mut state = State::default();
        let mut lines = text.lines().enumerate();
        match lines.next() {
            Some((_, head)) if head == format!("divvy mig {VERSION}") => {}
            _ => return Err(Malformed(1)),
        }
        for (at, line) in lines {
            state.read(line).ok_or(Malformed(at + 1))?;
        }
        Ok(state)
    }

    fn read(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match *words.as_slice() {
            ["mode", mode, "pending", pending] => {
                self.on = on(mode)?;
                self.pending = on(pending)?;
            }
            ["gi", id, "profile", profile, "start", start] => {
                let id = id.parse().ok()?;
                if self.instances.len() == MOST || self.instance(id).is_some() {
                    return None;
                }
                self.instances.push(GpuInstance {
                    id,
                    profile: profile.parse().ok()?,
                    start: start.parse().ok()?,
                    compute: Vec::new(),
                });
            }
            ["ci", gpu_instance, id, "slices", slices, "start", start] => {
                let instance = self.instance_mut(gpu_instance.parse().ok()?)?;
                let id = id.parse().ok()?;
                if instance.compute.len() == MOST || instance.compute.iter().any(|known| known.id == id) {
                    return None;
                }
                instance.compute.push(ComputeInstance {
                    id,
                    slices: slices.parse().ok()?,
                    start: start.parse().ok()?,
                });
            }
            _ => return None,
        }
        Some(())
    }
}

fn on(word: &str) -> Option<bool> {
    match word {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |on: bool| if on { "on" } else { "off" };
        writeln!(f, "divvy mig {VERSION}")?;
        writeln!(f, "mode {} pending {}", word(self.on), word(self.pending))?;
        for instance in &self.instances {
            let GpuInstance {
                id, profile, start, ..
            } = instance;
            writeln!(f, "gi {id} profile {profile} start {start}")?;
            for compute in &instance.compute {
                let ComputeInstance {
                    id: own,
                    slices,
                    start,
                } = compute;
                writeln!(f, "ci {id} {own} slices {slices} start {start}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn states() -> impl Strategy<Value = State> {
        let compute = (any::<u8>(), any::<u8>());
        let instance = (any::<u32>(), any::<u8>(), prop::collection::vec(compute, 0..7));
        let instances = prop::collection::vec(instance, 0..8);
        (any::<bool>(), any::<bool>(), instances).prop_map(|(on, pending, instances)| State {
            on,
            pending,
            instances: (0..)
                .zip(instances)
                .map(|(id, (profile, start, compute))| GpuInstance {
                    id,
                    profile,
                    start,
                    compute: (0..)
                        .zip(compute)
                        .map(|(id, (slices, start))| ComputeInstance { id, slices, start })
                        .collect(),
                })
                .collect(),
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(state in states()) {
            prop_assert_eq!(State::parse(&state.to_string()), Ok(state));
        }

        #[test]
        fn anything_else_is_refused_and_nothing_breaks(state in states(), at in any::<prop::sample::Index>(), byte in any::<char>()) {
            let mut text: Vec<char> = state.to_string().chars().collect();
            let at = at.index(text.len());
            text[at] = byte;
            let text: String = text.into_iter().collect();
            if let Ok(read) = State::parse(&text) {
                prop_assert!(read.instances.len() <= MOST);
            }
        }
    }

    #[test]
    fn another_version_is_another_file() {
        assert_eq!(State::parse("divvy mig 2\n"), Err(Malformed(1)));
        assert_eq!(State::parse(""), Err(Malformed(1)));
        assert_eq!(
            State::parse("divvy mig 1\nmode on pending maybe\n"),
            Err(Malformed(2))
        );
        assert_eq!(
            State::parse("divvy mig 1\nci 1 0 slices 1 start 0\n"),
            Err(Malformed(2))
        );
    }
}

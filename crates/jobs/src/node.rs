//! What a node's administrator says of its devices: the file that `divvy slurm setup --apply` writes and root alone changes.

use divvy_model::{Bytes, Cap, Code, Fault, Isolation};
use serde::{Deserialize, Serialize};

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The run directory of the node's agent, where it is not the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_dir: Option<String>,
    /// The isolation level of jobs' slices; without it the agent chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// Whether a job may run beyond its share while no other wants the device: `soft`, or `hard`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<String>,
    /// Each ended job's use is a line of JSON in this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting: Option<String>,
    /// Each ended job's use is written into the job's `AdminComment` too, in Slurm's accounting database.
    #[serde(default)]
    pub comment: bool,
    /// How long a prolog and an epilog wait for an agent that does not answer, in seconds.
    #[serde(default = "ten", skip_serializing_if = "is_ten")]
    pub agent_timeout_s: u64,
    /// The devices, in the order of gres.conf: the first is Slurm's device 0.
    #[serde(default, rename = "device")]
    pub devices: Vec<NodeDevice>,
}

/// A device that Slurm knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeDevice {
    /// Its UUID: a device's, or a MIG instance's.
    pub uuid: String,
    /// The memory that programs could have when this was written, in bytes.
    pub memory_bytes: Bytes,
    /// How many shards it has in gres.conf.
    pub shards: u64,
    /// Its device file, as gres.conf names it; `divvy slurm setup` alone reads this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

fn ten() -> u64 {
    10
}

fn is_ten(seconds: &u64) -> bool {
    *seconds == ten()
}

impl Node {
    /// Reads the file's text.
    ///
    /// # Errors
    /// [`Code::Config`].
    pub fn read(text: &str) -> Result<Self, Fault> {
        let node: Self = toml::from_str(text).map_err(|error| {
            Fault::new(Code::Config, "the node's file was not understood")
                .because(&error)
                .hint("`divvy slurm setup --apply` writes it again")
        })?;
        node.isolation()?;
        node.cap()?;
        if let Some(device) = node.devices.iter().find(|device| device.shards == 0) {
            return Err(Fault::new(
                Code::Config,
                format!("device {} has no shards", device.uuid),
            ));
        }
        Ok(node)
    }

    /// The file's text.
    ///
    /// # Errors
    /// [`Code::Internal`].
    pub fn write(&self) -> Result<String, Fault> {
        toml::to_string(self)
            .map_err(|error| Fault::new(Code::Internal, "cannot write the node's file").because(&error))
    }

    /// The isolation level, where one is named.
    ///
    /// # Errors
    /// [`Code::Config`].
    pub fn isolation(&self) -> Result<Option<Isolation>, Fault> {
        Ok(self.isolation.as_ref().map(|word| word.parse()).transpose()?)
    }

    /// The kind of cap.
    ///
    /// # Errors
    /// [`Code::Config`].
    pub fn cap(&self) -> Result<Cap, Fault> {
        let cap = self.cap.as_ref().map(|word| word.parse()).transpose()?;
        Ok(cap.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_goes_both_ways_and_bad_words_are_refused() {
        let text = "cap = \"hard\"\n\n[[device]]\nuuid = \"GPU-1\"\nmemory_bytes = 1024\nshards = 4\n";
        let node = Node::read(text).expect("understood");
        assert_eq!(
            (node.cap(), node.devices[0].shards, node.agent_timeout_s),
            (Ok(Cap::Hard), 4, 10)
        );
        assert_eq!(Node::read(&node.write().expect("written")), Ok(node));
        for bad in [
            "cap = \"Hard\"",
            "isolation = \"none\"",
            "colour = 1",
            "[[device]]\nuuid = \"a\"\nmemory_bytes = 1\nshards = 0",
        ] {
            assert_eq!(Node::read(bad).expect_err(bad).code, Code::Config);
        }
    }
}

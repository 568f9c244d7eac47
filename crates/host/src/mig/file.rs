//! The declarative file people have: mig-parted's `version: v1`, read as is.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_model::{Code, Fault};
use serde::Deserialize;

use super::driver::MigDevice;
use super::request::Wanted;

/// A file: named configurations, each a list of entries for devices.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigFile {
    /// `v1`.
    pub version: String,
    /// By name.
    #[serde(rename = "mig-configs")]
    pub configs: BTreeMap<String, Vec<ConfigEntry>>,
}

/// What some devices are to hold.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ConfigEntry {
    /// Only for these products: `0x233010DE`, device then vendor.
    #[serde(default)]
    pub device_filter: Option<OneOrMany>,
    /// Which devices.
    pub devices: Devices,
    /// Whether MIG mode is to be on.
    pub mig_enabled: bool,
    /// How many of each profile, or of parts of it: `1c.3g.20gb`.
    #[serde(default)]
    pub mig_devices: BTreeMap<String, u32>,
}

/// A word or a list of words.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// `all`, or a list of indices.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Devices {
    /// The word `all`.
    Word(String),
    /// Indices.
    List(Vec<u32>),
}

/// What one device is to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Index of the device.
    pub device: u32,
    /// Whether MIG mode is to be on.
    pub enabled: bool,
    /// The instances.
    pub wanted: Vec<Wanted>,
}

impl MigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Code::MigRequest`] for what is no such file.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let shown = path.display();
        let text = text_of(path).map_err(|error| {
            Fault::new(Code::MigRequest, format!("cannot read `{shown}`"))
                .because(&error)
                .hint("name a file in mig-parted's format")
        })?;
        Self::parse(&text).map_err(|fault| Fault {
            message: format!("`{shown}`: {}", fault.message),
            ..fault
        })
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`Code::MigRequest`] for what is no such file.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let hint = "the format is mig-parted's: version: v1, mig-configs, and under each name a list of devices, \
                    mig-enabled and mig-devices";
        let file: Self = serde_saphyr::from_str(text).map_err(|error| {
            Fault::new(Code::MigRequest, "it is no MIG configuration")
                .because(&error)
                .hint(hint)
        })?;
        if file.version != "v1" {
            return Err(Fault::new(
                Code::MigRequest,
                format!("version `{}` is not known; v1 is", file.version),
            ));
        }
        Ok(file)
    }

    /// The entries of a configuration; without a name, of the only one.
    ///
    /// # Errors
    /// [`Code::MigRequest`] where there is none of that name, or no name and several.
    pub fn config(&self, name: Option<&str>) -> Result<&[ConfigEntry], Fault> {
        let names = || self.configs.keys().cloned().collect::<Vec<_>>().join(", ");
        let found = match name {
            Some(name) => self.configs.get(name),
            None if self.configs.len() == 1 => self.configs.values().next(),
            None => {
                return Err(
                    Fault::new(Code::MigRequest, "the file holds several configurations")
                        .hint(format!("choose one with --config: {}", names())),
                );
            }
        };
        found.map(Vec::as_slice).ok_or_else(|| {
            let name = name.unwrap_or_default();
            Fault::new(
                Code::MigRequest,
                format!("the file holds no configuration `{name}`"),
            )
            .hint(format!("it holds {}", names()))
        })
    }
}

/// A file's text; no honest configuration has a megabyte.
fn text_of(path: &Path) -> std::io::Result<String> {
    use std::io::{Error, ErrorKind, Read};
    use std::os::unix::fs::OpenOptionsExt;
    const LARGEST: u64 = 1 << 20;
    let wrong = |why: &str| Error::new(ErrorKind::InvalidData, why);
    let file = std::fs::OpenOptions::new()
        .read(true)
        // Never waiting for a FIFO.
        .custom_flags(i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0))
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(wrong("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(wrong("it is larger than any such file"));
    }
    String::from_utf8(bytes).map_err(|_| wrong("it is no text"))
}

/// What each device is to become by these entries; a later entry for a device replaces an earlier one.
///
/// # Errors
/// [`Code::UnknownDevice`] for a device that is not there; [`Code::MigRequest`] for what no entry may say.
pub fn targets(entries: &[ConfigEntry], devices: &[MigDevice]) -> Result<Vec<Target>, Fault> {
    let mut targets: BTreeMap<u32, Target> = BTreeMap::new();
    for entry in entries {
        let chosen: Vec<u32> = match &entry.devices {
            Devices::Word(word) if word == "all" => devices.iter().map(|device| device.index).collect(),
            Devices::Word(word) => {
                return Err(
                    Fault::new(Code::MigRequest, format!("`devices: {word}` names no devices"))
                        .hint("write `all` or a list of indices"),
                );
            }
            Devices::List(list) => list.clone(),
        };
        if !entry.mig_enabled && !entry.mig_devices.is_empty() {
            return Err(Fault::new(
                Code::MigRequest,
                "an entry has mig-devices and mig-enabled: false",
            ));
        }
        for index in chosen {
            let device = devices
                .iter()
                .find(|device| device.index == index)
                .ok_or_else(|| {
                    Fault::new(
                        Code::UnknownDevice,
                        format!("the file names GPU {index}, which is not there"),
                    )
                    .hint("`divvy gpu mig list` shows the devices there are")
                })?;
            if !entry.filter_fits(device.pci_device) {
                continue;
            }
            targets.insert(index, entry.target(index)?);
        }
    }
    Ok(targets.into_values().collect())
}

impl ConfigEntry {
    fn filter_fits(&self, device: u16) -> bool {
        let fits = |word: &String| {
            let digits = word.trim_start_matches("0x").trim_start_matches("0X");
            u32::from_str_radix(digits, 16) == Ok(u32::from(device) << 16 | 0x10de)
        };
        match &self.device_filter {
            None => true,
            Some(OneOrMany::One(word)) => word.is_empty() || fits(word),
            Some(OneOrMany::Many(words)) => words.is_empty() || words.iter().any(fits),
        }
    }

    fn target(&self, device: u32) -> Result<Target, Fault> {
        let mut wanted = Vec::new();
        for (profile, count) in &self.mig_devices {
            if *count > 16 {
                return Err(
                    Fault::new(Code::MigFit, format!("no device holds {count} of {profile}"))
                        .hint("`divvy gpu mig list` shows how many of each profile a device holds"),
                );
            }
            for _ in 0..*count {
                wanted.push(Wanted::of_name(profile));
            }
        }
        Ok(Target {
            device,
            enabled: self.mig_enabled,
            wanted,
        })
    }
}

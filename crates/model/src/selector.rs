//! Which device: an index, a UUID or a unique prefix of one, a PCI address, or an emulated product.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::DeviceRecord;

/// A way to name one device.
///
/// ```
/// use divvy_model::Selector;
///
/// assert_eq!("1".parse(), Ok(Selector::Index(1)));
/// assert_eq!("emulated:h100".parse(), Ok(Selector::Emulated("h100".into())));
/// assert!("the second one".parse::<Selector>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// Position in PCI bus order, from 0.
    Index(u32),
    /// `GPU-…` or `MIG-…`, whole or a prefix.
    Uuid(String),
    /// `0000:65:00.0`, lower case, with its domain.
    Pci(String),
    /// An emulated device by product profile, as in `emulated:h100`.
    Emulated(String),
    /// A device of another host, as `HOST:PORT/0` in `tcp://HOST:PORT/0`. No device here fits it.
    Remote(String),
}

/// Why a selector names no single device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The text has none of the four forms.
    #[error("`{0}` names no device")]
    Malformed(String),
    /// No such device here.
    #[error("there is no device `{0}` here")]
    Unknown(String),
    /// A prefix that fits several devices.
    #[error("`{text}` fits {count} devices")]
    Ambiguous {
        /// What was typed.
        text: String,
        /// How many devices it fits.
        count: usize,
    },
}

impl Selector {
    /// The one device among `devices` that this selector names.
    ///
    /// # Errors
    /// [`SelectorError::Unknown`] for none, [`SelectorError::Ambiguous`] for a prefix that fits several.
    pub fn choose<'a>(&self, devices: &'a [DeviceRecord]) -> Result<&'a DeviceRecord, SelectorError> {
        let fits: Vec<&DeviceRecord> = devices.iter().filter(|device| self.fits(device)).collect();
        match (self, fits.as_slice()) {
            (_, []) => Err(SelectorError::Unknown(self.to_string())),
            // Several emulated devices of one product are alike: the first will do.
            (Self::Emulated(_), [first, ..]) | (_, [first]) => Ok(first),
            (_, many) => Err(SelectorError::Ambiguous {
                text: self.to_string(),
                count: many.len(),
            }),
        }
    }

    fn fits(&self, device: &DeviceRecord) -> bool {
        match self {
            Self::Index(index) => device.index == *index,
            Self::Uuid(prefix) => device
                .uuid
                .to_ascii_lowercase()
                .starts_with(&prefix.to_ascii_lowercase()),
            Self::Pci(address) => device.pci_address.eq_ignore_ascii_case(address),
            Self::Emulated(profile) => device.profile.as_deref() == Some(profile.as_str()),
            Self::Remote(_) => false,
        }
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || SelectorError::Malformed(text.into());
        if let Some(profile) = text.strip_prefix("emulated:") {
            return if profile.is_empty() {
                Err(malformed())
            } else {
                Ok(Self::Emulated(profile.into()))
            };
        }
        if let Some(place) = text.strip_prefix("tcp://") {
            let (server, device) = place.split_once('/').unwrap_or((place, ""));
            let (host, port) = server.rsplit_once(':').ok_or_else(malformed)?;
            // The server knows what the device is.
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte);
            return if host.is_empty() || port.parse::<u16>().is_err() || !device.bytes().all(plain) {
                Err(malformed())
            } else {
                Ok(Self::Remote(place.into()))
            };
        }
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().map(Self::Index).map_err(|_| malformed());
        }
        let upper = text.to_ascii_uppercase();
        if (upper.starts_with("GPU-") || upper.starts_with("MIG-")) && text.len() > 4 {
            return Ok(Self::Uuid(text.into()));
        }
        pci(text).map(Self::Pci).ok_or_else(malformed)
    }
}

/// `65:00.0`, `0000:65:00.0` or NVML's `00000000:65:00.0`, as `0000:65:00.0`.
fn pci(text: &str) -> Option<String> {
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts: Vec<&str> = rest.split(':').collect();
    if parts.len() == 2 {
        parts.insert(0, "0");
    }
    let [domain, bus, device] = parts.as_slice() else {
        return None;
    };
    let number = |text: &str, max: u32| u32::from_str_radix(text, 16).ok().filter(|n| *n <= max);
    Some(format!(
        "{:04x}:{:02x}:{:02x}.{:x}",
        number(domain, 0xffff)?,
        number(bus, 0xff)?,
        number(device, 0x1f)?,
        number(function, 7)?
    ))
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Uuid(text) | Self::Pci(text) => f.write_str(text),
            Self::Emulated(profile) => write!(f, "emulated:{profile}"),
            Self::Remote(place) => write!(f, "tcp://{place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, DeviceKind};

    fn device(index: u32, uuid: &str, pci: &str) -> DeviceRecord {
        DeviceRecord {
            index,
            uuid: uuid.into(),
            name: "test".into(),
            kind: DeviceKind::Emulated,
            profile: Some("h100".into()),
            pci_address: pci.into(),
            memory_total_bytes: Bytes(80 << 30),
            memory_reserved_bytes: Bytes(0),
            memory_used_bytes: Bytes(0),
            sm_count: 132,
            compute_capability: "9.0".into(),
            context_bytes: None,
            sharing: None,
            hardware: None,
        }
    }

    #[test]
    fn four_forms() {
        for (text, selector) in [
            ("3", Selector::Index(3)),
            ("GPU-1a2b", Selector::Uuid("GPU-1a2b".into())),
            ("65:00.0", Selector::Pci("0000:65:00.0".into())),
            ("00000000:65:00.0", Selector::Pci("0000:65:00.0".into())),
            ("emulated:h100", Selector::Emulated("h100".into())),
            ("tcp://gpu7:4815/0", Selector::Remote("gpu7:4815/0".into())),
            ("tcp://[::1]:4815", Selector::Remote("[::1]:4815".into())),
        ] {
            assert_eq!(text.parse(), Ok(selector), "{text}");
        }
        for text in [
            "",
            "GPU-",
            "emulated:",
            "tcp://",
            "tcp://gpu7/0",
            "tcp://gpu7:x/0",
            "tcp://:1/0",
            "tcp://gpu7:1/--observe x",
            "first",
            "-1",
            "1:2:3:4.0",
            "65:00.9",
            "99999999999",
        ] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
    }

    #[test]
    fn prefixes_must_be_unique() {
        let devices = [
            device(0, "GPU-1a2b", "0000:01:00.0"),
            device(1, "GPU-1c", "0000:02:00.0"),
        ];
        let choose = |text: &str| {
            text.parse::<Selector>()
                .expect(text)
                .choose(&devices)
                .map(|d| d.index)
        };
        assert_eq!(choose("gpu-1A"), Ok(0));
        assert_eq!(
            choose("GPU-1"),
            Err(SelectorError::Ambiguous {
                text: "GPU-1".into(),
                count: 2
            })
        );
        assert_eq!(choose("02:00.0"), Ok(1));
        assert_eq!(choose("emulated:h100"), Ok(0));
        assert_eq!(choose("7"), Err(SelectorError::Unknown("7".into())));
    }
}

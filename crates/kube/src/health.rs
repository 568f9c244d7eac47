//! How the devices of the pool are, for the kubelet's health stream: it shows them in the status of their pods.

use std::collections::{BTreeMap, BTreeSet};

use divvy_model::DeviceRecord;
use tokio::sync::watch;

use crate::devices::{Form, ailments, published_name};

/// The kubelet takes a device's health for unknown where it heard nothing for so long, in seconds.
pub const TIMEOUT_S: i64 = 60;
/// The longest text about a device that is told, in bytes.
const LONGEST: usize = 256;

/// A device of the pool, as it was at the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The pool.
    pub pool: String,
    /// The device's name there.
    pub device: String,
    /// What is wrong with it; nothing where it is well.
    pub trouble: String,
    /// When it was looked at, in seconds since 1970.
    pub at_unix_s: i64,
}

/// The latest reports: changed by each look.
pub type Reports = watch::Receiver<Vec<Health>>;

/// Keeps the reports. A device that is gone stays in them, unhealthy, because a pod may have it.
#[derive(Debug)]
pub struct Watch {
    sender: watch::Sender<Vec<Health>>,
    known: BTreeSet<String>,
}

impl Watch {
    /// Without a device so far.
    #[must_use]
    pub fn new() -> (Self, Reports) {
        let (sender, reports) = watch::channel(Vec::new());
        let watch = Self {
            sender,
            known: BTreeSet::new(),
        };
        (watch, reports)
    }

    /// Notes a look, at this time in seconds since 1970.
    pub fn note(&mut self, pool: &str, devices: &[DeviceRecord], at_unix_s: i64) {
        let mut now: BTreeMap<String, String> = BTreeMap::new();
        for device in devices {
            let mut trouble = ailments(device).join("; ");
            trouble.truncate(trouble.floor_char_boundary(LONGEST));
            for form in [Form::Shared, Form::Whole] {
                now.insert(published_name(device, form), trouble.clone());
            }
        }
        self.known.extend(now.keys().cloned());
        let reports = self.known.iter().map(|name| Health {
            pool: pool.to_owned(),
            device: name.clone(),
            trouble: now
                .get(name)
                .cloned()
                .unwrap_or_else(|| "the node has lost the device".into()),
            at_unix_s,
        });
        // The kubelet may not listen.
        self.sender.send_replace(reports.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tests::{device, ill};

    #[test]
    fn a_device_that_falls_ill_or_is_lost_is_told_and_may_recover() {
        let (mut watch, reports) = Watch::new();
        let troubles = || -> Vec<(String, String)> {
            let reports = reports.borrow();
            let of = |report: &Health| (report.device.clone(), report.trouble.clone());
            reports
                .iter()
                .filter(|report| !report.trouble.is_empty())
                .map(of)
                .collect()
        };
        watch.note("node", &[device(0), device(1)], 1);
        assert_eq!((reports.borrow().len(), troubles().len()), (4, 0));
        watch.note("node", &[ill(0), device(1)], 2);
        let found = troubles();
        assert!(
            found.len() == 2 && found[0].1.contains("memory errors"),
            "{found:?}"
        );
        watch.note("node", &[device(1)], 3);
        assert!(
            troubles()
                .iter()
                .all(|(name, why)| name.starts_with("gpu-00000000") && why.contains("lost"))
        );
        assert_eq!(troubles().len(), 2);
        watch.note("node", &[device(0), device(1)], 4);
        assert!(troubles().is_empty() && reports.borrow().iter().all(|report| report.at_unix_s == 4));
    }
}

//! How a node's devices are divided: which are this driver's, and which of those are given out in one form only.

use divvy_model::{Code, DeviceRecord, Fault};

use crate::devices::Form;

/// Devices by UUID, or by a beginning of one. The name of a GPU means its MIG instances too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    own: Vec<String>,
    whole: Vec<String>,
    shared: Vec<String>,
}

impl Split {
    /// This driver has the devices `own`, or all if there are none. Of these, `whole` are never given out in shares, and `shared`
    /// never whole.
    ///
    /// # Errors
    /// [`Code::Usage`]: a name is empty, or a device is both whole and shared.
    pub fn new(own: &[String], whole: &[String], shared: &[String]) -> Result<Self, Fault> {
        let mut named = own.iter().chain(whole).chain(shared);
        if named.any(String::is_empty) {
            return Err(Fault::new(Code::Usage, "a device's UUID is empty")
                .hint("`divvy devices -o json` shows the UUIDs"));
        }
        let overlap =
            |one: &String, other: &String| one.starts_with(other.as_str()) || other.starts_with(one.as_str());
        if let Some(both) = whole
            .iter()
            .find(|one| shared.iter().any(|other| overlap(one, other)))
        {
            return Err(Fault::new(
                Code::Usage,
                format!("`{both}` is to be given out whole only, and in shares only"),
            )
            .hint("a device that is in neither list is given out in both forms"));
        }
        Ok(Self {
            own: own.to_vec(),
            whole: whole.to_vec(),
            shared: shared.to_vec(),
        })
    }

    /// Whether a device is this driver's. Others are another driver's.
    #[must_use]
    pub fn has(&self, device: &DeviceRecord) -> bool {
        self.own.is_empty() || is_in(&self.own, device)
    }

    /// Names that are of no device of this node, each with what to do: a misspelt one leaves a device to another driver without a
    /// word. A name may be of another node's device, where all nodes have one list; so it is no error.
    #[must_use]
    pub fn unmatched(&self, devices: &[DeviceRecord]) -> Vec<Fault> {
        let mut found: Vec<Fault> = Vec::new();
        let lists = [
            ("--device", &self.own),
            ("--whole", &self.whole),
            ("--shared", &self.shared),
        ];
        for (flag, starts) in lists {
            for start in starts {
                let one = std::slice::from_ref(start);
                if !devices.iter().any(|device| is_in(one, device)) {
                    let message = format!(
                        "no device of this node has a UUID that begins with `{start}`, which {flag} names"
                    );
                    found.push(Fault::new(Code::Config, message).hint(
                        "`divvy devices -o wide` shows the node's UUIDs; the name of another node's device may stay",
                    ));
                }
            }
        }
        if !self.own.is_empty() && !devices.is_empty() && !devices.iter().any(|device| self.has(device)) {
            found.push(
                Fault::new(
                    Code::Config,
                    "no device of this node is served: `--device` names none of them",
                )
                .hint("leave `--device` out, and all are"),
            );
        }
        found
    }

    /// The forms in which a device may be given out, where the API server keeps both.
    #[must_use]
    pub fn forms(&self, device: &DeviceRecord) -> &'static [Form] {
        if is_in(&self.whole, device) {
            &[Form::Whole]
        } else if is_in(&self.shared, device) {
            &[Form::Shared]
        } else {
            &[Form::Shared, Form::Whole]
        }
    }
}

fn is_in(starts: &[String], device: &DeviceRecord) -> bool {
    let gpu = device.mig_instance().map(|place| &*place.gpu_uuid);
    let names = [Some(&*device.uuid), gpu];
    let mut names = names.into_iter().flatten();
    names.any(|name| starts.iter().any(|start| name.starts_with(start.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::tests::instance;
    use crate::devices::tests::device;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_gpus_name_means_its_instances() {
        let mig = instance(2, (1, 0), (40, 60), (4, 4));
        let gpu = mig.mig_instance().expect("an instance").gpu_uuid.clone();
        let split = Split::new(&[gpu], &words(&[&device(0).uuid]), &words(&[&mig.uuid])).expect("a split");
        assert!(split.has(&mig) && !split.has(&device(0)));
        assert_eq!(split.forms(&mig), [Form::Shared]);
        assert_eq!(split.forms(&device(0)), [Form::Whole]);
        assert_eq!(split.forms(&device(1)), [Form::Shared, Form::Whole]);
        let all = Split::default();
        assert!(all.has(&device(0)) && all.forms(&mig).len() == 2);
    }

    #[test]
    fn a_name_of_no_device_is_said() {
        let gpus = [device(0), device(1)];
        let said = |own: &[&str], whole: &[&str]| -> Vec<String> {
            let split = Split::new(&words(own), &words(whole), &[]).expect("a split");
            let faults = split.unmatched(&gpus);
            assert!(faults.iter().all(|fault| fault.hint.is_some()));
            faults.into_iter().map(|fault| fault.message).collect()
        };
        let (first, second) = (gpus[0].uuid.as_str(), &gpus[1].uuid[..gpus[1].uuid.len() - 1]);
        assert_eq!(said(&[first], &[second]), [""; 0]);
        let wrong = said(&[first, "GPU-5a7d"], &["GPU-x"]);
        assert!(
            wrong.len() == 2 && wrong[0].contains("`GPU-5a7d`, which --device"),
            "{wrong:?}"
        );
        assert!(wrong[1].contains("`GPU-x`, which --whole"), "{wrong:?}");
        let none = said(&["GPU-5a7d"], &[]);
        assert!(
            none.len() == 2 && none[1].contains("no device of this node is served"),
            "{none:?}"
        );
        // Of a node whose agent has no devices nothing can be said but that.
        let split = Split::new(&words(&["GPU-5a7d"]), &[], &[]).expect("a split");
        assert_eq!(split.unmatched(&[]).len(), 1);
    }

    #[test]
    fn a_device_is_not_whole_only_and_shared_only() {
        for (whole, shared) in [("GPU-1", "GPU-1"), ("GPU-1", "GPU-12"), ("GPU-12", "GPU-1")] {
            let both = Split::new(&[], &words(&[whole]), &words(&[shared])).expect_err("both");
            assert_eq!(both.code, Code::Usage);
        }
        assert!(Split::new(&[], &words(&["GPU-1"]), &words(&["GPU-2"])).is_ok());
        assert!(
            Split::new(&words(&[""]), &[], &[]).is_err(),
            "an empty name would mean all"
        );
    }
}

//! Quotas: how much one user's slices may have together, those of its subordinate users included, so that one of thirty users cannot take the whole device.

use std::fmt;

use divvy_model::{Bytes, Code, Compute, DeviceRecord, Fault, MemoryAmount};

use crate::decide::admission::Hold;

/// The limits that the configuration sets for each account: a user, with its subordinate users.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// Memory of one device, contexts included.
    pub memory: Option<MemoryAmount>,
    /// Slices.
    pub slices: Option<u32>,
    /// Compute of one device, promised.
    pub compute: Option<Compute>,
    /// The name of a user in a refusal.
    pub name_of: fn(u32) -> String,
}

/// The slices of one account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Having<'a> {
    /// Its slices on the device that is asked for.
    pub holds: Vec<&'a Hold>,
    /// Its slices on all devices.
    pub slices: u32,
}

impl Quota {
    /// Whether a slice of `memory` of `device` would be within the quota of `account` if it had nothing else.
    ///
    /// # Errors
    /// [`Code::OverQuota`], which waiting does not change.
    pub fn check_size(&self, account: u32, device: &DeviceRecord, memory: Bytes) -> Result<(), Fault> {
        let Some(most) = self.memory_of(device).filter(|most| memory > *most) else {
            return Ok(());
        };
        Err(Fault::new(
            Code::OverQuota,
            format!(
                "{memory} is more than all slices of {} together may have of {} ({most})",
                (self.name_of)(account),
                device.uuid
            ),
        )
        .cause("`user_memory` in the agent's configuration says so")
        .hint(format!(
            "ask for at most {} B ({most}): waiting does not help",
            most.0
        )))
    }

    fn memory_of(&self, device: &DeviceRecord) -> Option<Bytes> {
        self.memory
            .map(|amount| amount.on_device_of(device.memory_usable_bytes()))
    }

    /// Whether `account`, which has `having`, may have `more` memory of `device`, in `new` new slices.
    ///
    /// # Errors
    /// [`Code::QuotaFull`], which says what is left and which slices have the rest. The request fits once some of them
    /// have ended.
    pub fn admit(
        &self,
        account: u32,
        having: &Having<'_>,
        device: &DeviceRecord,
        more: Bytes,
        new: u32,
    ) -> Result<(), Fault> {
        let refused = |message: String, hint: String| {
            let names: Vec<String> = having.holds.iter().map(|hold| in_words(hold)).collect();
            let mut fault = Fault::new(Code::QuotaFull, message);
            if !names.is_empty() {
                fault = fault.cause(names.join(", "));
            }
            Err(fault.hint(hint))
        };
        if let Some(most) = self.slices
            && having.slices.saturating_add(new) > most
        {
            return refused(
                format!(
                    "{} has {} slices, and may have {most}",
                    (self.name_of)(account),
                    having.slices
                ),
                "end or delete one, or run the program in it with --slice; see divvy ps".into(),
            );
        }
        let Some(most) = self.memory_of(device) else {
            return Ok(());
        };
        let held = having.holds.iter().fold(0, |sum, hold| sum_of(sum, hold));
        let left = Bytes(most.0.saturating_sub(held));
        if more <= left {
            return Ok(());
        }
        refused(
            format!(
                "cannot reserve {} on {}: the slices of {} may have {most} of it",
                more,
                device.uuid,
                (self.name_of)(account)
            ),
            left_of_it(left),
        )
    }

    /// Whether `share` of a device's time would be within the quota of `account` if it had nothing else.
    ///
    /// # Errors
    /// [`Code::OverQuota`], which waiting does not change.
    pub fn check_compute(
        &self,
        account: u32,
        device: &DeviceRecord,
        share: Option<Compute>,
    ) -> Result<(), Fault> {
        let (Some(most), Some(share)) = (self.compute, share) else {
            return Ok(());
        };
        if share <= most {
            return Ok(());
        }
        Err(Fault::new(
            Code::OverQuota,
            format!(
                "{share} is more than all slices of {} together may have of the time of {} ({most})",
                (self.name_of)(account),
                device.uuid
            ),
        )
        .cause("`user_compute` in the agent's configuration says so")
        .hint(format!("ask for at most {most}: waiting does not help")))
    }

    /// Whether `account` may be promised `share` of the device's time. `holds` are the user's other slices on
    /// `device`.
    ///
    /// # Errors
    /// [`Code::QuotaFull`], saying what is left and which slices have the rest.
    pub fn admit_compute(
        &self,
        account: u32,
        holds: &[&Hold],
        device: &DeviceRecord,
        share: Option<Compute>,
    ) -> Result<(), Fault> {
        let (Some(most), Some(share)) = (self.compute, share) else {
            return Ok(());
        };
        let promised = || holds.iter().filter(|hold| hold.compute.share.is_some());
        let parts = promised().filter_map(|hold| hold.compute.share);
        let promised_parts: u32 = parts.map(|share| u32::from(share.0)).sum();
        let left = u32::from(most.0).saturating_sub(promised_parts);
        if u32::from(share.0) <= left {
            return Ok(());
        }
        let message = format!(
            "cannot promise {share} of {}: the slices of {} may have {most} of its time",
            device.uuid,
            (self.name_of)(account)
        );
        let names: Vec<String> = promised()
            .map(|hold| format!("slice {} has {}", hold.name, hold.compute))
            .collect();
        let mut fault = Fault::new(Code::QuotaFull, message);
        if !names.is_empty() {
            fault = fault.cause(names.join(", "));
        }
        let left = Compute(u16::try_from(left).unwrap_or(u16::MAX));
        Err(fault.hint(left_of_it(left)))
    }
}

/// The hint that names deletion: a lasting slice keeps its part while nothing runs in it, also the one that plain runs
/// share.
fn left_of_it(left: impl fmt::Display) -> String {
    format!("{left} of that is left; see divvy ps, and divvy slice delete for slices that are not needed")
}

fn sum_of(sum: u64, hold: &Hold) -> u64 {
    sum.saturating_add(hold.limit.0)
}

fn in_words(hold: &Hold) -> String {
    format!("slice {} holds {}", hold.name, Bytes(sum_of(0, hold)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_model::{ComputeTerms, DeviceKind};

    const GIB: u64 = 1 << 30;

    fn device() -> DeviceRecord {
        DeviceRecord {
            index: 0,
            uuid: "GPU-1a2b".into(),
            name: "test".into(),
            kind: DeviceKind::Gpu,
            profile: None,
            pci_address: "0000:01:00.0".into(),
            memory_total_bytes: Bytes(80 * GIB),
            memory_reserved_bytes: Bytes(0),
            memory_used_bytes: Bytes(0),
            sm_count: 132,
            compute_capability: "9.0".into(),
            hardware: None,
            context_bytes: None,
            sharing: None,
        }
    }

    fn share(gib: u64) -> Bytes {
        Bytes(gib * GIB)
    }

    #[test]
    fn memory_and_slices_are_counted_per_user() {
        let quota = Quota {
            memory: Some("10%".parse().expect("a share")),
            slices: Some(2),
            compute: Some(Compute(5000)),
            name_of: |uid| format!("user {uid}"),
        };
        let hold = Hold {
            id: "0a".into(),
            name: "a".into(),
            uid: 3_999_999_999,
            whole: false,
            limit: Bytes(6 * GIB),
            compute: ComputeTerms {
                share: Some(Compute(3000)),
                ..ComputeTerms::default()
            },
            mode: None,
        };
        let promise = |parts| {
            let share = Some(Compute(parts));
            quota.admit_compute(3_999_999_999, &[&hold], &device(), share)
        };
        promise(2000).expect("exactly all");
        let refusal = promise(2001).expect_err("one part too much");
        assert_eq!(
            (refusal.code, refusal.causes),
            (Code::QuotaFull, vec!["slice a has 30%".to_owned()])
        );
        assert_eq!(
            refusal.hint.as_deref(),
            Some("20% of that is left; see divvy ps, and divvy slice delete for slices that are not needed")
        );
        let part = |parts| quota.check_compute(3_999_999_999, &device(), Some(Compute(parts)));
        part(5000).expect("all of it, once the other has ended");
        let refusal = part(5001).expect_err("more than there will ever be");
        assert_eq!(refusal.code, Code::OverQuota);
        let having = Having {
            holds: vec![&hold],
            slices: 1,
        };
        let ask = |gib, new| quota.admit(3_999_999_999, &having, &device(), share(gib), new);
        ask(2, 1).expect("exactly all");
        let refusal = ask(3, 1).expect_err("one too much");
        assert_eq!(refusal.code, Code::QuotaFull);
        assert_eq!(
            refusal.message,
            "cannot reserve 3 GiB on GPU-1a2b: the slices of user 3999999999 may have 8 GiB of it"
        );
        assert_eq!(refusal.causes, ["slice a holds 6 GiB"]);
        assert!(refusal.hint.expect("a hint").starts_with("2 GiB of that is left"));
        let size = |gib| quota.check_size(3_999_999_999, &device(), share(gib));
        size(8).expect("all of it, once the other has ended");
        let refusal = size(9).expect_err("more than there will ever be");
        assert_eq!(refusal.code, Code::OverQuota);
        assert_eq!(
            refusal.message,
            "9 GiB is more than all slices of user 3999999999 together may have of GPU-1a2b (8 GiB)"
        );
        let refusal = ask(1, 2).expect_err("three slices");
        assert!(
            refusal.message.contains("has 1 slices, and may have 2"),
            "{refusal:?}"
        );
        let nothing_yet = Having::default();
        let nothing = Quota {
            memory: None,
            slices: None,
            compute: None,
            ..quota
        };
        nothing.check_size(1, &device(), share(80)).expect("no quota");
        nothing
            .admit(1, &nothing_yet, &device(), share(80), 1)
            .expect("no quota");
        quota
            .admit(1, &nothing_yet, &device(), share(8), 1)
            .expect("another's");
    }
}

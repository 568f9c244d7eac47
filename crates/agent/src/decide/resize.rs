//! The sizes to which a live slice may be resized.

use divvy_host::Inventory;
use divvy_model::{
    Bytes, Class, Code, ComputeTerms, DeviceRecord, DeviceShare, Fault, Isolation, MemoryAmount, Mode,
    SliceRecord,
};

use crate::decide::compute::{check, check_promise, check_weight};
use crate::decide::family::Family;
use crate::decide::nesting::Parent;
use crate::decide::placement::device_of;
use crate::decide::rules::{Rules, Tenants, UsedOn};

/// Refuses to resize a slice that has its devices whole.
///
/// # Errors
/// [`Code::BadMemory`].
pub fn check_whole(record: &SliceRecord) -> Result<(), Fault> {
    if !record.terms.whole {
        return Ok(());
    }
    Err(
        Fault::new(Code::BadMemory, "a whole device cannot be more or less")
            .hint("start the program in a slice of a given size instead"),
    )
}

/// A slice's share of one device, which is to change.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The agent's rules, for the caller.
    pub rules: Rules<'a>,
    /// The slice.
    pub record: &'a SliceRecord,
    /// The device.
    pub device: &'a DeviceRecord,
    /// Its share of that.
    pub share: &'a DeviceShare,
    /// The bytes that count as held: its limit, or its use where it was resized below that.
    pub before: Bytes,
    /// The memory in use there.
    pub used: UsedOn,
    /// All slices.
    pub tenants: &'a Tenants,
}

impl Change<'_> {
    /// The limit that a slice inside `parent` gets.
    ///
    /// # Errors
    /// [`Code::BadMemory`], [`Code::OverSlice`], [`Code::SliceFull`].
    pub fn inside(&self, parent: &Parent<'_>, ask: MemoryAmount) -> Result<Bytes, Fault> {
        // Shares are of what the slice sees as its device.
        let there = parent.record.shares.on(&self.device.uuid);
        let whole = there.map_or(self.device.memory_usable_bytes(), |share| {
            share.memory_limit_bytes
        });
        let share = self.limit_of(whole, ask)?;
        parent.regrow(&self.device.uuid, self.before, share)?;
        Ok(share)
    }

    /// The limit of a slice that is inside no other. Where it grows, `require_answers` refuses if the driver does not
    /// answer.
    ///
    /// # Errors
    /// [`Code::BadMemory`] and the refusals of admission.
    pub fn outside(
        &self,
        ask: MemoryAmount,
        require_answers: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<Bytes, Fault> {
        let whole = self.device.memory_usable_bytes();
        let share = self.limit_of(whole, ask)?;
        let seen = self.seen(whole);
        let view = self.rules.view(&seen, self.used, self.tenants);
        view.readmit(self.before, share)?;
        if share > self.before {
            require_answers()?;
            let more = Bytes(share.0 - self.before.0);
            for account in self.tenants.accounts_of(&self.record.id) {
                self.rules.quota().check_size(*account, self.device, share)?;
                self.rules
                    .check_quota(self.tenants, *account, self.device, more, 0)?;
            }
        }
        Ok(share)
    }

    /// The device as the slice sees it, with `whole` bytes of memory.
    fn seen(&self, whole: Bytes) -> DeviceRecord {
        DeviceRecord {
            memory_total_bytes: whole,
            memory_reserved_bytes: Bytes(0),
            ..self.device.clone()
        }
    }

    fn limit_of(&self, whole: Bytes, ask: MemoryAmount) -> Result<Bytes, Fault> {
        let seen = self.seen(whole);
        let view = self.rules.view(&seen, self.used, self.tenants);
        let share = view.share(ask);
        view.check_least(share)?;
        let lent = self.share.memory_lent_bytes;
        if share < lent {
            return Err(
                Fault::new(Code::BadMemory, format!("slices inside it have {lent} of it"))
                    .hint("resize or end those first; see divvy ps"),
            );
        }
        Ok(share)
    }
}

/// The compute terms that a slice may have in place of its present ones: `terms`, if all its devices have that much.
/// `agent` is the agent's own user.
///
/// # Errors
/// [`Code::BadCompute`], [`Code::NotEnforceable`], [`Code::NotAllowed`] and the refusals of admission.
pub fn compute_resized(
    rules: &Rules<'_>,
    agent: u32,
    inventory: &Inventory,
    family: &Family<'_>,
    tenants: &Tenants,
    record: &SliceRecord,
    terms: ComputeTerms,
) -> Result<ComputeTerms, Fault> {
    check(&terms)?;
    if terms == record.terms.compute {
        return Ok(terms);
    }
    if record.terms.isolation == Isolation::Env {
        let message = format!(
            "slice {} runs without the limiter, which keeps to shares",
            record.name
        );
        return Err(Fault::new(Code::NotEnforceable, message)
            .hint("start the program in a slice of the cooperative isolation level instead"));
    }
    if record.terms.sharing.mode != Mode::Lease {
        let message = format!(
            "slice {} shares its device by {}",
            record.name, record.terms.sharing.mode
        );
        return Err(Fault::new(Code::BadCompute, message)
            .hint("such a part is fixed when the slice is made; --share lease gives shares that change"));
    }
    check_weight(rules.asker, agent, &terms)?;
    if let Some(parent) = record.parent_id.as_deref().filter(|id| family.get(id).is_some()) {
        return family.compute_inside(parent, terms, Some(&record.id));
    }
    check_promise(&terms)?;
    check_inside(family, record, terms)?;
    let rules = Rules {
        asker: record.uid,
        ..*rules
    };
    for share in record.shares.iter() {
        let device = device_of(inventory, &share.device_uuid)?;
        for account in tenants.accounts_of(&record.id) {
            rules.quota().check_compute(*account, &device, terms.share)?;
            rules.check_compute(tenants, *account, &device, &terms, Some(&record.id))?;
        }
    }
    Ok(terms)
}

/// Whether the slices inside this one could keep their shares.
fn check_inside(family: &Family<'_>, record: &SliceRecord, terms: ComputeTerms) -> Result<(), Fault> {
    let mut inside = family.inside(&record.id);
    let critical = inside.find(|inside| inside.terms.compute.class == Class::Latency);
    match critical.filter(|_| terms.class != Class::Latency) {
        None => Ok(()),
        Some(inside) => {
            let message = format!("slice {} inside it is latency-critical", inside.name);
            Err(Fault::new(Code::BadCompute, message).hint("resize or end that first; see divvy ps"))
        }
    }
}

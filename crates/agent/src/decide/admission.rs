//! Admission: does a slice fit a device? Pure arithmetic over promised shares and held memory.

use divvy_arbiter::Promises;
use divvy_model::{Bytes, Code, Compute, ComputeTerms, DeviceRecord, Fault, MemoryAmount, Sharing};

use crate::decide::compute::for_arbiter;
use crate::decide::held::HeldMode;

/// The memory that a driver may use for itself on a device on which nothing runs: NVML counts a few MiB as used beside
/// the reserved part. So little does not mean that a process uses the device.
const OF_THE_DRIVER: Bytes = Bytes(32 << 20);

/// The limits on how far a device may be divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Promises may add up to this many times the device's memory; with 1 no byte is promised twice.
    pub oversubscription: f64,
    /// The most slices of a device.
    pub max_slices: u32,
    /// The memory that the driver takes for a program's context. It is charged inside the slice.
    pub context: Bytes,
}

/// One slice's hold on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The slice.
    pub id: String,
    /// Its name, for the refusal.
    pub name: String,
    /// Its user.
    pub uid: u32,
    /// Whether it has the device for itself.
    pub whole: bool,
    /// Its share of memory.
    pub limit: Bytes,
    /// Its promise of compute.
    pub compute: ComputeTerms,
    /// Its sharing mode; none for a slice without enforced limits.
    pub mode: Option<HeldMode>,
}

/// A device, and all slices and programs on it.
#[derive(Clone, Debug)]
pub struct DeviceView<'a> {
    /// The device.
    pub device: &'a DeviceRecord,
    /// How far it may be divided.
    pub limits: Limits,
    /// The slices on it.
    pub holds: Vec<Hold>,
    /// The memory of programs outside any slice.
    pub unmanaged: Bytes,
    /// Memory held for no living process and accounted in no ledger.
    pub unheld: Bytes,
    /// The user that asks.
    pub asker: u32,
    /// The name of a user in a refusal.
    pub name_of: fn(u32) -> String,
}

impl DeviceView<'_> {
    /// The bytes that `amount` means on this device. A slice is like a smaller GPU: its contexts are inside it.
    #[must_use]
    pub fn share(&self, amount: MemoryAmount) -> Bytes {
        amount.on_device_of(self.device.memory_usable_bytes())
    }

    /// The most that promises may add up to, less present promises and the memory of outside programs.
    #[must_use]
    pub fn free(&self) -> Bytes {
        Bytes(
            self.capacity()
                .saturating_sub(self.promised().0)
                .saturating_sub(self.unmanaged.0)
                .saturating_sub(self.unheld.0),
        )
    }

    fn capacity(&self) -> u64 {
        // A ratio times a size: the nearest byte will do, and the cast saturates.
        (self.device.memory_usable_bytes().0 as f64 * self.limits.oversubscription) as u64
    }

    fn promised(&self) -> Bytes {
        let sum = |total: u64, hold: &Hold| total.saturating_add(hold.limit.0);
        Bytes(self.holds.iter().fold(0, sum))
    }

    /// Whether a new slice of `memory` fits.
    ///
    /// # Errors
    /// A refusal that says how much is free and which slices hold the rest.
    pub fn admit(&self, memory: Bytes) -> Result<(), Fault> {
        self.check_least(memory)?;
        self.check_size(memory)?;
        if self.holds.iter().any(|hold| hold.whole) {
            return Err(self.full(memory));
        }
        if self.holds.len() as u64 >= u64::from(self.limits.max_slices) {
            return Err(Fault::new(
                Code::TooManySlices,
                format!("{} already holds {} slices", self.device.uuid, self.holds.len()),
            )
            .cause(self.holders())
            .hint("wait for one to end, or raise `max_slices` in the configuration"));
        }
        self.check_room(memory)
    }

    /// Whether a slice that holds `now` may hold `memory` instead. It may always shrink, down to one context.
    ///
    /// # Errors
    /// As [`Self::admit`], for the difference.
    pub fn readmit(&self, now: Bytes, memory: Bytes) -> Result<(), Fault> {
        self.check_least(memory)?;
        if memory <= now {
            return Ok(());
        }
        self.check_size(memory)?;
        self.check_room(Bytes(memory.0 - now.0))
    }

    /// Whether a slice can be promised this much of the device's time. Slice `without` is to have it in place of its
    /// present terms.
    ///
    /// # Errors
    /// [`Code::ComputeFull`], which says how much is free and which slices have the rest.
    pub fn admit_compute(&self, terms: &ComputeTerms, without: Option<&str>) -> Result<(), Fault> {
        let others = || self.holds.iter().filter(|hold| Some(hold.id.as_str()) != without);
        let promised: Vec<_> = others().map(|hold| for_arbiter(&hold.compute)).collect();
        let Err(over) = Promises::of(&promised).admit(&for_arbiter(terms)) else {
            return Ok(());
        };
        let free = Compute(u16::try_from(over.free).unwrap_or(u16::MAX));
        let mut with_some: Vec<&Hold> = others().filter(|hold| hold.compute.share.is_some()).collect();
        // The largest promise first, in whatever order the slices are kept.
        with_some.sort_by_key(|hold| (std::cmp::Reverse(hold.compute.share), hold.name.as_str()));
        let who = |hold: &Hold| format!("slice {}{} has {}", hold.name, self.whose(hold), hold.compute);
        let fault = Fault::new(
            Code::ComputeFull,
            format!("cannot promise {terms} of the time of {}", self.device.uuid),
        )
        .cause(first_few(with_some.into_iter().map(who).collect()));
        Err(match free {
            Compute(0) => fault.hint("nothing is free; --wait waits until slices end; see divvy ps"),
            free => fault.hint(format!("{free} is free; see divvy ps")),
        })
    }

    pub(crate) fn whose(&self, hold: &Hold) -> String {
        match hold.uid == self.asker {
            true => String::new(),
            false => format!(" of {}", (self.name_of)(hold.uid)),
        }
    }

    /// Whether a program's context fits in a slice of `memory`: a smaller slice is useless.
    ///
    /// # Errors
    /// [`Code::BadMemory`], saying how much is needed.
    pub fn check_least(&self, memory: Bytes) -> Result<(), Fault> {
        let context = self.limits.context;
        if memory.0 >= context.0.max(1) {
            return Ok(());
        }
        let uuid = &self.device.uuid;
        Err(match context {
            Bytes(0) => Fault::new(
                Code::BadMemory,
                format!("nothing would be left of the slice on {uuid}"),
            )
            .hint("ask for more"),
            context => Fault::new(
                Code::BadMemory,
                format!("a slice of {memory} on {uuid} has no room for a program's context"),
            )
            .cause(format!("one context takes {context} there, inside the slice"))
            .hint(format!(
                "ask for at least {context}, and for what the program allocates"
            )),
        })
    }

    /// Whether a slice of `memory` could be on this device if nothing else were there.
    ///
    /// # Errors
    /// [`Code::OverDevice`], which waiting does not change.
    pub fn check_size(&self, memory: Bytes) -> Result<(), Fault> {
        let total = self.device.memory_usable_bytes();
        if memory <= total {
            return Ok(());
        }
        Err(Fault::new(
            Code::OverDevice,
            format!("{memory} is more than {} has ({total})", self.device.uuid),
        )
        .hint(format!("ask for at most {} B ({total}), or for `100%`", total.0)))
    }

    fn check_room(&self, memory: Bytes) -> Result<(), Fault> {
        if memory <= self.free() {
            return Ok(());
        }
        Err(self.full(memory))
    }

    /// Whether a tenant may have the device for itself.
    ///
    /// # Errors
    /// A refusal that says which slices have some of it.
    pub fn admit_whole(&self) -> Result<(), Fault> {
        if self.holds.is_empty() && self.unmanaged == Bytes(0) && self.unheld <= OF_THE_DRIVER {
            return Ok(());
        }
        Err(Fault::new(
            Code::DeviceFull,
            format!("{} cannot be had whole", self.device.uuid),
        )
        .cause(self.holders())
        .hint("choose another device, or wait with --wait; see divvy ps"))
    }

    fn full(&self, memory: Bytes) -> Fault {
        let free = self.free();
        Fault::new(
            Code::DeviceFull,
            format!("cannot reserve {memory} on {}", self.device.uuid),
        )
        .cause(self.holders())
        .hint(match free {
            Bytes(0) => format!(
                "nothing is free; --wait waits until slices end{}; see divvy ps",
                self.resizable()
            ),
            free => format!("{free} is free; see divvy ps"),
        })
    }

    /// The asker's own largest slice, which could be made smaller.
    fn resizable(&self) -> String {
        let own = self
            .holds
            .iter()
            .filter(|hold| hold.uid == self.asker && !hold.whole);
        let largest = own.max_by_key(|hold| hold.limit);
        largest.map_or_else(String::new, |hold| {
            format!(", or `divvy resize {} --memory SIZE` makes room", hold.name)
        })
    }

    fn holders(&self) -> String {
        let mut holds: Vec<&Hold> = self.holds.iter().collect();
        holds.sort_by_key(|hold| std::cmp::Reverse(hold.limit));
        let mut holders: Vec<String> = holds
            .iter()
            .map(|hold| {
                let held = match hold.whole {
                    true => "the whole device".into(),
                    false => hold.limit.to_string(),
                };
                format!("slice {}{} holds {held}", hold.name, self.whose(hold))
            })
            .collect();
        shorten(&mut holders);
        if self.unmanaged.0 > 0 {
            holders.push(format!("programs outside any slice hold {}", self.unmanaged));
        }
        if self.unheld.0 > 0 {
            holders.push(format!("{} is in use for no living process", self.unheld));
        }
        match holders.len() {
            0 => format!("the device has {}", self.device.memory_total_bytes),
            _ => holders.join(", "),
        }
    }

    /// The figures for `divvy devices`.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        Sharing {
            slice_count: u32::try_from(self.holds.len()).unwrap_or(u32::MAX),
            slice_max: self.limits.max_slices,
            memory_promised_bytes: self.promised(),
            memory_unmanaged_bytes: self.unmanaged,
            memory_overhead_bytes: self.unheld,
            memory_free_bytes: self.free(),
            oversubscription_ratio: self.limits.oversubscription,
            compute_promised_ratio: self.compute_promised(),
        }
    }

    /// The sum of the promised shares, 1 for the whole device.
    fn compute_promised(&self) -> f64 {
        let shares = self.holds.iter().filter_map(|hold| hold.compute.share);
        let parts: u64 = shares.map(|share| u64::from(share.0)).sum();
        // Whole numbers, because an empty sum of floats is -0.0.
        parts as f64 / f64::from(Compute::WHOLE.0)
    }
}

pub(crate) fn first_few(mut holders: Vec<String>) -> String {
    shorten(&mut holders);
    holders.join(", ")
}

/// Only the first few are named; `divvy ps` shows the rest.
fn shorten(holders: &mut Vec<String>) {
    const NAMED: usize = 5;
    if let Some(more) = holders.len().checked_sub(NAMED).filter(|more| *more > 0) {
        holders.truncate(NAMED);
        holders.push(format!("and {more} more slices"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_model::{Cap, DeviceKind};

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
            context_bytes: None,
            sharing: None,
            hardware: None,
        }
    }

    fn view<'a>(device: &'a DeviceRecord, held: &[u64], context: u64) -> DeviceView<'a> {
        DeviceView {
            device,
            limits: Limits {
                oversubscription: 1.0,
                max_slices: 4,
                context: Bytes(context),
            },
            holds: (0..)
                .zip(held)
                .map(|(n, held)| Hold {
                    id: n.to_string(),
                    name: format!("s{n}"),
                    uid: 0,
                    whole: false,
                    limit: Bytes(*held),
                    compute: ComputeTerms::default(),
                    mode: Some(HeldMode::default()),
                })
                .collect(),
            unmanaged: Bytes(0),
            unheld: Bytes(0),
            asker: 0,
            name_of: |uid| format!("user {uid}"),
        }
    }

    fn gib(n: u64) -> Bytes {
        Bytes(n * GIB)
    }

    #[test]
    fn promises_never_exceed_the_device() {
        let device = device();
        let mut view = view(&device, &[40 * GIB, 30 * GIB], 0);
        let promised = view.sharing().compute_promised_ratio;
        assert!(promised == 0.0 && promised.is_sign_positive(), "{promised}");
        view.admit(gib(10)).expect("exactly full");
        let refusal = view.admit(gib(11)).expect_err("one too many");
        assert_eq!(refusal.code, Code::DeviceFull);
        assert!(refusal.causes[0].contains("slice s0 holds 40 GiB"));
        assert!(refusal.hint.expect("a hint").contains("10 GiB is free"));
        view.unmanaged = Bytes(GIB);
        assert_eq!(
            view.admit(gib(10)).expect_err("outsiders count").code,
            Code::DeviceFull
        );
        (view.unmanaged, view.unheld) = (Bytes(0), Bytes(GIB));
        let refusal = view.admit(gib(10)).expect_err("what no process holds counts");
        assert!(refusal.causes[0].ends_with("1 GiB is in use for no living process"));
        assert_eq!(view.sharing().memory_overhead_bytes, gib(1));
        view.limits.oversubscription = 1.5;
        view.admit(gib(49)).expect("promised more than there is");
        assert_eq!(
            view.admit(gib(81)).expect_err("never above the device").code,
            Code::OverDevice
        );
    }

    #[test]
    fn slices_are_counted() {
        let device = device();
        let view = view(&device, &[GIB; 4], 0);
        assert_eq!(
            view.admit(gib(1)).expect_err("four is the most").code,
            Code::TooManySlices
        );
    }

    #[test]
    fn a_whole_device_is_shared_with_no_other_slice() {
        let device = device();
        let mut view = view(&device, &[], 0);
        view.limits.oversubscription = 2.0;
        view.admit_whole().expect("it is empty");
        view.unheld = Bytes(4 << 20);
        view.admit_whole().expect("the driver is no tenant");
        view.unheld = gib(1);
        assert!(
            view.admit_whole().is_err(),
            "what a dead process left in use is in the way"
        );
        view.unheld = Bytes(0);
        view.unmanaged = Bytes(1);
        assert!(view.admit_whole().is_err(), "an outsider is");
        view.holds.push(Hold {
            id: "solo".into(),
            name: "solo".into(),
            uid: 12345,
            whole: true,
            limit: Bytes(80 * GIB),
            compute: ComputeTerms::default(),
            mode: None,
        });
        let refusal = view.admit(gib(1)).expect_err("oversubscribed or not");
        assert_eq!(
            refusal.causes[0],
            "slice solo of user 12345 holds the whole device, programs outside any slice hold 1 B"
        );
        assert_eq!(view.admit_whole().expect_err("taken").code, Code::DeviceFull);
    }

    #[test]
    fn a_refusal_names_the_largest_holders_and_counts_the_rest() {
        let device = device();
        let held: Vec<u64> = (1..=12).map(|n| n * GIB).collect();
        let cause = view(&device, &held, 0).holders();
        assert!(cause.starts_with("slice s11 holds 12 GiB, "), "{cause}");
        assert!(
            cause.contains("slice s7 ") && !cause.contains("slice s6 "),
            "{cause}"
        );
        assert!(cause.ends_with("and 7 more slices"), "{cause}");
    }

    #[test]
    fn promises_of_compute_are_kept_or_not_made() {
        let device = device();
        let mut view = view(&device, &[GIB, GIB], 0);
        let soft = |parts| ComputeTerms {
            share: Some(Compute(parts)),
            ..ComputeTerms::default()
        };
        let hard = |parts| ComputeTerms {
            cap: Cap::Hard,
            ..soft(parts)
        };
        (view.holds[0].compute, view.holds[1].compute) = (hard(6000), soft(1000));
        view.admit_compute(&hard(3000), None).expect("exactly full");
        view.admit_compute(&ComputeTerms::default(), None)
            .expect("nothing is promised");
        let refusal = view.admit_compute(&soft(4000), None).expect_err("too much");
        assert_eq!(refusal.code, Code::ComputeFull);
        assert_eq!(refusal.message, "cannot promise 40% of the time of GPU-1a2b");
        assert_eq!(refusal.causes, ["slice s0 has 60% hard, slice s1 has 10%"]);
        assert_eq!(refusal.hint.as_deref(), Some("30% is free; see divvy ps"));
        view.admit_compute(&hard(9000), Some("0"))
            .expect("in the place of what it has");
        view.holds[0].compute = soft(9000);
        view.admit_compute(&soft(9000), None)
            .expect("soft shares are weights when oversold");
        let refusal = view.admit_compute(&hard(1), None).expect_err("no promise");
        assert!(refusal.hint.expect("a hint").starts_with("nothing is free"));
    }

    #[test]
    fn two_halves_fit_whatever_their_contexts_cost() {
        let device = device();
        let half: MemoryAmount = "50%".parse().expect("a share");
        let first = view(&device, &[], GIB).share(half);
        assert_eq!(first, Bytes(40 * GIB));
        let view = view(&device, &[first.0], GIB);
        view.admit(view.share(half)).expect("the second half");
        assert!(view.admit(view.share("50.1%".parse().expect("a share"))).is_err());
        let bytes = view.share("40GiB".parse().expect("a size"));
        view.admit(bytes).expect("the contexts are inside");
    }

    #[test]
    fn a_slice_has_room_for_one_context_at_least() {
        let device = device();
        let view = view(&device, &[], GIB);
        view.admit(Bytes(GIB)).expect("exactly one");
        for refusal in [
            view.admit(Bytes(GIB - 1)),
            view.readmit(Bytes(2 * GIB), Bytes(GIB - 1)),
        ] {
            let refusal = refusal.expect_err("no context fits");
            assert_eq!(refusal.code, Code::BadMemory);
            assert_eq!(
                refusal.causes,
                ["one context takes 1 GiB there, inside the slice"]
            );
            assert!(
                refusal
                    .hint
                    .expect("a hint")
                    .starts_with("ask for at least 1 GiB")
            );
        }
        assert_eq!(view.admit(Bytes(0)).expect_err("nothing").code, Code::BadMemory);
    }

    #[test]
    fn growing_counts_the_difference_and_shrinking_always_may() {
        let device = device();
        let mut view = view(&device, &[40 * GIB, 30 * GIB], 0);
        view.readmit(Bytes(40 * GIB), gib(50)).expect("ten more");
        assert!(view.readmit(Bytes(40 * GIB), gib(51)).is_err());
        view.unmanaged = Bytes(80 * GIB);
        view.readmit(Bytes(40 * GIB), gib(1)).expect("less");
        view.readmit(gib(90), gib(90))
            .expect("what it has, on a device that became smaller");
    }

    #[test]
    fn nothing_overflows() {
        let device = device();
        let view = view(&device, &[u64::MAX, u64::MAX], 0);
        assert_eq!(view.free(), Bytes(0));
        assert_eq!(
            view.admit(Bytes(u64::MAX)).expect_err("huge").code,
            Code::OverDevice
        );
    }
}

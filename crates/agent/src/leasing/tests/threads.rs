//! The same with the threads and the clock of the machine: which event wakes which thread. Figures are not tested here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use divvy_arbiter::{Settings, Terms};
use divvy_ledger::attach::Pages;
use divvy_ledger::{Backing, Gate, GrantView, Slot, SlotOwner};

use super::world::{DEVICE, pages_of, share};
use crate::journal::Journal;
use crate::leasing::{Leasing, Member};

/// A bound for each wait: nothing here takes so long unless it never happens.
const LONG: Duration = Duration::from_secs(60);

pub(super) struct Host {
    pub leasing: Arc<Leasing>,
    pub slices: Vec<(Arc<Vec<Pages>>, Terms)>,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.leasing.stop();
    }
}

pub(super) struct Tenant {
    pub slot: Slot,
    view: GrantView,
}

impl Host {
    pub fn new(terms: &[Terms]) -> Self {
        let host = Self {
            leasing: Leasing::start(Settings::default(), Arc::new(Journal::default())),
            slices: terms
                .iter()
                .enumerate()
                .map(|(n, terms)| (Arc::new(vec![pages_of(&format!("{n:08x}"))]), *terms))
                .collect(),
        };
        host.sync();
        host
    }

    pub fn sync(&self) {
        let members = self.slices.iter().enumerate().map(|(n, (pages, terms))| Member {
            id: format!("{n:08x}"),
            name: format!("slice-{n}"),
            uid: rustix::process::getuid().as_raw(),
            account: rustix::process::getuid().as_raw(),
            devices: vec![DEVICE.into()],
            pages: pages.clone(),
            terms: *terms,
        });
        self.leasing.sync(members.collect());
    }

    pub fn attach(&self, which: usize) -> Tenant {
        let pages = &self.slices[which].0[0];
        let fd = pages.ledger.share().expect("shared");
        let grant = pages.grant.share().expect("shared");
        Tenant {
            slot: Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a place"),
            view: GrantView::map(std::os::fd::AsFd::as_fd(&grant)).expect("mapped"),
        }
    }
}

impl Tenant {
    fn says(&self, wants: bool, busy: bool) {
        let line = self.slot.activity().expect("ours");
        line.set(wants, busy);
        line.count(1, 1);
        line.acknowledge(self.view.gate());
        self.slot.ring();
    }

    /// Waits until the gate says this.
    fn until(&self, gate: Gate) {
        let begin = Instant::now();
        loop {
            let word = self.view.gate();
            if word.gate() == gate {
                return;
            }
            assert!(begin.elapsed() < LONG, "the gate says {:?}", word.gate());
            let _word = self.view.wait_gate(word, Duration::from_millis(100));
        }
    }
}

#[test]
fn a_doorbell_brings_a_lease_and_its_end_comes_by_the_clock() {
    let half = Terms::soft(share(50));
    let host = Host::new(&[half, half]);
    let (one, other) = (host.attach(0), host.attach(1));
    one.until(Gate::Closed);
    one.says(true, false);
    one.until(Gate::Leased);
    one.says(false, true);
    // Another slice wants the device: the lease ends, and the next begins once nothing is in flight.
    other.says(true, false);
    one.until(Gate::Closed);
    assert_eq!(other.view.gate().gate(), Gate::Closed);
    one.says(true, false);
    other.until(Gate::Leased);
    other.says(false, false);
    one.until(Gate::Leased);
    assert!(one.view.beat_ns() > 0 && one.view.fallback_share() == 5000);
}

#[test]
fn what_a_dead_process_held_goes_on_to_the_next() {
    let half = Terms::soft(share(50));
    let host = Host::new(&[half, half]);
    let (one, other) = (host.attach(0), host.attach(1));
    one.until(Gate::Closed);
    one.says(true, false);
    one.until(Gate::Leased);
    one.says(false, true);
    other.says(true, false);
    // Its slot in the ledger falls free without a report, as when it is killed.
    drop(one);
    other.until(Gate::Leased);
    let totals = host.leasing.totals();
    assert_eq!(
        totals.expired, 0,
        "the clock looked for the dead before the lease expired"
    );
}

#[test]
fn a_tenant_that_rings_without_end_keeps_no_other_from_being_heard() {
    let half = Terms::soft(share(50));
    let host = Host::new(&[half, half]);
    let (noisy, quiet) = (host.attach(0), host.attach(1));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                noisy.slot.ring();
            }
        });
        for _ in 0..100 {
            quiet.says(true, false);
            quiet.until(Gate::Leased);
            quiet.says(false, false);
            quiet.until(Gate::Closed);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_slice_that_has_ended_is_forgotten_and_the_last_one_is_free() {
    let half = Terms::soft(share(50));
    let mut host = Host::new(&[half, half]);
    let one = host.attach(0);
    one.until(Gate::Closed);
    host.slices.pop();
    host.sync();
    one.until(Gate::Open);
    assert_eq!(host.leasing.views().len(), 1);
    host.slices.clear();
    host.sync();
    assert!(host.leasing.views().is_empty());
}

//! The accounting algorithm under loom: every interleaving of two or three threads, with weak memory.

use std::sync::atomic::Ordering;

use divvy_ledger::accounting::{self, Cell, Denied, Memory, RECORDS_PER_SLOT, RecordId};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

/// Slots of the model; each has one record in use, which keeps loom's state small.
const SLOTS: usize = 3;

struct LoomCell(AtomicU64);

impl Cell for LoomCell {
    fn load(&self, order: Ordering) -> u64 {
        step();
        self.0.load(order)
    }

    /// An exchange is used here. Loom does not order a plain store after another thread's exchange that read this
    /// thread's earlier store, though an exchange follows directly the value that it read. Loom then lets readers see
    /// the older of the last two values. The exchange orders the stores and, being `Relaxed` or `Release`, acquires
    /// nothing.
    fn store(&self, value: u64, order: Ordering) {
        step();
        self.0.swap(value, order);
    }

    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        step();
        self.0.compare_exchange(current, new, success, failure)
    }
}

struct Model {
    word: LoomCell,
    records: Vec<[LoomCell; 4]>,
    logs: Vec<LoomCell>,
}

impl Model {
    fn new() -> Self {
        let cell = || LoomCell(AtomicU64::new(0));
        Self {
            word: cell(),
            records: (0..SLOTS * RECORDS_PER_SLOT)
                .map(|_| [cell(), cell(), cell(), cell()])
                .collect(),
            logs: (0..SLOTS).map(|_| cell()).collect(),
        }
    }

    fn record(&self, record: RecordId) -> &[LoomCell; 4] {
        &self.records[record.slot() * RECORDS_PER_SLOT + record.number()]
    }

    /// No operation runs: the total is the sum over slots.
    fn check(&self, expected: u64) {
        let sum: i64 = (0..SLOTS).map(|slot| accounting::held(self, slot)).sum();
        assert_eq!(accounting::total(self), expected);
        assert_eq!(sum, expected as i64);
    }
}

impl Memory for Model {
    type Cell = LoomCell;

    fn word(&self) -> &LoomCell {
        &self.word
    }

    fn busy(&self, record: RecordId) -> &LoomCell {
        &self.record(record)[0]
    }

    fn state(&self, record: RecordId) -> &LoomCell {
        &self.record(record)[1]
    }

    fn amount(&self, record: RecordId, parity: usize) -> &LoomCell {
        &self.record(record)[2 + parity]
    }

    fn gathered(&self, slot: usize) -> &LoomCell {
        &self.logs[slot]
    }

    fn relax(&self, _rounds: u32) {
        thread::yield_now();
    }
}

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

#[test]
fn of_two_that_do_not_both_fit_one_is_granted() {
    model(4, || {
        let memory = Arc::new(Model::new());
        let racers: Vec<_> = (0..2)
            .map(|slot| {
                let memory = Arc::clone(&memory);
                thread::spawn(move || accounting::reserve(&*memory, slot, 0, 6, 10))
            })
            .collect();
        let outcomes: Vec<_> = racers
            .into_iter()
            .map(|racer| racer.join().expect("no panic"))
            .collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
        assert!(outcomes.contains(&Err(Denied::Full { used: 6 })));
        memory.check(6);
    });
}

#[test]
fn two_that_both_fit_are_both_granted_and_return() {
    model(2, || {
        let memory = Arc::new(Model::new());
        let racers: Vec<_> = (0..2)
            .map(|slot| {
                let memory = Arc::clone(&memory);
                thread::spawn(move || {
                    accounting::reserve(&*memory, slot, 0, 5, 10).expect("it fits");
                    accounting::release(&*memory, slot, 0, 2).expect("release");
                })
            })
            .collect();
        for racer in racers {
            racer.join().expect("no panic");
        }
        memory.check(6);
    });
}

#[test]
fn threads_of_one_process_use_one_slot() {
    model(3, || {
        let memory = Arc::new(Model::new());
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || accounting::reserve(&*memory, 0, 0, 4, 10))
        };
        accounting::reserve(&*memory, 0, 0, 5, 10).expect("it fits");
        other.join().expect("no panic").expect("it fits");
        memory.check(9);
    });
}

#[test]
fn the_living_work_while_the_dead_are_reaped() {
    model(3, || {
        let memory = Arc::new(Model::new());
        accounting::reserve(&*memory, 0, 0, 5, 10).expect("it fits");
        let living = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || accounting::reserve(&*memory, 1, 0, 3, 10))
        };
        assert_eq!(accounting::reclaim(&*memory, 0), Ok(5));
        living.join().expect("no panic").expect("it fits");
        memory.check(3);
    });
}

#[test]
fn a_reader_never_sees_more_than_the_limit() {
    model(3, || {
        let memory = Arc::new(Model::new());
        let racers: Vec<_> = (0..2)
            .map(|slot| {
                let memory = Arc::clone(&memory);
                thread::spawn(move || {
                    if accounting::reserve(&*memory, slot, 0, 7, 10).is_ok() {
                        accounting::release(&*memory, slot, 0, 7).expect("release");
                    }
                })
            })
            .collect();
        assert!(accounting::total(&*memory) <= 10);
        for racer in racers {
            racer.join().expect("no panic");
        }
        memory.check(0);
    });
}

std::thread_local! {
    /// Which thread dies, and after how many more of its steps. Loom's threads take turns on one system thread, and
    /// parallel tests have others.
    static FUSE: std::cell::Cell<Option<(thread::ThreadId, usize)>> = const { std::cell::Cell::new(None) };
}

/// The panic payload of a killed thread.
struct Killed;

fn step() {
    let Some((doomed, left)) = FUSE.get() else { return };
    if doomed != thread::current().id() {
        return;
    }
    let Some(left) = left.checked_sub(1) else {
        std::panic::resume_unwind(Box::new(Killed));
    };
    FUSE.set(Some((doomed, left)));
}

/// One process dies after `steps` steps of taking 5 units, while another takes 3 and gives 1 back. All orders of each
/// pair of steps are tried; then the dead process is reaped.
fn one_dies(steps: usize) {
    model(2, move || {
        let memory = Arc::new(Model::new());
        let doomed = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                FUSE.set(Some((thread::current().id(), steps)));
                let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    accounting::reserve(&*memory, 0, 0, 5, 10).expect("it fits");
                }));
                FUSE.set(None);
                if let Err(cause) = died
                    && !cause.is::<Killed>()
                {
                    std::panic::resume_unwind(cause);
                }
            })
        };
        accounting::reserve(&*memory, 1, 0, 3, 10).expect("it fits");
        accounting::release(&*memory, 1, 0, 1).expect("release");
        doomed.join().expect("no other panic");
        let sum: i64 = (0..SLOTS).map(|slot| accounting::held(&*memory, slot)).sum();
        assert_eq!(accounting::total(&*memory) as i64, sum);
        accounting::reclaim(&*memory, 0).expect("the page is not corrupted");
        memory.check(2);
    });
}

#[test]
fn one_dies_after_each_step_while_another_works() {
    // A reservation that meets one competitor takes at most 18 steps.
    for steps in 0..18 {
        one_dies(steps);
    }
}

#[test]
fn a_reaper_and_a_helper_agree_on_the_dead_ones_last_operation() {
    // Steps 7 to 9 are around the exchange that commits.
    for steps in 5..11 {
        model(3, move || {
            let memory = Arc::new(Model::new());
            FUSE.set(Some((thread::current().id(), steps)));
            let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                accounting::reserve(&*memory, 0, 0, 5, 10).expect("it fits");
            }));
            FUSE.set(None);
            assert!(died.is_err() || steps >= 9);
            let helper = {
                let memory = Arc::clone(&memory);
                thread::spawn(move || accounting::reserve(&*memory, 1, 0, 3, 10))
            };
            accounting::reclaim(&*memory, 0).expect("the page is not corrupted");
            helper.join().expect("no panic").expect("it fits");
            memory.check(3);
        });
    }
}

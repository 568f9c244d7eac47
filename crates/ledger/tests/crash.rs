//! A death after every single atomic step, with other processes at work at every single step before it.
//!
//! The algorithm runs over atomics that count steps. At a chosen step another process does a whole operation (and may
//! itself be interrupted, or die). At another step the operation stops for ever, as SIGKILL stops a process. Then the
//! dead processes are reaped, by a reaper that also dies at every step of its own. At the end the ledger is exact.

use std::cell::{Cell as Slate, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use divvy_ledger::accounting::{self, Cell, Denied, MAX_UNITS, Memory, RECORDS_PER_SLOT, RecordId};
use proptest::prelude::*;

const PROCESSES: usize = 4;
const LIMIT: u64 = 100;

thread_local! {
    /// Runs before every atomic step.
    static BEFORE_STEP: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    static DEATHS: Slate<u64> = const { Slate::new(0) };
}

/// The panic payload of a killed operation. No code of the algorithm runs while it unwinds.
struct Killed;

struct SteppedCell(AtomicU64);

fn step() {
    let hook = BEFORE_STEP.with(|hook| hook.borrow_mut().take());
    if let Some(mut hook) = hook {
        hook();
        BEFORE_STEP.with(|place| {
            let mut place = place.borrow_mut();
            if place.is_none() {
                *place = Some(hook);
            }
        });
    }
}

impl Cell for SteppedCell {
    fn load(&self, order: Ordering) -> u64 {
        step();
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        step();
        self.0.store(value, order);
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

struct Stepped {
    word: SteppedCell,
    records: Vec<[SteppedCell; 4]>,
    logs: Vec<SteppedCell>,
}

impl Stepped {
    fn new() -> &'static Self {
        let cell = || SteppedCell(AtomicU64::new(0));
        // Hooks are 'static; one test leaks few of them.
        Box::leak(Box::new(Self {
            word: cell(),
            records: (0..PROCESSES * RECORDS_PER_SLOT)
                .map(|_| [cell(), cell(), cell(), cell()])
                .collect(),
            logs: (0..PROCESSES).map(|_| cell()).collect(),
        }))
    }

    fn record(&self, record: RecordId) -> &[SteppedCell; 4] {
        &self.records[record.slot() * RECORDS_PER_SLOT + record.number()]
    }

    fn sum(&self) -> i64 {
        (0..PROCESSES).map(|slot| accounting::held(self, slot)).sum()
    }

    #[track_caller]
    fn check(&self, expected: u64) {
        assert_eq!((accounting::total(self), self.sum()), (expected, expected as i64));
    }
}

impl Memory for Stepped {
    type Cell = SteppedCell;

    fn word(&self) -> &SteppedCell {
        &self.word
    }

    fn busy(&self, record: RecordId) -> &SteppedCell {
        &self.record(record)[0]
    }

    fn state(&self, record: RecordId) -> &SteppedCell {
        &self.record(record)[1]
    }

    fn amount(&self, record: RecordId, parity: usize) -> &SteppedCell {
        &self.record(record)[2 + parity]
    }

    fn gathered(&self, slot: usize) -> &SteppedCell {
        &self.logs[slot]
    }

    fn relax(&self, _rounds: u32) {}
}

/// Runs `operation` until its end, or until it has taken `steps` atomic steps; `at(n)` runs before its step `n`.
fn run<T>(steps: usize, mut at: impl FnMut(usize) + 'static, operation: impl FnOnce() -> T) -> Option<T> {
    let mut taken = 0;
    let outer = BEFORE_STEP.with(|hook| hook.borrow_mut().take());
    let hook = move || {
        if taken == steps {
            DEATHS.set(DEATHS.get() + 1);
            resume_unwind(Box::new(Killed));
        }
        at(taken);
        taken += 1;
    };
    BEFORE_STEP.with(|place| *place.borrow_mut() = Some(Box::new(hook)));
    let outcome = catch_unwind(AssertUnwindSafe(operation));
    BEFORE_STEP.with(|place| *place.borrow_mut() = outer);
    match outcome {
        Ok(value) => Some(value),
        Err(cause) if cause.is::<Killed>() => None,
        Err(cause) => resume_unwind(cause),
    }
}

fn reserve(memory: &Stepped, slot: usize, units: u64) -> Result<(), Denied> {
    accounting::reserve(memory, slot, 0, units, LIMIT)
}

fn release(memory: &Stepped, slot: usize, units: u64) {
    accounting::release(memory, slot, 0, units).expect("the page is not corrupted");
}

/// A whole run of process 0: every kind of operation, finished or not.
fn life(memory: &Stepped) {
    reserve(memory, 0, 5).expect("it fits");
    reserve(memory, 0, 3).expect("it fits");
    release(memory, 0, 5);
    assert!(matches!(reserve(memory, 0, 99), Err(Denied::Full { .. })));
    reserve(memory, 0, 2).expect("it fits");
    release(memory, 0, 3);
    // Another thread's record: it gives back memory that the first thread took.
    accounting::release(memory, 0, 1, 2).expect("the page is not corrupted");
    accounting::reserve(memory, 0, 1, 7, LIMIT).expect("it fits");
}

fn steps_of(operation: impl FnOnce()) -> usize {
    let count = std::rc::Rc::new(Slate::new(0));
    let counting = std::rc::Rc::clone(&count);
    run(usize::MAX, move |_| counting.set(counting.get() + 1), operation);
    count.get()
}

/// Reaps process 0, dying after every step in turn, until a reaper survives.
fn reap_with_deaths(memory: &Stepped) {
    for steps in 0.. {
        let survived = run(steps, |_| {}, || accounting::reclaim(memory, 0));
        // Whatever state the reaper left, the totals balance.
        assert_eq!(accounting::total(memory) as i64, memory.sum());
        if let Some(outcome) = survived {
            outcome.expect("the page is not corrupted");
            return;
        }
    }
}

#[test]
fn death_after_every_step() {
    let length = steps_of(|| life(Stepped::new()));
    assert!(length > 60, "{length}");
    for steps in 0..=length {
        let memory = Stepped::new();
        reserve(memory, 1, 11).expect("it fits");
        let lived = run(steps, |_| {}, || life(memory)).is_some();
        assert_eq!(lived, steps == length);
        assert_eq!(
            accounting::total(memory) as i64,
            memory.sum(),
            "after step {steps}"
        );
        reap_with_deaths(memory);
        memory.check(11);
        // The slot serves its next owner.
        reserve(memory, 0, 4).expect("it fits");
        memory.check(15);
    }
}

#[test]
fn death_after_every_step_with_others_at_work_before_and_after() {
    let length = steps_of(|| life(Stepped::new()));
    for steps in 0..length {
        for others_at in 0..=steps {
            let memory = Stepped::new();
            let at = move |taken| {
                if taken == others_at {
                    reserve(memory, 1, 10).expect("it fits");
                    reserve(memory, 2, 20).expect("it fits");
                    release(memory, 1, 4);
                }
            };
            assert!(run(steps, at, || life(memory)).is_none());
            let mut expected = if others_at < steps { 26 } else { 0 };
            assert_eq!(
                accounting::total(memory) as i64,
                memory.sum(),
                "step {steps}, others {others_at}"
            );
            // The dead process's operation may be named in the word: another operation overwrites the name.
            if steps % 2 == 0 {
                reserve(memory, 2, 1).expect("it fits");
                expected += 1;
            }
            accounting::reclaim(memory, 0).expect("the page is not corrupted");
            memory.check(expected);
        }
    }
}

#[test]
fn a_helper_dies_at_every_step_too() {
    let length = steps_of(|| life(Stepped::new()));
    for steps in 0..length {
        // Longer than an operation takes: the last ones survive.
        for helper_steps in 0..14 {
            let memory = Stepped::new();
            assert!(run(steps, |_| {}, || life(memory)).is_none());
            let helped = run(helper_steps, |_| {}, || reserve(memory, 1, 10)).is_some();
            assert_eq!(accounting::total(memory) as i64, memory.sum());
            accounting::reclaim(memory, 0).expect("the page is not corrupted");
            let left = accounting::held(memory, 1);
            assert!(left == 10 || (left == 0 && !helped));
            memory.check(left as u64);
            accounting::reclaim(memory, 1).expect("the page is not corrupted");
            memory.check(0);
        }
    }
}

#[test]
fn others_work_at_every_step_of_a_reaper() {
    let length = steps_of(|| life(Stepped::new()));
    for steps in 0..length {
        let dead = || {
            let memory = Stepped::new();
            assert!(run(steps, |_| {}, || life(memory)).is_none());
            memory
        };
        let reaping = {
            let memory = dead();
            steps_of(|| {
                accounting::reclaim(memory, 0).expect("the page is not corrupted");
            })
        };
        for others_at in 0..reaping {
            let memory = dead();
            let at = move |taken| {
                if taken == others_at {
                    reserve(memory, 1, 10).expect("it fits");
                    release(memory, 1, 4);
                }
            };
            run(usize::MAX, at, || accounting::reclaim(memory, 0))
                .expect("it lives")
                .expect("the page is not corrupted");
            memory.check(6);
        }
    }
}

#[test]
fn a_name_from_4096_operations_ago_marks_nothing() {
    // Process 1 reads the word, which names an operation of process 0, and stalls; process 0 goes on until it is
    // about to commit the operation whose number looks the same, and dies.
    for stalls_at in 0..14 {
        for death in 0..10 {
            let memory = Stepped::new();
            reserve(memory, 0, 2).expect("it fits");
            let at = move |taken| {
                if taken == stalls_at {
                    for _ in 0..2047 {
                        reserve(memory, 0, 1).expect("it fits");
                        release(memory, 0, 1);
                    }
                    reserve(memory, 0, 1).expect("it fits");
                    let _died = run(death, |_| {}, || reserve(memory, 0, 5));
                }
            };
            run(usize::MAX, at, || reserve(memory, 1, 10))
                .expect("it lives")
                .expect("it fits");
            let held = accounting::held(memory, 0);
            assert!(held == 2 || held == 3 || held == 8, "{held}");
            memory.check(10 + held as u64);
            accounting::reclaim(memory, 0).expect("the page is not corrupted");
            memory.check(10);
        }
    }
}

#[test]
fn sequence_numbers_wrap_in_the_word() {
    let memory = Stepped::new();
    for _ in 0..10_000 {
        reserve(memory, 0, 2).expect("it fits");
        release(memory, 0, 1);
        release(memory, 0, 1);
    }
    for extra in 0..5000 {
        reserve(memory, 0, 1).expect("it fits");
        release(memory, 0, 1);
        if extra % 500 == 0 {
            // Dies with its operation named in the word, or not, at every point of the wrap.
            for steps in 0..9 {
                let _died = run(steps, |_| {}, || reserve(memory, 0, 3));
                accounting::reclaim(memory, 0).expect("the page is not corrupted");
                memory.check(0);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Act {
    process: usize,
    thread: usize,
    /// A positive value takes, a negative one gives back.
    units: i64,
    /// Another act before this step.
    interrupted_at: usize,
    /// Death after so many steps, if the operation takes so many.
    dies_at: usize,
}

fn act() -> impl Strategy<Value = Act> {
    (
        0..PROCESSES,
        0..2_usize,
        -60..60_i64,
        0..24_usize,
        prop_oneof![3 => Just(usize::MAX), 1 => 0..12_usize],
    )
        .prop_map(|(process, thread, units, interrupted_at, dies_at)| Act {
            process,
            thread,
            units,
            interrupted_at,
            dies_at,
        })
}

/// What the page should say.
#[derive(Default)]
struct Model {
    held: [u64; PROCESSES],
    dead: [bool; PROCESSES],
    /// An operation runs now: another act may not enter such a process, only its threads could.
    busy: [bool; PROCESSES],
}

/// Does the first of `acts`; the others happen in the middle of it. Returns the remaining acts.
fn perform(memory: &'static Stepped, model: &'static RefCell<Model>, mut acts: Vec<Act>) -> Vec<Act> {
    let Some(act) = acts.pop() else { return acts };
    let Act {
        process,
        thread,
        units,
        interrupted_at,
        dies_at,
    } = act;
    {
        let mut model = model.borrow_mut();
        if model.dead[process] || model.busy[process] {
            return acts;
        }
        model.busy[process] = true;
    }
    let rest = std::rc::Rc::new(RefCell::new(acts));
    let inner = std::rc::Rc::clone(&rest);
    let at = move |taken| {
        if taken == interrupted_at {
            let acts = inner.take();
            let left = perform(memory, model, acts);
            *inner.borrow_mut() = left;
        }
    };
    let amount = if units > 0 {
        units as u64
    } else {
        units.unsigned_abs().min(model.borrow().held[process])
    };
    let outcome = run(dies_at, at, || {
        if units > 0 {
            accounting::reserve(memory, process, thread, amount, LIMIT)
        } else {
            accounting::release(memory, process, thread, amount)
        }
    });
    let mut model = model.borrow_mut();
    model.busy[process] = false;
    match outcome {
        Some(Ok(())) if units > 0 => model.held[process] += amount,
        Some(Ok(())) => model.held[process] -= amount,
        Some(Err(Denied::Full { used })) => assert!(used <= LIMIT && used + amount > LIMIT),
        Some(Err(Denied::Corrupted)) => panic!("the page is corrupted"),
        None => model.dead[process] = true,
    }
    assert!(accounting::total(memory) <= LIMIT);
    drop(model);
    rest.take()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_nesting_of_operations_and_deaths(acts in proptest::collection::vec(act(), 1..40)) {
        let memory = Stepped::new();
        let model: &'static RefCell<Model> = Box::leak(Box::default());
        let mut acts = acts;
        while !acts.is_empty() {
            acts = perform(memory, model, acts);
        }
        prop_assert_eq!(accounting::total(memory) as i64, memory.sum());
        let mut expected = 0;
        for process in 0..PROCESSES {
            if model.borrow().dead[process] {
                accounting::reclaim(memory, process).expect("the page is not corrupted");
                prop_assert_eq!(accounting::held(memory, process), 0);
            } else {
                let held = model.borrow().held[process];
                prop_assert_eq!(accounting::held(memory, process), held as i64);
                expected += held;
            }
        }
        memory.check(expected);
    }
}

#[test]
fn the_ends_of_the_scale() {
    let memory = Stepped::new();
    assert_eq!(
        accounting::reserve(memory, 0, 0, u64::MAX, u64::MAX),
        Err(Denied::Full { used: 0 })
    );
    assert_eq!(
        accounting::reserve(memory, 0, 0, MAX_UNITS + 1, u64::MAX),
        Err(Denied::Full { used: 0 })
    );
    accounting::reserve(memory, 0, 0, MAX_UNITS, u64::MAX).expect("it fits");
    assert_eq!(
        accounting::reserve(memory, 1, 0, 1, u64::MAX),
        Err(Denied::Full { used: MAX_UNITS })
    );
    accounting::reserve(memory, 1, 0, 0, 0).expect("nothing always fits");
    memory.check(MAX_UNITS);
    accounting::release(memory, 0, 0, u64::MAX).expect("release");
    memory.check(0);
    // More than there is: the total stops at zero.
    accounting::release(memory, 0, 0, 5).expect("release");
    assert_eq!(accounting::total(memory), 0);
}

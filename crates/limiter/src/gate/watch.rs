//! Finding out which work is over: the gate thread polls at the times that its estimates predict, and never blocks.
//!
//! It polls our marks, and streams whose newest work has no mark. A thread that blocked in the driver instead would
//! still be there when the program destroys the context or begins a capture.

use divvy_abi::{CUDA_ERROR_NOT_READY, CUDA_SUCCESS, CUcontext, CUevent};
use divvy_charges::locked;
use divvy_ledger::monotonic_ns;

use super::budget::{COMMON, StreamBudget};
use super::in_flight::{Bracket, InFlight, Mark, in_use};
use super::slept::Slept;
use super::stream::Name;
use super::{Gate, capture};
use crate::below::forward;
use crate::charges::CHARGES;
use crate::leave;

/// Pauses between polls of late work, in nanoseconds: an eighth of its delay, within these bounds.
const LATE_NS: (u64, u64) = (20_000, 500_000);
/// The same for a kernel without a measurement: a quarter of the time that it has run.
const NEW_NS: (u64, u64) = (5_000, 200_000);
/// Work that should last longer than this, in nanoseconds, is polled after three quarters of its time, and so on.
/// Otherwise a kernel that takes less than estimated would never show it, since its end would be noticed at the
/// predicted time.
const EARLY_NS: u64 = 400_000;
/// The longest such pause: this time in nanoseconds, or this part of the time that the work has run. The estimate may
/// be many times too long.
const PAUSE_NS: u64 = 2_000_000;
const LONGER: u64 = 8;
/// Longest pause, in nanoseconds, while no thread waits for the work in flight.
const NO_HURRY_NS: u64 = 1_000_000;
/// Work that cannot be polled is assumed to be over after twice its time and this, in nanoseconds.
const UNASKED_NS: u64 = 1_000_000;

/// The gate thread's current context, set when a poll needs it.
struct Standing(usize);

impl Standing {
    fn stand_in(&mut self, context: usize) -> bool {
        if self.0 != context {
            // SAFETY: a context of the program that has not ended, since ends are reported first; the driver checks as
            // well.
            if !unsafe { forward::cuCtxSetCurrent(context as CUcontext) }.is_success() {
                return false;
            }
            self.0 = context;
        }
        true
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        if self.0 != 0 {
            // SAFETY: null is a valid argument: it means no context.
            let _left = unsafe { forward::cuCtxSetCurrent(core::ptr::null_mut()) };
        }
    }
}

impl Gate {
    /// Finds out which work is over. Returns true if any of it is new.
    pub(super) fn watch(&self) -> bool {
        let _asking = leave::asking();
        if leave::is_exiting() {
            return false;
        }
        let mut standing = Standing(0);
        let mut news = false;
        while let Some(mark) = {
            let in_flight = locked(&self.in_flight);
            in_flight.marks.front().copied()
        } {
            if leave::is_leaving(mark.context) {
                break;
            }
            let known = standing.stand_in(mark.context);
            let asked_ns = monotonic_ns();
            // SAFETY: our own event; its context has not ended.
            let answer = known.then(|| unsafe { forward::cuEventQuery(mark.event as CUevent) });
            if answer == Some(CUDA_ERROR_NOT_READY) {
                locked(&self.in_flight).running_ns = asked_ns;
                break;
            }
            // Any other result: the context has failed, and so has its work in flight.
            self.passed_mark(mark, answer == Some(CUDA_SUCCESS));
            news = true;
        }
        let indexes: Vec<usize> = in_use(&self.budgets).collect();
        for index in indexes {
            news |= self.ask(index, &mut standing);
        }
        news
    }

    fn passed_mark(&self, mark: Mark, sound: bool) {
        let measured = mark
            .ends
            .map(|(bracket, dry)| (bracket, dry, elapsed_ns(bracket.event, mark.event)));
        if let (Some((bracket, dry, Some(ns))), true) = (measured, sound)
            && !Slept::now().since(bracket.slept)
        {
            if dry || bracket.dry {
                self.estimates().learn_limit(bracket.key, ns);
            } else {
                self.estimates().learn(bracket.key, ns);
            }
        }
        let now = monotonic_ns();
        let mut in_flight = locked(&self.in_flight);
        in_flight.marks.pop_front();
        let state = &mut in_flight.streams[mark.index];
        state.marks = state.marks.saturating_sub(1);
        in_flight.complete(mark.index, mark.upto_ns, mark.launches);
        in_flight.head_ended(mark.ns, now);
        if in_flight.outstanding_ns(&self.budgets, mark.index) == 0 {
            self.drained(&mut in_flight, mark.index, mark.launches, now);
        }
        if sound {
            if !mark.begins {
                in_flight.keep(mark.context, mark.event);
            }
            if let Some((bracket, ..)) = measured {
                in_flight.keep(mark.context, bracket.event);
            }
        }
    }

    /// Polls a stream whose work has no mark behind it. Returns whether that work is over.
    fn ask(&self, index: usize, standing: &mut Standing) -> bool {
        let now = monotonic_ns();
        let budget = &self.budgets[index];
        let (name, context, upto_ns, launches) = {
            let mut in_flight = locked(&self.in_flight);
            let outstanding = in_flight.outstanding_ns(&self.budgets, index);
            let (launches, inside) = budget.launches();
            let state = &in_flight.streams[index];
            let (marks, sealed, context) = (state.marks, state.sealed, state.context);
            if outstanding == 0 {
                if sealed && marks == 0 && inside == 0 {
                    in_flight.vacate(&self.budgets, index);
                }
                return false;
            }
            if marks > 0 || inside > 0 {
                return false;
            }
            let upto_ns = in_flight.spent_ns(&self.budgets, index);
            if sealed || index == COMMON || budget.name().is_per_thread() {
                let over = in_flight.active_ns.saturating_add(2 * outstanding + UNASKED_NS);
                if now < over {
                    return false;
                }
                in_flight.complete(index, upto_ns, launches);
                in_flight.active_ns = now;
                return true;
            }
            (budget.name(), context, upto_ns, launches)
        };
        if capture::any() || leave::is_leaving(context) {
            return false;
        }
        if standing.stand_in(context) && is_running(name) {
            locked(&self.in_flight).running_ns = now;
            return false;
        }
        let now = monotonic_ns();
        let mut in_flight = locked(&self.in_flight);
        self.drained(&mut in_flight, index, launches, now);
        let over_ns = in_flight.outstanding_ns(&self.budgets, index);
        in_flight.complete(index, upto_ns, launches);
        in_flight.head_ended(over_ns, now);
        true
    }

    /// A stream has no more work in flight: if a single launch was being measured, it took until now at most.
    fn drained(&self, in_flight: &mut InFlight, index: usize, launches: u64, now: u64) {
        if let Some(bracket) = in_flight.drop_bracket(index)
            && StreamBudget::between(bracket.at, launches) == 1
            && !Slept::now().since(bracket.slept)
        {
            self.estimates()
                .learn_limit(bracket.key, now.saturating_sub(bracket.since_ns));
        }
    }

    /// The time of the next poll, while work is in flight.
    pub(super) fn next_look(&self, now: u64) -> u64 {
        let in_flight = locked(&self.in_flight);
        let flight = in_flight.flight(&self.budgets, now);
        let due = in_flight.began_ns.saturating_add(flight.head_ns);
        let mut at = match due.checked_sub(now) {
            Some(early) if early > EARLY_NS => {
                now + (early / 4 * 3).min(PAUSE_NS.max(flight.ran_ns / LONGER))
            }
            Some(early) if early > 0 => due,
            _ => now + ((now - due) / 8).clamp(LATE_NS.0, LATE_NS.1),
        };
        if self.waiting.load(core::sync::atomic::Ordering::SeqCst) == 0 {
            at = at.max(now + flight.remaining_ns().min(NO_HURRY_NS));
        }
        let new = |bracket: &Bracket| self.estimates().settled(bracket.key).is_none();
        let brackets = in_use(&self.budgets).filter_map(|index| in_flight.streams[index].bracket);
        if let Some(since) = brackets.filter(new).map(|bracket| bracket.since_ns).max() {
            at = at.min(now + (now.saturating_sub(since) / 4).clamp(NEW_NS.0, NEW_NS.1));
        }
        at.min(in_flight.alarm_ns)
    }

    /// Waits for work that was launched uncounted. Returns whether it is over now.
    pub(super) fn settle(&self) -> bool {
        use core::sync::atomic::Ordering::SeqCst;
        self.uncounted.store(false, SeqCst);
        for context in CHARGES.contexts_of(self.account) {
            // No thread may wait for a context in which a capture goes on.
            let Some(_inside) = leave::enter(context) else {
                continue;
            };
            if capture::any() {
                self.uncounted.store(true, SeqCst);
                return false;
            }
            let mut standing = Standing(0);
            if standing.stand_in(context) {
                // SAFETY: no arguments. A context that has failed has nothing in flight.
                let _over = unsafe { forward::cuCtxSynchronize() };
            }
        }
        true
    }
}

fn is_running(name: Name) -> bool {
    // SAFETY: a stream that the program has not destroyed, since a hook reports that first.
    unsafe { forward::cuStreamQuery(name.handle()) == CUDA_ERROR_NOT_READY }
}

fn elapsed_ns(from: usize, to: usize) -> Option<u64> {
    let mut milliseconds = 0.0_f32;
    // SAFETY: a valid out-parameter and two events of ours that have completed.
    let result =
        unsafe { forward::cuEventElapsedTime(&raw mut milliseconds, from as CUevent, to as CUevent) };
    (result.is_success() && milliseconds >= 0.0).then_some((f64::from(milliseconds) * 1e6) as u64)
}

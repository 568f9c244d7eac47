//! Our events in the program's streams. Work before a completed event is over, and a measured launch lies between two
//! events.
//!
//! A mark stands in front of a launch and never behind one: the next launch may overlap the one before it, and an event
//! between the two would prevent that.

use divvy_abi::{CU_EVENT_BLOCKING_SYNC, CUDA_SUCCESS, CUevent};
use divvy_charges::locked;

use super::budget::StreamBudget;
use super::estimates::Key;
use super::in_flight::{Bracket, InFlight, Mark};
use super::slept::Slept;
use super::stream::Stream;
use super::{Gate, capture};
use crate::below::{ask, forward};
use crate::leave;
use divvy_ledger::monotonic_ns;

/// The events to record in front of a launch.
#[derive(Default)]
pub(super) struct Plan {
    mark: Option<Mark>,
    /// A launch to measure: its stream's position, its context and key, and its count in the stream.
    measures: Option<(usize, usize, Key, u64)>,
}

impl Plan {
    pub fn mark(mark: Mark) -> Self {
        Self {
            mark: Some(mark),
            measures: None,
        }
    }
}

impl Gate {
    /// Plans the events in front of a launch into the stream at `index`, which is not charged yet.
    pub(super) fn plan(
        &self,
        in_flight: &mut InFlight,
        index: usize,
        context: usize,
        key: Key,
        measured: bool,
        silent: bool,
    ) -> Plan {
        let (launches, inside) = self.budgets[index].launches();
        // Another thread is launching into the same stream, so the position of an event there would be unknown.
        if silent || inside > 0 {
            in_flight.drop_bracket(index);
            // The time until no work is in flight can still be measured.
            in_flight.streams[index].bracket = (measured && inside == 0).then(|| Bracket {
                event: 0,
                key,
                since_ns: monotonic_ns(),
                at: launches,
                dry: true,
                slept: Slept::now(),
            });
            return Plan::default();
        }
        let mut mark = self.plan_mark(in_flight, index, context);
        if let Some(bracket) = in_flight.streams[index].bracket {
            match &mut mark {
                Some(mark) if bracket.event != 0 && StreamBudget::between(bracket.at, launches) == 1 => {
                    in_flight.streams[index].bracket = None;
                    mark.ends = Some((bracket, false));
                }
                _ => {
                    in_flight.drop_bracket(index);
                }
            }
        }
        Plan {
            mark,
            measures: measured.then_some((index, context, key, launches)),
        }
    }

    /// A mark behind everything in the stream at `index`, if any work there has none.
    pub(super) fn plan_mark(&self, in_flight: &mut InFlight, index: usize, context: usize) -> Option<Mark> {
        let ns = in_flight.unmarked_ns(&self.budgets, index);
        if ns == 0 {
            return None;
        }
        let upto_ns = in_flight.spent_ns(&self.budgets, index);
        in_flight.streams[index].marked_ns = upto_ns;
        in_flight.streams[index].marks += 1;
        Some(Mark {
            event: 0,
            context,
            index,
            upto_ns,
            ns,
            launches: self.budgets[index].launches().0,
            ends: None,
            begins: false,
        })
    }

    /// Records the planned events. No lock is held, since recording into a full stream waits.
    pub(super) fn carry_out(&self, plan: Plan, stream: Stream) {
        let mut before = 0;
        if let Some(mut mark) = plan.mark {
            mark.event = self.recorded(mark.context, stream);
            before = mark.event;
            if let (Some((_, dry)), true) = (&mut mark.ends, before != 0) {
                // SAFETY: our own event, just recorded.
                *dry = unsafe { forward::cuEventQuery(before as CUevent) } == CUDA_SUCCESS;
            }
            let mut in_flight = locked(&self.in_flight);
            if before == 0 {
                // No event is available: the stream itself is polled.
                let state = &mut in_flight.streams[mark.index];
                state.marks = state.marks.saturating_sub(1);
                state.marked_ns = state.marked_ns.saturating_sub(mark.ns);
                if let Some((bracket, _)) = mark.ends {
                    in_flight.keep(mark.context, bracket.event);
                }
            } else {
                mark.begins = plan.measures.is_some();
                in_flight.marks.push_back(mark);
            }
        }
        let Some((index, context, key, at)) = plan.measures else {
            return;
        };
        let event = if before == 0 {
            self.recorded(context, stream)
        } else {
            before
        };
        // SAFETY: our own event, just recorded.
        let dry = event == 0 || unsafe { forward::cuEventQuery(event as CUevent) } == CUDA_SUCCESS;
        let since_ns = monotonic_ns();
        let mut in_flight = locked(&self.in_flight);
        in_flight.streams[index].bracket = Some(Bracket {
            event,
            key,
            since_ns,
            at,
            dry,
            slept: Slept::now(),
        });
    }

    /// A context has ended.
    pub(super) fn forget(&self, context: usize) {
        let _not_asked = leave::asking();
        locked(&self.in_flight).forget(&self.budgets, context);
    }

    /// An event recorded in the stream; 0 if that is impossible.
    fn recorded(&self, context: usize, stream: Stream) -> usize {
        // A capture whose begin the gate did not see.
        if ask::is_capturing(stream.handle, stream.per_thread) || capture::any() {
            return 0;
        }
        let spare = locked(&self.in_flight).spare(context);
        let event = spare.unwrap_or_else(new_event);
        if event == 0 {
            return 0;
        }
        // SAFETY: our own event of the current context, in a stream that the program is about to use.
        let result = unsafe {
            if stream.per_thread {
                forward::cuEventRecord_ptsz(event as CUevent, stream.handle)
            } else {
                forward::cuEventRecord(event as CUevent, stream.handle)
            }
        };
        if result == CUDA_SUCCESS {
            return event;
        }
        locked(&self.in_flight).keep(context, event);
        0
    }

    /// A stream is about to be destroyed: its work in flight continues.
    pub(super) fn seal(&self, stream: Stream) {
        let name = stream.name();
        let Some(index) = super::budget::find(&self.budgets, name) else {
            return;
        };
        let context = stream.context();
        let plan = {
            let mut in_flight = locked(&self.in_flight);
            in_flight.reclaim(&self.budgets, index);
            in_flight.drop_bracket(index);
            self.plan_mark(&mut in_flight, index, context)
        };
        let _recorded = ask::in_context(context, || {
            self.carry_out(plan.map_or_else(Plan::default, Plan::mark), stream);
            Ok(())
        });
        let _not_asked = leave::asking();
        locked(&self.in_flight).streams[index].sealed = true;
        self.budgets[index].disown();
    }
}

fn new_event() -> usize {
    let mut event: CUevent = core::ptr::null_mut();
    // SAFETY: a valid out-parameter.
    let result = unsafe { forward::cuEventCreate(&raw mut event, CU_EVENT_BLOCKING_SYNC.0) };
    if result.is_success() { event as usize } else { 0 }
}

//! The agent's loop of the model: events in, decisions out, an alarm.

use super::program::Lease;
use super::world::{Happening, World};
use crate::{Decision, Event, Nanos};

impl World {
    pub(super) fn tell_agent(&mut self, event: Event) {
        self.at(self.now + self.host.hop, Happening::Agent(event));
    }

    /// The agent takes an event in.
    pub(super) fn agent(&mut self, event: &Event) {
        let clock = self.now + self.leap;
        self.events += 1;
        let decisions = if self.timed {
            let began = std::time::Instant::now();
            let decisions = self.arbiter.handle(clock, event);
            self.spent += began.elapsed();
            decisions
        } else {
            self.arbiter.handle(clock, event)
        };
        match decisions {
            Ok(decisions) => {
                for decision in decisions {
                    if matches!(decision, Decision::Overdue { .. } | Decision::Expire { .. }) {
                        self.incidents.push((self.now, decision));
                    }
                    self.at(self.now + self.host.hop, Happening::Told(decision));
                }
            }
            Err(refused) => self.refusals.push(refused),
        }
        self.set_alarm();
    }

    fn set_alarm(&mut self) {
        let Some(deadline) = self.arbiter.deadline() else {
            return;
        };
        let at = deadline.saturating_sub(self.leap).max(self.now) + self.host.alarm;
        if self.alarm.is_none_or(|set| at < set || set < self.now) {
            self.alarm = Some(at);
            self.at(at, Happening::Alarm);
        }
    }

    pub(super) fn ring_alarm(&mut self) {
        if self.alarm == Some(self.now) {
            self.alarm = None;
            self.agent(&Event::Time);
        }
    }

    /// A decision reaches its tenant.
    pub(super) fn told(&mut self, decision: Decision) {
        let (tenant, device, epoch, lease) = match decision {
            Decision::Grant {
                tenant,
                device,
                epoch,
                until,
                in_flight,
            } => {
                let until = if until == Nanos::MAX {
                    until
                } else {
                    until.saturating_sub(self.leap)
                };
                (tenant, device, epoch, Some((until, in_flight)))
            }
            Decision::Revoke {
                tenant,
                device,
                epoch,
            } => (tenant, device, epoch, None),
            Decision::Overdue { .. } | Decision::Expire { .. } => return,
        };
        let (a, now) = (tenant.0 as usize, self.now);
        let actor = &mut self.actors[a];
        if !actor.alive {
            return;
        }
        let Some(stream) = actor
            .streams
            .iter_mut()
            .find(|stream| stream.device == device.0 as usize)
        else {
            return;
        };
        match (lease, &mut stream.lease) {
            (Some((until, in_flight)), Some(held)) if held.epoch == epoch => {
                (held.until, held.in_flight) = (until, in_flight);
            }
            (Some((until, in_flight)), held) if stream.last_epoch < epoch => {
                *held = Some(Lease {
                    epoch,
                    until,
                    in_flight,
                });
                stream.last_epoch = epoch;
            }
            (None, Some(held)) if held.epoch == epoch => held.until = held.until.min(now),
            // A lease that was given back meanwhile.
            _ => {}
        }
        self.check(a);
    }
}

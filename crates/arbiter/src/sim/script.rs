//! What happens to actors from outside.

use super::scenario::{Sharing, Turn};
use super::world::{Happening, World};
use crate::{Event, TenantId};

impl World {
    /// An actor arrives: a process starts and the agent registers it.
    pub(super) fn arrive(&mut self, a: usize) {
        self.actors[a].alive = true;
        if matches!(self.sharing, Sharing::Leases(_)) {
            let event = Event::Arrived {
                tenant: TenantId(a as u64),
                devices: self.devices_of[a].clone(),
                terms: self.terms[a],
            };
            self.agent(&event);
        }
        if let super::Load::Requests { every, .. } = self.actors[a].load {
            let gap = self.actors[a].arrivals.exponential(every);
            self.at(self.now + gap, Happening::Work { actor: a });
        } else {
            self.work(a);
        }
    }

    pub(super) fn turn(&mut self, a: usize, turn: &Turn) {
        match turn {
            Turn::Resize(terms) => {
                self.terms[a] = *terms;
                let tenant = TenantId(a as u64);
                if matches!(self.sharing, Sharing::Leases(_)) {
                    self.agent(&Event::Resized {
                        tenant,
                        terms: *terms,
                    });
                }
            }
            Turn::Kill => {
                if !self.actors[a].alive {
                    return;
                }
                self.actors[a].alive = false;
                for stream in &mut self.actors[a].streams {
                    stream.queue.truncate(1);
                }
                self.want(a, false);
                self.at(self.now + self.host.teardown, Happening::Gone { actor: a });
            }
            Turn::Stop => self.actors[a].stopped = true,
            Turn::Continue => {
                self.actors[a].stopped = false;
                self.check(a);
            }
            Turn::Leap(ahead) => self.leap += ahead,
        }
    }

    /// A killed process's contexts are gone, and the agent knows.
    pub(super) fn gone(&mut self, a: usize) {
        self.tear_down(a);
        if matches!(self.sharing, Sharing::Leases(_)) {
            self.tell_agent(Event::Died {
                tenant: TenantId(a as u64),
            });
        }
    }
}

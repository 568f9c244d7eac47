//! Turns the reports of a slice's processes into events for the arbiter.

use divvy_arbiter::{DeviceId, Event, MILLISECOND, Nanos, TenantId};

use super::account::{Account, Hold, Report};
use super::leaseholder::Leaseholder;
use super::state::State;
use crate::api::events::EventKind;

impl State {
    /// Looks at a slice whose doorbell rang, or which is due for another reason.
    pub fn look(&mut self, number: u64, now: Nanos) {
        self.due.push(number);
        self.look_at_due(now);
    }

    /// How many processes the last look at a slice covered, on all of its devices.
    pub fn crowd(&self, number: u64) -> u32 {
        let accounts = self
            .leaseholders
            .get(&number)
            .into_iter()
            .flat_map(|leaseholder| &leaseholder.accounts);
        let crowd: usize = accounts.map(Account::crowd).sum();
        u32::try_from(crowd).unwrap_or(u32::MAX)
    }

    /// Looks at all slices: for changes without a doorbell.
    pub fn look_at_all(&mut self, now: Nanos) {
        self.due.extend(self.leaseholders.keys());
        self.look_at_due(now);
    }

    /// Looks at every slice on the list, and at those that are added meanwhile.
    pub fn look_at_due(&mut self, now: Nanos) {
        while let Some(number) = self.due.pop() {
            self.look_at(number, now);
        }
    }

    fn look_at(&mut self, number: u64, now: Nanos) {
        let Some(leaseholder) = self.leaseholders.get_mut(&number) else {
            return;
        };
        let report = leaseholder.read(now);
        for (account, report) in leaseholder.accounts.iter().zip(&report) {
            let listener = account.listener.iter();
            listener.for_each(|listener| listener.came(&report.newcomers));
        }
        if leaseholder.lone {
            return;
        }
        self.settle_doubt(number, &report);
        self.report(number, &report, now);
        let doubtful = self.doubtful(number, now);
        let Some(leaseholder) = self.leaseholders.get_mut(&number) else {
            return;
        };
        let tenant = TenantId(number);
        let wants = report.iter().any(|report| report.wants);
        let drained = drained(leaseholder, &report);
        if !drained.is_empty() {
            if leaseholder.holds() || wants {
                if !leaseholder.holds() {
                    leaseholder.ask(now);
                }
                for device in drained {
                    let busy = self.busy(number, device);
                    self.tell(now, &Event::Released { tenant, device, busy });
                }
            } else {
                self.tell(now, &Event::Idle { tenant });
            }
            self.recovered(number);
        } else if leaseholder.is_leased() {
            if !wants && report.iter().all(Report::is_idle) {
                self.give_back(number, now);
            }
        } else if leaseholder.holds() {
            // The lease ends; its work in flight is waited for.
        } else if wants && leaseholder.asked_at.is_none() && leaseholder.in_doubt_until == 0 && !doubtful {
            leaseholder.ask(now);
            self.tell(now, &Event::Ready { tenant });
        } else if !wants && leaseholder.asked_at.is_some() {
            leaseholder.stop_asking(now);
            self.tell(now, &Event::Idle { tenant });
        }
    }

    /// No work is in flight and no thread waits: the lease goes back. The gate is closed first. A later launch still
    /// shows, because a process reports that it is busy before it reads the gate for the last time.
    fn give_back(&mut self, number: u64, now: Nanos) {
        let Some(leaseholder) = self.leaseholders.get_mut(&number) else {
            return;
        };
        leaseholder
            .accounts
            .iter_mut()
            .for_each(|account| account.end(now));
        let again = leaseholder.read(now);
        let idle = again.iter().all(Report::is_idle);
        self.report(number, &again, now);
        let Some(leaseholder) = self.leaseholders.get_mut(&number).filter(|_| idle) else {
            return;
        };
        for account in &mut leaseholder.accounts {
            account.hold = Hold::Nothing;
        }
        let tenant = TenantId(number);
        self.tell(now, &Event::Idle { tenant });
        if again.iter().any(|report| report.wants) {
            // A thread came to the gate in between.
            self.due.push(number);
        }
    }

    fn report(&mut self, number: u64, report: &[Report], now: Nanos) {
        let reports: Vec<Event> = self
            .leaseholders
            .get(&number)
            .into_iter()
            .flat_map(|leaseholder| leaseholder.accounts.iter().zip(report))
            .filter(|(_, report)| report.news)
            .map(|(account, _)| Event::Report {
                tenant: TenantId(number),
                device: account.device,
                busy: account.busy_ns,
                kernel: account.kernel_ns,
                in_flight: account.in_flight_ns,
            })
            .collect();
        for report in reports {
            self.tell(now, &report);
        }
    }

    fn busy(&self, number: u64, device: DeviceId) -> Nanos {
        let accounts = self
            .leaseholders
            .get(&number)
            .into_iter()
            .flat_map(|leaseholder| &leaseholder.accounts);
        accounts
            .filter(|account| account.device == device)
            .map(|account| account.busy_ns)
            .sum()
    }

    /// A slice that outlasted its lease no longer does.
    fn recovered(&mut self, number: u64) {
        let Some(leaseholder) = self.leaseholders.get_mut(&number) else {
            return;
        };
        if leaseholder.overdue && !leaseholder.holds() {
            leaseholder.overdue = false;
            let message = String::from("nothing of its expired lease is in flight any more");
            self.note(number, None, EventKind::Recovered, message);
        }
    }

    /// An earlier agent's lease of this slice may be in use until its processes have read a closed gate.
    fn settle_doubt(&mut self, number: u64, report: &[Report]) {
        let Some(leaseholder) = self
            .leaseholders
            .get_mut(&number)
            .filter(|leaseholder| leaseholder.in_doubt_until != 0)
        else {
            return;
        };
        if report.iter().all(|report| report.settled && !report.busy) {
            leaseholder.in_doubt_until = 0;
            if let Some(leaseholder) = self.leaseholders.get(&number) {
                self.due.extend(self.neighbours(leaseholder));
            }
        }
    }

    /// Whether a process on the slice's devices may still run by an earlier agent's lease.
    fn doubtful(&self, number: u64, now: Nanos) -> bool {
        if self.doubts_end_at == Nanos::MAX {
            return false;
        }
        let Some(leaseholder) = self.leaseholders.get(&number) else {
            return false;
        };
        self.neighbours(leaseholder)
            .iter()
            .filter_map(|neighbour| self.leaseholders.get(neighbour))
            .any(|neighbour| neighbour.in_doubt_until > now)
    }

    /// Brings the charge up to date, and records it.
    pub fn take_samples(&mut self, now: Nanos) {
        let leaseholders: Vec<Event> = self
            .leaseholders
            .iter()
            .filter(|(_, leaseholder)| leaseholder.holds())
            .flat_map(|(number, leaseholder)| leaseholder.accounts.iter().map(|account| (*number, account)))
            .map(|(number, account)| Event::Report {
                tenant: TenantId(number),
                device: account.device,
                busy: account.busy_ns,
                kernel: account.kernel_ns,
                in_flight: account.in_flight_ns,
            })
            .collect();
        for report in leaseholders {
            self.tell(now, &report);
        }
        for (number, leaseholder) in self
            .leaseholders
            .iter_mut()
            .filter(|(_, leaseholder)| !leaseholder.lone)
        {
            let queued = leaseholder.queued(now);
            for account in &mut leaseholder.accounts {
                let view = self.arbiter.view(TenantId(*number), account.device);
                let charged = view.map_or(0, |view| u64::try_from(view.charged).unwrap_or(u64::MAX));
                account.figures.take(now, charged, queued);
            }
        }
        self.look_at_due(now);
    }

    /// Shows tenants that the agent is there.
    pub fn beat(&self) {
        for account in self
            .leaseholders
            .values()
            .flat_map(|leaseholder| &leaseholder.accounts)
        {
            account.grant().beat();
        }
    }

    /// Tells the arbiter the cost of a change of holder where slices page their memory to and fro.
    pub fn note_thrash(&mut self, now: Nanos) {
        for device in 0..self.devices.len() {
            let device = DeviceId(device as u32);
            let refill = self
                .leaseholders
                .values()
                .flat_map(|leaseholder| {
                    leaseholder
                        .accounts
                        .iter()
                        .filter(|account| account.device == device)
                })
                .map(super::thrash::refill)
                .max()
                .unwrap_or(0);
            let before = self.refill.get(&device.0).copied().unwrap_or(0);
            // Spilled memory comes and goes by pages, so a change of a tenth is ignored.
            if refill.abs_diff(before) <= before / 10 {
                continue;
            }
            self.refill.insert(device.0, refill);
            self.tell(now, &Event::Thrash { device, refill });
            if (before == 0) != (refill == 0) {
                let (kind, message) = match refill {
                    0 => (
                        EventKind::Settled,
                        String::from("no slice pages its memory to and fro any more"),
                    ),
                    _ => (
                        EventKind::Thrashing,
                        format!(
                            "slices page their memory to and fro: a change of holder costs about {} ms, and leases are longer",
                            refill.div_ceil(MILLISECOND)
                        ),
                    ),
                };
                self.incidents.push(crate::journal::Incident {
                    owner: None,
                    kind,
                    slice: None,
                    device: self.devices.get(device.0 as usize).cloned(),
                    run: None,
                    message,
                });
            }
        }
    }
}

impl Report {
    fn is_idle(&self) -> bool {
        !self.busy && self.counted
    }
}

/// The devices on which a lease's end was waited for, and has come.
fn drained(leaseholder: &mut Leaseholder, report: &[Report]) -> Vec<DeviceId> {
    let mut drained = Vec::new();
    for (account, report) in leaseholder.accounts.iter_mut().zip(report) {
        if matches!(account.hold, Hold::Ending { .. }) && report.settled && !report.busy {
            account.hold = Hold::Nothing;
            drained.push(account.device);
        }
    }
    drained
}

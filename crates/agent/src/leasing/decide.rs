//! Writes the arbiter's decisions into the slices' grants, and does what is due by the clock.

use divvy_arbiter::{Decision, DeviceId, Event, MILLISECOND, Nanos, TenantId};
use divvy_ledger::Lease;

use super::account::{Account, Hold};
use super::state::State;
use crate::api::events::EventKind;

impl State {
    /// Carries out the arbiter's decisions.
    pub fn carry_out(&mut self, decision: Decision, now: Nanos) {
        match decision {
            Decision::Grant {
                tenant,
                device,
                epoch,
                until,
                in_flight,
            } => self.grant(tenant, device, epoch, until, in_flight, now),
            Decision::Revoke {
                tenant,
                device,
                epoch,
            } => {
                if let Some(account) = self.account(tenant, device)
                    && matches!(account.hold, Hold::Leased { epoch: held, .. } if held == epoch)
                {
                    account.end(now);
                    self.due.push(tenant.0);
                }
            }
            Decision::Overdue {
                tenant,
                device,
                ended,
                ..
            } => self.overdue(tenant, device, now.saturating_sub(ended)),
            Decision::Expire { tenant, device, .. } => self.expired(tenant, device),
        }
    }

    fn grant(
        &mut self,
        tenant: TenantId,
        device: DeviceId,
        epoch: u64,
        until: Nanos,
        in_flight: Nanos,
        now: Nanos,
    ) {
        let base = self.epoch_base;
        let Some(leaseholder) = self
            .leaseholders
            .get_mut(&tenant.0)
            .filter(|leaseholder| !leaseholder.lone)
        else {
            return;
        };
        let Some(place) = leaseholder
            .accounts
            .iter()
            .position(|account| account.device == device)
        else {
            return;
        };
        let account = &mut leaseholder.accounts[place];
        let known = match account.hold {
            // After a jump of the clock the lease may have time left again.
            Hold::Ending { epoch: held, .. } if held == epoch && until <= now => return,
            Hold::Leased { epoch: held, .. } | Hold::Ending { epoch: held, .. } => held == epoch,
            Hold::Nothing => false,
        };
        let lease = Lease {
            epoch: base.saturating_add(epoch),
            until_ns: until,
            in_flight_ns: in_flight,
        };
        account.lease(epoch, lease);
        if !known {
            if place == 0 {
                leaseholder.leases += 1;
            }
            leaseholder.stop_asking(now);
        }
    }

    fn account(&mut self, tenant: TenantId, device: DeviceId) -> Option<&mut Account> {
        let leaseholder = self
            .leaseholders
            .get_mut(&tenant.0)
            .filter(|leaseholder| !leaseholder.lone)?;
        leaseholder
            .accounts
            .iter_mut()
            .find(|account| account.device == device)
    }

    fn overdue(&mut self, tenant: TenantId, device: DeviceId, over: Nanos) {
        let Some(leaseholder) = self.leaseholders.get_mut(&tenant.0) else {
            return;
        };
        leaseholder.overdue = true;
        leaseholder.overdue_total += 1;
        self.overdue_total += 1;
        let message = format!(
            "its work is in flight {} ms after its lease has ended, and others wait for it",
            over / MILLISECOND
        );
        self.note(tenant.0, Some(device), EventKind::Overdue, message);
    }

    fn expired(&mut self, tenant: TenantId, device: DeviceId) {
        let Some(leaseholder) = self.leaseholders.get_mut(&tenant.0) else {
            return;
        };
        leaseholder.overdue = true;
        leaseholder.expired_total += 1;
        self.expired_total += 1;
        let stopped = leaseholder
            .accounts
            .iter()
            .find(|account| account.device == device);
        let stopped = stopped.and_then(|account| {
            let mut pids = account.host_pids_in_flight();
            pids.find(|pid| (self.is_stopped)(*pid))
        });
        let why = match stopped {
            Some(pid) => {
                format!("its process {pid} is stopped, with work in flight until SIGCONT lets it go on")
            }
            None => String::from("its work outlasts its lease"),
        };
        let message = format!("{why}: the device goes to others, and it pays on until nothing is in flight");
        self.note(tenant.0, Some(device), EventKind::Expired, message);
    }

    /// Does what is due by `now`: ends of leases, the arbiter's own timers, the end of doubts.
    pub fn tick(&mut self, now: Nanos) {
        // A lease that goes on is renewed before it is closed.
        if self.arbiter.deadline().is_some_and(|deadline| deadline <= now) {
            self.tell(now, &Event::Time);
        }
        let mut over = Vec::new();
        for (number, leaseholder) in &mut self.leaseholders {
            for account in &mut leaseholder.accounts {
                if matches!(account.hold, Hold::Leased { until, .. } if until <= now.saturating_add(self.early))
                {
                    account.end(now);
                    over.push(*number);
                }
                account.reap_if_due(now);
            }
        }
        if self.doubts_end_at <= now {
            // The slices in doubt have had their time.
            self.doubts_end_at = Nanos::MAX;
            over.extend(self.leaseholders.keys());
        }
        self.due.extend(over);
        self.look_at_due(now);
        if self.arbiter.deadline().is_some_and(|deadline| deadline <= now) {
            self.tell(now, &Event::Time);
            self.look_at_due(now);
        }
    }

    /// When to call [`State::tick`] next.
    pub fn deadline(&self) -> Option<Nanos> {
        let accounts = self
            .leaseholders
            .values()
            .flat_map(|leaseholder| &leaseholder.accounts);
        let ends = accounts.map(|account| match account.hold {
            Hold::Leased { until, .. } => until.saturating_sub(self.early),
            Hold::Ending { reap_at, .. } if account.listener.is_some() => reap_at,
            Hold::Ending { .. } | Hold::Nothing => Nanos::MAX,
        });
        ends.chain(self.arbiter.deadline())
            .chain([self.doubts_end_at])
            .min()
            .filter(|at| *at != Nanos::MAX)
    }
}

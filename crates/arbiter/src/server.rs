//! A constant-bandwidth server: a latency-critical tenant's budget in each period (Abeni and Buttazzo, 1998).

use crate::Nanos;
use crate::terms::Share;

/// Budget, and the deadline by which it is meant to be used up. Servers run earliest deadline first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    share: Share,
    period: Nanos,
    /// Nanoseconds left until `deadline`; below zero is debt, taken from the next budget.
    budget: i128,
    deadline: Nanos,
}

impl Server {
    pub fn new(share: Share, period: Nanos, now: Nanos) -> Self {
        let period = period.max(crate::MILLISECOND);
        Self {
            share,
            period,
            budget: i128::from(share.of(period)),
            deadline: now.saturating_add(period),
        }
    }

    fn full(&self) -> i128 {
        i128::from(self.share.of(self.period)).max(1)
    }

    /// Starts the periods that have begun by `now`.
    pub fn replenish(&mut self, now: Nanos) {
        if now < self.deadline {
            return;
        }
        let periods = (now - self.deadline) / self.period + 1;
        self.deadline = self.deadline.saturating_add(periods.saturating_mul(self.period));
        let earned = self.full().saturating_mul(i128::from(periods));
        self.budget = self.budget.saturating_add(earned).min(self.full());
    }

    /// The server's tenant wants to run after it did not. The rest of the old budget may be used by the old deadline
    /// only if that is no more than its bandwidth; otherwise a new period begins.
    pub fn wake(&mut self, now: Nanos) {
        self.replenish(now);
        let left = i128::from(self.deadline - now);
        let period = i128::from(self.period);
        if self.budget >= 0 && self.budget.saturating_mul(period) >= left.saturating_mul(self.full()) {
            self.budget = self.full();
            self.deadline = now.saturating_add(self.period);
        }
    }

    pub fn spend(&mut self, run: Nanos, devices: usize) {
        // Rounded up: many small charges must not cost less than one large one.
        self.budget = self
            .budget
            .saturating_sub(i128::from(run.div_ceil(devices.max(1) as u64)));
    }

    /// Nanoseconds that may still run before every best-effort tenant.
    pub fn budget(&self) -> Nanos {
        self.budget.max(0).try_into().unwrap_or(Nanos::MAX)
    }

    pub fn debt(&self) -> Nanos {
        (-self.budget).max(0).try_into().unwrap_or(Nanos::MAX)
    }

    /// What is missing to a full budget, of a debt at most `most`.
    pub fn spent(&self, most: Nanos) -> Nanos {
        let spent = (self.full() - self.budget).max(0);
        let most = self.full().saturating_add(i128::from(most));
        spent.min(most).try_into().unwrap_or(Nanos::MAX)
    }

    /// Gives back what was spent; the budget does not pass a full one.
    pub fn give_back(&mut self, run: Nanos) {
        let full = self.full().max(self.budget);
        self.budget = self.budget.saturating_add(i128::from(run)).min(full);
    }

    pub fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// Other terms from now on; what was spent in this period stays spent.
    pub fn resize(&mut self, share: Share, period: Nanos) {
        let spent = self.full() - self.budget;
        self.share = share;
        self.period = period.max(crate::MILLISECOND);
        self.budget = self.full() - spent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;

    fn server() -> Server {
        Server::new(Share::new(2500).expect("a quarter"), 100 * MILLISECOND, 0)
    }

    #[test]
    fn the_budget_is_the_share_of_a_period_and_debt_comes_off_the_next() {
        let mut server = server();
        assert_eq!(server.budget(), 25 * MILLISECOND);
        server.spend(30 * MILLISECOND, 1);
        assert_eq!((server.budget(), server.debt()), (0, 5 * MILLISECOND));
        server.wake(60 * MILLISECOND);
        assert_eq!(server.budget(), 0, "waking is no way to new budget");
        server.replenish(100 * MILLISECOND);
        assert_eq!(server.budget(), 20 * MILLISECOND);
        assert_eq!(server.deadline(), 200 * MILLISECOND);
    }

    #[test]
    fn one_that_slept_long_starts_a_period_with_a_full_budget_and_no_more() {
        let mut server = server();
        server.spend(24 * MILLISECOND, 1);
        server.wake(12_345 * MILLISECOND);
        assert_eq!(server.budget(), 25 * MILLISECOND);
        assert_eq!(server.deadline(), 12_445 * MILLISECOND);
    }

    #[test]
    fn in_no_two_periods_does_it_run_more_than_three_budgets() {
        // The known bound: a full budget late in one period, then full ones.
        let (mut server, mut now, mut ran) = (server(), 0, 0);
        server.spend(MILLISECOND, 1);
        for _ in 0..200 {
            server.wake(now);
            if server.budget() > 0 {
                server.spend(MILLISECOND, 1);
                ran += 1;
            }
            now += MILLISECOND;
        }
        assert!(ran <= 75, "{ran} ms of 200");
    }

    #[test]
    fn what_was_spent_stays_spent_under_other_terms() {
        let mut server = server();
        server.spend(10 * MILLISECOND, 1);
        server.resize(Share::new(5000).expect("a half"), 100 * MILLISECOND);
        assert_eq!(server.budget(), 40 * MILLISECOND);
        server.resize(Share::new(1000).expect("a tenth"), 50 * MILLISECOND);
        assert_eq!((server.budget(), server.debt()), (0, 5 * MILLISECOND));
    }
}

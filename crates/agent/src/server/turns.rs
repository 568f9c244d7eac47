//! Requests in flight. Each may wait for a page server or a driver, in a thread. So each account has a few turns at once,
//! and all foreign users share a total. Root and the agent's own user have turns that no other can take.
//!
//! A foreign user's requests also have a rate limit: faster ones are served later, not refused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use divvy_model::{Code, Fault};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::accounts::Accounts;

/// How many requests of one foreign user are worked on at once.
const PER_USER: usize = 2;
/// How many of all foreign users.
const FOREIGN: usize = 16;
/// How many of root, and how many of the agent's own user.
const TRUSTED: usize = 24;
/// The number of threads that all of these may need at once.
pub(super) const THREADS: usize = FOREIGN + 2 * TRUSTED;

/// How long a request waits for its turn.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The time between two requests of a foreign user that never stops asking: 200 a second.
const INTERVAL: Duration = Duration::from_millis(5);
/// How far it may run ahead of that rate.
const AHEAD: Duration = Duration::from_secs(1);

/// The number of users that are remembered before idle ones are forgotten.
const REMEMBERED: usize = 1024;

/// Hands out turns.
#[derive(Debug)]
pub(super) struct Turns {
    agent: u32,
    accounts: Arc<Accounts>,
    /// By account; root and the agent's own user apart from others of their account.
    users: Mutex<HashMap<(u32, bool), User>>,
    foreign: Arc<Semaphore>,
}

#[derive(Debug)]
struct User {
    turns: Arc<Semaphore>,
    /// The time at which the next request is due at a steady rate.
    due: Instant,
}

/// The right to work on a request, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _own: OwnedSemaphorePermit,
    _foreign: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Turns of the agent of user `agent`.
    pub fn new(agent: u32, accounts: Arc<Accounts>) -> Self {
        Self {
            agent,
            accounts,
            users: Mutex::default(),
            foreign: Arc::new(Semaphore::new(FOREIGN)),
        }
    }

    /// Waits as long as user `uid`'s rate limit requires.
    pub async fn pace(&self, uid: u32) {
        if self.trusts(uid) {
            return;
        }
        let now = Instant::now();
        let due = {
            let mut users = self.users();
            let user = self.user(&mut users, uid, now);
            user.due = user.due.max(now.checked_sub(AHEAD).unwrap_or(now));
            let due = user.due;
            user.due += INTERVAL;
            due
        };
        let wait = due.saturating_duration_since(now);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Waits for a turn of user `uid`.
    ///
    /// # Errors
    /// [`Code::Busy`] when none came free in time.
    pub async fn take(&self, uid: u32) -> Result<Turn, Fault> {
        self.take_within(uid, TIMEOUT).await
    }

    async fn take_within(&self, uid: u32, timeout: Duration) -> Result<Turn, Fault> {
        let own = {
            let mut users = self.users();
            self.user(&mut users, uid, Instant::now()).turns.clone()
        };
        let taken = tokio::time::timeout(timeout, async {
            let own = own.acquire_owned().await.ok()?;
            let foreign = match self.trusts(uid) {
                true => None,
                false => Some(self.foreign.clone().acquire_owned().await.ok()?),
            };
            Some(Turn {
                _own: own,
                _foreign: foreign,
            })
        });
        match taken.await {
            Ok(Some(turn)) => Ok(turn),
            _ => Err(
                Fault::new(Code::Busy, "the agent works on other requests of this user").hint(
                    "a slice whose `divvy run` does not answer keeps it waiting; try again in a moment",
                ),
            ),
        }
    }

    fn user<'users>(
        &self,
        users: &'users mut HashMap<(u32, bool), User>,
        uid: u32,
        now: Instant,
    ) -> &'users mut User {
        let of = (self.accounts.one(uid), self.trusts(uid));
        if users.len() >= REMEMBERED && !users.contains_key(&of) {
            users.retain(|_, user| Arc::strong_count(&user.turns) > 1 || user.due > now);
        }
        let turns = if self.trusts(uid) { TRUSTED } else { PER_USER };
        users.entry(of).or_insert_with(|| User {
            turns: Arc::new(Semaphore::new(turns)),
            due: now.checked_sub(AHEAD).unwrap_or(now),
        })
    }

    fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == self.agent
    }

    fn users(&self) -> MutexGuard<'_, HashMap<(u32, bool), User>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: u32 = 500;
    const SOON: Duration = Duration::from_millis(20);

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a loop").block_on(work)
    }

    async fn take(turns: &Turns, uid: u32, count: usize) -> Vec<Turn> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Ok(turn) = turns.take_within(uid, SOON).await
        {
            taken.push(turn);
        }
        taken
    }

    #[test]
    fn two_at_once_of_a_user_and_always_room_for_root() {
        block_on(async {
            let turns = Turns::new(AGENT, Arc::default());
            let stuck = take(&turns, 1000, 200).await;
            assert_eq!(stuck.len(), PER_USER);
            let refusal = turns
                .take_within(1000, SOON)
                .await
                .expect_err("two are in flight");
            assert_eq!(refusal.code, Code::Busy);
            assert_eq!(
                take(&turns, 1001, 200).await.len(),
                PER_USER,
                "another's are free"
            );
            let mut others = Vec::new();
            for uid in 2000..2020 {
                others.extend(take(&turns, uid, 2).await);
            }
            assert_eq!(others.len() + stuck.len(), FOREIGN);
            assert_eq!(take(&turns, 0, 200).await.len(), TRUSTED);
            assert_eq!(take(&turns, AGENT, 200).await.len(), TRUSTED);
            drop(stuck);
            assert_eq!(take(&turns, 1000, 200).await.len(), PER_USER);
        });
    }

    #[test]
    fn who_asks_without_end_is_served_at_a_pace_and_others_at_once() {
        block_on(async {
            tokio::time::timeout(Duration::from_secs(60), async {
                let turns = Turns::new(AGENT, Arc::default());
                let begin = Instant::now();
                let ahead = AHEAD.as_millis() / INTERVAL.as_millis();
                for _ in 0..ahead {
                    turns.pace(1000).await;
                }
                assert!(begin.elapsed() < AHEAD, "a burst is served at once");
                let begin = Instant::now();
                for _ in 0..60 {
                    turns.pace(1000).await;
                }
                assert!(begin.elapsed() >= 40 * INTERVAL, "{:?}", begin.elapsed());
                let due = |uid: u32| turns.users()[&(uid, false)].due;
                turns.pace(1001).await;
                assert!(due(1001) < Instant::now());
                for _ in 0..10 * ahead {
                    turns.pace(AGENT).await;
                }
                assert!(
                    !turns.users().contains_key(&(AGENT, true)),
                    "its own user has no pace"
                );
            })
            .await
            .expect("in time");
        });
    }

    #[test]
    fn users_that_ask_nothing_are_forgotten() {
        block_on(async {
            let turns = Turns::new(AGENT, Arc::default());
            let held = turns.take(1).await.expect("a turn");
            for uid in 2..=REMEMBERED as u32 + 10 {
                drop(turns.take(uid).await.expect("a turn"));
            }
            let users = turns.users();
            assert!(
                users.len() < REMEMBERED && users.contains_key(&(1, false)),
                "{}",
                users.len()
            );
            drop(held);
        });
    }
}

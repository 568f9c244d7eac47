//! What each client's slices hold together, against what the client was invited to.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use divvy_model::{Bytes, Code, Compute, Fault, MemoryAmount};
use divvy_tunnel::Allowance;

/// The slices' amounts by their clients' names.
#[derive(Default)]
pub struct Accounts {
    held: Mutex<HashMap<String, Held>>,
    given_back: Condvar,
}

/// Of all slices of a client: bytes of memory, and parts per 10 000 of a device's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    slices: u32,
    memory: u64,
    compute: u64,
}

/// What a slice is to have. Where a member is not there, the client gets what any `divvy run` gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amounts {
    pub memory: Option<MemoryAmount>,
    pub compute: Option<Compute>,
}

/// Which amounts a client named itself. The others are the server's most for one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    pub memory: bool,
    pub compute: bool,
}

/// A slice's part of its client's amounts. It is given back when this is dropped.
pub struct Charge {
    accounts: Arc<Accounts>,
    client: String,
    memory: u64,
    compute: u64,
}

impl Accounts {
    fn held(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges a slice to its client, and gives what it is to have. A client that names no amount gets what is left, and
    /// no more than the server gives one slice.
    ///
    /// # Errors
    /// [`Code::RemoteAllowance`] where less is left, or where the amount is no number of bytes.
    pub fn charge(
        self: &Arc<Self>,
        client: &str,
        allowance: &Allowance,
        asked: Amounts,
        named: Named,
    ) -> Result<(Charge, Amounts), Fault> {
        let mut all = self.held();
        let held = all.get(client).copied().unwrap_or_default();
        let bytes = match asked.memory {
            Some(MemoryAmount::Share(_)) if allowance.memory.is_some() => return Err(not_comparable()),
            Some(MemoryAmount::Bytes(Bytes(asked))) => Some(asked),
            _ => None,
        };
        let memory = allowance
            .memory
            .map(|Bytes(most)| part(bytes, named.memory, most, held.memory, memory_text))
            .transpose()?;
        let parts = asked.compute.map(|Compute(parts)| parts.into());
        let compute = allowance
            .compute
            .map(|Compute(most)| part(parts, named.compute, most.into(), held.compute, compute_text))
            .transpose()?;
        let charge = Charge {
            accounts: Arc::clone(self),
            client: client.to_owned(),
            memory: memory.unwrap_or(0),
            compute: compute.unwrap_or(0),
        };
        all.insert(
            client.to_owned(),
            Held {
                slices: held.slices + 1,
                memory: held.memory + charge.memory,
                compute: held.compute + charge.compute,
            },
        );
        drop(all);
        // A part of a u16 is one.
        let compute = compute.and_then(|parts| u16::try_from(parts).ok()).map(Compute);
        let granted = Amounts {
            memory: memory
                .map(|bytes| MemoryAmount::Bytes(Bytes(bytes)))
                .or(asked.memory),
            compute: compute.or(asked.compute),
        };
        Ok((charge, granted))
    }

    /// Waits until a slice may have given something back, for `limit` at most.
    pub fn wait(&self, limit: Duration) {
        let held = self.held();
        let woken = self.given_back.wait_timeout(held, limit);
        drop(woken.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut all = self.accounts.held();
        if let Some(held) = all.get_mut(&self.client) {
            held.slices -= 1;
            held.memory -= self.memory;
            held.compute -= self.compute;
            if held.slices == 0 {
                all.remove(&self.client);
            }
        }
        drop(all);
        self.accounts.given_back.notify_all();
    }
}

/// What a slice gets of `most`, of which the client's other slices hold a part. More than `most` is asked for as `most` is.
fn part(
    asked: Option<u64>,
    is_named: bool,
    most: u64,
    held: u64,
    text: fn(u64) -> String,
) -> Result<u64, Fault> {
    let left = most.saturating_sub(held);
    let wanted = asked.map_or(left, |asked| asked.min(if is_named { most } else { left }));
    if wanted > left || wanted == 0 {
        let message = format!(
            "this host's runs hold {} of the {} that it was invited to",
            text(held),
            text(most)
        );
        let hint = match left {
            0 => "end another run, or wait for it with `--wait`".to_owned(),
            left => format!(
                "ask for {} at most, end another run, or wait with `--wait`",
                text(left)
            ),
        };
        return Err(Fault::new(Code::RemoteAllowance, message).hint(hint));
    }
    Ok(wanted)
}

fn memory_text(bytes: u64) -> String {
    format!("{} of memory", Bytes(bytes))
}

fn compute_text(parts: u64) -> String {
    // An account may hold more than an allowance that was made smaller later.
    format!("{}.{:02}% of compute", parts / 100, parts % 100)
}

fn not_comparable() -> Fault {
    Fault::new(
        Code::RemoteAllowance,
        "this host was invited to so many bytes of memory, and a share of a device cannot be counted in bytes",
    )
    .hint("name the run's memory in bytes: `--memory 2GiB`. A server whose own --memory is a share needs bytes, too")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn amounts(memory: &str, compute: &str) -> Amounts {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Amounts {
            memory: some(memory).map(|text| text.parse().expect("an amount")),
            compute: some(compute).map(|text| text.parse().expect("a share")),
        }
    }

    fn named(asked: Amounts) -> Named {
        Named {
            memory: asked.memory.is_some(),
            compute: asked.compute.is_some(),
        }
    }

    fn allowance() -> Allowance {
        Allowance {
            memory: Some(Bytes(4 * GIB)),
            compute: Some(Compute(5000)),
        }
    }

    fn refused(accounts: &Arc<Accounts>, asked: Amounts) -> bool {
        match accounts.charge("laptop", &allowance(), asked, named(asked)) {
            Ok(_) => false,
            Err(fault) => {
                assert_eq!(fault.code, Code::RemoteAllowance);
                true
            }
        }
    }

    #[test]
    fn a_clients_slices_have_no_more_than_its_invitation_together() {
        let accounts = Arc::new(Accounts::default());
        let charge = |client, asked| accounts.charge(client, &allowance(), asked, named(asked));
        let (first, granted) = charge("laptop", amounts("3GiB", "30%")).expect("there is room");
        assert_eq!(granted, amounts("3GiB", "30%"));
        assert!(refused(&accounts, amounts("2GiB", "10%")), "5 GiB of 4");
        assert!(refused(&accounts, amounts("1GiB", "30%")), "60% of 50%");
        // Another client has its own.
        let (other, granted) = charge("tower", amounts("40GiB", "100%")).expect("there is room");
        assert_eq!(granted, amounts("4GiB", "50%"), "no more than its invitation");
        let server = amounts("512MiB", "100%");
        let unnamed = named(amounts("", ""));
        let (small, granted) = accounts
            .charge("laptop", &allowance(), server, unnamed)
            .expect("there is room");
        assert_eq!(
            granted,
            amounts("512MiB", "20%"),
            "no more than the server gives one"
        );
        drop(small);
        let (rest, granted) = charge("laptop", amounts("", "")).expect("there is room");
        assert_eq!(granted, amounts("1GiB", "20%"), "all that is left");
        assert!(refused(&accounts, amounts("", "")));
        drop(first);
        assert!(!refused(&accounts, amounts("3GiB", "30%")));
        drop((other, rest));
        assert!(accounts.held().is_empty());
    }

    #[test]
    fn without_an_allowance_a_client_gets_what_it_asks_for_and_shares_are_not_counted_in_bytes() {
        let accounts = Arc::new(Accounts::default());
        for asked in [amounts("", ""), amounts("50%", "30%"), amounts("2GiB", "")] {
            let charged = accounts.charge("laptop", &Allowance::default(), asked, named(asked));
            assert_eq!(charged.expect("no bound").1, asked);
        }
        assert!(refused(&accounts, amounts("50%", "")));
        let smaller = Allowance {
            memory: Some(Bytes(GIB)),
            compute: None,
        };
        let all = amounts("4GiB", "");
        let (_kept, _) = accounts
            .charge("laptop", &allowance(), all, named(all))
            .expect("room");
        // It was invited again, to less than it holds.
        let little = amounts("1MiB", "");
        assert!(
            accounts
                .charge("laptop", &smaller, little, named(little))
                .is_err()
        );
    }
}

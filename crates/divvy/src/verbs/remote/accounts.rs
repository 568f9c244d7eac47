//! What each client's slices hold together, against what the client was invited to.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use divvy_model::{Bytes, Code, Compute, Fault, MemoryAmount};
use divvy_tunnel::{Allowance, Shares};

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
    /// no more than the server gives one slice or the device has. A slice is charged without a bound as well: its client
    /// may be invited again, to so much.
    ///
    /// `device` is the memory of the device that the slice gets, or of the largest one.
    ///
    /// # Errors
    /// [`Code::RemoteAllowance`] where less is left, or where the amount is no number of bytes.
    pub fn charge(
        self: &Arc<Self>,
        client: &str,
        allowance: &Allowance,
        asked: Amounts,
        named: Named,
        device: Bytes,
    ) -> Result<(Charge, Amounts), Fault> {
        let mut all = self.held();
        let held = all.get(client).copied().unwrap_or_default();
        // Without a word a slice has the whole device.
        let Bytes(bytes) = asked.memory.map_or(device, |asked| asked.on_device_of(device));
        let memory = match allowance.memory {
            Some(_) if matches!(asked.memory, Some(MemoryAmount::Share(_))) => return Err(not_comparable()),
            Some(Bytes(most)) => Some(part(&MEMORY, bytes, named.memory, most, held.memory)?),
            None => None,
        };
        let parts = asked.compute.map(|Compute(parts)| u64::from(parts));
        let compute = match allowance.compute {
            Some(Shares(most)) => {
                let parts = parts.unwrap_or(WHOLE);
                Some(part(&COMPUTE, parts, named.compute, most.into(), held.compute)?)
            }
            None => None,
        };
        let charge = Charge {
            accounts: Arc::clone(self),
            client: client.to_owned(),
            memory: memory.unwrap_or(bytes),
            compute: compute.or(parts).unwrap_or(WHOLE),
        };
        all.insert(
            client.to_owned(),
            Held {
                slices: held.slices + 1,
                memory: held.memory.saturating_add(charge.memory),
                compute: held.compute.saturating_add(charge.compute),
            },
        );
        drop(all);
        // No part is more than a whole device.
        let compute = compute.and_then(|parts| u16::try_from(parts).ok()).map(Compute);
        let is_whole = asked.memory.is_none() && memory == Some(device.0);
        let granted = Amounts {
            memory: memory
                .filter(|_| !is_whole)
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

/// A whole device's time, in parts.
const WHOLE: u64 = 10_000;

/// A kind of amount.
struct Sort {
    /// An amount that is not named is no smaller: no program starts with less.
    least: u64,
    text: fn(u64) -> String,
}

const MEMORY: Sort = Sort {
    least: 64 << 20,
    text: |bytes| format!("{} of memory", Bytes(bytes)),
};

const COMPUTE: Sort = Sort {
    least: 100,
    // An account may hold more than an allowance that was made smaller later.
    text: |parts| format!("{}.{:02}% of compute", parts / 100, parts % 100),
};

/// What a slice gets of `most`, of which the client's other slices hold a part. More than `most` is asked for as `most` is.
fn part(sort: &Sort, asked: u64, is_named: bool, most: u64, held: u64) -> Result<u64, Fault> {
    let left = most.saturating_sub(held);
    let wanted = asked.min(if is_named { most } else { left });
    let is_little = !is_named && wanted < sort.least.min(asked);
    if wanted > left || wanted == 0 || is_little {
        let text = sort.text;
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
    const DEVICE: Bytes = Bytes(80 * GIB);

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
            compute: Some(Shares(5000)),
        }
    }

    fn refused(accounts: &Arc<Accounts>, asked: Amounts) -> bool {
        match accounts.charge("laptop", &allowance(), asked, named(asked), DEVICE) {
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
        let charge = |client, asked| accounts.charge(client, &allowance(), asked, named(asked), DEVICE);
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
            .charge("laptop", &allowance(), server, unnamed, DEVICE)
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
            let charged = accounts.charge("laptop", &Allowance::default(), asked, named(asked), DEVICE);
            assert_eq!(charged.expect("no bound").1, asked);
        }
        assert!(refused(&accounts, amounts("50%", "")));
        let smaller = Allowance {
            memory: Some(Bytes(GIB)),
            compute: None,
        };
        let all = amounts("4GiB", "");
        let (_kept, _) = accounts
            .charge("laptop", &allowance(), all, named(all), DEVICE)
            .expect("room");
        // It was invited again, to less than it holds.
        let little = amounts("1MiB", "");
        assert!(
            accounts
                .charge("laptop", &smaller, little, named(little), DEVICE)
                .is_err()
        );
    }

    #[test]
    fn a_run_that_names_no_memory_gets_no_more_than_a_device_has_and_no_crumb() {
        let accounts = Arc::new(Accounts::default());
        let none = amounts("", "");
        let much = Allowance {
            memory: Some(Bytes(200 * GIB)),
            compute: Some(Shares(25_000)),
        };
        let charge = |asked| accounts.charge("laptop", &much, asked, named(asked), DEVICE);
        let (first, granted) = charge(none).expect("room");
        assert_eq!(
            granted,
            amounts("", "100%"),
            "a whole device, as without an invitation's bound"
        );
        let (second, _) = charge(none).expect("room");
        let (third, granted) = charge(none).expect("room");
        assert_eq!(
            granted,
            amounts("40GiB", "50%"),
            "what is left of 200 GiB and 250%"
        );
        assert_eq!(
            charge(none).err().map(|fault| fault.code),
            Some(Code::RemoteAllowance)
        );
        drop(third);
        let most = amounts("40959MiB", "10%");
        let (rest, _) = charge(most).expect("room");
        let fault = charge(none).err().expect("1 MiB is no slice");
        assert!(fault.hint.is_some_and(|hint| hint.contains("1 MiB")));
        let named = amounts("1MiB", "1%");
        assert!(charge(named).is_ok(), "it was asked for");
        drop((first, second, rest));
        assert!(accounts.held().is_empty());
    }

    #[test]
    fn what_runs_when_a_host_is_invited_again_counts() {
        let accounts = Arc::new(Accounts::default());
        let free = Allowance::default();
        for (asked, memory) in [("3GiB", 3 * GIB), ("50%", 40 * GIB), ("", 80 * GIB)] {
            let asked = amounts(asked, "");
            let (running, granted) = accounts
                .charge("laptop", &free, asked, named(asked), DEVICE)
                .expect("no bound");
            assert_eq!(granted, asked);
            let more = amounts("2GiB", "10%");
            let bound = |memory: u64, compute| Allowance {
                memory: Some(Bytes(memory)),
                compute: Some(Shares(compute)),
            };
            let charge = |allowance| accounts.charge("laptop", &allowance, more, named(more), DEVICE);
            assert!(charge(bound(memory + GIB, 20_000)).is_err(), "1 GiB is left");
            assert!(charge(bound(memory + 2 * GIB, 10_999)).is_err(), "9.99% is left");
            assert!(charge(bound(memory + 2 * GIB, 11_000)).is_ok());
            drop(running);
        }
    }
}

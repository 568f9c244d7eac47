//! Connections that have shown no certificate that counts: each has a thread, for ten seconds. No host takes all of their places
//! from the others.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many at once.
const MOST: usize = 256;
/// So many of one host at once. The threads of a program may all begin together.
const MOST_OF_HOST: usize = 128;

/// How many there are, by their hosts.
#[derive(Debug, Default)]
pub(crate) struct Newcomers(Mutex<HashMap<IpAddr, usize>>);

impl Newcomers {
    /// A place for a connection from this address; none where its host, or all of them together, have as many as they may.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Option<Newcomer> {
        let host = host(address);
        let mut held = self.lock();
        let own = held.get(&host).copied().unwrap_or(0);
        if own >= MOST_OF_HOST || held.values().sum::<usize>() >= MOST {
            return None;
        }
        held.insert(host, own + 1);
        drop(held);
        Some(Newcomer {
            among: Arc::clone(self),
            host,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among them, until this is dropped.
#[derive(Debug)]
pub(crate) struct Newcomer {
    among: Arc<Newcomers>,
    host: IpAddr,
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let mut held = self.among.lock();
        if let Some(own) = held.get_mut(&self.host) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.host);
            }
        }
    }
}

/// What stands for a host: a network gives one host 2^64 addresses of IPv6.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_takes_a_part_of_the_places_and_gives_them_back() {
        let newcomers = Arc::default();
        let take = |address: &str| Newcomers::take(&newcomers, address.parse().expect("an address"));
        // Whatever addresses of its own it uses.
        let first: Vec<_> = (0..MOST_OF_HOST)
            .map(|at| take(&format!("2001:db8::{at:x}")).expect("a place"))
            .collect();
        assert!(take("2001:db8::ffff").is_none());
        assert!(take("2001:db8:0:1::1").is_some(), "another network");
        let second: Vec<_> = (0..MOST_OF_HOST).map_while(|_| take("192.0.2.1")).collect();
        assert_eq!(second.len(), MOST_OF_HOST);
        assert!(take("::ffff:192.0.2.1").is_none(), "the same one");
        assert!(take("192.0.2.2").is_none(), "all places are taken");
        drop(first);
        assert!(take("192.0.2.2").is_some());
        drop(second);
        assert!(newcomers.lock().is_empty());
    }
}

//! Random histories of memory that processes share: made, exported, imported, let go, and processes killed. After each
//! step the device counts once every allocation that any process has.

mod common;

use common::peer::{Peer, listen, say};
use common::{alone, code, cu, get, held_by, memory_info, role, start};
use divvy_abi::*;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsRawFd;

const PAGE: usize = 2 << 20;
const PEERS: usize = 3;
const STEPS: usize = 150;

/// SplitMix64: the same history for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % count as u64) as usize
    }
}

/// One of the processes: allocations by their number, each a handle and an exported descriptor.
fn peer() {
    start(0);
    let mut allocations: BTreeMap<usize, (CUmemGenericAllocationHandle, i32)> = BTreeMap::new();
    let posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    say("ready");
    while let Some(order) = listen() {
        let mut words = order.split(' ');
        let verb = words.next().unwrap();
        let number: usize = words.next().map_or(0, |word| word.parse().unwrap());
        match verb {
            "make" | "import" => {
                let handle = if verb == "make" {
                    let properties = CUmemAllocationProp {
                        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
                        requestedHandleTypes: posix,
                        location: CUmemLocation {
                            type_: CU_MEM_LOCATION_TYPE_DEVICE,
                            anonymous1: CUmemLocation_v1_anonymous1 { id: 0 },
                        },
                        ..CUmemAllocationProp::default()
                    };
                    get!(cuMemCreate(PAGE, &raw const properties, 0))
                } else {
                    let file = std::fs::File::options()
                        .read(true)
                        .write(true)
                        .open(words.next().unwrap());
                    let fd = file.unwrap();
                    get!(cuMemImportFromShareableHandle(
                        fd.as_raw_fd() as usize as *mut c_void,
                        posix
                    ))
                };
                let mut fd = -1i32;
                cu!(cuMemExportToShareableHandle(
                    (&raw mut fd).cast(),
                    handle,
                    posix,
                    0
                ));
                allocations.insert(number, (handle, fd));
                say(format_args!("/proc/{}/fd/{fd}", std::process::id()));
            }
            "release" => {
                let (handle, fd) = allocations.remove(&number).unwrap();
                // SAFETY: the descriptor that the export made.
                unsafe { libc::close(fd) };
                cu!(cuMemRelease(handle));
                say("released");
            }
            "settle" => say(memory_info().0),
            _ => unreachable!("{order}"),
        }
    }
}

#[test]
fn what_any_process_has_counts_once() {
    let test = "what_any_process_has_counts_once";
    if role().as_deref() == Some("peer") {
        return peer();
    }
    alone(test, &[], || {
        let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
        start(0);
        let (_, total) = memory_info();
        let begin = || {
            let mut peer = Peer::start(test, "peer", &directory, &[]);
            assert_eq!(peer.hear(), "ready");
            peer
        };
        let mut random = Random(0x5eed);
        let mut peers: Vec<Peer> = (0..PEERS).map(|_| begin()).collect();
        // Which process has which allocation, and where its descriptor is.
        let mut has: Vec<BTreeMap<usize, String>> = vec![BTreeMap::new(); PEERS];
        let mut made = 0;
        for step in 0..STEPS {
            let who = random.below(PEERS);
            match random.below(10) {
                0..=2 => {
                    let path = peers[who].ask(&format!("make {made}"));
                    has[who].insert(made, path);
                    made += 1;
                }
                3..=5 => {
                    let from = random.below(PEERS);
                    let missing: Vec<_> = has[from]
                        .iter()
                        .filter(|(number, _)| !has[who].contains_key(number))
                        .map(|(&number, path)| (number, path.clone()))
                        .collect();
                    if !missing.is_empty() {
                        let (number, path) = &missing[random.below(missing.len())];
                        let own = peers[who].ask(&format!("import {number} {path}"));
                        has[who].insert(*number, own);
                    }
                }
                6..=8 => {
                    let allocations: Vec<usize> = has[who].keys().copied().collect();
                    if !allocations.is_empty() {
                        let number = allocations[random.below(allocations.len())];
                        assert_eq!(peers[who].ask(&format!("release {number}")), "released");
                        has[who].remove(&number);
                    }
                }
                _ => {
                    peers[who].kill();
                    peers[who] = begin();
                    has[who].clear();
                }
            }
            let live: BTreeSet<usize> = has.iter().flat_map(BTreeMap::keys).copied().collect();
            let expected = total - live.len() * PAGE;
            assert_eq!(memory_info().0, expected, "step {step}: {has:?}");
            if step % 10 == 9 {
                for peer in &mut peers {
                    assert_eq!(peer.ask("settle"), expected.to_string(), "step {step}");
                }
                let paid: Vec<u64> = peers.iter().map(|peer| held_by(0, peer.pid()).0).collect();
                assert_eq!(
                    paid.iter().sum::<u64>(),
                    (live.len() * PAGE) as u64,
                    "{paid:?} {has:?}"
                );
                for (paid, has) in paid.iter().zip(&has) {
                    assert!(*paid <= (has.len() * PAGE) as u64, "only for what it has");
                }
            }
        }
        for mut peer in peers {
            peer.kill();
        }
        assert_eq!(memory_info().0, total);
    });
}

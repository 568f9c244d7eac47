//! Slots and ledgers against a model that a reader can check by eye: how much each process holds, and whether the next
//! request fits.

use divvy_ledger::accounting::UNIT;
use divvy_ledger::{Backing, Ledger, ReserveError, Slot, SlotOwner, open_file};
use proptest::prelude::*;

const LIMIT_MAX: u64 = 128 << 40;

fn claim(ledger: &Ledger) -> Slot {
    Slot::claim(
        ledger.share().expect("/proc"),
        Backing::Sealed,
        SlotOwner::default(),
    )
    .expect("a slot")
}

#[derive(Clone, Debug)]
enum Action {
    Reserve {
        process: usize,
        bytes: u64,
    },
    /// The oldest reservation of the process.
    Release {
        process: usize,
    },
    Limit {
        bytes: u64,
    },
    Die {
        process: usize,
    },
    Start,
    Reap,
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..5000_u64,
        2 => 1_u64 << 20..1 << 41,
        1 => Just(0_u64),
        1 => u64::MAX - 600..=u64::MAX,
        1 => LIMIT_MAX - 1024..LIMIT_MAX + 1024,
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (0..8_usize, sizes()).prop_map(|(process, bytes)| Action::Reserve { process, bytes }),
        4 => (0..8_usize).prop_map(|process| Action::Release { process }),
        2 => sizes().prop_map(|bytes| Action::Limit { bytes }),
        1 => (0..8_usize).prop_map(|process| Action::Die { process }),
        2 => Just(Action::Start),
        1 => Just(Action::Reap),
    ]
}

fn rounded(bytes: u64) -> u128 {
    u128::from(bytes).div_ceil(u128::from(UNIT)) * u128::from(UNIT)
}

#[derive(Default)]
struct Model {
    living: Vec<(Slot, Vec<u64>)>,
    dead: u128,
}

impl Model {
    fn total(&self) -> u128 {
        self.dead + self.living.iter().map(|(_, held)| held_by(held)).sum::<u128>()
    }
}

fn held_by(reservations: &[u64]) -> u128 {
    reservations.iter().map(|&bytes| rounded(bytes)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ledger_does_as_the_model_says(actions in proptest::collection::vec(action(), 1..80)) {
        let ledger = Ledger::create().expect("a ledger");
        let mut model = Model::default();
        let mut limit = 1 << 40;
        for action in actions {
            let count = model.living.len();
            match action {
                Action::Start => model.living.push((claim(&ledger), Vec::new())),
                Action::Limit { bytes } => limit = bytes,
                Action::Reap => {
                    prop_assert_eq!(u128::from(ledger.reap().expect("reap").bytes), model.dead);
                    model.dead = 0;
                }
                _ if count == 0 => {}
                Action::Reserve { process, bytes } => {
                    let total = model.total();
                    let room = u128::from(limit.min(LIMIT_MAX - UNIT) / UNIT * UNIT);
                    let (slot, held) = &mut model.living[process % count];
                    let outcome = slot.reserve(bytes, limit);
                    if bytes == 0 || total + rounded(bytes) <= room {
                        prop_assert_eq!(outcome, Ok(()));
                        held.push(bytes);
                    } else {
                        let used_bytes = total as u64;
                        prop_assert_eq!(outcome, Err(ReserveError::Refused { limit_bytes: limit, used_bytes }));
                    }
                }
                Action::Release { process } => {
                    let (slot, held) = &mut model.living[process % count];
                    if !held.is_empty() {
                        slot.release(held.remove(0)).expect("release");
                    }
                }
                Action::Die { process } => {
                    let (slot, held) = model.living.swap_remove(process % count);
                    drop(slot);
                    model.dead += held_by(&held);
                }
            }
            prop_assert_eq!(u128::from(ledger.total_used()), model.total());
            for (slot, held) in &model.living {
                prop_assert_eq!(slot.used().map(u128::from), Some(held_by(held)));
                prop_assert_eq!(slot.total_used(), Some(ledger.total_used()));
            }
            let alive = ledger.processes().filter(|process| process.alive).count();
            prop_assert_eq!(alive, model.living.len());
        }
    }
}

#[test]
fn a_ledger_in_a_file_is_made_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hardware");
    let start = std::sync::Barrier::new(16);
    let slots: Vec<Slot> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    let fd = open_file(&path, 0o640).expect("a file");
                    Slot::claim(fd, Backing::File, SlotOwner::default()).expect("a slot")
                })
            })
            .collect();
        starting
            .into_iter()
            .map(|one| one.join().expect("no panic"))
            .collect()
    });
    for slot in &slots {
        slot.reserve(1 << 20, 1 << 40).expect("it fits");
    }
    let ledger = Ledger::open(open_file(&path, 0o640).expect("the file"), Backing::File).expect("a ledger");
    assert_eq!(ledger.total_used(), 16 << 20);
    drop(slots);
    assert_eq!(ledger.reap().expect("reap").processes, 16);
    assert_eq!(ledger.total_used(), 0);

    let names: Vec<_> = std::fs::read_dir(folder.path())
        .expect("the folder")
        .flatten()
        .collect();
    assert_eq!(names.len(), 1, "no drafts are left");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(
        names[0].metadata().expect("it is there").permissions().mode() & 0o777,
        0o640
    );
}

#[test]
fn a_full_ledger_says_so_and_has_room_again_after_a_death() {
    let ledger = Ledger::create().expect("a ledger");
    let mut slots: Vec<Slot> = (0..divvy_ledger::accounting::SLOTS)
        .map(|_| claim(&ledger))
        .collect();
    let refused = Slot::claim(
        ledger.share().expect("/proc"),
        Backing::Sealed,
        SlotOwner::default(),
    );
    assert_eq!(refused.err(), Some(divvy_ledger::PageError::NoFreeSlot));
    slots[77].reserve(5000, 1 << 20).expect("it fits");
    slots.swap_remove(77);
    assert_eq!(claim(&ledger).index(), 77);
    assert_eq!(ledger.total_used(), 0, "its bytes went back on the way");
}

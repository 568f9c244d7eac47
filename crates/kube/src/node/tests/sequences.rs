//! A thousand random sequences against a model: at all times the agent's slices are those of the claims that are prepared.

use std::collections::BTreeSet;

use super::*;

const CLAIMS: usize = 6;

/// What happens next, to which claim.
#[derive(Clone, Debug)]
enum Act {
    Prepare,
    Unprepare,
    /// The agent or the API server fails at this step of a prepare, or of an unprepare.
    Fail(Step, bool),
    /// The driver is killed at this point of a prepare, or of an unprepare.
    Kill(&'static str, bool),
    Restart,
    /// The kubelet's calls come in another order: the prepare came first and is served last.
    Reorder,
    /// The pod is deleted while no kubelet is there to say so.
    Forget,
    /// An administrator resizes the slice.
    Resize,
    /// The host starts again: the agent has no slices.
    Reboot,
    /// The claim's record is damaged.
    Damage,
}

fn acts() -> impl Strategy<Value = Act> {
    let step = proptest::sample::select(vec![
        Step::Slices,
        Step::Make,
        Step::MadeAndLost,
        Step::Describe,
        Step::End,
        Step::Cluster,
    ]);
    prop_oneof![
        5 => Just(Act::Prepare),
        3 => Just(Act::Unprepare),
        3 => (step, any::<bool>()).prop_map(|(step, prepare)| Act::Fail(step, prepare)),
        3 => (proptest::sample::select(points::ALL.to_vec()), any::<bool>())
            .prop_map(|(point, prepare)| Act::Kill(point, prepare)),
        1 => Just(Act::Restart),
        2 => Just(Act::Reorder),
        1 => Just(Act::Forget),
        1 => Just(Act::Resize),
        1 => Just(Act::Reboot),
        1 => Just(Act::Damage),
    ]
}

struct Model {
    bench: Bench,
    claims: Vec<Named>,
    kept: Vec<ResourceClaim>,
    prepared: BTreeSet<usize>,
}

impl Model {
    fn new() -> Self {
        let bench = Bench::new();
        let claims: Vec<Named> = (0..CLAIMS)
            .map(|number| {
                let (id, uid) = (format!("s{number}"), format!("u-{number}"));
                // Two GPUs in shares, and two MIG instances: one in shares, and one whole.
                let (device, share) = match number {
                    2 => (
                        format!("{}-shared", crate::devices::name(&mig(0))),
                        Some((&*id, 20 << 10, 16)),
                    ),
                    5 => (crate::devices::name(&mig(1)), None),
                    _ => (shared(number as u32 % 2), Some((&*id, 20 << 10, 16))),
                };
                bench.stand_in.allocate(&uid, &[("a", device, share)])
            })
            .collect();
        let kept = claims
            .iter()
            .map(|claim| bench.stand_in.world().claims[&claim.name].clone());
        let kept = kept.collect();
        Self {
            bench,
            claims,
            kept,
            prepared: BTreeSet::new(),
        }
    }

    fn note(&mut self, which: usize, is_prepared: bool) {
        match is_prepared {
            true => self.prepared.insert(which),
            false => self.prepared.remove(&which),
        };
    }

    fn is_on_record(&self, which: usize) -> bool {
        let records = self.bench.node().claims().expect("records");
        records
            .iter()
            .any(|record| record.uid == self.claims[which].uid && record.prepared)
    }

    fn act(&mut self, act: &Act, which: usize) {
        let claim = self.claims[which].clone();
        match act {
            Act::Prepare => {
                self.bench.node().prepare(&claim).expect("prepared");
                self.note(which, true);
            }
            Act::Unprepare => {
                self.bench.node().unprepare(&claim).expect("taken back");
                self.note(which, false);
            }
            Act::Fail(step, prepare) => {
                self.bench.fail(Some(*step));
                let done = match prepare {
                    true => self.bench.node().prepare(&claim).map(drop),
                    false => self.bench.node().unprepare(&claim),
                };
                self.bench.fail(None);
                assert!(done.is_err() || self.is_on_record(which) == *prepare);
                // What failed is done again by the next look, without a call.
                let failed = self.bench.node().reconcile(None).1;
                assert!(failed.is_empty(), "{failed:?}");
                self.note(which, self.is_on_record(which));
            }
            Act::Kill(point, prepare) => {
                points::kill_at(point);
                let node = self.bench.node();
                let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match prepare {
                    true => drop(node.prepare(&claim)),
                    false => drop(node.unprepare(&claim)),
                }));
                let _not_reached = points::spare();
                self.bench.restart();
                // The kubelet got no answer, and the driver may have done it or not.
                let is_prepared = self.is_on_record(which);
                assert!(died.is_err() || is_prepared == *prepare);
                self.note(which, is_prepared);
            }
            Act::Restart => self.bench.restart(),
            Act::Reorder => {
                let ticket = self.bench.node().arrive(&claim);
                self.bench.node().unprepare(&claim).expect("taken back");
                assert!(self.bench.node().prepare_for(&claim, &ticket).is_err());
                self.note(which, false);
            }
            Act::Forget => {
                self.bench.stand_in.world().claims.remove(&claim.name);
                for _ in 0..2 {
                    assert!(self.bench.node().reconcile(None).1.is_empty());
                }
                self.note(which, false);
                let kept = self.kept[which].clone();
                self.bench.stand_in.world().claims.insert(claim.name, kept);
            }
            Act::Resize => {
                let mut world = self.bench.stand_in.world();
                let name = format!("{}-", claim.name);
                for slice in world
                    .slices
                    .iter_mut()
                    .filter(|slice| slice.name.starts_with(&name))
                {
                    slice.shares.first.memory_limit_bytes.0 += 1 << 20;
                }
            }
            Act::Reboot => {
                {
                    let mut world = self.bench.stand_in.world();
                    world.slices.clear();
                    world.described.clear();
                }
                self.bench.restart();
                for which in self.prepared.clone() {
                    let claim = self.claims[which].clone();
                    self.bench.node().prepare(&claim).expect("made again");
                }
            }
            Act::Damage => {
                let path = self
                    .bench
                    .folder
                    .path()
                    .join(format!("claims/{}.json", claim.uid));
                if path.exists() {
                    std::fs::write(path, "{").expect("damaged");
                    self.bench.restart();
                    assert!(
                        self.bench.node().prepare(&claim).is_err(),
                        "a damaged claim is refused"
                    );
                    self.bench.node().unprepare(&claim).expect("taken back");
                    self.note(which, false);
                }
            }
        }
        self.bench.check(self.prepared.len());
        for which in 0..CLAIMS {
            assert_eq!(
                self.is_on_record(which),
                self.prepared.contains(&which),
                "claim {which}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_keeps_slices_and_claims_together(
        acts in proptest::collection::vec((acts(), 0..CLAIMS), 1..24)
    ) {
        let mut model = Model::new();
        for (act, which) in &acts {
            model.act(act, *which);
        }
    }
}

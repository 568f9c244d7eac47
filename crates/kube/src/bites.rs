//! Events on the pods whose slices' limits have bitten. The agent counts; this tells what was counted since the last look.

use std::collections::BTreeMap;

use divvy_model::{Condition, SliceRecord};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;

use crate::DRIVER;
use crate::cluster::{Cluster, Refusal};
use crate::pods::PodContainer;
use crate::state::digest;

/// What happened in a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bite {
    /// A word for programs, as events have them.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
    /// How often since the last look.
    pub count: u64,
}

const OUT_OF_MEMORY: &str = "SliceOutOfMemory";
/// How many events a slice may have at once.
const AT_ONCE: u32 = 10;
/// After so many looks it may have one more: a program that is refused again and again must not fill the cluster's store.
const LOOKS: u32 = 6;

/// What was counted at the last look, by the slices' ids.
#[derive(Debug, Default)]
pub struct Bites {
    seen: BTreeMap<String, Seen>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// How many looks' worth of events it may have.
    credit: u32,
    refused: u64,
    bypasses: usize,
    conditions: Vec<Condition>,
}

impl Bites {
    /// What is new of these slices. Of one that is seen for the first time nothing is: its past was another driver's to tell.
    pub fn since<'a>(&mut self, slices: &'a [SliceRecord]) -> Vec<(&'a SliceRecord, Bite)> {
        let mut found = Vec::new();
        let mut seen = BTreeMap::new();
        for slice in slices {
            let mut now = Seen {
                credit: AT_ONCE * LOOKS,
                refused: slice.shares.iter().map(|share| share.refused_allocations).sum(),
                bypasses: slice.bypasses.len(),
                conditions: slice.conditions.clone(),
            };
            if let Some(before) = self.seen.get(&slice.id) {
                let news = bites(slice, before, &now);
                now.credit = now.credit.min(before.credit + 1);
                for bite in news {
                    if now.credit >= LOOKS {
                        now.credit -= LOOKS;
                        found.push((slice, bite));
                    } else if bite.reason == OUT_OF_MEMORY {
                        // The next event tells of these too.
                        now.refused = before.refused;
                    }
                }
            }
            seen.insert(slice.id.clone(), now);
        }
        self.seen = seen;
        found
    }
}

fn bites(slice: &SliceRecord, before: &Seen, now: &Seen) -> Vec<Bite> {
    let mut found = Vec::new();
    let refused = now.refused.saturating_sub(before.refused);
    if refused > 0 {
        let share = &slice.shares.first;
        let what = if refused == 1 { "allocation" } else { "allocations" };
        found.push(Bite {
            reason: OUT_OF_MEMORY,
            message: format!(
                "{refused} {what} did not fit into slice {}, which holds {} of {}",
                slice.name, share.memory_used_bytes, share.memory_limit_bytes
            ),
            count: refused,
        });
    }
    for bypass in slice.bypasses.iter().skip(before.bypasses) {
        found.push(Bite {
            reason: "SliceNotEnforced",
            message: format!("slice {}: {bypass}", slice.name),
            count: 1,
        });
    }
    for condition in &now.conditions {
        let (reason, what) = match condition {
            Condition::OverLimit => (
                "SliceOverLimit",
                "holds more than its new limit, and gets no more",
            ),
            Condition::Overuse => ("SliceOveruse", "holds more of the device than it accounts for"),
            Condition::Overstays => ("SliceOverstays", "goes on though its turn has long ended"),
            Condition::Uncharged => ("SliceUncharged", "uses the device past its limiter"),
            Condition::Frozen => (
                "SliceFrozen",
                "is stopped until the time beyond its share is paid back",
            ),
            _ => continue,
        };
        if !before.conditions.contains(condition) {
            found.push(Bite {
                reason,
                message: format!("slice {} {what}", slice.name),
                count: 1,
            });
        }
    }
    found
}

impl Bite {
    /// Writes it as an event of the pod that has the container.
    ///
    /// # Errors
    /// What the API server refuses. A pod that is gone is no error.
    pub fn tell(&self, cluster: &dyn Cluster, node: &str, container: &PodContainer) -> Result<(), Refusal> {
        let pod = match cluster.pod(&container.namespace, &container.pod) {
            Ok(pod) => pod,
            Err(Refusal::NotFound(_)) => return Ok(()),
            Err(refusal) => return Err(refusal),
        };
        let now = Timestamp::now();
        let end = digest(&[
            &container.pod,
            self.reason,
            &self.message,
            &now.as_nanosecond().to_string(),
        ]);
        let mut name = container.pod.clone();
        name.truncate(200);
        cluster.tell(&Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{end}", name.trim_end_matches(['-', '.']))),
                namespace: Some(container.namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                name: Some(container.pod.clone()),
                namespace: Some(container.namespace.clone()),
                uid: pod.metadata.uid,
                field_path: Some(format!("spec.containers{{{}}}", container.container)),
                ..ObjectReference::default()
            },
            reason: Some(self.reason.into()),
            message: Some(self.message.clone()),
            type_: Some("Warning".into()),
            count: Some(i32::try_from(self.count).unwrap_or(i32::MAX)),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource {
                component: Some(DRIVER.into()),
                host: Some(node.to_owned()),
            }),
            reporting_component: Some(DRIVER.into()),
            reporting_instance: Some(node.to_owned()),
            ..Event::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(refused: u64, bypasses: &[&str], conditions: &[Condition]) -> SliceRecord {
        let mut slice = SliceRecord {
            id: "a".into(),
            name: "train".into(),
            bypasses: bypasses.iter().map(|text| (*text).to_owned()).collect(),
            conditions: conditions.to_vec(),
            ..SliceRecord::default()
        };
        slice.shares.first.refused_allocations = refused;
        slice
    }

    #[test]
    fn what_is_new_is_told_once() {
        let mut bites = Bites::default();
        let mut reasons = |slice: SliceRecord| -> Vec<(&'static str, u64)> {
            let slices = [slice];
            let found = bites.since(&slices);
            found
                .into_iter()
                .map(|(_, bite)| (bite.reason, bite.count))
                .collect()
        };
        assert_eq!(reasons(slice(5, &["a"], &[Condition::Frozen])), [], "the past");
        assert_eq!(reasons(slice(5, &["a"], &[Condition::Frozen])), []);
        assert_eq!(reasons(slice(8, &["a"], &[])), [("SliceOutOfMemory", 3)]);
        let found = reasons(slice(8, &["a", "b"], &[Condition::Frozen, Condition::Waiting]));
        assert_eq!(found, [("SliceNotEnforced", 1), ("SliceFrozen", 1)]);
        assert_eq!(
            reasons(slice(0, &[], &[])),
            [],
            "an agent that counts from zero again"
        );
    }

    /// A program that is refused at each look has an event a minute in the end, which tells of all.
    #[test]
    fn events_are_few_and_lose_no_count() {
        let mut bites = Bites::default();
        let (mut told, mut events) = (0, 0);
        for look in 0..=600 {
            let slices = [slice(look, &[], &[])];
            for (_, bite) in bites.since(&slices) {
                told += bite.count;
                events += 1;
            }
        }
        assert!((100..=112).contains(&events), "{events}");
        assert!(told > 600 - 7 && told <= 600, "{told}");
    }
}

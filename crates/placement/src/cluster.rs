//! A cluster as far as placing devices needs it: small records, since there may be hundreds of thousands.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A value of a device's attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// A string.
    Text(String),
    /// A whole number.
    Number(i64),
    /// True or false.
    Flag(bool),
    /// A version by semver: its three numbers.
    Version([u64; 3]),
}

/// What a request may take of a capacity: the publisher's `requestPolicy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What a request takes that names none.
    pub default: u64,
    /// The least, the most and the step of a range.
    pub range: Option<(u64, Option<u64>, Option<u64>)>,
    /// Only these, ascending; empty for any.
    pub values: Vec<u64>,
}

/// A capacity of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Its qualified name: `gpu.divvy.dev/memory`.
    pub name: Arc<str>,
    /// How much there is.
    pub value: u64,
    /// What may be asked of it, where it is shared.
    pub policy: Option<Arc<Policy>>,
}

impl Capacity {
    /// What a request for `asked` consumes: the policy's default where nothing was asked, else rounded up to what the policy
    /// allows. None where the device cannot give it.
    #[must_use]
    pub fn consumes(&self, asked: Option<u64>) -> Option<u64> {
        let taken = match (&self.policy, asked) {
            (None, asked) => asked.unwrap_or(self.value),
            (Some(policy), None) => policy.default,
            (Some(policy), Some(asked)) => match policy.range {
                Some((least, most, step)) => {
                    let above = asked.max(least);
                    let rounded = match step {
                        Some(step) if step > 0 => (above - least)
                            .div_ceil(step)
                            .checked_mul(step)?
                            .checked_add(least)?,
                        _ => above,
                    };
                    if most.is_some_and(|most| rounded > most) {
                        return None;
                    }
                    rounded
                }
                None if !policy.values.is_empty() => *policy.values.iter().find(|value| **value >= asked)?,
                None => asked,
            },
        };
        (taken <= self.value).then_some(taken)
    }
}

/// A taint of a node or a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// `NoSchedule`, `NoExecute` or `PreferNoSchedule`.
    pub effect: String,
}

impl Taint {
    /// Whether it keeps pods away that do not tolerate it.
    #[must_use]
    pub fn repels(&self) -> bool {
        matches!(self.effect.as_str(), "NoSchedule" | "NoExecute")
    }
}

/// What a pod or a request tolerates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// The key; empty for all.
    pub key: String,
    /// Whether any value will do.
    pub exists: bool,
    /// The value.
    pub value: String,
    /// The effect; empty for all.
    pub effect: String,
}

impl Toleration {
    /// Whether it is about this taint.
    #[must_use]
    pub fn covers(&self, taint: &Taint) -> bool {
        (self.key.is_empty() && self.exists || self.key == taint.key)
            && (self.exists || self.value == taint.value)
            && (self.effect.is_empty() || self.effect == taint.effect)
    }
}

/// A device that a driver publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name in its pool.
    pub name: String,
    /// The driver.
    pub driver: Arc<str>,
    /// The pool.
    pub pool: Arc<str>,
    /// By qualified name, sorted.
    pub attributes: Vec<(Arc<str>, Attribute)>,
    /// In the published order of names.
    pub capacities: Vec<Capacity>,
    /// Whether several claims may have shares of it.
    pub shared: bool,
    /// Which of the node's counters it takes while it is given out, and how much.
    pub consumes: Vec<(u32, u64)>,
    /// Its taints.
    pub taints: Vec<Taint>,
}

impl Device {
    /// Whether a capacity of this device is meant by a name, which may lack the driver's domain.
    #[must_use]
    pub fn is_meant(&self, capacity: &Capacity, name: &str) -> bool {
        let own = || {
            let rest = capacity.name.strip_suffix(name)?.strip_suffix('/')?;
            Some(rest == &*self.driver)
        };
        *capacity.name == *name || own() == Some(true)
    }

    /// An attribute by its qualified name.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        let found = self.attributes.binary_search_by(|(known, _)| (**known).cmp(name));
        found.ok().map(|place| &self.attributes[place].1)
    }
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Whether it is cordoned off.
    pub unschedulable: bool,
    /// Processors, in thousandths; 0 for not known.
    pub cpu: u64,
    /// Memory, in bytes; 0 for not known.
    pub memory: u64,
    /// How many pods it may have; 0 for not known.
    pub pods: u64,
    /// How much it has of all else that pods ask for by name, such as `nvidia.com/gpu` and `ephemeral-storage`; None for not known.
    pub others: Option<BTreeMap<Arc<str>, u64>>,
    /// Devices, in the order in which the scheduler tries them.
    pub devices: Vec<Device>,
    /// How much each counter has that its devices share.
    pub counters: Vec<u64>,
}

/// How many devices a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Count {
    /// So many.
    Exactly(u32),
    /// Each that matches; all have to be free.
    All,
}

/// A request for devices of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// Its name under `firstAvailable`; empty for a plain request.
    pub name: String,
    /// Expressions that all have to hold, those of the class first: places in [`Cluster::selectors`].
    pub selectors: Vec<u32>,
    /// How many.
    pub count: Count,
    /// What is asked of capacities. A name without a domain is of the device's driver.
    pub capacity: Vec<(Arc<str>, u64)>,
    /// Looks only: takes nothing.
    pub admin: bool,
    /// The device taints that do not matter.
    pub tolerations: Vec<Toleration>,
}

/// A request of a claim: the first of its alternatives that fits is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Its name.
    pub name: String,
    /// What would do, the best first.
    pub alternatives: Vec<Ask>,
}

/// What devices of a claim have to have in common, or not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constraint {
    /// For which requests; empty for all.
    pub requests: Vec<String>,
    /// The attribute, qualified.
    pub attribute: Arc<str>,
    /// Whether each device has to have another value; else all the same.
    pub distinct: bool,
}

/// A device that a claim has already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The driver.
    pub driver: String,
    /// The pool.
    pub pool: String,
    /// The device.
    pub device: String,
    /// What is consumed of a shared one, by name.
    pub consumed: Vec<(Arc<str>, u64)>,
    /// Looks only.
    pub admin: bool,
}

/// What a claim asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Its requests.
    pub requests: Vec<Request>,
    /// Its constraints.
    pub constraints: Vec<Constraint>,
}

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its namespace and name: `default/train`.
    pub name: String,
    /// What it asks for.
    pub spec: Arc<Spec>,
    /// What it has; none for one that is not allocated.
    pub held: Option<Vec<Held>>,
}

/// A pod, or a claim that no pod has yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace and name.
    pub name: String,
    /// Its claims: places in [`Cluster::claims`].
    pub claims: Vec<u32>,
    /// Processors, in thousandths.
    pub cpu: u64,
    /// Memory, in bytes.
    pub memory: u64,
    /// How much it asks for of all else that nodes have by name, where no DeviceClass gives it.
    pub others: BTreeMap<Arc<str>, u64>,
    /// Labels that its node has to have.
    pub labels: BTreeMap<String, String>,
    /// Taints that do not matter to it.
    pub tolerations: Vec<Toleration>,
    /// The node that it is on, or has to be on.
    pub node: Option<String>,
    /// Whether its author chose the node: then no scheduler allocates its claims.
    pub pinned: bool,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Nodes, in the order in which the scheduler looks at them.
    pub nodes: Vec<Node>,
    /// Claims.
    pub claims: Vec<Claim>,
    /// Pods, in the order of the queue.
    pub pods: Vec<Pod>,
    /// Expressions of selectors, with their drivers' names unresolved.
    pub selectors: Vec<crate::cel::Expression>,
    /// What was left out, and why: sentences.
    pub remarks: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(policy: Option<Policy>) -> Capacity {
        Capacity {
            name: "memory".into(),
            value: 1000,
            policy: policy.map(Arc::new),
        }
    }

    #[test]
    fn a_request_consumes_what_its_policy_says() {
        let range = memory(Some(Policy {
            default: 1000,
            range: Some((100, Some(900), Some(200))),
            values: Vec::new(),
        }));
        for (asked, taken) in [
            (None, Some(1000)),
            (Some(1), Some(100)),
            (Some(101), Some(300)),
            (Some(300), Some(300)),
            (Some(900), Some(900)),
            (Some(901), None),
        ] {
            assert_eq!(range.consumes(asked), taken, "{asked:?}");
        }
        let values = memory(Some(Policy {
            default: 1,
            range: None,
            values: vec![1, 4, 2000],
        }));
        assert_eq!(
            (values.consumes(Some(2)), values.consumes(Some(5))),
            (Some(4), None)
        );
        let plain = memory(None);
        assert_eq!(
            (
                plain.consumes(None),
                plain.consumes(Some(10)),
                plain.consumes(Some(1001))
            ),
            (Some(1000), Some(10), None)
        );
    }

    #[test]
    fn tolerations_cover_taints_as_kubernetes_says() {
        let taint = Taint {
            key: "gpu".into(),
            value: "broken".into(),
            effect: "NoSchedule".into(),
        };
        let toleration = |key: &str, exists, value: &str, effect: &str| Toleration {
            key: key.into(),
            exists,
            value: value.into(),
            effect: effect.into(),
        };
        assert!(toleration("", true, "", "").covers(&taint));
        assert!(toleration("gpu", false, "broken", "").covers(&taint));
        assert!(!toleration("gpu", false, "fine", "").covers(&taint));
        assert!(!toleration("gpu", true, "", "NoExecute").covers(&taint));
        assert!(!toleration("", false, "", "").covers(&taint));
    }
}

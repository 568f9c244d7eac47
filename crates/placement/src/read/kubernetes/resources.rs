//! What pods ask of nodes by name: processors and memory, extended resources that a DeviceClass declares, which are devices, and the
//! rest, which nodes count in their `allocatable`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Builder, Class, MOST_DEVICES, OWN_FIELDS, amount};
use crate::cluster::{Ask, Claim, Count, Node, Pod, Request, Spec};
use crate::read::words::{self, Object};

/// So many names stand in one remark.
const MOST_NAMED: usize = 5;

impl Builder {
    /// The DeviceClass that gives an extended resource.
    fn class_of(&self, name: &str) -> Option<&Class> {
        let mut classes = self.classes.iter();
        let found = classes.find(|(class, found)| {
            found.extended.as_deref() == Some(name)
                || name.strip_prefix("deviceclass.resource.kubernetes.io/") == Some(class.as_str())
        });
        found.map(|(_, class)| class)
    }

    /// Processors and memory, devices by names of extended resources, and what else nodes have by name.
    pub(super) fn resources(&mut self, object: &Object, pod: &mut Pod) -> Result<(), String> {
        let mut extended: BTreeMap<String, u64> = BTreeMap::new();
        let sum = |containers: &Option<Vec<words::Container>>, name: &str, most: bool| {
            let mut total: u128 = 0;
            for container in containers.iter().flatten() {
                let resources = &container.resources;
                let asked = resources.requests.as_ref().and_then(|all| all.get(name));
                let asked = asked.or_else(|| resources.limits.as_ref().and_then(|all| all.get(name)));
                let number =
                    asked.map_or(Ok(0), |one| amount(one).map(|_| one.thousandths().unwrap_or(0)))?;
                total = if most { total.max(number) } else { total + number };
            }
            Ok::<_, String>(total)
        };
        for (name, into) in [("cpu", &mut pod.cpu), ("memory", &mut pod.memory)] {
            let total = sum(&object.spec.containers, name, false)?.max(sum(
                &object.spec.init_containers,
                name,
                true,
            )?);
            let total = if name == "memory" { total / 1000 } else { total };
            *into = u64::try_from(total).unwrap_or(u64::MAX);
        }
        let all = [&object.spec.containers, &object.spec.init_containers];
        let all = all.into_iter().flatten().flatten();
        let named = all.flat_map(|container| [&container.resources.requests, &container.resources.limits]);
        let named: BTreeSet<&String> = named.flatten().flat_map(BTreeMap::keys).collect();
        for name in named {
            if OWN_FIELDS.contains(&name.as_str()) || self.class_of(name).is_some() {
                continue;
            }
            let total = sum(&object.spec.containers, name, false)?;
            let total = total
                .max(sum(&object.spec.init_containers, name, true)?)
                .div_ceil(1000);
            if total > 0 {
                let name = self.texts.get(name);
                if pod.node.is_none() {
                    self.asked.insert(name.clone());
                }
                pod.others.insert(name, u64::try_from(total).unwrap_or(u64::MAX));
            }
        }
        for container in object.spec.containers.iter().flatten() {
            for (name, quantity) in container.resources.limits.iter().flatten() {
                let count = extended.entry(name.clone()).or_default();
                *count = count.saturating_add(amount(quantity)?);
            }
        }
        for (name, count) in extended {
            let class = self.class_of(&name).map(|class| class.selectors.clone());
            // A pod that has its node has a claim too, which the scheduler made.
            let Some(selectors) = class.filter(|_| count > 0 && pod.node.is_none()) else {
                continue;
            };
            let count = u32::try_from(count).ok().filter(|count| *count <= MOST_DEVICES);
            let count = count.ok_or_else(|| format!("{name}: more than {MOST_DEVICES} devices"))?;
            let ask = Ask {
                name: String::new(),
                selectors,
                count: Count::Exactly(count),
                capacity: Vec::new(),
                admin: false,
                tolerations: Vec::new(),
            };
            let request = Request {
                name: name.clone(),
                alternatives: vec![ask],
            };
            let spec = Arc::new(Spec {
                requests: vec![request],
                constraints: Vec::new(),
            });
            let name = format!("{}-extended-resources", pod.name);
            pod.claims.push(self.claim(Claim {
                name,
                spec,
                held: None,
            })?);
        }
        Ok(())
    }

    /// Names that pods ask nodes for in vain: misspelt, or of a device plugin that is not there.
    pub(super) fn say_what_no_node_has(&mut self) {
        let asked = std::mem::take(&mut self.asked);
        let nodes = &self.cluster.nodes;
        let unknown = nodes.iter().filter(|node| node.others.is_none()).count();
        if unknown > 0 && !asked.is_empty() {
            let names: Vec<&str> = asked.iter().take(MOST_NAMED).map(|name| &**name).collect();
            return self.remark(format!(
                "{unknown} nodes are without `status.allocatable`: they take pods whatever these ask for of {}",
                names.join(", ")
            ));
        }
        let has = |node: &Node, name: &str| {
            node.others
                .iter()
                .any(|all| all.get(name).is_some_and(|has| *has > 0))
        };
        let missing: Vec<Arc<str>> = asked
            .into_iter()
            .filter(|name| !self.cluster.nodes.iter().any(|node| has(node, name)))
            .collect();
        if !missing.is_empty() {
            let more = missing.len().saturating_sub(MOST_NAMED);
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let named: Vec<&str> = missing.iter().take(MOST_NAMED).map(|name| &**name).collect();
            self.remark(format!(
                "no node has {}{more} in its `allocatable`, and no DeviceClass declares it: pods that ask for it wait",
                named.join(", ")
            ));
        }
    }
}

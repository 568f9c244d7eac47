//! Kubernetes' objects into the model.

mod resources;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::words::{self, Devices, Object};
use crate::cel::{Expression, version};
use crate::cluster::{
    Ask, Attribute, Capacity, Claim, Cluster, Constraint, Count, Device, Held, Node, Pod, Policy, Request,
    Spec, Taint, Toleration,
};

/// Kubernetes' bound on devices of a claim, and on requests.
const MOST_DEVICES: u32 = 32;
/// Resources that nodes and pods have fields for here.
const OWN_FIELDS: [&str; 3] = ["cpu", "memory", "pods"];
/// How deep lists may lie in lists.
const DEEPEST: usize = 4;

/// Takes lists apart.
pub fn flatten(documents: &mut Vec<Object>, into: &mut Vec<Object>) -> Result<(), String> {
    flatten_below(documents, into, "", 0)
}

fn flatten_below(
    documents: &mut Vec<Object>,
    into: &mut Vec<Object>,
    kind: &str,
    depth: usize,
) -> Result<(), String> {
    if depth > DEEPEST {
        return Err("lists lie too deep in lists".into());
    }
    for mut object in documents.drain(..) {
        if object.kind.is_empty() {
            object.kind = kind.to_owned();
        }
        match object.items.take() {
            Some(mut items) => {
                let kind = object.kind.strip_suffix("List").unwrap_or_default();
                flatten_below(&mut items, into, kind, depth + 1)?;
            }
            None if object.kind.is_empty() => return Err("an object has no `kind`".into()),
            None => into.push(object),
        }
    }
    Ok(())
}

/// Texts that are many times the same.
#[derive(Default)]
struct Texts(HashMap<String, Arc<str>>);

impl Texts {
    fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(found) = self.0.get(text) {
            return found.clone();
        }
        let made: Arc<str> = text.into();
        self.0.insert(text.to_owned(), made.clone());
        made
    }
}

/// A DeviceClass.
struct Class {
    selectors: Vec<u32>,
    extended: Option<String>,
}

#[derive(Default)]
struct Builder {
    cluster: Cluster,
    texts: Texts,
    policies: HashMap<words::Policy, Arc<Policy>>,
    selectors: HashMap<String, u32>,
    classes: BTreeMap<String, Class>,
    remarks: BTreeMap<String, u64>,
    /// What waiting pods ask of nodes by name.
    asked: BTreeSet<Arc<str>>,
}

/// The cluster that these objects are.
///
/// # Errors
/// What cannot be understood without being misread: a quantity or a selector.
pub fn cluster(objects: Vec<Object>) -> Result<Cluster, String> {
    let mut builder = Builder::default();
    let mut by_kind: HashMap<&'static str, Vec<Object>> = HashMap::new();
    let mut seen: HashSet<(&'static str, String)> = HashSet::new();
    let mut again: BTreeMap<&'static str, (String, u64)> = BTreeMap::new();
    for object in objects {
        let kind = match object.kind.as_str() {
            "Node" => "Node",
            "ResourceSlice" => "ResourceSlice",
            "DeviceClass" => "DeviceClass",
            "ResourceClaim" => "ResourceClaim",
            "ResourceClaimTemplate" => "ResourceClaimTemplate",
            "Pod" => "Pod",
            other => {
                builder.remark(format!("objects of kind {other} were passed over"));
                continue;
            }
        };
        // What has no name yet gets one of its own from the API server.
        let name = full_name(&object);
        if !object.metadata.name.is_empty() && !seen.insert((kind, name.clone())) {
            again.entry(kind).or_insert((name, 0)).1 += 1;
            continue;
        }
        by_kind.entry(kind).or_default().push(object);
    }
    drop(seen);
    for (kind, (name, count)) in again {
        builder.remark(match count {
            1 => format!("{kind} {name} is there twice: the first one counts"),
            _ => {
                format!("{count} objects of kind {kind} are there again, as {name}: the first of each counts")
            }
        });
    }
    let mut of = |kind| by_kind.remove(kind).unwrap_or_default();
    for object in of("DeviceClass") {
        builder.class(object)?;
    }
    let nodes = of("Node");
    let slices = of("ResourceSlice");
    builder.nodes(nodes)?;
    builder.slices(slices)?;
    let templates = builder.templates(of("ResourceClaimTemplate"))?;
    let claims = of("ResourceClaim");
    let pods = of("Pod");
    let known = builder.claims(claims)?;
    builder.pods(pods, &templates, known)?;
    builder.say_what_no_node_has();
    Ok(builder.done())
}

fn at(object: &Object, error: &str) -> String {
    format!("{} {}: {error}", object.kind, object.metadata.name)
}

fn amount(quantity: &words::Quantity) -> Result<u64, String> {
    quantity.whole().ok_or_else(|| match quantity {
        words::Quantity::Number(number) => format!("{number} is no quantity"),
        words::Quantity::Text(text) => {
            format!("`{}` is no quantity", text.chars().take(40).collect::<String>())
        }
    })
}

fn taint(taint: &words::Taint) -> Taint {
    Taint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.clone(),
    }
}

fn tolerations(all: Option<&Vec<words::Toleration>>) -> Vec<Toleration> {
    all.into_iter()
        .flatten()
        .map(|one| Toleration {
            key: one.key.clone(),
            exists: one.operator == "Exists",
            value: one.value.clone(),
            effect: one.effect.clone(),
        })
        .collect()
}

/// The name with its domain: that of the driver where it has none.
fn qualified(name: &str, driver: &str) -> String {
    match name.contains('/') {
        true => name.to_owned(),
        false => format!("{driver}/{name}"),
    }
}

impl Builder {
    fn remark(&mut self, words: String) {
        *self.remarks.entry(words).or_default() += 1;
    }

    fn done(mut self) -> Cluster {
        self.cluster.remarks = self
            .remarks
            .into_iter()
            .map(|(words, count)| match count {
                1 => words,
                _ => format!("{words} ({count} times)"),
            })
            .collect();
        self.cluster
    }

    fn selector(&mut self, text: &str) -> Result<u32, String> {
        if let Some(found) = self.selectors.get(text) {
            return Ok(*found);
        }
        let read = Expression::read(text).map_err(|error| format!("selector `{text}`: {error}"))?;
        let place = u32::try_from(self.cluster.selectors.len()).map_err(|_| "too many selectors")?;
        self.cluster.selectors.push(read);
        self.selectors.insert(text.to_owned(), place);
        Ok(place)
    }

    fn all_selectors(&mut self, all: Option<&Vec<words::Selector>>) -> Result<Vec<u32>, String> {
        let expressions = all.into_iter().flatten().filter_map(|one| one.cel.as_ref());
        expressions.map(|cel| self.selector(&cel.expression)).collect()
    }

    fn class(&mut self, object: Object) -> Result<(), String> {
        let selectors = self.all_selectors(object.spec.selectors.as_ref());
        let selectors = selectors.map_err(|error| at(&object, &error))?;
        let extended = object.spec.extended_resource_name;
        self.classes
            .insert(object.metadata.name, Class { selectors, extended });
        Ok(())
    }

    fn nodes(&mut self, objects: Vec<Object>) -> Result<(), String> {
        for object in objects {
            let has = |name: &str| {
                let found = object.status.allocatable.as_ref().and_then(|all| all.get(name));
                found.map_or(Ok(0), |quantity| {
                    amount(quantity).map(|_| quantity.thousandths().unwrap_or(0))
                })
            };
            let number = |name| -> Result<u64, String> {
                let number = has(name).map_err(|error| at(&object, &error))?;
                Ok(u64::try_from(number).unwrap_or(u64::MAX))
            };
            let mut others = None;
            for (name, quantity) in object.status.allocatable.iter().flatten() {
                let others = others.get_or_insert_with(BTreeMap::new);
                if !OWN_FIELDS.contains(&name.as_str()) {
                    let number = amount(quantity).map_err(|error| at(&object, &error))?;
                    others.insert(self.texts.get(name), number);
                }
            }
            let node = Node {
                others,
                cpu: number("cpu")?,
                memory: number("memory")? / 1000,
                pods: number("pods")? / 1000,
                labels: object.metadata.labels.clone().unwrap_or_default(),
                taints: object.spec.taints.iter().flatten().map(taint).collect(),
                unschedulable: object.spec.unschedulable,
                name: object.metadata.name,
                devices: Vec::new(),
                counters: Vec::new(),
            };
            self.cluster.nodes.push(node);
        }
        Ok(())
    }

    /// Puts each pool's newest generation into its node, where all of its slices are there.
    fn slices(&mut self, objects: Vec<Object>) -> Result<(), String> {
        let mut pools: BTreeMap<(String, String), Vec<Object>> = BTreeMap::new();
        for object in objects {
            let key = (object.spec.driver.clone(), object.spec.pool.name.clone());
            pools.entry(key).or_default().push(object);
        }
        let mut places: HashMap<String, usize> = HashMap::new();
        for (place, node) in self.cluster.nodes.iter().enumerate() {
            places.insert(node.name.clone(), place);
        }
        for ((driver, pool), mut slices) in pools {
            let newest = slices.iter().map(|slice| slice.spec.pool.generation).max();
            slices.retain(|slice| Some(slice.spec.pool.generation) == newest);
            let complete = slices.iter().all(|slice| {
                i64::try_from(slices.len()).is_ok_and(|count| count == slice.spec.pool.resource_slice_count)
            });
            if !complete {
                self.remark(format!(
                    "pool {pool} of {driver} is incomplete: the scheduler passes it over"
                ));
                continue;
            }
            let name = slices.iter().find_map(|slice| slice.spec.node_name.clone());
            let local = slices.iter().all(|slice| {
                slice.spec.node_name == name && !slice.spec.all_nodes && !slice.spec.per_device_node_selection
            });
            let Some(name) = name.filter(|_| local) else {
                self.remark(format!(
                    "pool {pool} of {driver} is not of one node: it was passed over"
                ));
                continue;
            };
            let place = *places.entry(name.clone()).or_insert_with(|| {
                self.cluster.nodes.push(Node {
                    name,
                    ..Node::default()
                });
                self.cluster.nodes.len() - 1
            });
            self.pool(place, slices)?;
        }
        Ok(())
    }

    fn pool(&mut self, place: usize, slices: Vec<Object>) -> Result<(), String> {
        let mut counters: BTreeMap<(String, String), u32> = BTreeMap::new();
        for slice in &slices {
            for set in slice.spec.shared_counters.iter().flatten() {
                for (name, counter) in &set.counters {
                    let node = &mut self.cluster.nodes[place];
                    let number = u32::try_from(node.counters.len()).map_err(|_| "too many counters")?;
                    node.counters
                        .push(amount(&counter.value).map_err(|error| at(slice, &error))?);
                    counters.insert((set.name.clone(), name.clone()), number);
                }
            }
        }
        for mut slice in slices {
            let Some(Devices::Published(devices)) = slice.spec.devices.take() else {
                continue;
            };
            let (driver, pool) = (
                self.texts.get(&slice.spec.driver),
                self.texts.get(&slice.spec.pool.name),
            );
            for device in devices {
                let name = device.name.clone();
                let made = self.device(device, &driver, &pool, &counters);
                let made = made.map_err(|error| at(&slice, &format!("device {name}: {error}")))?;
                self.cluster.nodes[place].devices.push(made);
            }
        }
        Ok(())
    }

    fn device(
        &mut self,
        device: words::Device,
        driver: &Arc<str>,
        pool: &Arc<str>,
        counters: &BTreeMap<(String, String), u32>,
    ) -> Result<Device, String> {
        let mut attributes = Vec::new();
        for (name, value) in device.attributes.into_iter().flatten() {
            let read = match value {
                words::Attribute {
                    string: Some(text), ..
                } => Attribute::Text(text),
                words::Attribute {
                    int: Some(number), ..
                } => Attribute::Number(number),
                words::Attribute { bool: Some(flag), .. } => Attribute::Flag(flag),
                words::Attribute {
                    version: Some(text), ..
                } => Attribute::Version(version(&text).ok_or_else(|| format!("{name}: no version"))?),
                _ => return Err(format!("{name} has no value")),
            };
            attributes.push((self.texts.get(&qualified(&name, driver)), read));
        }
        attributes.sort_by(|one, other| one.0.cmp(&other.0));
        let mut capacities = Vec::new();
        for (name, capacity) in device.capacity.iter().flatten() {
            capacities.push(Capacity {
                name: self.texts.get(&qualified(name, driver)),
                value: amount(&capacity.value)?,
                policy: match &capacity.request_policy {
                    Some(policy) => Some(self.policy(policy)?),
                    None => None,
                },
            });
        }
        let mut consumes = Vec::new();
        for one in device.consumes_counters.iter().flatten() {
            for (name, counter) in &one.counters {
                let place = counters.get(&(one.counter_set.clone(), name.clone()));
                let place =
                    place.ok_or_else(|| format!("counter {name} of {} is missing", one.counter_set))?;
                consumes.push((*place, amount(&counter.value)?));
            }
        }
        Ok(Device {
            name: device.name,
            driver: driver.clone(),
            pool: pool.clone(),
            attributes,
            capacities,
            shared: device.allow_multiple_allocations == Some(true),
            consumes,
            taints: device.taints.iter().flatten().map(taint).collect(),
        })
    }

    fn policy(&mut self, policy: &words::Policy) -> Result<Arc<Policy>, String> {
        if let Some(found) = self.policies.get(policy) {
            return Ok(found.clone());
        }
        let some = |quantity: &Option<words::Quantity>| quantity.as_ref().map(amount).transpose();
        let range = match &policy.valid_range {
            Some(range) => Some((
                some(&range.min)?.unwrap_or(0),
                some(&range.max)?,
                some(&range.step)?,
            )),
            None => None,
        };
        let values: Result<Vec<u64>, String> = policy.valid_values.iter().flatten().map(amount).collect();
        let mut values = values?;
        values.sort_unstable();
        let made = Arc::new(Policy {
            default: some(&policy.default)?.unwrap_or(0),
            range,
            values,
        });
        self.policies.insert(policy.clone(), made.clone());
        Ok(made)
    }

    fn spec(&mut self, spec: &words::Spec) -> Result<Arc<Spec>, String> {
        let asked = match &spec.devices {
            Some(Devices::Asked(asked)) => asked,
            // An empty list of nothing.
            Some(Devices::Published(_)) => return Err("its `devices` is a list".into()),
            None => return Ok(Arc::default()),
        };
        let mut made = Spec::default();
        for request in asked.requests.iter().flatten() {
            let exact = request
                .exactly
                .iter()
                .chain(request.first_available.iter().flatten());
            let alternatives: Result<Vec<Ask>, String> = exact.map(|one| self.ask(one)).collect();
            let alternatives = alternatives.map_err(|error| format!("request {}: {error}", request.name))?;
            if alternatives.is_empty() {
                return Err(format!("request {} asks for nothing", request.name));
            }
            made.requests.push(Request {
                name: request.name.clone(),
                alternatives,
            });
        }
        if made.requests.len() > MOST_DEVICES as usize {
            return Err(format!(
                "{} requests are more than Kubernetes allows",
                made.requests.len()
            ));
        }
        for constraint in asked.constraints.iter().flatten() {
            let (attribute, distinct) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
                (Some(attribute), None) => (attribute, false),
                (None, Some(attribute)) => (attribute, true),
                _ => return Err("a constraint is neither matchAttribute nor distinctAttribute".into()),
            };
            made.constraints.push(Constraint {
                requests: constraint.requests.clone().unwrap_or_default(),
                attribute: self.texts.get(attribute),
                distinct,
            });
        }
        Ok(Arc::new(made))
    }

    fn ask(&mut self, exact: &words::Exact) -> Result<Ask, String> {
        let class = self.classes.get(&exact.device_class_name);
        let mut selectors = class.map(|class| class.selectors.clone()).ok_or_else(|| {
            format!(
                "there is no DeviceClass {}: add deviceclasses to the file",
                exact.device_class_name
            )
        })?;
        selectors.extend(self.all_selectors(exact.selectors.as_ref())?);
        let mut capacity = Vec::new();
        let asked = exact.capacity.as_ref().and_then(|asks| asks.requests.as_ref());
        for (name, quantity) in asked.into_iter().flatten() {
            capacity.push((self.texts.get(name), amount(quantity)?));
        }
        let count = match (exact.allocation_mode.as_str(), exact.count) {
            ("All", _) => Count::All,
            ("" | "ExactCount", count) => Count::Exactly(count.unwrap_or(1)),
            (other, _) => return Err(format!("allocationMode {other} is not known")),
        };
        if matches!(count, Count::Exactly(count) if count == 0 || count > MOST_DEVICES) {
            return Err(format!("a count is from 1 to {MOST_DEVICES}"));
        }
        Ok(Ask {
            name: exact.name.clone(),
            selectors,
            count,
            capacity,
            admin: exact.admin_access == Some(true),
            tolerations: tolerations(exact.tolerations.as_ref()),
        })
    }

    fn templates(&mut self, objects: Vec<Object>) -> Result<HashMap<String, Arc<Spec>>, String> {
        let mut made = HashMap::new();
        for object in objects {
            let spec = object.spec.spec.as_deref();
            let spec = spec.map_or_else(|| Ok(Arc::default()), |spec| self.spec(spec));
            let spec = spec.map_err(|error| at(&object, &error))?;
            made.insert(full_name(&object), spec);
        }
        Ok(made)
    }

    fn claims(&mut self, objects: Vec<Object>) -> Result<HashMap<String, u32>, String> {
        let mut known = HashMap::new();
        let mut specs: HashMap<Arc<Spec>, ()> = HashMap::new();
        for object in objects {
            let name = full_name(&object);
            let spec = self.spec(&object.spec).map_err(|error| at(&object, &error))?;
            // Alike specs are one.
            let spec = match specs.get_key_value(&spec) {
                Some((same, ())) => same.clone(),
                None => {
                    specs.insert(spec.clone(), ());
                    spec
                }
            };
            let held = match &object.status.allocation {
                None => None,
                Some(allocation) => {
                    let results = allocation.devices.results.iter().flatten();
                    let held: Result<Vec<Held>, String> = results.map(|one| self.held(one)).collect();
                    Some(held.map_err(|error| at(&object, &error))?)
                }
            };
            known.insert(name.clone(), self.claim(Claim { name, spec, held })?);
        }
        Ok(known)
    }

    fn claim(&mut self, claim: Claim) -> Result<u32, String> {
        let place = u32::try_from(self.cluster.claims.len()).map_err(|_| "too many claims")?;
        self.cluster.claims.push(claim);
        Ok(place)
    }

    fn held(&mut self, held: &words::Held) -> Result<Held, String> {
        let mut consumed = Vec::new();
        for (name, quantity) in held.consumed_capacity.iter().flatten() {
            let name = self.texts.get(&qualified(name, &held.driver));
            consumed.push((name, amount(quantity)?));
        }
        Ok(Held {
            driver: held.driver.clone(),
            pool: held.pool.clone(),
            device: held.device.clone(),
            consumed,
            admin: held.admin_access == Some(true),
        })
    }

    fn pods(
        &mut self,
        objects: Vec<Object>,
        templates: &HashMap<String, Arc<Spec>>,
        mut known: HashMap<String, u32>,
    ) -> Result<(), String> {
        let mut owned: Vec<bool> = vec![false; self.cluster.claims.len()];
        for object in objects {
            let ended = matches!(object.status.phase.as_deref(), Some("Succeeded" | "Failed"));
            let made = match ended {
                true => continue,
                false => self.pod(&object, templates, &mut known),
            };
            let pod = made.map_err(|error| at(&object, &error))?;
            owned.resize(self.cluster.claims.len(), false);
            for claim in &pod.claims {
                owned[*claim as usize] = true;
            }
            self.cluster.pods.push(pod);
        }
        owned.resize(self.cluster.claims.len(), false);
        // Claims that no pod has are placed as if each had a pod.
        for (place, owned) in owned.into_iter().enumerate() {
            let claim = &self.cluster.claims[place];
            if !owned && claim.held.is_none() {
                self.cluster.pods.push(Pod {
                    name: claim.name.clone(),
                    claims: vec![u32::try_from(place).unwrap_or(u32::MAX)],
                    ..Pod::default()
                });
            }
        }
        Ok(())
    }

    fn pod(
        &mut self,
        object: &Object,
        templates: &HashMap<String, Arc<Spec>>,
        known: &mut HashMap<String, u32>,
    ) -> Result<Pod, String> {
        let namespace = namespace(object);
        let mut pod = Pod {
            name: full_name(object),
            node: object.spec.node_name.clone(),
            tolerations: tolerations(object.spec.tolerations.as_ref()),
            ..Pod::default()
        };
        if let Some(labels) = object.spec.node_selector.as_ref().and_then(|one| one.as_object()) {
            for (key, value) in labels {
                let value = value.as_str().unwrap_or_default().to_owned();
                pod.labels.insert(key.clone(), value);
            }
        }
        if object.spec.affinity.is_some() || object.spec.topology_spread_constraints.is_some() {
            self.remark("affinities and topology spread constraints of pods were not looked at".into());
        }
        let generated: HashMap<&str, &str> = object
            .status
            .resource_claim_statuses
            .iter()
            .flatten()
            .filter_map(|one| Some((one.name.as_str(), one.resource_claim_name.as_deref()?)))
            .collect();
        for claim in object.spec.resource_claims.iter().flatten() {
            let named = claim.resource_claim_name.as_deref();
            let place = match named.or_else(|| generated.get(claim.name.as_str()).copied()) {
                Some(name) => *known
                    .get(&format!("{namespace}/{name}"))
                    .ok_or_else(|| format!("there is no ResourceClaim {name}"))?,
                None => {
                    let template = claim.resource_claim_template_name.as_deref().unwrap_or_default();
                    let spec = templates
                        .get(&format!("{namespace}/{template}"))
                        .ok_or_else(|| format!("there is no ResourceClaimTemplate {template}"))?;
                    let (name, spec) = (format!("{}-{}", pod.name, claim.name), spec.clone());
                    self.claim(Claim {
                        name,
                        spec,
                        held: None,
                    })?
                }
            };
            pod.claims.push(place);
        }
        self.resources(object, &mut pod)?;
        // A pod on its node whose claims have nothing was put there by its author.
        pod.pinned = pod.node.is_some()
            && pod
                .claims
                .iter()
                .any(|claim| self.cluster.claims[*claim as usize].held.is_none());
        Ok(pod)
    }
}

fn namespace(object: &Object) -> &str {
    match object.metadata.namespace.as_str() {
        "" => "default",
        named => named,
    }
}

fn full_name(object: &Object) -> String {
    format!("{}/{}", namespace(object), object.metadata.name)
}

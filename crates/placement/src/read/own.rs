//! The small file: nodes and claims in counts, for a cluster that is not there yet.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;

use super::MOST;
use crate::cel::Expression;
use crate::cluster::{
    Ask, Attribute, Capacity, Claim, Cluster, Constraint, Count, Device, Node, Pod, Policy, Request, Spec,
};
use crate::quantity::whole;

/// The only one there is.
const FORMAT: &str = "divvy/plan";
const DRIVER: &str = "gpu.divvy.dev";
const STEP: u64 = 256 << 20;
const SHARES: &str = "device.driver == 'gpu.divvy.dev' && device.allowMultipleAllocations == true";
const WHOLE: &str = "device.driver == 'gpu.divvy.dev' && device.attributes['gpu.divvy.dev'].type == 'gpu'";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// What the file is: [`FORMAT`].
    format: String,
    #[serde(default)]
    nodes: Vec<Nodes>,
    #[serde(default)]
    claims: Vec<Claims>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nodes {
    name: String,
    #[serde(default = "one")]
    count: u64,
    gpus: u64,
    memory: String,
    #[serde(default = "sixteen")]
    slots: u64,
    /// Which form they are published in: `both`, `shares`, `whole`.
    #[serde(default)]
    publish: Publish,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Publish {
    #[default]
    Both,
    Shares,
    Whole,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    name: String,
    #[serde(default = "one")]
    count: u64,
    #[serde(default)]
    memory: Option<String>,
    #[serde(default)]
    cores: Option<u64>,
    #[serde(default = "one")]
    devices: u64,
    #[serde(default)]
    whole: bool,
}

fn one() -> u64 {
    1
}

fn sixteen() -> u64 {
    16
}

impl Plan {
    /// Whether the text is such a file: its first line says so.
    pub fn is_one(text: &str) -> bool {
        let mut lines = text.lines().map(str::trim);
        let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
        first.is_some_and(|line| line.starts_with("format:") && line.contains(FORMAT))
    }
}

fn selector(cluster: &mut Cluster, text: &str) -> Result<u32, String> {
    let known = cluster.selectors.iter().position(|one| one.text() == text);
    let place = match known {
        Some(place) => place,
        None => {
            cluster.selectors.push(Expression::read(text)?);
            cluster.selectors.len() - 1
        }
    };
    u32::try_from(place).map_err(|_| "too many selectors".to_owned())
}

/// Refuses a name that is there twice, in one file or in two: which of them was meant cannot be told.
///
/// # Errors
/// The name.
pub fn told_once(plans: &[Plan]) -> Result<(), String> {
    let nodes = plans.iter().flat_map(|plan| &plan.nodes);
    let claims = plans.iter().flat_map(|plan| &plan.claims);
    let nodes = nodes.map(|one| ("nodes", &one.name));
    let mut seen = HashSet::new();
    let mut all = nodes.chain(claims.map(|one| ("claims", &one.name)));
    match all.find(|one| !seen.insert(*one)) {
        Some((kind, name)) => Err(format!(
            "{kind} {name}: this name is there twice; `count` says how many there are"
        )),
        None => Ok(()),
    }
}

/// Adds what the file says.
///
/// # Errors
/// What makes no sense in it.
pub fn add(cluster: &mut Cluster, plan: Plan) -> Result<(), String> {
    if plan.format != FORMAT {
        return Err(format!(
            "the format `{}` is not known: write `format: {FORMAT}`",
            plan.format
        ));
    }
    let total = |counts: &mut dyn Iterator<Item = u64>| counts.fold(0, u64::saturating_add);
    let devices = total(
        &mut plan
            .nodes
            .iter()
            .map(|nodes| nodes.count.saturating_mul(nodes.gpus.max(1))),
    );
    let claims = total(&mut plan.claims.iter().map(|claims| claims.count));
    if devices > MOST || claims > MOST {
        return Err(format!("a plan has {MOST} devices and {MOST} claims at most"));
    }
    for nodes in &plan.nodes {
        add_nodes(cluster, nodes).map_err(|error| format!("nodes {}: {error}", nodes.name))?;
    }
    for claims in &plan.claims {
        add_claims(cluster, claims).map_err(|error| format!("claims {}: {error}", claims.name))?;
    }
    Ok(())
}

fn numbered(name: &str, count: u64, place: u64) -> String {
    match count {
        1 => name.to_owned(),
        _ => format!("{name}-{place}"),
    }
}

fn add_nodes(cluster: &mut Cluster, nodes: &Nodes) -> Result<(), String> {
    let memory = whole(&nodes.memory).ok_or_else(|| format!("`{}` is no quantity", nodes.memory))?;
    let memory = memory / STEP * STEP;
    if memory == 0 || nodes.gpus > 64 || nodes.slots == 0 {
        return Err("a node has up to 64 GPUs, each of 256Mi or more and one slot or more".into());
    }
    let names: [Arc<str>; 3] = ["cores", "memory", "slots"].map(|name| format!("{DRIVER}/{name}").into());
    let [kind, uuid]: [Arc<str>; 2] = ["type", "uuid"].map(|name| format!("{DRIVER}/{name}").into());
    let ranged = |default, step, value| {
        Some(Arc::new(Policy {
            default,
            range: Some((if step == 1 { 0 } else { step }, Some(value), Some(step))),
            values: Vec::new(),
        }))
    };
    let slot = Some(Arc::new(Policy {
        default: 1,
        range: None,
        values: vec![1],
    }));
    let shares = [
        (100, ranged(0, 1, 100)),
        (memory, ranged(memory, STEP, memory)),
        (nodes.slots, slot),
    ];
    let driver: Arc<str> = DRIVER.into();
    for place in 0..nodes.count {
        let name = numbered(&nodes.name, nodes.count, place);
        let pool: Arc<str> = name.as_str().into();
        let device = |index: u64, shared: bool| Device {
            name: format!("gpu-{index}{}", if shared { "-shared" } else { "" }),
            driver: driver.clone(),
            pool: pool.clone(),
            attributes: vec![
                (
                    kind.clone(),
                    Attribute::Text(if shared { "gpu-shared" } else { "gpu" }.into()),
                ),
                (uuid.clone(), Attribute::Text(format!("{name}/{index}"))),
            ],
            capacities: names
                .iter()
                .zip(&shares)
                .filter(|(name, _)| shared || !name.ends_with("slots"))
                .map(|(name, (value, policy))| Capacity {
                    name: name.clone(),
                    value: *value,
                    policy: policy.clone().filter(|_| shared),
                })
                .collect(),
            shared,
            consumes: u32::try_from(index)
                .map(|index| vec![(index, 1)])
                .unwrap_or_default(),
            taints: Vec::new(),
        };
        let forms = [true, false].into_iter().filter(|shared| match nodes.publish {
            Publish::Both => true,
            Publish::Shares => *shared,
            Publish::Whole => !shared,
        });
        let devices = forms.flat_map(|shared| (0..nodes.gpus).map(move |index| (index, shared)));
        cluster.nodes.push(Node {
            devices: devices.map(|(index, shared)| device(index, shared)).collect(),
            counters: vec![1; usize::try_from(nodes.gpus).unwrap_or(0)],
            name: name.clone(),
            ..Node::default()
        });
    }
    Ok(())
}

fn add_claims(cluster: &mut Cluster, claims: &Claims) -> Result<(), String> {
    if claims.whole && (claims.memory.is_some() || claims.cores.is_some()) {
        return Err("a whole device has all its memory and cores: leave them out".into());
    }
    let count = u32::try_from(claims.devices)
        .ok()
        .filter(|count| (1..=32).contains(count));
    let count = count.ok_or("a claim has from 1 to 32 devices")?;
    let selectors = vec![selector(cluster, if claims.whole { WHOLE } else { SHARES })?];
    let mut capacity: Vec<(Arc<str>, u64)> = Vec::new();
    if let Some(memory) = &claims.memory {
        let number = whole(memory).ok_or_else(|| format!("`{memory}` is no quantity"))?;
        capacity.push((format!("{DRIVER}/memory").into(), number));
    }
    if let Some(cores) = claims.cores {
        capacity.push((format!("{DRIVER}/cores").into(), cores));
    }
    let ask = Ask {
        name: String::new(),
        selectors,
        count: Count::Exactly(count),
        capacity,
        admin: false,
        tolerations: Vec::new(),
    };
    let distinct = Constraint {
        requests: Vec::new(),
        attribute: format!("{DRIVER}/uuid").into(),
        distinct: true,
    };
    let spec = Arc::new(Spec {
        requests: vec![Request {
            name: "gpu".into(),
            alternatives: vec![ask],
        }],
        constraints: if count > 1 { vec![distinct] } else { Vec::new() },
    });
    for place in 0..claims.count {
        let name = numbered(&claims.name, claims.count, place);
        cluster.pods.push(Pod {
            name: name.clone(),
            claims: vec![u32::try_from(cluster.claims.len()).map_err(|_| "too many claims")?],
            ..Pod::default()
        });
        cluster.claims.push(Claim {
            name,
            spec: spec.clone(),
            held: None,
        });
    }
    Ok(())
}

//! Kubernetes' objects as far as a plan needs them. One record serves all kinds: the kind says which fields count.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Object {
    pub kind: String,
    pub metadata: Metadata,
    pub spec: Spec,
    pub status: Status,
    pub items: Option<Vec<Object>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
    pub labels: Option<BTreeMap<String, String>>,
}

/// Fields of specs of nodes, pods, ResourceSlices, DeviceClasses, ResourceClaims and ResourceClaimTemplates.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    // Node and ResourceSlice
    pub taints: Option<Vec<Taint>>,
    pub unschedulable: bool,
    // Pod
    pub node_name: Option<String>,
    pub node_selector: Option<serde_json::Value>,
    pub tolerations: Option<Vec<Toleration>>,
    pub containers: Option<Vec<Container>>,
    pub init_containers: Option<Vec<Container>>,
    pub resource_claims: Option<Vec<PodClaim>>,
    pub affinity: Option<serde::de::IgnoredAny>,
    pub topology_spread_constraints: Option<Vec<serde::de::IgnoredAny>>,
    // ResourceSlice
    pub driver: String,
    pub pool: Pool,
    pub all_nodes: bool,
    pub per_device_node_selection: bool,
    pub shared_counters: Option<Vec<CounterSet>>,
    // ResourceSlice: published devices. ResourceClaim: requests.
    pub devices: Option<Devices>,
    // DeviceClass
    pub selectors: Option<Vec<Selector>>,
    pub extended_resource_name: Option<String>,
    // ResourceClaimTemplate
    pub spec: Option<Box<Spec>>,
}

/// Read by hand: serde's untagged enums copy all that is in them before they look at it, and this is most of a cluster.
#[derive(Debug)]
pub enum Devices {
    Published(Vec<Device>),
    Asked(Asked),
}

impl<'de> Deserialize<'de> for Devices {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Devices;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of devices, or requests for devices")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Devices, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(list)).map(Devices::Published)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Devices, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map)).map(Devices::Asked)
            }
        }
        from.deserialize_any(Read)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pool {
    pub name: String,
    pub generation: i64,
    pub resource_slice_count: i64,
}

#[derive(Debug, Deserialize)]
pub struct CounterSet {
    pub name: String,
    #[serde(default)]
    pub counters: BTreeMap<String, Counter>,
}

#[derive(Debug, Deserialize)]
pub struct Counter {
    pub value: Quantity,
}

/// A quantity: text, or a bare number in YAML.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Quantity {
    Number(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Quantity, E> {
                Ok(Quantity::Number(number))
            }
            // What is below zero, or no quantity for another reason, is told with its object.
            fn visit_i64<E: Error>(self, number: i64) -> Result<Quantity, E> {
                Ok(u64::try_from(number)
                    .map_or_else(|_| Quantity::Text(number.to_string()), Quantity::Number))
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Quantity, E> {
                Ok(Quantity::Text(number.to_string()))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Quantity, E> {
                Ok(Quantity::Text(text.to_owned()))
            }
            fn visit_string<E: Error>(self, text: String) -> Result<Quantity, E> {
                Ok(Quantity::Text(text))
            }
        }
        from.deserialize_any(Read)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Device {
    pub name: String,
    pub attributes: Option<BTreeMap<String, Attribute>>,
    pub capacity: Option<BTreeMap<String, Capacity>>,
    pub allow_multiple_allocations: Option<bool>,
    pub consumes_counters: Option<Vec<Consumes>>,
    pub taints: Option<Vec<Taint>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Attribute {
    pub string: Option<String>,
    pub int: Option<i64>,
    pub bool: Option<bool>,
    pub version: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    pub value: Quantity,
    pub request_policy: Option<Policy>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Policy {
    pub default: Option<Quantity>,
    pub valid_range: Option<Range>,
    pub valid_values: Option<Vec<Quantity>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Range {
    pub min: Option<Quantity>,
    pub max: Option<Quantity>,
    pub step: Option<Quantity>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Consumes {
    pub counter_set: String,
    #[serde(default)]
    pub counters: BTreeMap<String, Counter>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Toleration {
    pub key: String,
    pub operator: String,
    pub value: String,
    pub effect: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Container {
    pub resources: Resources,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub requests: Option<BTreeMap<String, Quantity>>,
    pub limits: Option<BTreeMap<String, Quantity>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodClaim {
    pub name: String,
    pub resource_claim_name: Option<String>,
    pub resource_claim_template_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    pub requests: Option<Vec<Request>>,
    pub constraints: Option<Vec<Constraint>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Request {
    pub name: String,
    pub exactly: Option<Exact>,
    pub first_available: Option<Vec<Exact>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Exact {
    pub name: String,
    pub device_class_name: String,
    pub selectors: Option<Vec<Selector>>,
    pub allocation_mode: String,
    pub count: Option<u32>,
    pub admin_access: Option<bool>,
    pub tolerations: Option<Vec<Toleration>>,
    pub capacity: Option<Asks>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Asks {
    pub requests: Option<BTreeMap<String, Quantity>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Selector {
    pub cel: Option<Cel>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cel {
    pub expression: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Constraint {
    pub requests: Option<Vec<String>>,
    pub match_attribute: Option<String>,
    pub distinct_attribute: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    pub allocatable: Option<BTreeMap<String, Quantity>>,
    pub phase: Option<String>,
    pub allocation: Option<Allocation>,
    pub resource_claim_statuses: Option<Vec<ClaimStatus>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimStatus {
    pub name: String,
    pub resource_claim_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Allocation {
    pub devices: Allocated,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Allocated {
    pub results: Option<Vec<Held>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Held {
    pub driver: String,
    pub pool: String,
    pub device: String,
    pub admin_access: Option<bool>,
    pub consumed_capacity: Option<BTreeMap<String, Quantity>>,
}

impl Quantity {
    /// In thousandths.
    pub fn thousandths(&self) -> Option<u128> {
        match self {
            Self::Number(number) => Some(u128::from(*number) * 1000),
            Self::Text(text) => crate::quantity::thousandths(text),
        }
    }

    /// Rounded up.
    pub fn whole(&self) -> Option<u64> {
        self.thousandths()?.div_ceil(1000).try_into().ok()
    }
}

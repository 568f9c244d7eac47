//! Messages of kube-scheduler's extenders: `k8s.io/kube-scheduler/extender/v1`. Go reads names of fields whatever their case; both
//! cases are read here too, and Go's is written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A name of a node, which lies in the message where it can: there are thousands in each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Name<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// What filter and prioritize get.
#[derive(Debug, Deserialize)]
pub struct Arguments<'a> {
    /// The pod.
    #[serde(rename = "Pod", alias = "pod")]
    pub pod: Value,
    /// The nodes, where the extender is not `nodeCacheCapable`.
    #[serde(rename = "Nodes", alias = "nodes", default)]
    pub nodes: Option<Nodes>,
    /// Their names, where it is.
    #[serde(
        rename = "NodeNames",
        alias = "nodenames",
        alias = "nodeNames",
        default,
        borrow
    )]
    pub node_names: Option<Vec<Name<'a>>>,
}

/// A NodeList.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Nodes {
    /// Each as it came.
    #[serde(default)]
    pub items: Vec<Value>,
}

/// What filter answers.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Filtered<'a> {
    /// Nodes that fit, where whole nodes came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Nodes>,
    /// Names of nodes that fit, where names came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_names: Option<Vec<Name<'a>>>,
    /// Nodes that do not, with the reason.
    pub failed_nodes: BTreeMap<Name<'a>, String>,
    /// Why the pod can be on none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// A node's score, from 0 to 10.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Score<'a> {
    /// The node.
    pub host: &'a str,
    /// `extenderv1.MaxExtenderPriority` is 10.
    pub score: i64,
}

/// What bind gets.
#[derive(Clone, Debug, Deserialize)]
pub struct Bind {
    /// The pod's name.
    #[serde(rename = "PodName", alias = "podName")]
    pub name: String,
    /// Its namespace.
    #[serde(rename = "PodNamespace", alias = "podNamespace")]
    pub namespace: String,
    /// Its UID.
    #[serde(rename = "PodUID", alias = "podUID")]
    pub uid: String,
    /// The node.
    #[serde(rename = "Node", alias = "node")]
    pub node: String,
}

/// What bind answers.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Bound {
    /// Why not; empty where it was done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

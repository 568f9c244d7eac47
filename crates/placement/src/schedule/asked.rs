//! What one pod asks for.

use std::sync::Arc;

use crate::cluster::{Claim, Cluster, Pod, Spec};

/// What a pod asks for, taken together once.
pub struct Asked<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Specs of its claims that have no devices yet.
    pub specs: Vec<Arc<Spec>>,
    /// Pools of the devices that its other claims have: they bind it to the nodes of these.
    pub pools: Vec<&'a str>,
    /// Whether all that it asks for are whole devices.
    pub whole: bool,
}

impl<'a> Asked<'a> {
    /// By a pod of the cluster.
    pub fn of(cluster: &'a Cluster, pod: &'a Pod) -> Self {
        let claims = pod.claims.iter();
        let claims: Vec<&'a Claim> = claims.map(|claim| &cluster.claims[*claim as usize]).collect();
        let free = claims.iter().filter(|claim| claim.held.is_none());
        let specs: Vec<Arc<Spec>> = free.map(|claim| claim.spec.clone()).collect();
        let held = claims.iter().flat_map(|claim| claim.held.iter().flatten());
        Self {
            pod,
            pools: held.map(|held| held.pool.as_str()).collect(),
            whole: specs.iter().all(|spec| is_whole(spec, cluster)),
            specs,
        }
    }
}

/// Whether a claim is for whole devices: whatever it may have is not shared.
#[must_use]
pub fn is_whole(spec: &Spec, cluster: &Cluster) -> bool {
    let shares = |selector: &u32| {
        let text = cluster.selectors[*selector as usize].text();
        text.contains("allowMultipleAllocations == true") || text.contains("gpu-shared")
    };
    let mut asks = spec.requests.iter().flat_map(|request| &request.alternatives);
    asks.all(|ask| ask.capacity.is_empty() && !ask.selectors.iter().any(shares))
}

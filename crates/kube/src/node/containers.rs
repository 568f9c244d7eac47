//! A container is in one slice: it has one limiter. A pod's author can name several claims, or a claim of several requests,
//! for one container. The kubelet tells the driver of claims only, so the driver looks at the pods that a claim is reserved for.

use std::collections::{BTreeMap, BTreeSet};

use divvy_model::{Code, Fault};
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::Named;
use crate::claim::{refused, served};
use crate::cluster::{Cluster, Refusal};

/// A slice that a container would get: its claim's name, and the request.
type Slice = (String, String);

/// Refuses a claim that would put a container of this node into several slices.
///
/// # Errors
/// [`Code::Claim`] names the container; [`Code::Cluster`] where the pods cannot be read.
pub(super) fn one_slice_each(
    cluster: &dyn Cluster,
    claim: &Named,
    found: &ResourceClaim,
    node: &str,
) -> Result<(), Fault> {
    let unread = |what: &str, refusal: Refusal| {
        Fault::new(Code::Cluster, format!("{what} cannot be read")).cause(refusal.to_string())
    };
    let pods = reserved(cluster, claim, found, node)
        .map_err(|refusal| unread(&format!("a pod of namespace {}", claim.namespace), refusal))?;
    let mut known = BTreeMap::from([(claim.name.clone(), served(found))]);
    for pod in &pods {
        let claims = claims(pod);
        let extended = extended(pod);
        let theirs = claims
            .values()
            .chain(extended.values().flatten().map(|(claim, _)| claim));
        if !theirs.clone().any(|name| *name == claim.name) {
            continue;
        }
        let theirs: BTreeSet<String> = theirs.cloned().collect();
        for name in theirs {
            if known.contains_key(&name) {
                continue;
            }
            let requests = match cluster.claim(&claim.namespace, &name) {
                Ok(other) => served(&other),
                Err(Refusal::NotFound(_)) => BTreeSet::new(),
                Err(refusal) => return Err(unread(&format!("claim {}/{name}", claim.namespace), refusal)),
            };
            known.insert(name, requests);
        }
        for container in containers(pod) {
            let slices = slices(container, &claims, &extended, &known);
            if slices.len() > 1 && slices.iter().any(|(name, _)| *name == claim.name) {
                let all: Vec<String> = slices
                    .iter()
                    .map(|(claim, request)| format!("{claim}/{request}"))
                    .collect();
                return Err(refused(&format!(
                    "container `{}` of pod `{}` would be in several slices ({}), and a container is in one",
                    container.name,
                    pod.metadata.name.as_deref().unwrap_or_default(),
                    all.join(", ")
                ))
                .hint(
                    "name one request for each container (`claims: [{name: gpu, request: a}]`), \
                     or ask for several devices in one request (`count: 2`)",
                ));
            }
        }
    }
    Ok(())
}

/// The pods of this node that the claim is reserved for: the driver reads these, and no others of the namespace.
fn reserved(
    cluster: &dyn Cluster,
    claim: &Named,
    found: &ResourceClaim,
    node: &str,
) -> Result<Vec<Pod>, Refusal> {
    let status = found.status.as_ref();
    let reserved = status.and_then(|status| status.reserved_for.as_ref());
    let mut pods = Vec::new();
    for whose in reserved
        .into_iter()
        .flatten()
        .filter(|whose| whose.resource == "pods")
    {
        match cluster.pod(&claim.namespace, &whose.name) {
            Ok(pod) => {
                let is_here = pod
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.as_deref() == Some(node));
                pods.extend(Some(pod).filter(|pod| is_here && pod.metadata.uid.as_ref() == Some(&whose.uid)));
            }
            Err(Refusal::NotFound(_)) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(pods)
}

/// The claims of a pod: from the names that its containers use to those of the objects.
fn claims(pod: &Pod) -> BTreeMap<&str, String> {
    let spec = pod.spec.as_ref();
    let made = pod
        .status
        .as_ref()
        .and_then(|status| status.resource_claim_statuses.as_ref());
    let mut all = BTreeMap::new();
    for claim in spec
        .and_then(|spec| spec.resource_claims.as_ref())
        .into_iter()
        .flatten()
    {
        let of_template = made
            .into_iter()
            .flatten()
            .find(|status| status.name == claim.name)
            .and_then(|status| status.resource_claim_name.clone());
        if let Some(name) = claim.resource_claim_name.clone().or(of_template) {
            all.insert(claim.name.as_str(), name);
        }
    }
    all
}

/// By container: what the scheduler made of extended resources, which no container names.
fn extended(pod: &Pod) -> BTreeMap<&str, Vec<Slice>> {
    let status = pod
        .status
        .as_ref()
        .and_then(|status| status.extended_resource_claim_status.as_ref());
    let mut all: BTreeMap<&str, Vec<Slice>> = BTreeMap::new();
    if let Some(status) = status {
        for mapping in &status.request_mappings {
            all.entry(&mapping.container_name)
                .or_default()
                .push((status.resource_claim_name.clone(), mapping.request_name.clone()));
        }
    }
    all
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref();
    let first = spec.and_then(|spec| spec.init_containers.as_ref());
    first
        .into_iter()
        .flatten()
        .chain(spec.into_iter().flat_map(|spec| &spec.containers))
}

fn slices(
    container: &Container,
    claims: &BTreeMap<&str, String>,
    extended: &BTreeMap<&str, Vec<Slice>>,
    known: &BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<Slice> {
    let mut slices = BTreeSet::new();
    let named = container
        .resources
        .as_ref()
        .and_then(|resources| resources.claims.as_ref());
    for entry in named.into_iter().flatten() {
        let Some(claim) = claims.get(entry.name.as_str()) else {
            continue;
        };
        let requests = known.get(claim).into_iter().flatten();
        let meant = requests.filter(|request| entry.request.as_ref().is_none_or(|named| named == *request));
        slices.extend(meant.map(|request| (claim.clone(), request.clone())));
    }
    for (claim, request) in extended.get(container.name.as_str()).into_iter().flatten() {
        let is_ours = known
            .get(claim)
            .is_some_and(|requests| requests.contains(request));
        slices.extend(is_ours.then(|| (claim.clone(), request.clone())));
    }
    slices
}

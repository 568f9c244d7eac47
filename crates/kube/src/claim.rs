//! What a claim was allocated on this node, as its status says.

use std::collections::BTreeMap;

use divvy_model::{Code, Fault};
use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
};
use serde::{Deserialize, Serialize};

use crate::DRIVER;
use crate::parameters::Parameters;
use crate::quantity::whole;

/// Devices that were allocated for one request of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The request's whole name: with `firstAvailable`, `request/subrequest`.
    pub name: String,
    /// Its devices.
    pub devices: Vec<Allocated>,
    /// Its author's terms.
    pub parameters: Parameters,
}

/// A device that was allocated, or a share of one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Allocated {
    /// The pool.
    pub pool: String,
    /// The device's name in the pool.
    pub device: String,
    /// Which share of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
    /// Memory, in bytes; none for a device that was not shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Cores, in percent; 0 for none promised.
    #[serde(default)]
    pub cores: u64,
}

/// The name by which containers refer to a request: without the subrequest.
#[must_use]
pub fn base(request: &str) -> &str {
    request.split_once('/').map_or(request, |(base, _)| base)
}

/// Whether no pod can have the claim of this UID any more: it is another's name now, was not allocated, or is reserved for none.
#[must_use]
pub fn is_forgotten(claim: &ResourceClaim, uid: &str) -> bool {
    let status = claim.status.as_ref();
    let allocated = status.is_some_and(|status| status.allocation.is_some());
    let reserved = status.and_then(|status| status.reserved_for.as_ref());
    claim.metadata.uid.as_deref() != Some(uid) || !allocated || reserved.is_none_or(Vec::is_empty)
}

/// The requests of a claim, without subrequests, of which this driver has devices to give.
#[must_use]
pub fn served(claim: &ResourceClaim) -> std::collections::BTreeSet<String> {
    let status = claim.status.as_ref();
    let devices = status.and_then(|status| status.allocation.as_ref()?.devices.as_ref()?.results.as_ref());
    let ours = devices
        .into_iter()
        .flatten()
        .filter(|result| result.driver == DRIVER);
    ours.map(|result| base(&result.request).to_owned()).collect()
}

/// What this driver is to prepare of the claim, by request.
///
/// # Errors
/// [`Code::Claim`]: it is another claim, was not allocated, or has what is not understood.
pub fn requests(claim: &ResourceClaim, uid: &str, pool: &str) -> Result<Vec<Request>, Fault> {
    if claim.metadata.uid.as_deref() != Some(uid) {
        return Err(refused("the claim was deleted and made again under its name"));
    }
    let status = claim.status.as_ref();
    let allocation = status.and_then(|status| status.allocation.as_ref());
    let devices = allocation
        .and_then(|allocation| allocation.devices.as_ref())
        .ok_or_else(|| refused("the claim is not allocated"))?;
    // A call that is late comes for a pod that has ended.
    if is_forgotten(claim, uid) {
        return Err(refused("no pod has the claim reserved"));
    }
    let (none, nothing) = (Vec::new(), Vec::new());
    let configs = devices.config.as_ref().unwrap_or(&none);
    let mut found: BTreeMap<&str, Vec<Allocated>> = BTreeMap::new();
    for result in devices.results.as_ref().unwrap_or(&nothing) {
        if result.driver == DRIVER {
            found
                .entry(&result.request)
                .or_default()
                .push(allocated(result, pool)?);
        }
    }
    found
        .into_iter()
        .map(|(name, mut devices)| {
            devices.sort();
            Ok(Request {
                name: name.to_owned(),
                devices,
                parameters: parameters(name, configs)?,
            })
        })
        .collect()
}

fn allocated(result: &DeviceRequestAllocationResult, pool: &str) -> Result<Allocated, Fault> {
    if result.pool != pool {
        return Err(refused(&format!(
            "device `{}` is of pool `{}`, not this node's",
            result.device, result.pool
        )));
    }
    if result.admin_access == Some(true) {
        return Err(refused("adminAccess is not served yet"));
    }
    let consumed = |name: &str| {
        let quantity = result.consumed_capacity.as_ref().and_then(|all| {
            let qualified = format!("{DRIVER}/{name}");
            all.get(name).or_else(|| all.get(&qualified))
        });
        let number = quantity.map(|quantity| {
            whole(quantity).ok_or_else(|| refused(&format!("`{}` is no {name}", quantity.0)))
        });
        number.transpose()
    };
    let cores = consumed("cores")?.unwrap_or(0);
    if cores > 100 {
        return Err(refused(&format!("{cores} are more cores than a device has")));
    }
    Ok(Allocated {
        pool: result.pool.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
        memory: consumed("memory")?,
        cores,
    })
}

/// The terms of a request: the class's, and the claim's as far as the class allows them. A later one counts more than an earlier
/// one of the same source.
fn parameters(request: &str, configs: &[DeviceAllocationConfiguration]) -> Result<Parameters, Fault> {
    let (mut class, mut claim) = (Parameters::default(), Parameters::default());
    for config in configs {
        let named = config.requests.as_deref().unwrap_or_default();
        let is_meant = named.is_empty() || named.iter().any(|name| name == request || name == base(request));
        let Some(opaque) = config
            .opaque
            .as_ref()
            .filter(|opaque| is_meant && opaque.driver == DRIVER)
        else {
            continue;
        };
        let terms = match &*config.source {
            "FromClass" => &mut class,
            "FromClaim" => &mut claim,
            // Whose word it is decides what it may say.
            other => {
                return Err(refused(&format!(
                    "the parameters' source `{}` is neither FromClass nor FromClaim",
                    other
                        .chars()
                        .filter(|c| !c.is_control())
                        .take(64)
                        .collect::<String>()
                )));
            }
        };
        *terms = Parameters::read(&opaque.parameters.0)?.over(*terms);
    }
    claim.within(class)
}

/// The refusal to prepare a claim.
pub(crate) fn refused(why: &str) -> Fault {
    Fault::new(Code::Claim, why)
}

#[cfg(test)]
mod tests {
    use divvy_model::{Cap, Class};
    use serde_json::{Value, json};

    use super::*;

    fn claim(results: &Value, config: &Value) -> ResourceClaim {
        serde_json::from_value(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "default", "uid": "u-1"},
            "spec": {},
            "status": {"allocation": {"devices": {"results": results, "config": config}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "p-1"}]},
        }))
        .expect("a claim")
    }

    fn result(request: &str, device: &str, share: &str) -> Value {
        json!({"request": request, "driver": DRIVER, "pool": "node", "device": device, "shareID": share,
            "consumedCapacity": {"memory": "4Gi", "cores": "30", "slots": "1"}})
    }

    #[test]
    fn shares_of_one_device_stay_apart_and_other_drivers_are_passed_over() {
        let mut other = result("b", "gpu-9", "s9");
        other["driver"] = "gpu.nvidia.com".into();
        let claim = claim(
            &json!([result("a", "gpu-0", "s1"), result("b", "gpu-0", "s2"), other]),
            &json!([]),
        );
        let found = requests(&claim, "u-1", "node").expect("two");
        let shares: Vec<_> = found
            .iter()
            .map(|request| {
                (
                    &*request.name,
                    request.devices.len(),
                    request.devices[0].share_id.clone(),
                )
            })
            .collect();
        assert_eq!(shares, [("a", 1, Some("s1".into())), ("b", 1, Some("s2".into()))]);
        assert_eq!(
            (found[0].devices[0].memory, found[0].devices[0].cores),
            (Some(4 << 30), 30)
        );
    }

    #[test]
    fn terms_go_to_the_requests_that_they_name() {
        let config = |source: &str, requests: &[&str], fields: Value| {
            let mut parameters = fields;
            parameters["apiVersion"] = crate::parameters::API_VERSION.into();
            parameters["kind"] = crate::parameters::KIND.into();
            json!({"source": source, "requests": requests, "opaque": {"driver": DRIVER, "parameters": parameters}})
        };
        let claim = claim(
            &json!([result("a/half", "gpu-0", "s1"), result("b", "gpu-0", "s2")]),
            &json!([
                config("FromClaim", &["a"], json!({"cap": "hard"})),
                config("FromClass", &[], json!({"cap": "soft", "class": "latency"})),
                {"source": "FromClaim", "requests": [], "opaque": {"driver": "gpu.nvidia.com", "parameters": {"x": 1}}},
            ]),
        );
        let found = requests(&claim, "u-1", "node").expect("two");
        let caps: Vec<_> = found
            .iter()
            .map(|request| (request.parameters.cap, request.parameters.class))
            .collect();
        assert_eq!(
            caps,
            [
                (Some(Cap::Hard), Some(Class::Latency)),
                (Some(Cap::Soft), Some(Class::Latency))
            ]
        );
        // The same words in the claim take what the class did not give; a source that is not known gives nothing.
        for source in ["FromClaim", "FromNowhere"] {
            let config = json!([config(source, &[], json!({"oversubscribe": "2x"}))]);
            let claim = self::claim(&json!([result("a", "gpu-0", "s1")]), &config);
            assert_eq!(
                requests(&claim, "u-1", "node").expect_err(source).code,
                Code::Claim
            );
        }
        let config = json!([config("FromClass", &[], json!({"oversubscribe": "2x"}))]);
        let claim = self::claim(&json!([result("a", "gpu-0", "s1")]), &config);
        requests(&claim, "u-1", "node").expect("the class's word");
    }

    #[test]
    fn what_is_not_ours_to_prepare_is_refused() {
        let with = |field: &str, value: Value| {
            let mut wrong = result("a", "gpu-0", "s1");
            wrong[field] = value;
            requests(&claim(&json!([wrong]), &json!([])), "u-1", "node")
                .expect_err("refused")
                .message
        };
        assert!(with("pool", json!("elsewhere")).contains("elsewhere"));
        assert!(with("adminAccess", json!(true)).contains("adminAccess"));
        assert!(with("consumedCapacity", json!({"memory": "-1"})).contains("-1"));
        assert!(with("consumedCapacity", json!({"cores": "101"})).contains("101"));
        let good = claim(&json!([result("a", "gpu-0", "s1")]), &json!([]));
        assert!(
            requests(&good, "u-2", "node")
                .expect_err("another")
                .message
                .contains("again")
        );
        let mut unreserved = good.clone();
        unreserved.status.as_mut().expect("a status").reserved_for = None;
        let late = requests(&unreserved, "u-1", "node").expect_err("late");
        assert!(late.message.contains("reserved"), "{late:?}");
        assert!(
            is_forgotten(&unreserved, "u-1") && !is_forgotten(&good, "u-1") && is_forgotten(&good, "u-2")
        );
        let mut bare = good;
        bare.status = None;
        assert!(
            requests(&bare, "u-1", "node")
                .expect_err("bare")
                .message
                .contains("not allocated")
        );
    }
}

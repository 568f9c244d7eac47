//! What the webhook and `migrate` write is what the driver takes: a claim of each template, allocated, is read as the driver reads
//! it, below the chart's DeviceClasses.

use base64::Engine as _;
use divvy_kube::claim::{Request, requests};
use divvy_kube::migrate::migrate;
use divvy_kube::names::Terms;
use divvy_kube::templates::{ASKS, of_pod};
use divvy_kube::webhook::review::Webhook;
use divvy_kube::webhook::rewrite::Target;
use divvy_model::{Class, Code, Fault, SliceRequest};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use serde_json::{Value, json};

/// The specs of claims that the webhook has made for a pod.
fn by_webhook(pod: &Value, terms: &Terms) -> Vec<Value> {
    let webhook = Webhook {
        terms: terms.clone(),
        target: Target::Claims,
    };
    let body = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE", "object": pod},
    });
    let answered = webhook.review(body.to_string().as_bytes()).expect("a review");
    let text = answered["response"]["patch"].as_str().expect("a patch");
    let patch = base64::engine::general_purpose::STANDARD
        .decode(text)
        .expect("base64");
    let patch: Vec<Value> = serde_json::from_slice(&patch).expect("JSON");
    let annotations = patch.iter().find(|one| one["path"] == "/metadata/annotations");
    let asks = annotations.expect("annotations")["value"][ASKS]
        .as_str()
        .expect("text");
    of_pod(asks)
        .expect("understood")
        .iter()
        .map(|template| template.object(None)["spec"]["spec"].clone())
        .collect()
}

/// The specs of claims in what `migrate` writes for a pod.
fn by_migrate(pod: &Value, terms: &Terms) -> Vec<Value> {
    let done = migrate(&pod.to_string(), terms, Target::Claims).expect("kept");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&done.text).expect("YAML");
    let templates = documents
        .into_iter()
        .filter(|one| one["kind"] == "ResourceClaimTemplate");
    templates
        .map(|one| {
            let _valid: ResourceClaimTemplate = serde_json::from_value(one.clone()).expect("a template");
            one["spec"]["spec"].clone()
        })
        .collect()
}

/// A claim of this spec as the scheduler leaves it, below a class that says `class`, read by the driver.
fn read(spec: &Value, class: Option<&Value>) -> Result<Vec<Request>, Fault> {
    let of = |source: &str, one: &Value| {
        let mut config = one.clone();
        config["source"] = source.into();
        config
    };
    let mut config: Vec<Value> = spec["devices"]["config"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| of("FromClaim", one))
        .collect();
    config.extend(class.map(|one| {
        let parameters = json!({"opaque": {"driver": "gpu.divvy.dev", "parameters": one}});
        of("FromClass", &parameters)
    }));
    let mut results = Vec::new();
    for request in spec["devices"]["requests"].as_array().expect("requests") {
        let exactly = &request["exactly"];
        for place in 0..exactly["count"].as_u64().unwrap_or(1) {
            let mut result = json!({"request": request["name"], "driver": "gpu.divvy.dev", "pool": "node"});
            if exactly["deviceClassName"] != "whole.gpu.divvy.dev" {
                let asked = &exactly["capacity"]["requests"];
                let or = |name: &str, other: &str| asked[name].as_str().unwrap_or(other).to_owned();
                result["device"] = format!("gpu-{place}-shared").into();
                result["shareID"] = format!("s-{place}").into();
                result["consumedCapacity"] =
                    json!({"memory": or("memory", "80Gi"), "cores": or("cores", "0"), "slots": "1"});
            } else {
                result["device"] = format!("gpu-{place}").into();
            }
            results.push(result);
        }
    }
    let claim: ResourceClaim = serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "n", "uid": "u-1"}, "spec": spec,
        "status": {"allocation": {"devices": {"results": results, "config": config}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "p-1"}]},
    }))
    .expect("a claim");
    requests(&claim, "u-1", "node")
}

fn pod(limits: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]}})
}

#[test]
fn the_driver_takes_what_the_webhook_and_migrate_write() {
    let terms = Terms {
        device_mib: Some(81_920),
        ..Terms::default()
    };
    for (limits, devices, class) in [
        (json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096}), 1, None),
        (
            json!({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}),
            2,
            None,
        ),
        (
            json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50, "nvidia.com/priority": 0}),
            1,
            Some(Class::Latency),
        ),
        (
            json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100, "nvidia.com/gpucores": 100, "nvidia.com/priority": 1}),
            1,
            Some(Class::BestEffort),
        ),
        (json!({"nvidia.com/gpu": 2}), 2, None),
        (json!({"aliyun.com/gpu-mem": 3}), 1, None),
        (
            json!({"elasticgpu.io/gpu-core": 50, "elasticgpu.io/gpu-memory": 1024}),
            1,
            None,
        ),
        (
            json!({"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 8}),
            1,
            None,
        ),
    ] {
        let specs = by_webhook(&pod(&limits), &terms);
        assert_eq!(
            specs,
            by_migrate(&pod(&limits), &terms),
            "{limits}: both write the same"
        );
        let [spec] = specs.as_slice() else {
            panic!("{limits}: {} templates", specs.len())
        };
        // What the chart's class of this name says.
        let first =
            json!({"apiVersion": "gpu.divvy.dev/v1alpha1", "kind": "SliceParameters", "class": "latency"});
        let is_first =
            spec["devices"]["requests"][0]["exactly"]["deviceClassName"] == "latency.slice.gpu.divvy.dev";
        let found = read(spec, Some(&first).filter(|_| is_first))
            .unwrap_or_else(|fault| panic!("{limits}: {fault:?}"));
        assert_eq!((found.len(), found[0].devices.len()), (1, devices), "{limits}");
        assert_eq!(found[0].parameters.class, class, "{limits}");
        found[0]
            .parameters
            .apply(&mut SliceRequest::default())
            .unwrap_or_else(|fault| panic!("{limits}: {fault:?}"));
    }
}

/// The administrator's class counts: a pod that wants to be first is refused below one that does not say so.
#[test]
fn a_pods_priority_is_no_way_around_its_class() {
    let limits = |priority: u32| json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096, "nvidia.com/priority": priority});
    let class =
        json!({"apiVersion": "gpu.divvy.dev/v1alpha1", "kind": "SliceParameters", "class": "best-effort"});
    let of = |priority: u32| by_webhook(&pod(&limits(priority)), &Terms::default()).remove(0);
    let first = &of(0)["devices"]["requests"][0]["exactly"]["deviceClassName"];
    assert_eq!(
        first, "latency.slice.gpu.divvy.dev",
        "an administrator makes it or does not"
    );
    let mut written = of(1);
    let found = read(&written, Some(&class)).expect("the class's own word");
    assert_eq!(found[0].parameters.class, Some(Class::BestEffort));
    written["devices"]["config"][0]["opaque"]["parameters"]["class"] = "latency".into();
    for class in [Some(&class), None] {
        let refused = read(&written, class).expect_err("latency");
        assert_eq!(refused.code, Code::Claim);
    }
}

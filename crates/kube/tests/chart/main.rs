//! The Helm chart: rendered in each mode, each object held to the published types, and its rights to the calls that are made.
//!
//! `gtmpl` renders the templates. It knows Go's templates and not Helm's functions: `quote`, `toJson` and `fail` are here, and the
//! chart uses no others.

mod policies;
mod server;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use divvy_kube::cluster::Cluster;
use divvy_kube::device_plugin::granted::{Around, ThisCluster};
use divvy_kube::extender::cluster::{Binding, Pods};
use divvy_kube::extender::service::Extender;
use divvy_kube::extender::watching::{LivePods, begin, follow_nodes, follow_pods};
use divvy_kube::grants::{Believed, Signed, Signer};
use divvy_kube::live::Live;
use divvy_kube::names::Terms;
use divvy_kube::templates::{ASKS, Template};
use divvy_kube::webhook::follow::follow_every;
use gtmpl::{FuncError, Value as Word};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Client;
use kube::client::Body;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/divvy")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn word(value: &Value) -> Word {
    match value {
        Value::Null => Word::Nil,
        Value::Bool(flag) => Word::Bool(*flag),
        Value::Number(number) => number.as_i64().unwrap_or_default().into(),
        Value::String(text) => Word::String(text.clone()),
        Value::Array(all) => Word::Array(all.iter().map(word).collect()),
        Value::Object(all) => Word::Map(all.iter().map(|(name, one)| (name.clone(), word(one))).collect()),
    }
}

fn back(word: &Word) -> Value {
    match word {
        Word::Bool(flag) => json!(flag),
        Word::String(text) => json!(text),
        Word::Array(all) => all.iter().map(back).collect(),
        Word::Object(all) | Word::Map(all) => {
            all.iter().map(|(name, one)| (name.clone(), back(one))).collect()
        }
        other => serde_json::from_str(&other.to_string()).unwrap_or_default(),
    }
}

fn in_json(words: &[Word]) -> Result<Word, FuncError> {
    let one = words
        .first()
        .ok_or_else(|| FuncError::AtLeastXArgs("toJson".into(), 1))?;
    Ok(Word::String(back(one).to_string()))
}

fn fail(words: &[Word]) -> Result<Word, FuncError> {
    Err(FuncError::Generic(
        words.first().map(ToString::to_string).unwrap_or_default(),
    ))
}

/// The chart's objects with these values over its own.
fn rendered(over: &Value) -> Vec<Value> {
    tried(over).unwrap_or_else(|error| panic!("{error}"))
}

/// The same, or why the chart refuses these values.
fn tried(over: &Value) -> Result<Vec<Value>, String> {
    let mut values: Value = serde_saphyr::from_str(&read(&folder().join("values.yaml"))).expect("values");
    merge(&mut values, over);
    let context = word(&json!({"Values": values, "Release": {"Namespace": "divvy-system", "Name": "divvy"}}));
    let mut files: Vec<_> = std::fs::read_dir(folder().join("templates"))
        .expect("templates")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let mut objects = Vec::new();
    for file in files {
        let mut template = gtmpl::Template::default();
        template.add_funcs(&[
            ("quote", in_json as gtmpl::Func),
            ("toJson", in_json as gtmpl::Func),
            ("fail", fail as gtmpl::Func),
        ]);
        template
            .parse(read(&file))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let text = template.render(&gtmpl::Context::from(context.clone()));
        let text = text.map_err(|error| format!("{}: {error}", file.display()))?;
        if text.trim().is_empty() {
            continue;
        }
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
            .unwrap_or_else(|error| panic!("{}: {error}\n{text}", file.display()));
        objects.extend(documents.into_iter().filter(|one| !one.is_null()));
    }
    Ok(objects)
}

fn merge(into: &mut Value, over: &Value) {
    match (into, over) {
        (Value::Object(into), Value::Object(over)) => {
            if into.is_empty() {
                into.clone_from(over);
                return;
            }
            for (name, one) in over {
                let known = into
                    .get_mut(name)
                    .unwrap_or_else(|| panic!("values.yaml has no {name}"));
                merge(known, one);
            }
        }
        (into, over) => *into = over.clone(),
    }
}

/// A configuration of NVIDIA's device plugin.
fn nvidias_file() -> Value {
    json!({"version": "v1", "flags": {"migStrategy": "mixed"},
        "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}})
}

/// Every mode that the chart has.
fn modes() -> Vec<(&'static str, Value)> {
    vec![
        ("dra", json!({})),
        ("fallback", json!({"mode": "fallback"})),
        ("emulated", json!({"emulated": "h100*2"})),
        (
            "fallback, emulated",
            json!({"mode": "fallback", "emulated": "h100"}),
        ),
        (
            "fallback without extender",
            json!({"mode": "fallback", "extender": {"enabled": false}}),
        ),
        ("without webhook", json!({"webhook": {"enabled": false}})),
        (
            "fallback with NVIDIA's file",
            json!({"mode": "fallback", "extender": {"enabled": false}, "metrics": {"enabled": true},
                "devicePlugin": {"config": nvidias_file(), "allocation": "packed"}}),
        ),
        (
            "with all that is optional",
            json!({"latencyClass": true, "overcommitCores": 150,
                "metrics": {"enabled": true, "scraperCIDRs": ["10.0.0.3/32"]},
                "webhook": {"deviceMemory": "80GiB", "caBundle": "Cg==", "certManagerCertificate": "a/b",
                    "gpushareMib": true, "bareGpuIsSlice": true, "clientNames": ["apiserver"]},
                "nodeSelector": {"gpu": "yes"}, "controlPlaneCIDRs": ["10.0.0.1/32", "10.0.0.2/32"]}),
        ),
    ]
}

/// What of the object the published type does not know: fields that reading and writing it again loses.
fn unknown<T: DeserializeOwned + Serialize>(object: &Value) -> Result<Vec<String>, String> {
    let typed: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let again = serde_json::to_value(&typed).map_err(|error| error.to_string())?;
    let mut lost = Vec::new();
    compare("", object, &again, &mut lost);
    Ok(lost)
}

fn compare(path: &str, before: &Value, after: &Value, lost: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (name, one) in before {
                match after.get(name) {
                    Some(other) => compare(&format!("{path}/{name}"), one, other, lost),
                    // An empty list or map may be left out.
                    None if one.as_object().is_some_and(serde_json::Map::is_empty) => {}
                    None => lost.push(format!("{path}/{name}")),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (place, (one, other)) in before.iter().zip(after).enumerate() {
                compare(&format!("{path}/{place}"), one, other, lost);
            }
        }
        _ if before == after => {}
        _ => lost.push(format!("{path}: {before} is {after}")),
    }
}

fn check(object: &Value) -> Result<Vec<String>, String> {
    use k8s_openapi::api::{admissionregistration, apps, core, networking, rbac, resource};
    let of = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
    match (of("apiVersion").as_str(), of("kind").as_str()) {
        ("v1", "ServiceAccount") => unknown::<core::v1::ServiceAccount>(object),
        ("v1", "ConfigMap") => unknown::<core::v1::ConfigMap>(object),
        ("v1", "Service") => unknown::<core::v1::Service>(object),
        ("v1", "Pod") => unknown::<core::v1::Pod>(object),
        ("apps/v1", "DaemonSet") => unknown::<apps::v1::DaemonSet>(object),
        ("apps/v1", "Deployment") => unknown::<apps::v1::Deployment>(object),
        ("batch/v1", "Job") => unknown::<k8s_openapi::api::batch::v1::Job>(object),
        ("policy/v1", "PodDisruptionBudget") => {
            unknown::<k8s_openapi::api::policy::v1::PodDisruptionBudget>(object)
        }
        ("networking.k8s.io/v1", "NetworkPolicy") => unknown::<networking::v1::NetworkPolicy>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => unknown::<rbac::v1::ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            unknown::<rbac::v1::ClusterRoleBinding>(object)
        }
        ("resource.k8s.io/v1", "DeviceClass") => unknown::<resource::v1::DeviceClass>(object),
        ("resource.k8s.io/v1", "ResourceClaimTemplate") => {
            unknown::<resource::v1::ResourceClaimTemplate>(object)
        }
        ("admissionregistration.k8s.io/v1", kind) => match kind {
            "MutatingWebhookConfiguration" => {
                unknown::<admissionregistration::v1::MutatingWebhookConfiguration>(object)
            }
            "ValidatingAdmissionPolicy" => {
                unknown::<admissionregistration::v1::ValidatingAdmissionPolicy>(object)
            }
            "ValidatingAdmissionPolicyBinding" => {
                unknown::<admissionregistration::v1::ValidatingAdmissionPolicyBinding>(object)
            }
            _ => Err("the kind is not known".into()),
        },
        (version, kind) => Err(format!("{version} {kind} is not known")),
    }
}

#[test]
fn every_object_is_what_its_published_type_says() {
    for (mode, values) in modes() {
        let objects = rendered(&values);
        assert!(objects.len() > 3, "{mode}");
        let mut names = BTreeSet::new();
        for object in &objects {
            let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
            assert_eq!(check(object), Ok(Vec::new()), "{mode}: {name}");
            assert!(names.insert(name.clone()), "{mode}: {name} is there twice");
        }
        assert_eq!(server::takes(mode, &objects), Ok(()), "{mode}");
    }
    let wrong = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"sellector": {"a": "b"}}});
    assert_eq!(
        check(&wrong),
        Ok(vec!["/spec/sellector".to_owned()]),
        "the check finds what is misspelt"
    );
}

/// What Helm says of values by the chart's `values.schema.json`: as much of JSON Schema as that file uses.
fn complaints(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (word, rule) in schema.as_object().expect("a schema is an object") {
        let holds = match word.as_str() {
            // Fields are looked at below.
            "$schema" | "title" | "description" | "properties" | "additionalProperties" => true,
            "type" => match rule.as_str().expect("one type") {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64(),
                other => panic!("no type is called {other}"),
            },
            "enum" => rule.as_array().expect("words").contains(value),
            "minimum" => value.as_i64() >= rule.as_i64(),
            "minLength" => value
                .as_str()
                .is_none_or(|text| text.len() as u64 >= rule.as_u64().expect("a length")),
            "items" => {
                for one in value.as_array().into_iter().flatten() {
                    found.extend(complaints(rule, one, &format!("{at}[]")));
                }
                true
            }
            other => panic!("unknown here: {other}"),
        };
        if !holds {
            found.push(format!("{at}: {value} is not as {word} says"));
        }
    }
    for (name, one) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(rule), _) | (None, rule @ Value::Object(_)) => found.extend(complaints(rule, one, &at)),
            (None, Value::Bool(false)) => found.push(format!("{at} is not known")),
            (None, _) => {}
        }
    }
    found
}

/// Every value that the chart has, so that none is missing in the schema, in every mode; and mistakes that Helm is to refuse.
#[test]
fn helm_refuses_values_that_the_chart_does_not_have() {
    let schema: Value = serde_json::from_str(&read(&folder().join("values.schema.json"))).expect("JSON");
    let own: Value = serde_saphyr::from_str(&read(&folder().join("values.yaml"))).expect("values");
    let with = |over: &Value| {
        let mut values = own.clone();
        merge(&mut values, over);
        complaints(&schema, &values, "")
    };
    for (mode, values) in modes() {
        assert_eq!(with(&values), [""; 0], "{mode}");
    }
    let named = |schema: &Value| -> BTreeSet<String> {
        let properties = schema["properties"].as_object().expect("properties");
        properties
            .keys()
            .filter(|name| *name != "global")
            .cloned()
            .collect()
    };
    let there = |values: &Value| {
        values
            .as_object()
            .expect("a map")
            .keys()
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(named(&schema), there(&own));
    for group in ["webhook", "extender", "metrics", "devicePlugin"] {
        assert_eq!(named(&schema["properties"][group]), there(&own[group]), "{group}");
    }
    for (wrong, at) in [
        (json!({"mode": "dar"}), ".mode"),
        (json!({"prefer": "fullest"}), ".prefer"),
        (json!({"latencyClass": "yes"}), ".latencyClass"),
        (json!({"webhook": {"replicas": 0}}), ".webhook.replicas"),
        (json!({"nodeSelector": {"gpu": true}}), ".nodeSelector.gpu"),
        (json!({"overcommitCores": 99}), ".overcommitCores"),
        (json!({"metrics": {"port": "http"}}), ".metrics.port"),
        (
            json!({"devicePlugin": {"allocation": "pack"}}),
            ".devicePlugin.allocation",
        ),
        (json!({"controlPlaneCIDRs": "10.0.0.1/32"}), ".controlPlaneCIDRs"),
        (
            json!({"extender": {"clientNames": [""]}}),
            ".extender.clientNames",
        ),
    ] {
        let said = with(&wrong);
        assert!(
            said.iter().any(|words| words.starts_with(at)),
            "{wrong}: {said:?}"
        );
    }
    let mut misspelt = own;
    misspelt["webhook"]["enable"] = json!(true);
    assert_eq!(
        complaints(&schema, &misspelt, ""),
        [".webhook.enable is not known"]
    );
}

#[test]
fn modes_have_what_they_need() {
    let kinds = |values: &Value| -> Vec<String> {
        let objects = rendered(values);
        let all = objects
            .iter()
            .map(|one| format!("{}/{}", one["kind"], one["metadata"]["name"]).replace('"', ""));
        all.collect()
    };
    let (dra, fallback) = (kinds(&json!({})), kinds(&json!({"mode": "fallback"})));
    assert!(
        dra.contains(&"DeviceClass/slice.gpu.divvy.dev".into())
            && !dra.contains(&"Deployment/divvy-extender".into())
    );
    assert!(
        fallback.contains(&"Deployment/divvy-extender".into())
            && !fallback.iter().any(|one| one.starts_with("DeviceClass"))
    );
    let spread = rendered(&json!({"prefer": "spread"}));
    let node = spread
        .iter()
        .find(|one| one["kind"] == "DaemonSet")
        .expect("a DaemonSet");
    let arguments = &node["spec"]["template"]["spec"]["containers"][1]["args"];
    let ordered = r#""--prefer","spread","--overcommit-cores","100""#;
    assert!(arguments.to_string().contains(ordered), "{arguments}");
    let own = json!(["GPU-5a7c", "GPU-91f0"]);
    let dra = json!({"devices": own, "wholeDevices": ["GPU-5a7c"], "sharedDevices": ["GPU-91f0"]});
    let fallback = json!({"mode": "fallback", "devices": own});
    let plain = json!({"mode": "fallback", "devices": own, "extender": {"enabled": false}});
    let named = [
        json!("--device"),
        own[0].clone(),
        json!("--device"),
        own[1].clone(),
    ];
    let divided = [
        json!("--whole"),
        own[0].clone(),
        json!("--shared"),
        own[1].clone(),
    ];
    for (values, ends) in [
        (dra, [&named[..], &divided[..]].concat()),
        (fallback, named.to_vec()),
        (plain, named.to_vec()),
    ] {
        let objects = rendered(&values);
        let node = objects.iter().find(|one| one["kind"] == "DaemonSet");
        let arguments = &node.expect("a DaemonSet")["spec"]["template"]["spec"]["containers"][1]["args"];
        assert!(
            arguments.as_array().expect("a list").ends_with(&ends),
            "{arguments}"
        );
    }
    let emulated = rendered(&json!({"emulated": "h100*2"}));
    let node = emulated
        .iter()
        .find(|one| one["kind"] == "DaemonSet")
        .expect("a DaemonSet")
        .to_string();
    assert!(node.contains("h100*2"));
    assert!(
        !kinds(&json!({"webhook": {"enabled": false}}))
            .iter()
            .any(|one| one.contains("webhook"))
    );
    for values in [json!({}), json!({"mode": "fallback"})] {
        for object in rendered(&values).iter().filter(|one| one["kind"] == "Deployment") {
            let pod = &object["spec"]["template"]["spec"];
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
            assert_eq!(
                pod["containers"][0]["securityContext"]["capabilities"]["drop"],
                json!(["ALL"])
            );
        }
    }
}

#[test]
fn the_examples_are_valid_and_their_classes_exist() {
    let mut classes = rendered(&json!({"latencyClass": true}));
    classes.retain(|one| one["kind"] == "DeviceClass");
    assert_eq!(classes.len(), 3);
    let mut count = 0;
    for entry in std::fs::read_dir(folder().join("../examples")).expect("examples") {
        let path = entry.expect("an entry").path();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&read(&path)).expect("YAML");
        for object in documents {
            assert_eq!(check(&object), Ok(Vec::new()), "{}", path.display());
            let text = object.to_string();
            for class in text
                .split("\"deviceClassName\":\"")
                .skip(1)
                .filter_map(|rest| rest.split('"').next())
            {
                assert!(
                    classes.iter().any(|one| one["metadata"]["name"] == class),
                    "{class}"
                );
            }
            count += 1;
        }
    }
    assert!(count >= 6);
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let text = read(&folder().join("dashboards/divvy.json"));
    let board: Value = serde_json::from_str(&text).expect("JSON");
    let agent = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/src/server/metrics.rs"));
    let expressions: Vec<&str> = board["panels"]
        .as_array()
        .expect("panels")
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .filter_map(|target| target["expr"].as_str())
        .collect();
    assert!(expressions.len() >= 4);
    for expression in expressions {
        let names = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names: Vec<&str> = names.filter(|name| name.starts_with("divvy_")).collect();
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            assert!(
                agent.contains(&format!("\"{name}\"")),
                "the agent has no metric {name}"
            );
        }
    }
}

/// A call: group, resource with its subresource, verb.
type Call = (String, String, String);

fn call(request: &http::Request<Body>) -> Call {
    let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
    let (group, mut rest) = match path[0] {
        "api" => ("", &path[2..]),
        _ => (path[1], &path[3..]),
    };
    if rest.first() == Some(&"namespaces") && rest.len() > 2 {
        rest = &rest[2..];
    }
    let watches = request
        .uri()
        .query()
        .is_some_and(|query| query.contains("watch=true"));
    let verb = match (request.method().as_str(), rest.get(1)) {
        ("GET", None) if watches => "watch",
        ("GET", None) => "list",
        ("GET", Some(_)) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        _ => "delete",
    };
    let resource = match rest.get(2) {
        Some(below) => format!("{}/{below}", rest[0]),
        None => rest[0].to_owned(),
    };
    (group.to_owned(), resource, verb.to_owned())
}

/// An API server that notes each call.
fn recorder(pod: Value) -> (Client, Arc<Mutex<BTreeSet<Call>>>) {
    let calls: Arc<Mutex<BTreeSet<Call>>> = Arc::default();
    let noted = calls.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let call = call(&request);
        let pod = pod.clone();
        let template = pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"].clone();
        if call.1 == "resourceclaimtemplates" && call.2 == "delete" {
            assert!(
                request.uri().path().ends_with("/old"),
                "a pod names {}",
                request.uri()
            );
        }
        noted.lock().expect("calls").insert(call.clone());
        async move {
            let (_, resource, verb) = call;
            let answer = match (resource.as_str(), verb.as_str()) {
                (_, "watch") => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    String::new()
                }
                ("pods", "list") => json!({"metadata": {"resourceVersion": "1"}, "items": [pod]}).to_string(),
                // A patch is a new version.
                ("pods/status", _) => {
                    let mut fenced = pod.clone();
                    fenced["metadata"]["resourceVersion"] = "2".into();
                    fenced.to_string()
                }
                ("pods", _) => pod.to_string(),
                ("resourceslices", "delete") | ("pods/binding", _) => {
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}).to_string()
                }
                ("resourceslices", "create" | "update") => json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": {
                    "name": "n", "generation": 1, "resourceSliceCount": 1}}})
                .to_string(),
                ("resourceclaimtemplates", "list") => json!({"metadata": {"resourceVersion": "1"}, "items": [
                    {"metadata": {"name": "old", "namespace": "n", "uid": "t", "creationTimestamp": "2026-01-01T00:00:00Z"},
                        "spec": {"spec": {}}},
                    {"metadata": {"name": template, "namespace": "n", "uid": "v", "creationTimestamp": "2026-01-01T00:00:00Z"},
                        "spec": {"spec": {}}}]})
                .to_string(),
                ("resourceclaimtemplates", _) => {
                    json!({"metadata": {"name": "t"}, "spec": {"spec": {}}}).to_string()
                }
                (_, "list") => json!({"metadata": {"resourceVersion": "1"}, "items": []}).to_string(),
                _ => json!({"metadata": {"name": "x", "uid": "u"}, "spec": {}}).to_string(),
            };
            Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(answer.into_bytes())))
        }
    });
    (Client::new(service, "default"), calls)
}

/// The rights of a role of the chart.
fn rights(values: &Value, role: &str) -> BTreeSet<Call> {
    let objects = rendered(values);
    let role = objects
        .iter()
        .find(|one| one["kind"] == "ClusterRole" && one["metadata"]["name"] == role);
    let strings = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| one.as_str().map(str::to_owned))
            .collect()
    };
    let mut all = BTreeSet::new();
    for rule in role.expect("a role")["rules"].as_array().expect("rules") {
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                all.extend(
                    strings(&rule["verbs"])
                        .into_iter()
                        .map(|verb| (group.clone(), resource.clone(), verb)),
                );
            }
        }
    }
    all
}

/// Waits until so many different calls were made: loops make theirs when they come to it.
async fn until(calls: &Mutex<BTreeSet<Call>>, rights: &BTreeSet<Call>) -> BTreeSet<Call> {
    for _ in 0..500 {
        if calls.lock().expect("calls").is_superset(rights) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    calls.lock().expect("calls").clone()
}

fn waiting_pod() -> Value {
    let template = Template {
        devices: 1,
        memory_mib: Some(1024),
        ..Template::default()
    };
    let annotations: BTreeMap<&str, String> =
        [(ASKS, serde_json::to_string(&[&template]).expect("JSON"))].into();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "1", "annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"divvy.dev/gpumem": "1"}}}],
            "resourceClaims": [{"name": "c", "resourceClaimTemplateName": template.name()}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_extenders_rights_are_the_calls_that_it_makes() {
    let rights = rights(&json!({"mode": "fallback"}), "divvy-extender");
    let (client, calls) = recorder(waiting_pod());
    let pods = Arc::new(LivePods::new(client.clone()));
    let (key, _) = Signer::make().expect("a key");
    let signer = Signer::of(key.as_bytes()).expect("a key");
    let extender = Arc::new(Extender::new(
        pods.clone(),
        Terms::default(),
        signer,
        Believed::default(),
    ));
    begin(&client, &extender).await.expect("fenced");
    let (ready, remark) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(|_: &str| {}));
    tokio::spawn(follow_nodes(
        client.clone(),
        extender.clone(),
        remark.clone(),
        ready.clone(),
    ));
    tokio::spawn(follow_pods(client, extender, remark, ready));
    let bound = tokio::task::spawn_blocking(move || {
        let pod = pods.pod("n", "p").expect("a pod");
        assert_eq!(pod.metadata.uid.as_deref(), Some("u"));
        pods.bind(&Binding {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
            version: "1".into(),
            node: "a".into(),
            grants: Signed::default(),
        })
    });
    bound.await.expect("ended").expect("bound");
    assert_eq!(until(&calls, &rights).await, rights);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhooks_rights_are_the_calls_that_it_makes() {
    let rights = rights(&json!({}), "divvy-webhook");
    let (client, calls) = recorder(waiting_pod());
    // Templates are looked at, and one that no pod names is removed.
    tokio::spawn(follow_every(
        client,
        Arc::new(|_: &str| {}),
        Duration::from_millis(100),
        Duration::ZERO,
    ));
    assert_eq!(until(&calls, &rights).await, rights);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_rights_are_the_calls_that_it_makes() {
    let rights = rights(&json!({}), "divvy-node");
    let (client, calls) = recorder(json!({}));
    let live = Live::new(client);
    let slice: ResourceSlice = serde_json::from_value(
        json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": {
        "name": "n", "generation": 1, "resourceSliceCount": 1}}}),
    )
    .expect("a slice");
    let asked = tokio::task::spawn_blocking(move || {
        live.node_uid("n").expect("a node");
        live.resource_slices("n").expect("slices");
        live.create(&slice).expect("created");
        live.replace(&slice).expect("replaced");
        live.delete("s").expect("deleted");
        live.probe(&slice).expect("kept");
        live.claim("n", "c").expect("a claim");
        live.pod("n", "p").expect("a pod");
        live.tell(&Event::default()).expect("written");
    });
    asked.await.expect("asked");
    assert_eq!(until(&calls, &rights).await, rights);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_device_plugins_rights_are_the_calls_that_it_makes() {
    let rights = rights(&json!({"mode": "fallback"}), "divvy-node");
    let (client, calls) = recorder(json!({}));
    let around = ThisCluster::new(Live::new(client), "/nowhere".into());
    let asked = tokio::task::spawn_blocking(move || {
        around.pod("n", "p").expect("a pod");
        around.announce("a", "[]").expect("written");
    });
    asked.await.expect("asked");
    assert_eq!(until(&calls, &rights).await, rights);
    let alone = json!({"mode": "fallback", "extender": {"enabled": false}});
    let alone = self::rights(&alone, "divvy-node");
    assert!(
        alone.is_empty(),
        "it asks the kubelet and no API server: {alone:?}"
    );
}

/// A policy that allows no address lets none in, and that is the default.
#[test]
fn nothing_reaches_the_servers_until_addresses_are_given() {
    let policies = |values: &Value| -> Vec<Value> {
        let all = rendered(values);
        all.into_iter()
            .filter(|one| one["kind"] == "NetworkPolicy")
            .map(|one| one["spec"]["ingress"].clone())
            .collect()
    };
    assert_eq!(policies(&json!({"mode": "fallback"})), [json!([]), json!([])]);
    let open = policies(&json!({"mode": "fallback", "controlPlaneCIDRs": ["10.0.0.1/32"]}));
    assert!(
        open.len() == 2
            && open
                .iter()
                .all(|one| one[0]["from"][0]["ipBlock"]["cidr"] == "10.0.0.1/32")
    );
}

/// The node's pod sees the plugins' folders, and not those of the pods with their Secrets.
#[test]
fn mounts_are_narrow() {
    for values in [json!({}), json!({"mode": "fallback"})] {
        let objects = rendered(&values);
        let node = objects
            .iter()
            .find(|one| one["kind"] == "DaemonSet")
            .expect("one");
        let volumes = node["spec"]["template"]["spec"]["volumes"]
            .as_array()
            .expect("some");
        let paths: Vec<&str> = volumes
            .iter()
            .filter_map(|one| one["hostPath"]["path"].as_str())
            .collect();
        assert!(
            !paths.contains(&"/var/lib/kubelet") && paths.contains(&"/var/lib/kubelet/plugins"),
            "{paths:?}"
        );
        let is_fallback = values["mode"] == "fallback";
        assert_eq!(
            paths.contains(&"/var/lib/kubelet/device-plugins"),
            is_fallback,
            "{paths:?}"
        );
        for kind in ["Deployment", "DaemonSet"] {
            for one in objects.iter().filter(|one| one["kind"] == kind) {
                let mounts = one["spec"]["template"]["spec"]["containers"].to_string();
                let is_extender = one["metadata"]["name"] == "divvy-extender";
                let secret = one["spec"]["template"]["spec"]["volumes"].to_string();
                assert_eq!(secret.contains("divvy-grant-key"), is_extender, "{mounts}");
            }
        }
    }
}

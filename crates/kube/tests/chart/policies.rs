//! The chart's admission policies and the webhook's conditions, run by Google's CEL on objects that are accepted and refused.

use std::path::Path;

use serde_json::{Value, json};

use super::rendered;

/// The interpreter with Google's CEL, where it was set up; `DIVVY_REQUIRE_ALL` says that it has to be.
fn cel() -> Option<std::path::PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/policies/bin/python");
    let there = python.exists();
    assert!(
        there || std::env::var_os("DIVVY_REQUIRE_ALL").is_none(),
        "no CEL (cargo xtask setup)"
    );
    there.then_some(python)
}

/// What comes of each request by a policy: `accepted`, `passed over`, or why it is refused.
fn judged(python: &Path, policy: &Value, requests: &[Value]) -> Vec<String> {
    use std::io::Write as _;

    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/policies/judge.py");
    let mut judge = std::process::Command::new(python)
        .arg(program)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("Python");
    let task = json!({"policy": policy, "requests": requests}).to_string();
    judge
        .stdin
        .take()
        .expect("a pipe")
        .write_all(task.as_bytes())
        .expect("asked");
    let told = judge.wait_with_output().expect("judged");
    serde_json::from_slice(&told.stdout).expect("a list of texts")
}

/// One object that is written, and what has to come of it: the beginning of a text.
type Case = (&'static str, Value, &'static str);

fn holds(policy: &Value, cases: &[Case]) {
    let Some(python) = cel() else { return };
    let requests: Vec<Value> = cases.iter().map(|(_, request, _)| request.clone()).collect();
    let found = judged(&python, policy, &requests);
    assert_eq!(found.len(), cases.len());
    for ((what, _, expected), found) in cases.iter().zip(found) {
        assert!(found.starts_with(expected), "{what}: {found}");
    }
}

fn policy(values: &Value, name: &str) -> Value {
    let objects = rendered(values);
    let found = objects
        .iter()
        .find(|one| one["kind"] == "ValidatingAdmissionPolicy" && one["metadata"]["name"] == name);
    let policy = found.unwrap_or_else(|| panic!("no policy {name}"));
    assert_eq!(policy["spec"]["failurePolicy"], "Fail", "an error refuses");
    let bound = objects.iter().any(|one| {
        one["kind"] == "ValidatingAdmissionPolicyBinding"
            && one["spec"] == json!({"policyName": name, "validationActions": ["Deny"]})
    });
    assert!(bound, "{name} is bound");
    policy["spec"].clone()
}

const NODE_DRIVER: &str = "system:serviceaccount:divvy-system:divvy-node";

/// A write by this user, with the node that the token is of.
fn written(user: &str, node: Option<&str>, operation: &str, before: &Value, after: &Value) -> Value {
    let mut extra = json!({"authentication.kubernetes.io/pod-name": ["p"]});
    if let Some(node) = node {
        extra["authentication.kubernetes.io/node-name"] = json!([node]);
    }
    json!({"request": {"operation": operation, "userInfo": {"username": user, "extra": extra}}, "oldObject": before, "object": after})
}

#[test]
fn a_nodes_driver_writes_its_own_nodes_resource_slices_only() {
    let of = |node: &str| json!({"metadata": {"name": "s"}, "spec": {"driver": "gpu.divvy.dev", "nodeName": node}});
    let everywhere =
        json!({"metadata": {"name": "s"}, "spec": {"driver": "gpu.divvy.dev", "allNodes": true}});
    let none = Value::Null;
    let by = |node: Option<&str>, operation: &str, before: &Value, after: &Value| {
        written(NODE_DRIVER, node, operation, before, after)
    };
    let mut no_extra = by(Some("a"), "CREATE", &none, &of("a"));
    no_extra["request"]["userInfo"]
        .as_object_mut()
        .expect("a map")
        .remove("extra");
    let refused = "a node's driver writes its own";
    holds(
        &policy(&json!({}), "divvy-resourceslices"),
        &[
            ("its own", by(Some("a"), "CREATE", &none, &of("a")), "accepted"),
            (
                "its own again",
                by(Some("a"), "UPDATE", &of("a"), &of("a")),
                "accepted",
            ),
            (
                "its own, away",
                by(Some("a"), "DELETE", &of("a"), &none),
                "accepted",
            ),
            ("another's", by(Some("a"), "CREATE", &none, &of("b")), refused),
            (
                "another's, changed",
                by(Some("a"), "UPDATE", &of("b"), &of("b")),
                refused,
            ),
            (
                "another's, away",
                by(Some("a"), "DELETE", &of("b"), &none),
                refused,
            ),
            ("all nodes'", by(Some("a"), "CREATE", &none, &everywhere), refused),
            ("a token of no node", by(None, "CREATE", &none, &of("a")), refused),
            (
                "a token of no node, for no node",
                by(None, "CREATE", &none, &everywhere),
                refused,
            ),
            ("a token that says nothing", no_extra, "error"),
            (
                "another user",
                written(
                    "system:serviceaccount:other:driver",
                    None,
                    "CREATE",
                    &none,
                    &of("b"),
                ),
                "passed over",
            ),
        ],
    );
}

#[test]
fn a_nodes_plugin_writes_one_annotation_of_its_own_node() {
    let node = |name: &str, more: &Value| {
        let mut node = json!({"metadata": {"name": name, "labels": {"zone": "x"}, "annotations": {"other": "1"}},
            "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"capacity": {"cpu": "8"}}});
        overlay(&mut node, more);
        node
    };
    let before = node("a", &json!({}));
    let by = |user: &str, of: Option<&str>, after: &Value| written(user, of, "UPDATE", &before, after);
    let mine = |more: &Value| by(NODE_DRIVER, Some("a"), &node("a", more));
    let devices = json!({"metadata": {"annotations": {"gpu.divvy.dev/devices": "[]"}}});
    let mut bare = node("a", &json!({}));
    bare["metadata"]
        .as_object_mut()
        .expect("a map")
        .remove("annotations");
    let refused = "a node's device plugin writes the annotation";
    let elsewhere = "a node's device plugin writes to its own node only";
    holds(
        &policy(&json!({"mode": "fallback"}), "divvy-node-devices"),
        &[
            ("its devices", mine(&devices), "accepted"),
            ("nothing new", mine(&json!({})), "accepted"),
            (
                "a taint",
                mine(&json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})),
                refused,
            ),
            (
                "the status",
                mine(&json!({"status": {"capacity": {"cpu": "9"}}})),
                refused,
            ),
            (
                "a label",
                mine(&json!({"metadata": {"labels": {"zone": "y"}}})),
                refused,
            ),
            (
                "a finalizer",
                mine(&json!({"metadata": {"finalizers": ["x"]}})),
                refused,
            ),
            (
                "an owner",
                mine(&json!({"metadata": {"ownerReferences": [{"uid": "x"}]}})),
                refused,
            ),
            (
                "another annotation",
                mine(&json!({"metadata": {"annotations": {"new": "1"}}})),
                refused,
            ),
            (
                "another annotation's text",
                mine(&json!({"metadata": {"annotations": {"other": "2"}}})),
                refused,
            ),
            ("annotations away", by(NODE_DRIVER, Some("a"), &bare), refused),
            (
                "by a token of another node",
                by(NODE_DRIVER, Some("b"), &node("a", &devices)),
                elsewhere,
            ),
            (
                "by a token of no node",
                by(NODE_DRIVER, None, &node("a", &devices)),
                elsewhere,
            ),
            (
                "by the kubelet",
                by(
                    "system:node:a",
                    None,
                    &node("a", &json!({"metadata": {"labels": {"zone": "y"}}})),
                ),
                "passed over",
            ),
        ],
    );
}

#[test]
fn grants_of_a_pod_are_not_rewritten() {
    let pod =
        |annotations: &Value| json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {}});
    let granted = json!({"gpu.divvy.dev/grants": "g", "gpu.divvy.dev/grants-signature": "s", "mine": "1"});
    let by = |before: &Value, after: &Value| written("alice", None, "UPDATE", before, after);
    let with = |name: &str, text: &str| {
        let mut annotations = granted.clone();
        annotations[name] = text.into();
        pod(&annotations)
    };
    let (before, plain) = (pod(&granted), json!({"metadata": {"name": "p"}, "spec": {}}));
    let refused = "only the scheduler extender's Binding";
    holds(
        &policy(&json!({"mode": "fallback"}), "divvy-grants"),
        &[
            ("as it was", by(&before, &before), "accepted"),
            (
                "an annotation of the author's",
                by(&before, &with("mine", "2")),
                "accepted",
            ),
            ("a pod without annotations", by(&plain, &plain), "accepted"),
            (
                "its first annotation",
                by(&plain, &pod(&json!({"mine": "1"}))),
                "accepted",
            ),
            (
                "other grants",
                by(&before, &with("gpu.divvy.dev/grants", "more")),
                refused,
            ),
            (
                "another signature",
                by(&before, &with("gpu.divvy.dev/grants-signature", "t")),
                refused,
            ),
            ("no grants any more", by(&before, &plain), refused),
            ("grants of the author's", by(&plain, &before), refused),
        ],
    );
}

/// A wrong certificate of the webhook refuses the pods that it is asked about: these, and no others.
#[test]
fn the_webhook_is_asked_about_pods_that_ask_for_gpus() {
    let objects = rendered(&json!({}));
    let found = objects
        .iter()
        .find(|one| one["kind"] == "MutatingWebhookConfiguration");
    let webhook = &found.expect("a webhook")["webhooks"][0];
    assert_eq!(webhook["failurePolicy"], "Fail");
    let conditions = json!({"matchConditions": webhook["matchConditions"], "validations": []});
    let with =
        |spec: Value| json!({"request": {"operation": "CREATE"}, "object": {"metadata": {}, "spec": spec}});
    // As HAMi's examples have it: devices are counted, and an annotation chooses them.
    let chosen = |annotation: &str| {
        let limits = json!({"nvidia.com/gpu": "2"});
        json!({"request": {"operation": "CREATE"}, "object": {"metadata": {"annotations": {annotation: "A100"}},
            "spec": {"containers": [{"name": "a", "resources": {"limits": limits}}]}}})
    };
    let limits = |name: &str| {
        with(json!({"containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {name: "1"}}}]}))
    };
    let requests = json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]});
    let first = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpumem": "1"}}}]});
    holds(
        &conditions,
        &[
            ("Divvy's", limits("divvy.dev/gpumem"), "accepted"),
            ("a class's", limits("divvy.dev/gpu-slice"), "passed over"),
            ("HAMi's memory", limits("nvidia.com/gpumem"), "accepted"),
            ("HAMi's cores", limits("nvidia.com/gpucores"), "accepted"),
            ("gpushare's", limits("aliyun.com/gpu-mem"), "accepted"),
            ("elastic-gpu's", limits("elasticgpu.io/gpu-memory"), "accepted"),
            ("gpu-admission's", limits("tencent.com/vcuda-core"), "accepted"),
            ("an init container", with(first), "accepted"),
            ("HAMi's type", chosen("nvidia.com/use-gputype"), "accepted"),
            (
                "HAMi's policy",
                chosen("hami.io/gpu-scheduler-policy"),
                "accepted",
            ),
            ("NVIDIA's plugin's", limits("nvidia.com/gpu"), "passed over"),
            ("the same", chosen("nvidia.com/other"), "passed over"),
            ("processors", limits("cpu"), "passed over"),
            ("another vendor's", limits("example.com/gpu"), "passed over"),
            ("requests without limits", with(requests), "passed over"),
            (
                "nothing",
                with(json!({"containers": [{"name": "a"}]})),
                "passed over",
            ),
        ],
    );
    // With HAMi's meaning of the bare name, a pod of that name comes to the webhook, and another vendor's does not.
    let bare = rendered(&json!({"webhook": {"bareGpuIsSlice": true}}));
    let bare = bare
        .iter()
        .find(|one| one["kind"] == "MutatingWebhookConfiguration");
    let bare = &bare.expect("a webhook")["webhooks"][0]["matchConditions"];
    holds(
        &json!({"matchConditions": bare, "validations": []}),
        &[
            ("the bare name", limits("nvidia.com/gpu"), "accepted"),
            ("gpushare's", limits("aliyun.com/gpu-mem"), "accepted"),
            ("another vendor's", limits("example.com/gpu"), "passed over"),
        ],
    );
}

/// Puts these fields over those of an object.
fn overlay(into: &mut Value, over: &Value) {
    match (into, over) {
        (Value::Object(into), Value::Object(over)) => {
            for (name, one) in over {
                overlay(into.entry(name.clone()).or_insert(Value::Null), one);
            }
        }
        (into, over) => *into = over.clone(),
    }
}

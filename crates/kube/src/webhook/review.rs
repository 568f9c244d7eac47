//! AdmissionReview v1, in and out.

use base64::Engine as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::rewrite::{Target, annotate, rewrite};
use crate::https::Answer;
use crate::names::{Terms, cut};

/// The largest review: an object may have 1.5 MiB in etcd, and comes as JSON, twice for updates.
const LARGEST: usize = 4 << 20;
/// The label of pods, and of namespaces, that the webhook leaves alone.
pub const LABEL: &str = "gpu.divvy.dev/webhook";

/// The webhook. It has no state and makes nothing.
#[derive(Debug)]
pub struct Webhook {
    /// What the cluster's administrator says of it.
    pub terms: Terms,
    /// What the cluster has.
    pub target: Target,
}

#[derive(Deserialize)]
struct Review {
    #[serde(rename = "apiVersion")]
    api_version: String,
    kind: String,
    request: Request,
}

#[derive(Deserialize)]
struct Request {
    uid: String,
    kind: Kind,
    operation: String,
    #[serde(default)]
    object: Value,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    group: String,
    kind: String,
}

impl Webhook {
    /// The answer to a review.
    ///
    /// # Errors
    /// A message that is none: there is no UID to answer to.
    pub fn review(&self, body: &[u8]) -> Result<Value, String> {
        let review: Review = serde_json::from_slice(body).map_err(|error| cut(&error.to_string()))?;
        if (&*review.api_version, &*review.kind) != ("admission.k8s.io/v1", "AdmissionReview") {
            return Err(format!(
                "it is {} of {}",
                cut(&review.kind),
                cut(&review.api_version)
            ));
        }
        let request = review.request;
        let mut response = json!({"uid": request.uid, "allowed": true});
        let is_new_pod = request.kind.group.is_empty()
            && request.kind.kind == "Pod"
            && request.operation == "CREATE"
            && request.object.is_object();
        if is_new_pod && !is_left_alone(&request.object) {
            match self.patch(&request.object) {
                Ok((patch, remarks)) if !patch.is_empty() => {
                    let text = serde_json::to_vec(&patch).map_err(|error| error.to_string())?;
                    response["patchType"] = "JSONPatch".into();
                    response["patch"] = base64::engine::general_purpose::STANDARD.encode(text).into();
                    if !remarks.is_empty() {
                        response["warnings"] = json!(remarks);
                    }
                }
                Ok(_) => {}
                Err(why) => {
                    response["allowed"] = false.into();
                    response["status"] = json!({
                        "code": 403,
                        "reason": "Forbidden",
                        "message": format!("{why}; the label {LABEL}=ignore leaves a pod as it is"),
                    });
                }
            }
        }
        Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
    }

    /// The JSON patch for a pod: empty for one that asks for nothing.
    fn patch(&self, pod: &Value) -> Result<(Vec<Value>, Vec<String>), String> {
        let none = json!({});
        let of = |name: &str| pod.get(name).unwrap_or(&none);
        let Some(mut done) = rewrite(of("metadata"), of("spec"), &self.terms, self.target)? else {
            return Ok((Vec::new(), Vec::new()));
        };
        annotate(&mut done)?;
        let mut patch = Vec::new();
        // `add` puts a member in the place of one that is there: RFC 6902, 4.1.
        let mut differs = |path: String, before: Option<&Value>, after: Option<&Value>| {
            if let Some(after) = after.filter(|after| before != Some(after)) {
                patch.push(json!({"op": "add", "path": path, "value": after}));
            }
        };
        let (metadata, spec) = (of("metadata"), of("spec"));
        differs(
            "/metadata/annotations".into(),
            metadata.get("annotations"),
            done.metadata.get("annotations"),
        );
        for name in ["resourceClaims", "schedulerName"] {
            differs(format!("/spec/{name}"), spec.get(name), done.spec.get(name));
        }
        for list in ["initContainers", "containers"] {
            let after = done.spec.get(list).and_then(Value::as_array);
            for (index, container) in after.into_iter().flatten().enumerate() {
                let before = spec
                    .get(list)
                    .and_then(|all| all.get(index))
                    .and_then(|one| one.get("resources"));
                differs(
                    format!("/spec/{list}/{index}/resources"),
                    before,
                    container.get("resources"),
                );
            }
        }
        Ok((patch, done.remarks))
    }
}

fn is_left_alone(pod: &Value) -> bool {
    let labels = pod.get("metadata").and_then(|metadata| metadata.get("labels"));
    labels
        .and_then(|labels| labels.get(LABEL))
        .and_then(Value::as_str)
        == Some("ignore")
}

impl Answer for Webhook {
    fn largest(&self) -> usize {
        LARGEST
    }

    fn answer(&self, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        if path != "/mutate" {
            return (404, b"{\"error\":\"there is /mutate\"}".to_vec());
        }
        match self.review(body) {
            Ok(review) => (200, review.to_string().into_bytes()),
            Err(why) => {
                let words = format!("the AdmissionReview is not understood: {why}");
                (400, json!({"error": words}).to_string().into_bytes())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook() -> Webhook {
        Webhook {
            terms: Terms::default(),
            target: Target::Claims,
        }
    }

    fn review(pod: &Value) -> Value {
        let body = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
                "dryRun": true, "object": pod},
        });
        let answered = webhook().review(body.to_string().as_bytes()).expect("a review");
        assert_eq!(answered["response"]["uid"], "u-1");
        answered["response"].clone()
    }

    fn asks() -> Value {
        json!({"metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "c", "resources": {"limits": {"nvidia.com/gpumem": 4096}}}]}})
    }

    /// What the API server does with a patch of `add` only.
    fn patched(pod: &Value, response: &Value) -> Value {
        let text = response["patch"].as_str().expect("a patch");
        let text = base64::engine::general_purpose::STANDARD
            .decode(text)
            .expect("base64");
        let patch: Vec<Value> = serde_json::from_slice(&text).expect("JSON");
        let mut pod = pod.clone();
        for one in patch {
            assert_eq!(one["op"], "add");
            let (parent, name) = one["path"]
                .as_str()
                .expect("a path")
                .rsplit_once('/')
                .expect("a member");
            pod.pointer_mut(parent).expect("its parent is there")[name] = one["value"].clone();
        }
        pod
    }

    #[test]
    fn a_pod_that_asks_is_patched_into_what_the_api_server_takes() {
        let pod = asks();
        let response = review(&pod);
        assert_eq!(
            (&response["allowed"], &response["patchType"]),
            (&json!(true), &json!("JSONPatch"))
        );
        let after = patched(&pod, &response);
        let typed: k8s_openapi::api::core::v1::Pod = serde_json::from_value(after.clone()).expect("a pod");
        assert_eq!(
            typed.spec.expect("a spec").resource_claims.expect("claims").len(),
            1
        );
        assert!(
            review(&after).get("patch").is_none(),
            "a second call changes nothing"
        );
    }

    #[test]
    fn others_pass_and_the_label_lets_a_pod_be() {
        for pod in [
            json!({"spec": {"containers": []}}),
            json!({}),
            json!({"spec": []}),
        ] {
            let response = review(&pod);
            assert_eq!(response, json!({"uid": "u-1", "allowed": true}), "{pod}");
        }
        let mut left = asks();
        left["metadata"]["labels"] = json!({LABEL: "ignore"});
        assert!(review(&left).get("patch").is_none());
    }

    #[test]
    fn a_pod_that_names_its_node_is_refused_with_the_reason_and_the_way_out() {
        let mut pod = asks();
        pod["spec"]["nodeName"] = "worker".into();
        let response = review(&pod);
        assert_eq!(response["allowed"], false);
        let message = response["status"]["message"].as_str().expect("a message");
        assert!(
            message.contains("nodeSelector") && message.contains(LABEL),
            "{message}"
        );
    }

    #[test]
    fn malformed_reviews_are_refused() {
        for body in [
            "",
            "null",
            "{}",
            "[1]",
            r#"{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE"}}"#,
            r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}"#,
        ] {
            let (status, text) = webhook().answer("/mutate", body.as_bytes());
            assert_eq!(status, 400, "{body}");
            assert!(String::from_utf8(text).expect("text").contains("not understood"));
        }
        assert_eq!(webhook().answer("/other", b"{}").0, 404);
    }
}

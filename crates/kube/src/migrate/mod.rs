//! Manifests of other systems into ours. Comments stay where the text could be edited in place: the result is read again and compared
//! with what it has to be, and where it differs, the document is written afresh without comments, which is said.

mod edit;

use serde_json::{Value, json};

use crate::names::{self, Terms, cut};
use crate::templates::Template;
use crate::webhook::rewrite::{Target, rewrite};

/// The largest file.
const LARGEST: usize = 16 << 20;
/// How deep a pod's template may lie.
const DEEPEST: usize = 32;

/// What became of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Migrated {
    /// Its new text.
    pub text: String,
    /// Sentences on what was done and on what was not kept, each with its document.
    pub remarks: Vec<String>,
    /// How many pods and templates of pods were rewritten.
    pub rewritten: usize,
}

/// Rewrites a file of YAML or JSON documents.
///
/// # Errors
/// Which document cannot be kept as it was meant, and why.
pub fn migrate(text: &str, terms: &Terms, target: Target) -> Result<Migrated, String> {
    if text.len() > LARGEST {
        return Err(format!("a file of {} MiB is too large", text.len() >> 20));
    }
    let mut done = Migrated::default();
    let mut templates: Vec<(Option<String>, Template)> = Vec::new();
    for (place, document) in edit::documents(text).into_iter().enumerate() {
        let at = |error: String| format!("document {}: {error}", place + 1);
        let value: Value =
            serde_saphyr::from_str(document.body).map_err(|error| at(cut(&error.to_string())))?;
        done.text.push_str(document.mark);
        if value.is_null() {
            done.text.push_str(document.body);
            continue;
        }
        let mut after = value.clone();
        let mut walk = Walk {
            terms,
            target,
            templates: &mut templates,
            namespace: None,
            remarks: Vec::new(),
            rewritten: 0,
        };
        walk.object(&mut after, 0)
            .map_err(|error| at(format!("{}: {error}", named(&value))))?;
        if plugin_configuration(&value) {
            walk.remarks.push(
                "this is a configuration of NVIDIA's device plugin: give it as --plugin-config, and its replicas become slices".into(),
            );
        }
        walk.remarks.extend(quotas(&value, target, 0));
        done.rewritten += walk.rewritten;
        let remarks = std::mem::take(&mut walk.remarks);
        done.remarks.extend(
            remarks
                .into_iter()
                .map(|remark| format!("{}: {remark}", named(&value))),
        );
        match (after == value, edit::edited(document.body, &value, &after)) {
            (true, _) => done.text.push_str(document.body),
            (false, Some(text)) => done.text.push_str(&text),
            (false, None) => {
                if document.body.contains('#') {
                    done.remarks.push(format!(
                        "{}: it was written afresh, without its comments",
                        named(&value)
                    ));
                }
                done.text.push_str(&edit::written(&after).map_err(at)?);
            }
        }
    }
    for (namespace, template) in templates {
        let object = template.object(namespace.as_deref());
        let text = edit::written(&object)?;
        if !done.text.is_empty() && !done.text.ends_with('\n') {
            done.text.push('\n');
        }
        done.text.push_str("---\n");
        done.text.push_str(&text);
    }
    Ok(done)
}

/// The number of replicas of a configuration file of NVIDIA's device plugin, for time-slicing or MPS.
///
/// # Errors
/// What was not understood.
pub fn replicas(text: &str) -> Result<u64, String> {
    let config: Value = serde_saphyr::from_str(text).map_err(|error| cut(&error.to_string()))?;
    let ways = ["timeSlicing", "mps"].map(|way| config.pointer(&format!("/sharing/{way}/resources")));
    let resources = ways.into_iter().flatten().filter_map(Value::as_array).flatten();
    let of_gpus = resources.filter(|one| one.get("name").and_then(Value::as_str) == Some("nvidia.com/gpu"));
    let mut counts = of_gpus.filter_map(|one| one.get("replicas").and_then(Value::as_u64));
    match (counts.next(), counts.next()) {
        (Some(replicas), None) if (2..=100).contains(&replicas) => Ok(replicas),
        (Some(replicas), None) => Err(format!("{replicas} replicas are not from 2 to 100")),
        (None, _) => Err("it has no replicas of nvidia.com/gpu".into()),
        (Some(_), Some(_)) => Err("it has replicas of nvidia.com/gpu twice".into()),
    }
}

fn plugin_configuration(value: &Value) -> bool {
    value.get("version").and_then(Value::as_str) == Some("v1") && value.get("sharing").is_some()
}

/// What is to be said of the quotas in it; `kubectl get -o yaml` prints a list of them.
fn quotas(value: &Value, target: Target, depth: usize) -> Vec<String> {
    /// Lists in lists are none of kubectl's.
    const MOST: usize = 4;
    let items = value.get("items").and_then(Value::as_array);
    let below = items.into_iter().flatten().filter(|_| depth < MOST);
    let of_item = |item| {
        let remarks = quotas(item, target, depth + 1).into_iter();
        remarks.map(|remark| format!("{}: {remark}", named(item)))
    };
    let mut all: Vec<String> = below.flat_map(of_item).collect();
    all.extend(quota(value, target));
    all
}

/// A quota on names that the pods will no longer have: it would count nothing, in silence.
fn quota(value: &Value, target: Target) -> Option<String> {
    if value.get("kind").and_then(Value::as_str) != Some("ResourceQuota") {
        return None;
    }
    let hard = value.pointer("/spec/hard").and_then(Value::as_object)?;
    let plain = |name: &String| name.strip_prefix("requests.").unwrap_or(name).to_owned();
    let old: Vec<String> = hard
        .keys()
        .filter(|name| names::is_theirs(&plain(name)))
        .cloned()
        .collect();
    if old.is_empty() {
        return None;
    }
    let instead = match target {
        Target::Claims => {
            "limit devices by `slice.gpu.divvy.dev.deviceclass.resource.k8s.io/devices`, which counts slices and not their size"
        }
        Target::Extender => {
            "limit `requests.divvy.dev/gpu`, `requests.divvy.dev/gpumem` and `requests.divvy.dev/gpucores`"
        }
    };
    Some(format!(
        "its limits of {} count nothing once the names are rewritten: {instead}",
        old.join(", ")
    ))
}

fn named(value: &Value) -> String {
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or("document");
    let name = value
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or("without a name");
    format!("{} {}", cut(kind), cut(name))
}

struct Walk<'a> {
    terms: &'a Terms,
    target: Target,
    /// With their namespaces.
    templates: &'a mut Vec<(Option<String>, Template)>,
    /// That of the object which is looked at; a pod finds no template of another one.
    namespace: Option<String>,
    remarks: Vec<String>,
    rewritten: usize,
}

impl Walk<'_> {
    /// Looks for pods, whatever they lie in: whatever has `spec.containers` is a pod, or the template of one.
    fn object(&mut self, value: &mut Value, depth: usize) -> Result<(), String> {
        if depth > DEEPEST {
            return Err("it nests too deep".into());
        }
        let own = value.pointer("/metadata/namespace").and_then(Value::as_str);
        let around = self.namespace.clone();
        if let Some(own) = own {
            self.namespace = Some(own.to_owned());
        }
        let outcome = match value {
            _ if value.pointer("/spec/containers").is_some_and(Value::is_array) => self.pod(value),
            Value::Object(all) => all.values_mut().try_for_each(|one| self.object(one, depth + 1)),
            Value::Array(all) => all.iter_mut().try_for_each(|one| self.object(one, depth + 1)),
            _ => Ok(()),
        };
        self.namespace = around;
        outcome
    }

    fn pod(&mut self, pod: &mut Value) -> Result<(), String> {
        let metadata = pod.get("metadata").cloned().unwrap_or_else(|| json!({}));
        let Some(done) = rewrite(&metadata, &pod["spec"], self.terms, self.target)? else {
            return Ok(());
        };
        pod["spec"] = done.spec;
        self.rewritten += 1;
        self.remarks
            .push(format!("{}'s names were rewritten", done.system.name()));
        self.remarks.extend(done.remarks);
        for template in done.templates {
            let template = (self.namespace.clone(), template);
            if !self.templates.contains(&template) {
                self.templates.push(template);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

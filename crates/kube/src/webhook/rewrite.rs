//! What becomes of a pod, or of the template of one: pure.

use divvy_model::Class;
use divvy_placement::fallback::ask::{Ask, Memory, Prefer};
use serde_json::{Map, Value, json};

use crate::names::{self, Found, System, Terms};
use crate::templates::{ASKS, LATENCY, Template};

/// What a cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// DRA: claims.
    Claims,
    /// The scheduler extender: `divvy.dev/…`.
    Extender,
}

/// The scheduler's profile that the extender serves.
pub const SCHEDULER: &str = "divvy-scheduler";

/// A pod that was rewritten.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewritten {
    /// Its metadata.
    pub metadata: Value,
    /// Its spec.
    pub spec: Value,
    /// Templates that its claims name.
    pub templates: Vec<Template>,
    /// What could not be kept, in sentences.
    pub remarks: Vec<String>,
    /// Whose names it had.
    pub system: System,
}

/// Rewrites a pod; none for one that asks for nothing.
///
/// # Errors
/// What cannot be kept as it was meant.
pub fn rewrite(
    metadata: &Value,
    spec: &Value,
    terms: &Terms,
    target: Target,
) -> Result<Option<Rewritten>, String> {
    let Some(found) = names::read(metadata, spec, terms)? else {
        return Ok(None);
    };
    if let Some(node) = spec
        .get("nodeName")
        .and_then(Value::as_str)
        .filter(|node| !node.is_empty())
    {
        return Err(format!(
            "the pod names its node `{}`, so no scheduler gives it devices: use nodeSelector in place of nodeName",
            names::cut(node)
        ));
    }
    let done = Rewritten {
        metadata: metadata.clone(),
        spec: spec.clone(),
        templates: Vec::new(),
        remarks: found.remarks.clone(),
        system: found.system,
    };
    match target {
        Target::Claims => claims(done, &found).map(Some),
        Target::Extender => extender(done, &found),
    }
}

/// The ask of a container, by its name; none where it asked for no device.
fn ask_of<'a>(found: &'a Found, container: &Value) -> Option<&'a Ask> {
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
    found.ask.containers.iter().find(|ask| ask.container == name)
}

fn take_away(container: &mut Value, names: &[String]) {
    for kind in ["limits", "requests"] {
        let pointer = format!("/resources/{kind}");
        let Some(all) = container.pointer_mut(&pointer).and_then(Value::as_object_mut) else {
            continue;
        };
        all.retain(|name, _| !names.contains(name));
        if all.is_empty()
            && let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut)
        {
            resources.remove(kind);
        }
    }
}

fn object<'a>(of: &'a mut Value, name: &str) -> Result<&'a mut Map<String, Value>, String> {
    let not = || format!("`{name}` is not a map");
    let of = of.as_object_mut().ok_or_else(not)?;
    let inner = of.entry(name).or_insert_with(|| json!({}));
    if inner.is_null() {
        *inner = json!({});
    }
    inner.as_object_mut().ok_or_else(not)
}

fn claims(mut done: Rewritten, found: &Found) -> Result<Rewritten, String> {
    let mut named = Vec::new();
    for (list, index, names) in &found.places {
        let container = &mut done.spec[*list][*index];
        take_away(container, names);
        let Some(ask) = ask_of(found, container) else {
            continue;
        };
        let template = Template::of(ask, &found.ask, found.class)?;
        let claim = format!("divvy-{}", ask.container);
        if claim.len() > 63 {
            return Err(format!(
                "container `{}` has too long a name for a claim's",
                names::cut(&ask.container)
            ));
        }
        let resources = object(container, "resources")?;
        let all = resources.entry("claims").or_insert_with(|| json!([]));
        let all = all.as_array_mut().ok_or("`claims` is not a list")?;
        all.push(json!({"name": claim, "request": "gpu"}));
        named.push(json!({"name": claim, "resourceClaimTemplateName": template.name()}));
        if !done.templates.contains(&template) {
            done.templates.push(template);
        }
    }
    if found.ask.prefer != Prefer::Binpack {
        done.remarks
            .push("how devices are chosen is the driver's order with claims, not the pod's".into());
    }
    if found.class == Some(Class::Latency) {
        done.remarks.push(format!(
            "its priority asks for the DeviceClass {LATENCY}, which the cluster's administrator makes (the chart's latencyClass)"
        ));
    }
    let spec = done.spec.as_object_mut().ok_or("`spec` is not a map")?;
    if !named.is_empty() {
        let all = spec.entry("resourceClaims").or_insert_with(|| json!([]));
        let all = all.as_array_mut().ok_or("`resourceClaims` is not a list")?;
        all.extend(named);
    }
    Ok(done)
}

/// The annotation by which the loop knows what templates to make.
///
/// # Errors
/// Metadata that is not a map.
pub fn annotate(done: &mut Rewritten) -> Result<(), String> {
    if done.templates.is_empty() {
        return Ok(());
    }
    let text = serde_json::to_string(&done.templates).map_err(|error| error.to_string())?;
    object(&mut done.metadata, "annotations")?.insert(ASKS.to_owned(), text.into());
    Ok(())
}

fn extender(mut done: Rewritten, found: &Found) -> Result<Option<Rewritten>, String> {
    if found.class.is_some() {
        done.remarks.push("a priority counts with claims only".into());
    }
    for (list, index, names) in &found.places {
        let container = &mut done.spec[*list][*index];
        let Some(ask) = ask_of(found, container) else {
            continue;
        };
        let mut asked: Vec<(&str, u64)> = vec![("divvy.dev/gpu", u64::from(ask.devices))];
        match ask.memory {
            _ if ask.whole => asked.push(("divvy.dev/gpucores", 100)),
            Memory::All => {}
            Memory::Mib(mib) => asked.push(("divvy.dev/gpumem", mib)),
            Memory::Percent(percent) => asked.push(("divvy.dev/gpumem-percentage", percent)),
        }
        if ask.cores > 0 && !ask.whole {
            asked.push(("divvy.dev/gpucores", ask.cores));
        }
        take_away(container, names);
        let resources = object(container, "resources")?;
        let limits = resources.entry("limits").or_insert_with(|| json!({}));
        let limits = limits.as_object_mut().ok_or("`limits` is not a map")?;
        limits.extend(
            asked
                .into_iter()
                .map(|(name, number)| (name.to_owned(), number.to_string().into())),
        );
    }
    let spec = done.spec.as_object_mut().ok_or("`spec` is not a map")?;
    let other = |name: &str| !matches!(name, "" | "default-scheduler" | "hami-scheduler" | SCHEDULER);
    match spec.get("schedulerName").and_then(Value::as_str) {
        Some(name) if other(name) => {
            return Err(format!(
                "the pod names scheduler `{}`, which does not know the extender",
                names::cut(name)
            ));
        }
        _ => spec.insert("schedulerName".to_owned(), SCHEDULER.into()),
    };
    Ok(Some(done))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(limits: Value) -> Value {
        json!({"containers": [
            {"name": "side", "resources": {"limits": {"cpu": "1"}}},
            {"name": "main", "resources": {"limits": limits}},
        ]})
    }

    #[test]
    fn a_hami_pod_gets_a_claim_of_a_template() {
        let spec = pod(
            json!({"cpu": "2", "nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 30}),
        );
        let mut done = rewrite(&json!({}), &spec, &Terms::default(), Target::Claims)
            .expect("kept")
            .expect("asks");
        let main = &done.spec["containers"][1]["resources"];
        assert_eq!(main["limits"], json!({"cpu": "2"}));
        assert_eq!(main["claims"], json!([{"name": "divvy-main", "request": "gpu"}]));
        let template = &done.templates[0];
        assert_eq!(
            (template.memory_mib, template.cores, done.templates.len()),
            (Some(4096), 30, 1)
        );
        assert_eq!(
            done.spec["resourceClaims"],
            json!([{"name": "divvy-main", "resourceClaimTemplateName": template.name()}])
        );
        assert_eq!(done.spec["containers"][0], spec["containers"][0]);
        annotate(&mut done).expect("annotated");
        let text = done.metadata["annotations"][ASKS].as_str().expect("text");
        assert_eq!(crate::templates::of_pod(text), Ok(done.templates.clone()));
    }

    #[test]
    fn a_pod_for_the_extender_keeps_what_it_asks_for() {
        let spec =
            pod(json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50, "nvidia.com/gpucores": 30}));
        let terms = Terms::default();
        let done = rewrite(&json!({}), &spec, &terms, Target::Extender)
            .expect("kept")
            .expect("asks");
        assert_eq!(
            done.spec["containers"][1]["resources"]["limits"],
            json!({"divvy.dev/gpu": "1", "divvy.dev/gpumem-percentage": "50", "divvy.dev/gpucores": "30"})
        );
        assert_eq!(done.spec["schedulerName"], SCHEDULER);
        let again = rewrite(&json!({}), &done.spec, &terms, Target::Extender)
            .expect("kept")
            .expect("asks");
        assert_eq!(again.spec, done.spec, "twice is once");
        let before = names::read(&json!({}), &spec, &terms)
            .expect("read")
            .expect("asks")
            .ask;
        let after = names::read(&json!({}), &done.spec, &terms)
            .expect("read")
            .expect("asks")
            .ask;
        assert_eq!(before, after);
    }

    #[test]
    fn pods_that_cannot_be_served_are_refused_with_the_reason() {
        let asks = json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50});
        let mut pinned = pod(json!({"nvidia.com/gpumem": 1}));
        pinned["nodeName"] = "worker".into();
        let mut other = pod(json!({"nvidia.com/gpumem": 1}));
        other["schedulerName"] = "volcano".into();
        let mut strange = pod(json!({"nvidia.com/gpumem": 1}));
        strange["resourceClaims"] = json!("text");
        for (spec, target, named) in [
            (pinned.clone(), Target::Claims, "nodeSelector"),
            (pinned, Target::Extender, "nodeSelector"),
            (pod(asks), Target::Claims, "--device-memory"),
            (other, Target::Extender, "volcano"),
            (strange, Target::Claims, "not a list"),
        ] {
            let refused = rewrite(&json!({}), &spec, &Terms::default(), target).expect_err(named);
            assert!(refused.contains(named), "{refused}");
        }
        assert_eq!(
            rewrite(&json!({}), &pod(json!({})), &Terms::default(), Target::Claims),
            Ok(None)
        );
    }
}

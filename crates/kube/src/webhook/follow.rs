//! The loop beside the webhook: pods that were admitted name templates, and it makes those that are missing. A template is known by
//! what it asks for, so two that make it make the same, and nothing has to be remembered.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::api::PostParams;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio_stream::StreamExt;

use crate::https::Remark;
use crate::templates::{ASKS, MADE, of_pod};

/// Templates that a pod needs, as objects: those of its annotation that its claims name.
///
/// # Errors
/// What was not understood.
pub fn needed(pod: &Pod) -> Result<Vec<Value>, String> {
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(ASKS));
    let Some(text) = annotation else {
        return Ok(Vec::new());
    };
    let named: Vec<&str> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.resource_claims.iter().flatten())
        .filter_map(|claim| claim.resource_claim_template_name.as_deref())
        .collect();
    let namespace = pod.metadata.namespace.as_deref();
    let templates = of_pod(text)?
        .into_iter()
        .filter(|one| named.contains(&one.name().as_str()));
    Ok(templates
        .map(|template| {
            let mut object = template.object(namespace);
            object["metadata"]["labels"][MADE] = "webhook".into();
            object
        })
        .collect())
}

/// Makes what pods need, for ever.
pub async fn follow(client: Client, remark: Remark) {
    /// The pause after a failed watch or write.
    const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
    let mut events = std::pin::pin!(watcher(Api::<Pod>::all(client.clone()), Config::default()));
    while let Some(event) = events.next().await {
        let pod = match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => pod,
            Ok(_) => continue,
            Err(error) => {
                remark(&format!("pods cannot be watched: {error}"));
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let waits = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none());
        if !waits {
            continue;
        }
        match needed(&pod) {
            Err(why) => remark(&format!("annotation {ASKS} of a pod: {why}")),
            Ok(objects) => {
                for object in objects {
                    if let Err(why) = make(&client, object).await {
                        remark(&format!("a ResourceClaimTemplate cannot be made: {why}"));
                    }
                }
            }
        }
    }
}

async fn make(client: &Client, object: Value) -> Result<(), String> {
    let template: ResourceClaimTemplate =
        serde_json::from_value(object).map_err(|error| error.to_string())?;
    let namespace = template.metadata.namespace.clone().unwrap_or_default();
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), &namespace);
    match templates.create(&PostParams::default(), &template).await {
        Ok(_) => Ok(()),
        // It is there already, and is the same: its name says what it asks for.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(crate::live::refusal(&error).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::templates::Template;

    #[test]
    fn only_templates_that_the_pod_names_are_made() {
        let template = |mib| Template {
            devices: 1,
            memory_mib: Some(mib),
            ..Template::default()
        };
        let (one, other) = (template(1024), template(2048));
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "annotations": {ASKS: serde_json::to_string(&[&one, &other]).expect("JSON")}},
            "spec": {"containers": [], "resourceClaims": [{"name": "c", "resourceClaimTemplateName": one.name()}]},
        }))
        .expect("a pod");
        let objects = needed(&pod).expect("understood");
        assert_eq!(objects.len(), 1);
        assert_eq!(
            (
                &objects[0]["metadata"]["name"],
                &objects[0]["metadata"]["namespace"]
            ),
            (&json!(one.name()), &json!("n"))
        );
        assert_eq!(needed(&Pod::default()), Ok(Vec::new()));
    }
}

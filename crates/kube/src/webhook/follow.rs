//! The loop beside the webhook: pods that were admitted name templates, and it makes those that are missing, and removes those that no pod
//! names any more. A template is known by what it asks for, so two loops that make it make the same, and nothing has to be kept.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::MissedTickBehavior;
use tokio_stream::StreamExt;

use crate::https::Remark;
use crate::templates::{ASKS, MADE, of_pod};
use crate::webhook::made::{Recent, Unmade};

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

/// The pods that name templates, as the watch has them.
#[derive(Debug, Default)]
struct Named {
    /// By the pod's UID.
    pods: HashMap<String, Needs>,
    /// Those of a list that is under way; they take the place of the others at its end.
    listed: HashMap<String, Needs>,
}

#[derive(Clone, Debug, Default)]
struct Needs {
    namespace: String,
    names: Vec<String>,
}

impl Needs {
    /// Of a pod that needs these objects.
    fn of(pod: &Pod, objects: &[Value]) -> Self {
        let name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            names: objects.iter().filter_map(name).collect(),
        }
    }
}

impl Named {
    /// Whether a pod names this template.
    fn has(&self, namespace: &str, name: &str) -> bool {
        let mut all = self.pods.values().chain(self.listed.values());
        all.any(|needs| needs.namespace == namespace && needs.names.iter().any(|one| one == name))
    }
}

/// How often templates that no pod names are looked for, and for how long none has to have named such a one.
const COLLECT: Duration = Duration::from_secs(600);
const AGE: Duration = Duration::from_secs(3600);

/// Templates that no pod names, by UID, with the look that found it so first. This process counts for itself: the API server's clock
/// may be hours from this host's, and then a template that was just made would be old.
#[derive(Debug, Default)]
struct Unnamed(HashMap<String, Instant>);

impl Unnamed {
    /// Notes a look: these are all that no pod names now. Those of them that none has named for so long.
    fn note(&mut self, unnamed: &HashSet<String>, now: Instant, age: Duration) -> Vec<String> {
        self.0.retain(|uid, _| unnamed.contains(uid));
        let due = |uid: &&String| {
            let since = *self.0.entry((*uid).clone()).or_insert(now);
            now.saturating_duration_since(since) >= age
        };
        unnamed.iter().filter(due).cloned().collect()
    }
}

/// Makes what pods need, and removes what they need no more, for ever.
pub async fn follow(client: Client, remark: Remark) {
    follow_every(client, remark, COLLECT, AGE).await;
}

/// The same, with these times.
pub async fn follow_every(client: Client, remark: Remark, every: Duration, age: Duration) {
    /// The pause after a failed watch.
    const PAUSE: Duration = Duration::from_secs(1);
    /// How often templates are tried that could not be made.
    const AGAIN: Duration = Duration::from_secs(2);
    let mut events = std::pin::pin!(watcher(Api::<Pod>::all(client.clone()), Config::default()));
    let (mut named, mut recent, mut unmade) = (Named::default(), Recent::default(), Unmade::default());
    let mut unnamed = Unnamed::default();
    let mut again = tokio::time::interval(AGAIN);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut collect = tokio::time::interval(every);
    collect.tick().await;
    // Until the first list is in, nothing is known to be named by none.
    let mut is_listed = false;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _tick = collect.tick(), if is_listed => {
                if let Err(why) = tidy(&client, &named, &mut unnamed, age).await {
                    remark(&format!("ResourceClaimTemplates cannot be collected: {why}"));
                }
                continue;
            }
            _tick = again.tick(), if unmade.len() > 0 => {
                try_again(&client, &named, &mut recent, &mut unmade).await;
                continue;
            }
        };
        let (pod, of_list) = match event {
            None => return,
            Some(Ok(Event::Apply(pod))) => (pod, false),
            Some(Ok(Event::InitApply(pod))) => (pod, true),
            Some(Ok(Event::Delete(pod))) => {
                named.pods.remove(pod.metadata.uid.as_deref().unwrap_or_default());
                continue;
            }
            Some(Ok(Event::Init)) => {
                named.listed.clear();
                continue;
            }
            Some(Ok(Event::InitDone)) => {
                named.pods = std::mem::take(&mut named.listed);
                is_listed = true;
                continue;
            }
            Some(Err(error)) => {
                remark(&format!("pods cannot be watched: {error}"));
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let objects = match needed(&pod) {
            Ok(objects) if objects.is_empty() => continue,
            Ok(objects) => objects,
            Err(why) => {
                remark(&format!("annotation {ASKS} of a pod: {why}"));
                continue;
            }
        };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        match of_list {
            true => named.listed.insert(uid, Needs::of(&pod, &objects)),
            false => named.pods.insert(uid, Needs::of(&pod, &objects)),
        };
        if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()) {
            for object in objects {
                let now = Instant::now();
                if !recent.is_due(&object, now) {
                    continue;
                }
                match make(&client, object.clone()).await {
                    Ok(()) => {
                        unmade.forget(&object);
                        recent.note(&object, now);
                    }
                    Err(why) => {
                        remark(&format!(
                            "a ResourceClaimTemplate cannot be made, and is tried again: {why}"
                        ));
                        unmade.note(object);
                    }
                }
            }
        }
    }
}

/// Tries what could not be made: each once, until the server has refused some.
async fn try_again(client: &Client, named: &Named, recent: &mut Recent, unmade: &mut Unmade) {
    /// A server that refuses so many takes none of the others either, as one that can write nothing.
    const REFUSALS: usize = 8;
    let (mut tries, mut refusals) = (unmade.len(), 0);
    while tries > 0 && refusals < REFUSALS {
        let Some(object) = unmade.next(|namespace, name| named.has(namespace, name)) else {
            return;
        };
        tries -= 1;
        match make(client, object.clone()).await {
            Ok(()) => recent.note(&object, Instant::now()),
            Err(_as_before) => {
                refusals += 1;
                unmade.note(object);
            }
        }
    }
}

/// Removes templates of the webhook's that no pod has named for so long. A pod that comes meanwhile has its own made again: the watch
/// tells of it afterwards.
async fn tidy(client: &Client, named: &Named, unnamed: &mut Unnamed, age: Duration) -> Result<(), String> {
    let all: Api<ResourceClaimTemplate> = Api::all(client.clone());
    let ours = ListParams::default().labels(&format!("{MADE}=webhook"));
    let words = |error: kube::Error| crate::live::refusal(&error).to_string();
    let mut found: HashMap<String, (String, String)> = HashMap::new();
    for template in all.list(&ours).await.map_err(words)?.items {
        let metadata = template.metadata;
        if let (Some(uid), Some(name), Some(namespace)) = (metadata.uid, metadata.name, metadata.namespace)
            && !named.has(&namespace, &name)
        {
            found.insert(uid, (namespace, name));
        }
    }
    let uids: HashSet<String> = found.keys().cloned().collect();
    for uid in unnamed.note(&uids, Instant::now(), age) {
        let Some((namespace, name)) = found.remove(&uid) else {
            continue;
        };
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), &namespace);
        let this = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match templates.delete(&name, &this).await {
            Ok(_) => {}
            // It is gone, or another by now.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(words(error)),
        }
    }
    Ok(())
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

    /// What is removed of two templates that no pod names, by a server of this age: neither its clock nor this host's counts.
    #[tokio::test]
    async fn a_template_is_as_old_as_it_was_seen_without_a_pod() {
        use std::sync::{Arc, Mutex};
        let template = |name: &str, made: &str| {
            json!({"metadata": {"name": name, "namespace": "n", "uid": format!("u-{name}"), "creationTimestamp": made},
                "spec": {"spec": {}}})
        };
        // An hour is long past by the one, and years away by the other.
        let all = json!({"metadata": {"resourceVersion": "1"}, "items": [
            template("behind", "1971-01-01T00:00:00Z"), template("ahead", "2199-01-01T00:00:00Z")]});
        let deleted: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = deleted.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let answer = match request.method().as_str() {
                "GET" => all.to_string(),
                _ => {
                    let path = request.uri().path().to_owned();
                    noted
                        .lock()
                        .expect("paths")
                        .extend(path.rsplit('/').next().map(str::to_owned));
                    template("gone", "2026-01-01T00:00:00Z").to_string()
                }
            };
            async move {
                Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::from(
                    answer.into_bytes(),
                )))
            }
        });
        let client = Client::new(service, "default");
        let (named, mut unnamed) = (Named::default(), Unnamed::default());
        for _ in 0..3 {
            tidy(&client, &named, &mut unnamed, AGE).await.expect("looked");
        }
        assert_eq!(
            deleted.lock().expect("paths").len(),
            0,
            "none was seen for an hour"
        );
        tidy(&client, &named, &mut unnamed, Duration::ZERO)
            .await
            .expect("looked");
        let mut gone = deleted.lock().expect("paths").clone();
        gone.sort();
        assert_eq!(gone, ["ahead", "behind"]);
    }

    #[test]
    fn a_template_that_a_pod_names_again_is_new() {
        let (mut unnamed, start) = (Unnamed::default(), Instant::now());
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let [both, one] = [&["a", "b"][..], &["a"]].map(|names| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<HashSet<_>>()
        });
        assert_eq!(unnamed.note(&both, at(0), AGE), [""; 0]);
        assert_eq!(unnamed.note(&both, at(59), AGE), [""; 0]);
        // A pod has the second.
        assert_eq!(unnamed.note(&one, at(60), AGE), ["a"]);
        assert_eq!(unnamed.note(&both, at(61), AGE), ["a"]);
        assert_eq!(unnamed.note(&both, at(121), AGE).len(), 2);
        assert_eq!(unnamed.note(&HashSet::new(), at(122), AGE), [""; 0]);
        assert!(unnamed.0.is_empty());
    }
}

//! The extender's answers. A bind is assumed in the ledger, sent, and confirmed by the watch. There is no lock on a node and no
//! time after which an assumption ends: one whose outcome is not known is settled by asking.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use divvy_placement::fallback::Ledger;
use divvy_placement::fallback::ask::PodAsk;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;
use serde_json::{Value, json};

use super::cluster::{Binding, Failed, Pods};
use super::objects::{devices, grants};
use super::wire::{Arguments, Bind, Bound, Filtered, Name, Nodes, Score};
use crate::cluster::Refusal;
use crate::grants::{Believed, Granted, Signer};
use crate::https::Answer;
use crate::names::{self, Terms, cut};

/// The largest message: a list of 5,000 whole nodes is some 50 MiB.
const LARGEST: usize = 64 << 20;
/// The most that kube-scheduler takes as a score.
const BEST: i64 = 10;
/// How often a bind is tried where the pod has changed meanwhile.
const TRIES: u32 = 3;

/// See the module.
pub struct Extender {
    ledger: RwLock<Ledger>,
    /// Binds whose call has not returned, by pod.
    flying: Mutex<HashSet<String>>,
    /// Namespace and name of pods that are assumed, by UID.
    names: Mutex<std::collections::HashMap<String, (String, String)>>,
    pods: Arc<dyn Pods>,
    terms: Terms,
    keys: RwLock<Arc<Keys>>,
}

/// What signs grants, and the keys whose grants are believed.
struct Keys {
    signer: Signer,
    believed: Believed,
}

impl Keys {
    fn new(signer: Signer, earlier: Believed) -> Arc<Self> {
        Arc::new(Self {
            believed: signer.believed().and(earlier),
            signer,
        })
    }
}

impl Extender {
    /// Knows nothing yet: [`super::watching`] tells it. Grants that were signed with an `earlier` key are believed too.
    #[must_use]
    pub fn new(pods: Arc<dyn Pods>, terms: Terms, signer: Signer, earlier: Believed) -> Self {
        Self {
            keys: RwLock::new(Keys::new(signer, earlier)),
            ledger: RwLock::default(),
            flying: Mutex::default(),
            names: Mutex::default(),
            pods,
            terms,
        }
    }

    /// Signs with another key from now on. What keys signed that are not among these counts no more, except for pods that it has
    /// seen already.
    pub fn sign_with(&self, signer: Signer, earlier: Believed) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Keys::new(signer, earlier);
    }

    fn keys(&self) -> Arc<Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks at the ledger, or changes it.
    pub fn ledger<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        change(&mut self.ledger.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn look<T>(&self, look: impl FnOnce(&Ledger) -> T) -> T {
        look(&self.ledger.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A node as the watch has it; a remark where its devices are not understood. Such a node has none.
    ///
    /// # Errors
    /// What to log.
    pub fn node(&self, node: &Node) -> Result<(), String> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let found = devices(node);
        self.ledger(|ledger| match &found {
            Ok(gpus) if !gpus.is_empty() => ledger.node(name, gpus.clone()),
            _ => ledger.no_node(name),
        });
        found
            .map(drop)
            .map_err(|error| format!("node {}: {error}", cut(name)))
    }

    /// A pod as the watch has it. A pod without a node says nothing of a bind that is under way.
    ///
    /// # Errors
    /// What to log.
    pub fn pod(&self, pod: &Pod) -> Result<(), String> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            self.gone(uid);
            return Ok(());
        }
        // What it got was settled when it was bound. Its author may write another annotation since.
        if self.look(|ledger| ledger.is_confirmed(uid)) {
            return Ok(());
        }
        match grants(pod, &self.keys().believed) {
            Ok(Some(granted)) => {
                self.ledger(|ledger| ledger.seen(uid, &granted.node, granted.grants));
                self.unname(uid);
                Ok(())
            }
            Ok(None) => {
                self.bare(uid, pod);
                Ok(())
            }
            // What was assumed for it there counts still: its author wrote over it.
            Err(_) if self.bare(uid, pod) => Ok(()),
            Err(error) => Err(format!(
                "pod {}: {error}",
                cut(pod.metadata.name.as_deref().unwrap_or_default())
            )),
        }
    }

    /// A pod without grants that count: where it is on the node that was assumed, it has what was assumed.
    fn bare(&self, uid: &str, pod: &Pod) -> bool {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let known = node.is_some_and(|node| self.ledger(|ledger| ledger.seen_bare(uid, node)));
        if known {
            self.unname(uid);
        }
        known
    }

    /// A pod that is gone.
    pub fn gone(&self, uid: &str) {
        self.ledger(|ledger| ledger.gone(uid));
        self.unname(uid);
    }

    fn unname(&self, uid: &str) {
        self.names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(uid);
    }

    fn ask(&self, pod: &Value) -> Result<Option<PodAsk>, String> {
        let none = json!({});
        let of = |name: &str| pod.get(name).unwrap_or(&none);
        let found = names::read(of("metadata"), of("spec"), &self.terms)?;
        Ok(found.map(|found| found.ask))
    }

    fn filter<'a>(&self, arguments: Arguments<'a>) -> Filtered<'a> {
        let mut answer = Filtered::default();
        let ask = match self.ask(&arguments.pod) {
            Ok(ask) => ask,
            Err(error) => {
                answer.error = error;
                return answer;
            }
        };
        // One look at the ledger for all nodes: none changes while a pod is filtered.
        self.look(|ledger| {
            let refused = |name: &str| ask.as_ref().and_then(|ask| ledger.fits(name, ask).err());
            let failed = &mut answer.failed_nodes;
            if let Some(names) = arguments.node_names {
                let mut fit = Vec::with_capacity(names.len());
                for name in names {
                    match refused(&name.0) {
                        None => fit.push(name),
                        Some(refused) => drop(failed.insert(name, refused.to_string())),
                    }
                }
                answer.node_names = Some(fit);
            } else {
                let mut items = arguments.nodes.unwrap_or_default().items;
                items.retain(|node| match refused(name_of(node)) {
                    None => true,
                    Some(refused) => {
                        failed.insert(Name(name_of(node).to_owned().into()), refused.to_string());
                        false
                    }
                });
                answer.nodes = Some(Nodes { items });
            }
        });
        answer
    }

    fn prioritize<'a>(&self, arguments: &'a Arguments<'_>) -> Result<Vec<Score<'a>>, String> {
        let ask = self.ask(&arguments.pod)?;
        let named = arguments.node_names.iter().flatten().map(|name| &*name.0);
        let nodes = arguments
            .nodes
            .iter()
            .flat_map(|nodes| nodes.items.iter().map(name_of));
        self.look(|ledger| {
            let score = |host: &'a str| {
                let of_hundred = ask.as_ref().map_or(0, |ask| ledger.score(host, ask));
                Score {
                    host,
                    score: of_hundred.clamp(0, 100) * BEST / 100,
                }
            };
            Ok(named.chain(nodes).map(score).collect())
        })
    }

    /// Binds a pod.
    ///
    /// # Errors
    /// Why not: the scheduler tries again later.
    pub fn bind(&self, bind: &Bind) -> Result<(), String> {
        if !self
            .flying
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(bind.uid.clone())
        {
            return Err("a bind of the pod is under way".into());
        }
        let done = self.bind_once(bind);
        self.flying
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&bind.uid);
        done
    }

    fn bind_once(&self, bind: &Bind) -> Result<(), String> {
        let mut tries = 0;
        loop {
            tries += 1;
            let pod = self
                .pods
                .pod(&bind.namespace, &bind.name)
                .map_err(|error| error.to_string())?;
            if pod.metadata.uid.as_deref() != Some(&bind.uid) {
                // The caller's word takes nothing from another pod. One of this name that was deleted is settled by asking.
                return Err("the pod was deleted, and made again under its name".into());
            }
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            if let Some(node) = node {
                self.confirm(&bind.uid, &pod);
                return match node == bind.node {
                    true => Ok(()),
                    false => Err(format!("the pod is on node {} already", cut(node))),
                };
            }
            let json = serde_json::to_value(&pod).map_err(|error| error.to_string())?;
            let ask = self.ask(&json)?.unwrap_or_default();
            let grants = self
                .ledger(|ledger| ledger.assume(&bind.uid, &bind.node, &ask))
                .map_err(|refused| refused.to_string())?;
            let name = (bind.namespace.clone(), bind.name.clone());
            self.names
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(bind.uid.clone(), name);
            let granted = Granted {
                pod: bind.uid.clone(),
                node: bind.node.clone(),
                grants,
            };
            let binding = Binding {
                namespace: bind.namespace.clone(),
                name: bind.name.clone(),
                uid: bind.uid.clone(),
                version: pod.metadata.resource_version.clone().unwrap_or_default(),
                node: bind.node.clone(),
                grants: self.keys().signer.sign(&granted)?,
            };
            match self.pods.bind(&binding) {
                Ok(()) => return Ok(()),
                Err(Failed::Refused(refusal)) => {
                    self.forget(&bind.uid);
                    match refusal {
                        Refusal::Conflict(_) if tries < TRIES => {}
                        refusal => return Err(refusal.to_string()),
                    }
                }
                // It stays assumed until it is known.
                Err(Failed::Unknown(why)) => return Err(format!("the API server did not answer: {why}")),
            }
        }
    }

    fn forget(&self, uid: &str) {
        self.ledger(|ledger| ledger.forget(uid));
        self.unname(uid);
    }

    /// The pod has its node. What it has counts as the pod says, unless it is gone meanwhile.
    fn confirm(&self, uid: &str, pod: &Pod) {
        if let Ok(Some(granted)) = grants(pod, &self.keys().believed) {
            self.ledger(|ledger| {
                if ledger.is_assumed(uid) {
                    ledger.seen(uid, &granted.node, granted.grants);
                }
            });
        } else if !self.bare(uid, pod) {
            // Another scheduler bound it, with nothing of ours.
            self.forget(uid);
        }
        self.unname(uid);
    }

    /// Finds out about binds that are neither confirmed nor under way. One that has not landed is fenced off before its devices are
    /// given to others; how many were settled.
    pub fn settle(&self) -> usize {
        let mut settled = 0;
        for uid in self.look(Ledger::assumed) {
            // A bind of this pod waits until it is settled, or the other way round.
            if !self
                .flying
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(uid.clone())
            {
                continue;
            }
            settled += usize::from(self.settle_one(&uid));
            self.flying
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&uid);
        }
        settled
    }

    fn settle_one(&self, uid: &str) -> bool {
        let names = self
            .names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(uid)
            .cloned();
        let Some((namespace, name)) = names else {
            return false;
        };
        let bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let mut pod = match self.pods.pod(&namespace, &name) {
            Ok(pod) => pod,
            Err(Refusal::NotFound(_)) => {
                self.gone(uid);
                return true;
            }
            Err(_) => return false,
        };
        if pod.metadata.uid.as_deref() != Some(uid) {
            self.gone(uid);
            return true;
        }
        if !bound(&pod) {
            match self.pods.fence(&pod) {
                Ok(fenced) => pod = fenced,
                Err(Refusal::NotFound(_)) => {
                    self.gone(uid);
                    return true;
                }
                Err(_) => return false,
            }
        }
        match bound(&pod) {
            true => self.confirm(uid, &pod),
            false => self.forget(uid),
        }
        true
    }

    /// Before the first list of pods: an extender before this one may have sent binds that have not landed. Those of this pod
    /// cannot land afterwards.
    ///
    /// # Errors
    /// The API server's refusal; a pod that is gone is none.
    pub fn fence_before(&self, pod: &Pod) -> Result<(), Refusal> {
        let json = serde_json::to_value(pod).unwrap_or_default();
        let asks = matches!(self.ask(&json), Ok(Some(_)));
        if !asks || pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
            return Ok(());
        }
        match self.pods.fence(pod) {
            // A conflict is a pod that has changed since it was listed: what was sent before that cannot land either.
            Ok(_) | Err(Refusal::NotFound(_) | Refusal::Conflict(_)) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }
}

fn name_of(node: &Value) -> &str {
    node.pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn json<T: Serialize>(answer: &T) -> (u16, Vec<u8>) {
    match serde_json::to_vec(answer) {
        Ok(text) => (200, text),
        Err(_) => (500, Vec::new()),
    }
}

impl Answer for Extender {
    fn largest(&self) -> usize {
        LARGEST
    }

    fn answer(&self, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let bad = |error: &serde_json::Error| {
            let words = format!("the message is not understood: {}", cut(&error.to_string()));
            (400, json!({"error": words}).to_string().into_bytes())
        };
        match path {
            "/filter" => match serde_json::from_slice(body) {
                Ok(arguments) => json(&self.filter(arguments)),
                Err(error) => bad(&error),
            },
            "/prioritize" => match serde_json::from_slice(body) {
                Ok(arguments) => match self.prioritize(&arguments) {
                    Ok(scores) => json(&scores),
                    Err(error) => (400, json!({"error": error}).to_string().into_bytes()),
                },
                Err(error) => bad(&error),
            },
            "/bind" => match serde_json::from_slice::<Bind>(body) {
                Ok(bind) => json(&Bound {
                    error: self.bind(&bind).err().unwrap_or_default(),
                }),
                Err(error) => bad(&error),
            },
            _ => (
                404,
                b"{\"error\":\"there are /filter, /prioritize and /bind\"}".to_vec(),
            ),
        }
    }
}

#[cfg(test)]
mod tests;

//! Claims that the kubelet forgot: it was replaced, its checkpoint was lost, or the node was away while the pod was deleted.
//! No call takes them back, so the driver looks itself.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use divvy_model::Fault;

use super::{Named, Node};
use crate::claim::is_forgotten;
use crate::cluster::Refusal;

/// So many looks in a row have to find a claim forgotten before it is taken back.
const LOOKS: u32 = 2;

impl Node {
    /// Ends what a failed call left, and takes claims back that neither the API server nor the kubelet knows. `listed` are the
    /// claims of the kubelet's list of pods (namespace and name), none where it does not tell. Claims whose programs still run
    /// stay: their slices cannot be ended. The claims that were taken back, and what failed.
    pub fn reconcile(&self, listed: Option<&BTreeSet<(String, String)>>) -> (Vec<Named>, Vec<Fault>) {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        let records = match self.claims() {
            Ok(records) => records,
            Err(fault) => return (done, vec![fault]),
        };
        for record in records {
            let claim = Named {
                namespace: record.namespace.clone(),
                uid: record.uid.clone(),
                name: record.name.clone(),
            };
            let is_listed =
                listed.is_some_and(|listed| listed.contains(&(claim.namespace.clone(), claim.name.clone())));
            if record.prepared && (is_listed || !self.is_forgotten(&claim)) {
                continue;
            }
            let kept = self.kept();
            // A call may have come between.
            let is_meant = match record.prepared {
                true => self.looks(&record.uid) >= LOOKS,
                false => true,
            };
            let now = kept.state.read(&record.uid).ok().flatten();
            if !is_meant || now.as_ref() != Some(&record) {
                continue;
            }
            match kept.take_back(&record) {
                Ok(()) => {
                    self.is_known(&claim.uid);
                    done.push(claim);
                }
                Err(fault) => failed.push(fault),
            }
        }
        (done, failed)
    }

    /// Whether the API server does not know the claim any more, or has it for no pod. A server that does not answer knows all.
    fn is_forgotten(&self, claim: &Named) -> bool {
        let is_forgotten = match self.cluster().claim(&claim.namespace, &claim.name) {
            Ok(found) => is_forgotten(&found, &claim.uid),
            Err(Refusal::NotFound(_)) => true,
            Err(_) => return false,
        };
        let mut forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        match is_forgotten {
            true => *forgotten.entry(claim.uid.clone()).or_default() += 1,
            false => drop(forgotten.remove(&claim.uid)),
        }
        is_forgotten
    }

    fn looks(&self, uid: &str) -> u32 {
        let forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        forgotten.get(uid).copied().unwrap_or(0)
    }

    /// A call has named the claim, or it is gone: counting begins again.
    pub(super) fn is_known(&self, uid: &str) {
        let mut forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        forgotten.remove(uid);
    }
}

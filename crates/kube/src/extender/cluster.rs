//! What the extender asks of the API server, so that tests have one of their own. Calls block.

use k8s_openapi::api::core::v1::Pod;

use crate::cluster::Refusal;
use crate::grants::Signed;

/// A bind, with what makes it land on that pod as it was seen and on no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID: a pod that was made again under the name is another.
    pub uid: String,
    /// Its resource version: a pod that has changed since is not bound by this.
    pub version: String,
    /// The node.
    pub node: String,
    /// The annotations with its grants.
    pub grants: Signed,
}

/// Why a bind was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The API server refused it: it did not land and will not.
    Refused(Refusal),
    /// No answer: it may have landed, or may land yet.
    Unknown(String),
}

/// An API server, as the extender needs it.
///
/// # Errors
/// Every method: why it was not done.
#[expect(clippy::missing_errors_doc, reason = "said once, above")]
pub trait Pods: Send + Sync {
    /// A pod as it is now.
    fn pod(&self, namespace: &str, name: &str) -> Result<Pod, Refusal>;
    /// Binds a pod to a node, with its grants in the same write.
    fn bind(&self, binding: &Binding) -> Result<(), Failed>;
    /// Changes the pod a little, so that a bind that was sent with an earlier resource version cannot land; the pod afterwards.
    fn fence(&self, pod: &Pod) -> Result<Pod, Refusal>;
}

//! What is asked of the API server, so that tests have one of their own.

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};

/// Why the API server did not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is none of that name, or the server does not know the kind.
    NotFound(String),
    /// Another writer came first: look again.
    Conflict(String),
    /// The object is not valid there.
    Invalid(String),
    /// Everything else: not reached, not allowed, no space.
    Other(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::NotFound(text) | Self::Conflict(text) | Self::Invalid(text) | Self::Other(text)) = self;
        f.write_str(text)
    }
}

/// An API server, as this driver needs it. Calls block.
///
/// # Errors
/// Every method: [`Refusal`].
#[expect(clippy::missing_errors_doc, reason = "said once, above")]
pub trait Cluster: Send + Sync {
    /// The UID of a node.
    fn node_uid(&self, node: &str) -> Result<String, Refusal>;
    /// The ResourceSlices of this driver on a node.
    fn resource_slices(&self, node: &str) -> Result<Vec<ResourceSlice>, Refusal>;
    /// The ResourceSlices of all drivers on a node.
    fn slices_of_all(&self, node: &str) -> Result<Vec<ResourceSlice>, Refusal>;
    /// Makes one; what the server has kept.
    fn create(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal>;
    /// Replaces one, by its name and resource version; what the server has kept.
    fn replace(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal>;
    /// Deletes one. One that is gone already is no error.
    fn delete(&self, name: &str) -> Result<(), Refusal>;
    /// What the server would keep of a new one: a dry run, which changes nothing.
    fn probe(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal>;
    /// A pod.
    fn pod(&self, namespace: &str, name: &str) -> Result<Pod, Refusal>;
    /// Writes an event.
    fn tell(&self, event: &Event) -> Result<(), Refusal>;
    /// A claim.
    fn claim(&self, namespace: &str, name: &str) -> Result<ResourceClaim, Refusal>;
}

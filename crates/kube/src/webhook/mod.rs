//! The mutating webhook: pods with others' names get claims, or the extender's resources. It makes nothing itself, so a dry run is
//! as clean as it looks: claims come of templates that are known by what they ask for (docs/adr/0054).
//!
//! - [`review`]: AdmissionReview v1, in and out.
//! - [`rewrite`]: what becomes of a pod, shared with `divvy k8s migrate`.
//! - [`follow`]: the loop that makes templates that admitted pods name.

pub mod follow;
mod made;
pub mod review;
pub mod rewrite;

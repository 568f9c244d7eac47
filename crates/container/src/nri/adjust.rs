//! A CDI device's edits in NRI's words, and the conflicts with a container's own mounts.

use divvy_model::{Code, Fault};

use super::message::{Adjustment, Container};
use crate::cdi::Edits;
use crate::{inject, oci};

/// What the runtime is to add to this container.
///
/// # Errors
/// [`Code::NotEnforceable`] for a folder of the host's that would be written to; [`Code::UnknownDevice`] for a node
/// that is gone; [`Code::Annotation`] where the container has something mounted over a place of ours. The runtime sorts
/// mounts by their depth, and ours would not be the last one.
pub fn adjustment(edits: &Edits, container: &Container) -> Result<Adjustment, Fault> {
    let of_host = |(to, from): &&(String, String)| from.starts_with('/') && inject::is_written(to);
    if let Some((to, from)) = container
        .mounts
        .iter()
        .find(of_host)
        .filter(|_| !edits.mounts.is_empty())
    {
        return Err(inject::written(from, to));
    }
    let ours = || edits.mounts.iter().map(|mount| mount.container_path.as_str());
    for (to, _) in &container.mounts {
        let place = oci::clean(to);
        // Most images have /var/run as a link.
        let place = place
            .strip_prefix("/var")
            .filter(|rest| rest.starts_with("/run/"))
            .unwrap_or(&place);
        let mut over = ours().filter(|our| {
            place
                .strip_prefix(our)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        if let Some(our) = over.next() {
            return Err(Fault::new(
                Code::Annotation,
                format!("the container has a mount at `{place}`"),
            )
            .cause(format!(
                "a container of a slice has the limiter's parts at `{our}`"
            ))
            .hint("mount it elsewhere"));
        }
    }
    let nodes: Result<Vec<_>, _> = edits.device_nodes.iter().map(oci::node).collect();
    Ok(Adjustment {
        environment: edits.env.clone(),
        mounts: edits.mounts.clone(),
        nodes: nodes?,
    })
}

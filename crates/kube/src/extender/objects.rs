//! Devices of nodes and grants of pods, as their annotations have them.

use divvy_placement::fallback::Gpu;
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::grants::{Believed, Granted};
use crate::quantity::whole;

/// The annotation of a node with its devices, which its device plugin writes.
pub const DEVICES: &str = "gpu.divvy.dev/devices";
/// The longest annotation that is read: Kubernetes' bound on all of an object's.
const LONGEST: usize = 256 << 10;
/// How many devices a node may have.
const MOST: usize = 256;

/// The devices that a node announces; none for one that announces none. Without the annotation, the capacities that the device
/// plugin (or gpushare's) advertises are divided among as many devices as it counts.
///
/// # Errors
/// What was not understood.
pub fn devices(node: &Node) -> Result<Vec<Gpu>, String> {
    let annotation = node
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(DEVICES));
    if let Some(text) = annotation {
        if text.len() > LONGEST {
            return Err(format!("{DEVICES} is too long"));
        }
        let gpus: Vec<Gpu> = serde_json::from_str(text).map_err(|error| format!("{DEVICES}: {error}"))?;
        let mut uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        uuids.sort_unstable();
        uuids.dedup();
        return match uuids.len() == gpus.len() && gpus.len() <= MOST {
            true => Ok(gpus),
            false => Err(format!("{DEVICES} names a device twice, or too many")),
        };
    }
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    let of = |name: &str| {
        allocatable
            .and_then(|all| all.get(name))
            .and_then(whole)
            .filter(|number| *number > 0)
    };
    let (count, memory) = match (of("aliyun.com/gpu-count"), of("aliyun.com/gpu-mem")) {
        (Some(count), Some(gib)) => (count, gib.saturating_mul(1024)),
        _ => return Ok(Vec::new()),
    };
    let count = count.min(MOST as u64);
    Ok((0..count)
        .map(|index| Gpu {
            uuid: format!("{index}"),
            memory_mib: memory / count,
            slots: 16,
            healthy: true,
            ..Gpu::default()
        })
        .collect())
}

/// What a pod has on its node; none for one that is on no node, has ended or has nothing of ours.
///
/// # Errors
/// What was not understood, or was not signed by one of these keys.
pub fn grants(pod: &Pod, believed: &Believed) -> Result<Option<Granted>, String> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    match is_placed && !matches!(phase, Some("Succeeded" | "Failed")) {
        true => believed.granted(pod),
        false => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::grants::{GRANTS, SIGNATURE, Signer};

    fn node(annotation: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n", "annotations": {DEVICES: annotation}}}))
            .expect("a node")
    }

    #[test]
    fn devices_are_read_or_refused() {
        let one = r#"{"uuid": "GPU-1", "memoryMiB": 1000, "slots": 4, "numa": 1}"#;
        let read = devices(&node(&format!("[{one}]"))).expect("understood");
        assert_eq!(
            (read[0].memory_mib, read[0].numa, read[0].healthy),
            (1000, Some(1), true)
        );
        for text in [
            format!("[{one},{one}]"),
            "{}".into(),
            "[{}]".into(),
            "x".repeat(LONGEST + 1),
        ] {
            assert!(devices(&node(&text)).is_err());
        }
        let gpushare: Node = serde_json::from_value(json!({
            "status": {"allocatable": {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"}}
        }))
        .expect("a node");
        let read = devices(&gpushare).expect("understood");
        assert_eq!((read.len(), read[1].memory_mib), (2, 16 << 10));
        assert_eq!(devices(&Node::default()), Ok(Vec::new()));
    }

    #[test]
    fn only_pods_on_nodes_that_have_not_ended_have_grants() {
        let (key, _) = Signer::make().expect("a key");
        let signer = Signer::of(key.as_bytes()).expect("a key");
        let granted = Granted {
            pod: "u".into(),
            node: "n".into(),
            grants: Vec::new(),
        };
        let signed = signer.sign(&granted).expect("signed");
        let of = |node: Option<&str>, phase: &str| {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"uid": "u", "annotations": {GRANTS: signed.text, SIGNATURE: signed.signature}},
                "spec": {"nodeName": node, "containers": []}, "status": {"phase": phase}
            }))
            .expect("a pod");
            grants(&pod, &signer.believed())
        };
        assert_eq!(of(Some("n"), "Running"), Ok(Some(granted.clone())));
        assert_eq!(of(None, "Pending"), Ok(None));
        assert_eq!(of(Some("n"), "Failed"), Ok(None));
        assert!(of(Some("other"), "Running").is_err());
    }
}

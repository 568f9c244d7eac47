//! Which pods have which claims and devices, as the kubelet tells on its pod-resources socket. The kubelet is root's, and
//! the socket lies in root's folder: what it says is believed as the kubelet's other words are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use divvy_model::{Code, Fault};

use crate::dial::dial;
use crate::grpc::podresources::pod_resources_lister_client::PodResourcesListerClient;
use crate::grpc::podresources::{ListPodResourcesRequest, ListPodResourcesResponse};

/// The largest list that is read, in bytes.
const LARGEST: usize = 16 << 20;

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodContainer {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
}

/// The pods of this node with what they have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// How many pods there are.
    pub count: usize,
    /// The claims that pods have, as namespace and name.
    pub claims: BTreeSet<(String, String)>,
    /// The ids of device plugins' devices that pods have, each with its resource.
    pub ids: BTreeSet<(String, String)>,
    /// By what container runtimes call a claim's device: its containers.
    pub(crate) by_cdi: BTreeMap<String, BTreeSet<PodContainer>>,
    /// By resource and id of a plugin's device: its container.
    pub(crate) by_id: BTreeMap<(String, String), PodContainer>,
}

impl Pods {
    /// Asks the kubelet on this socket, `pod-resources/kubelet.sock` in its folder.
    ///
    /// # Errors
    /// [`Code::Kubelet`]: it does not answer, or does not serve this.
    pub async fn ask(socket: &Path) -> Result<Self, Fault> {
        let channel = dial(socket).await?;
        let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(LARGEST);
        let answer = client.list(ListPodResourcesRequest {}).await.map_err(|status| {
            Fault::new(
                Code::Kubelet,
                "the kubelet does not tell which pods have which devices",
            )
            .cause(status.message().to_owned())
        })?;
        Ok(Self::of(&answer.into_inner()))
    }

    fn of(list: &ListPodResourcesResponse) -> Self {
        let mut pods = Self {
            count: list.pod_resources.len(),
            ..Self::default()
        };
        for pod in &list.pod_resources {
            for container in &pod.containers {
                let whose = PodContainer {
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    container: container.name.clone(),
                };
                for claim in &container.dynamic_resources {
                    pods.claims
                        .insert((claim.claim_namespace.clone(), claim.claim_name.clone()));
                    let devices = claim.claim_resources.iter().flat_map(|part| &part.cdi_devices);
                    for device in devices {
                        pods.by_cdi
                            .entry(device.name.clone())
                            .or_default()
                            .insert(whose.clone());
                    }
                }
                for devices in &container.devices {
                    for id in &devices.device_ids {
                        let id = (devices.resource_name.clone(), id.clone());
                        pods.ids.insert(id.clone());
                        pods.by_id.insert(id, whose.clone());
                    }
                }
            }
        }
        pods
    }

    /// The containers that have this slice: by the name of its CDI device, or by what its command says it was made for
    /// (`kubernetes RESOURCE UID ID…`).
    #[must_use]
    pub fn of_slice(&self, cdi: &str, command: &[String]) -> Vec<PodContainer> {
        let mut found: BTreeSet<&PodContainer> = self.by_cdi.get(cdi).into_iter().flatten().collect();
        if let [word, resource, _, ids @ ..] = command
            && word == crate::kept::WORD
        {
            let of = |id: &String| self.by_id.get(&(resource.clone(), id.clone()));
            found.extend(ids.iter().filter_map(of));
        }
        found.into_iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::podresources as wire;

    /// It takes connections, and says nothing at all or stops after HTTP/2's first words.
    #[tokio::test]
    async fn a_kubelet_that_never_answers_is_given_up() {
        use tokio::io::AsyncWriteExt as _;

        for settings in [&[][..], &[0, 0, 0, 4, 0, 0, 0, 0, 0][..]] {
            let folder = tempfile::tempdir().expect("a folder");
            let socket = folder.path().join("kubelet.sock");
            let listener = tokio::net::UnixListener::bind(&socket).expect("a socket");
            let kubelet = tokio::spawn(async move {
                let mut kept = Vec::new();
                while let Ok((mut stream, _)) = listener.accept().await {
                    stream.write_all(settings).await.expect("written");
                    kept.push(stream);
                }
            });
            let asked = tokio::time::timeout(std::time::Duration::from_secs(60), Pods::ask(&socket));
            let fault = asked.await.expect("it is given up").expect_err("no answer");
            assert_eq!(fault.code, Code::Kubelet);
            kubelet.abort();
        }
    }

    #[test]
    fn slices_are_found_with_their_pods() {
        let claim = wire::DynamicResource {
            claim_name: "train".into(),
            claim_namespace: "default".into(),
            claim_resources: vec![wire::ClaimResource {
                cdi_devices: vec![wire::CdiDevice {
                    name: "divvy.dev/slice=train-1".into(),
                }],
            }],
        };
        let container = wire::ContainerResources {
            name: "main".into(),
            devices: vec![wire::ContainerDevices {
                resource_name: "nvidia.com/gpu".into(),
                device_ids: vec!["GPU-1::0".into()],
            }],
            dynamic_resources: vec![claim],
        };
        let list = ListPodResourcesResponse {
            pod_resources: vec![wire::PodResources {
                name: "p".into(),
                namespace: "default".into(),
                containers: vec![container],
            }],
        };
        let pods = Pods::of(&list);
        let main = PodContainer {
            namespace: "default".into(),
            pod: "p".into(),
            container: "main".into(),
        };
        let words = |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
        let by_id = words(&["kubernetes", "nvidia.com/gpu", "u-1", "GPU-1::0"]);
        assert_eq!(
            pods.of_slice("divvy.dev/slice=train-1", &[]),
            std::slice::from_ref(&main)
        );
        assert_eq!(pods.of_slice("divvy.dev/slice=x", &by_id), [main]);
        let other = words(&["kubernetes", "nvidia.com/gpu.shared", "u-1", "GPU-1::0"]);
        assert!(pods.of_slice("divvy.dev/slice=x", &other).is_empty());
        assert!(
            pods.of_slice(
                "divvy.dev/slice=x",
                &words(&["python", "nvidia.com/gpu", "u-1", "GPU-1::0"])
            )
            .is_empty()
        );
        assert!(pods.claims.contains(&("default".into(), "train".into())) && pods.count == 1);
    }
}

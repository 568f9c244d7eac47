//! The kubelet's interfaces as the generated code has them, and the services behind them.

use std::sync::Arc;

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::health::{Health, Reports};
use crate::node::{Device, Named, Node, Ticket};

/// Generated from the files in `proto/`.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod pluginregistration {
    tonic::include_proto!("pluginregistration");
}

/// Messages of `v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// Messages of `v1beta1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod v1beta1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
}

/// Messages about devices' health.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod health {
    tonic::include_proto!("v1alpha1");
}

/// Messages about the pods of the node.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod podresources {
    tonic::include_proto!("v1");
}

/// Messages of device plugins.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

/// What the kubelet calls the versions.
pub const VERSIONS: [&str; 3] = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"];

/// The most claims that are served in one call: a node has 110 pods by default.
const MOST_CLAIMS: usize = 4096;

/// Where failures are told besides the kubelet.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// The service of both versions.
#[derive(Clone)]
pub struct Plugin {
    /// What does it.
    pub node: Arc<Node>,
    /// Where failures are told.
    pub log: Log,
    /// A failure in one line.
    pub line: fn(&divvy_model::Fault) -> String,
}

impl Plugin {
    async fn prepare(
        &self,
        claims: Vec<Named>,
    ) -> Result<Vec<(String, Result<Vec<Device>, String>)>, Status> {
        // In the order in which calls come, and before they wait for a thread.
        let calls: Vec<(Named, Ticket)> = (claims.into_iter().take(MOST_CLAIMS + 1))
            .map(|claim| (claim.clone(), self.node.arrive(&claim)))
            .collect();
        // A call that the kubelet gives up is dropped here, and makes nothing any more.
        let given_up = GivenUp(calls.iter().map(|(_, ticket)| ticket.clone()).collect());
        let work = |node: &Node, (claim, ticket): &(Named, Ticket)| node.prepare_for(claim, ticket);
        let done = self.each(calls, "prepare", |(claim, _)| claim, work).await;
        drop(given_up);
        done
    }

    async fn unprepare(&self, claims: Vec<Named>) -> Result<Vec<(String, Result<(), String>)>, Status> {
        for claim in claims.iter().take(MOST_CLAIMS) {
            self.node.overtake(claim);
        }
        self.each(claims, "unprepare", |claim| claim, Node::unprepare)
            .await
    }

    /// Does this for each claim, off the loop: each asks the agent and the API server.
    async fn each<C: Send + 'static, T: Send + 'static>(
        &self,
        claims: Vec<C>,
        what: &'static str,
        named: fn(&C) -> &Named,
        work: fn(&Node, &C) -> Result<T, divvy_model::Fault>,
    ) -> Result<Vec<(String, Result<T, String>)>, Status> {
        if claims.len() > MOST_CLAIMS {
            return Err(Status::invalid_argument("more claims than a node can have"));
        }
        let plugin = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let of = |call: C| {
                let done = work(&plugin.node, &call);
                let claim = named(&call);
                let done = done.map_err(|fault| {
                    let said = (plugin.line)(&fault);
                    (plugin.log)(&format!("{what} {}/{}: {said}", claim.namespace, claim.name));
                    said
                });
                (claim.uid.clone(), done)
            };
            claims.into_iter().map(of).collect()
        });
        done.await
            .map_err(|_| Status::internal("the call failed inside the driver"))
    }
}

/// Ends the tickets of a call, however the call ends. Those of a call that was answered are of no use any more.
struct GivenUp(Vec<Ticket>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.iter().for_each(Ticket::end);
    }
}

macro_rules! version {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::dra_plugin_server::DraPlugin for Plugin {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter().map(|claim| Named {
                    namespace: claim.namespace,
                    uid: claim.uid,
                    name: claim.name,
                });
                let done = self.prepare(claims.collect()).await?;
                let answer = |done: Result<Vec<Device>, String>| match done {
                    Ok(devices) => $version::NodePrepareResourceResponse {
                        devices: devices
                            .into_iter()
                            .map(|device| $version::Device {
                                request_names: vec![device.request],
                                pool_name: device.pool,
                                device_name: device.device,
                                cdi_device_ids: device.cdi,
                                share_id: device.share_id,
                            })
                            .collect(),
                        error: String::new(),
                    },
                    Err(error) => $version::NodePrepareResourceResponse {
                        devices: Vec::new(),
                        error,
                    },
                };
                let claims = done
                    .into_iter()
                    .map(|(uid, done)| (uid, answer(done)))
                    .collect();
                Ok(Response::new($version::NodePrepareResourcesResponse {
                    claims,
                }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter().map(|claim| Named {
                    namespace: claim.namespace,
                    uid: claim.uid,
                    name: claim.name,
                });
                let done = self.unprepare(claims.collect()).await?;
                let answer = |done: Result<(), String>| $version::NodeUnprepareResourceResponse {
                    error: done.err().unwrap_or_default(),
                };
                let claims = done
                    .into_iter()
                    .map(|(uid, done)| (uid, answer(done)))
                    .collect();
                Ok(Response::new($version::NodeUnprepareResourcesResponse {
                    claims,
                }))
            }
        }
    };
}

version!(v1);
version!(v1beta1);

/// Tells the kubelet how devices are, at once and whenever they were looked at again.
#[derive(Clone)]
pub struct HealthWatch {
    /// The latest reports.
    pub reports: Reports,
}

#[tonic::async_trait]
impl health::dra_resource_health_server::DraResourceHealth for HealthWatch {
    type NodeWatchResourcesStream = ReceiverStream<Result<health::NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<health::NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let mut reports = self.reports.clone();
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let devices = reports.borrow_and_update().iter().map(report).collect();
                let response = health::NodeWatchResourcesResponse { devices };
                if sender.send(Ok(response)).await.is_err() {
                    break;
                }
                tokio::select! {
                    changed = reports.changed() => if changed.is_err() { break },
                    () = sender.closed() => break,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

fn report(device: &Health) -> health::DeviceHealth {
    let status = match device.trouble.is_empty() {
        true => health::HealthStatus::Healthy,
        false => health::HealthStatus::Unhealthy,
    };
    health::DeviceHealth {
        device: Some(health::DeviceIdentifier {
            pool_name: device.pool.clone(),
            device_name: device.device.clone(),
        }),
        health: status.into(),
        last_updated_time: device.at_unix_s,
        health_check_timeout_seconds: crate::health::TIMEOUT_S,
        message: device.trouble.clone(),
    }
}

/// Tells the kubelet where the driver is.
#[derive(Clone)]
pub struct Registration {
    /// The driver's socket, as the kubelet sees it.
    pub endpoint: String,
    /// Where the kubelet's answer is told.
    pub log: Log,
}

#[tonic::async_trait]
impl pluginregistration::registration_server::Registration for Registration {
    async fn get_info(
        &self,
        _: Request<pluginregistration::InfoRequest>,
    ) -> Result<Response<pluginregistration::PluginInfo>, Status> {
        Ok(Response::new(pluginregistration::PluginInfo {
            r#type: "DRAPlugin".into(),
            name: crate::DRIVER.into(),
            endpoint: self.endpoint.clone(),
            supported_versions: VERSIONS.map(Into::into).into(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<pluginregistration::RegistrationStatus>,
    ) -> Result<Response<pluginregistration::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        match status.plugin_registered {
            true => (self.log)("registered with the kubelet"),
            false => (self.log)(&format!("the kubelet refused the driver: {}", status.error)),
        }
        Ok(Response::new(pluginregistration::RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::health::dra_resource_health_server::DraResourceHealth;
    use super::*;
    use crate::devices::tests::{device, ill};
    use crate::health::Watch;

    #[test]
    fn the_kubelet_hears_of_each_look() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a loop");
        runtime.block_on(async {
            let (mut watch, reports) = Watch::new();
            watch.note("node", &[device(0)], 1);
            let service = HealthWatch { reports };
            let asked = service.node_watch_resources(Request::new(health::NodeWatchResourcesRequest {}));
            let mut stream = asked.await.expect("a stream").into_inner();
            for (number, devices, status) in [
                (2, [ill(0)], health::HealthStatus::Unhealthy),
                (3, [device(0)], health::HealthStatus::Healthy),
            ] {
                watch.note("node", &devices, number);
                let told = loop {
                    let told = stream.next().await.expect("a report").expect("told").devices;
                    if told[0].last_updated_time == number {
                        break told;
                    }
                };
                assert_eq!(told.len(), 2, "both forms");
                assert!(told.iter().all(|device| device.health() == status), "{told:?}");
                assert_eq!(told[0].device.as_ref().expect("a device").pool_name, "node");
            }
            drop(watch);
            while stream.next().await.is_some() {}
        });
    }
}

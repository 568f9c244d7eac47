//! The kubelet's interfaces as the generated code has them, and the services behind them.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::node::{Named, Node};

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

/// What the kubelet calls the versions.
pub const VERSIONS: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

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
    /// Does this for each claim, off the loop: each asks the agent and the API server.
    async fn each<T: Send + 'static>(
        &self,
        claims: Vec<Named>,
        what: &'static str,
        work: fn(&Node, &Named) -> Result<T, divvy_model::Fault>,
    ) -> Result<Vec<(String, Result<T, String>)>, Status> {
        if claims.len() > MOST_CLAIMS {
            return Err(Status::invalid_argument("more claims than a node can have"));
        }
        let plugin = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let of = |claim: Named| {
                let done = work(&plugin.node, &claim).map_err(|fault| {
                    let said = (plugin.line)(&fault);
                    (plugin.log)(&format!("{what} {}/{}: {said}", claim.namespace, claim.name));
                    said
                });
                (claim.uid, done)
            };
            claims.into_iter().map(of).collect()
        });
        done.await
            .map_err(|_| Status::internal("the call failed inside the driver"))
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
                let done = self
                    .each(claims.collect(), "prepare", Node::prepare)
                    .await?;
                let answer = |done: Result<Vec<crate::node::Device>, String>| match done {
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
                let done = self
                    .each(claims.collect(), "unprepare", Node::unprepare)
                    .await?;
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

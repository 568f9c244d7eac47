//! `divvy k8s webhook`: pods with others' names get what they ask for.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::ValueEnum;
use divvy_kube::https::serve;
use divvy_kube::live;
use divvy_kube::webhook::follow::follow;
use divvy_kube::webhook::review::Webhook;
use divvy_kube::webhook::rewrite::Target;
use divvy_model::{Code, Fault};

use super::dra_plugin::ended;
use super::serving::{Serving, listen, runtime};
use crate::report::remark;

/// Flags of `divvy k8s webhook`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy k8s webhook --tls-cert /tls/tls.crt --tls-key /tls/tls.key
  divvy k8s webhook --tls-cert /tls/tls.crt --tls-key /tls/tls.key --into extender

It answers AdmissionReviews at /mutate. With claims it also makes the ResourceClaimTemplates that admitted pods name.")]
pub struct Args {
    /// Where it listens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// What pods get
    #[arg(long, value_enum, default_value_t)]
    into: Into,
    #[command(flatten)]
    serving: Serving,
}

/// What pods get.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Into {
    /// Claims, by DRA: Kubernetes 1.34 and later
    #[default]
    Claims,
    /// Extended resources of the scheduler extender
    Extender,
}

impl Into {
    /// As the library has it.
    pub fn target(self) -> Target {
        match self {
            Self::Claims => Target::Claims,
            Self::Extender => Target::Extender,
        }
    }
}

/// Serves until it is told to end.
pub fn run(args: &Args) -> Result<u8, Fault> {
    let tls = args.serving.tls().ok_or_else(|| {
        Fault::new(Code::Usage, "the API server calls webhooks by TLS only")
            .hint("give --tls-cert and --tls-key; the chart in deploy/helm makes them")
    })?;
    tls.read()?;
    let (webhook, runtime) = (
        Webhook {
            terms: args.serving.terms()?,
            target: args.into.target(),
        },
        runtime()?,
    );
    let served = runtime.block_on(async {
        let listener = listen(args.listen).await?;
        if webhook.target == Target::Claims {
            let client = live::client(None).await?;
            tokio::spawn(follow(client, Arc::new(remark)));
        }
        let (webhook, remark) = (Arc::new(webhook), Arc::new(remark));
        serve(
            listener,
            Some(tls),
            args.serving.callers(),
            webhook,
            remark,
            ended()?,
        )
        .await
    });
    runtime.shutdown_background();
    served.map(|()| 0)
}

//! `divvy k8s extender`: the scheduler extender, for clusters without DRA.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use divvy_kube::extender::service::Extender;
use divvy_kube::extender::watching::{LivePods, begin, follow_keys, follow_nodes, follow_pods, settle};
use divvy_kube::grants::KeyFiles;
use divvy_kube::https::{Callers, Remark, serve};
use divvy_kube::live;
use divvy_model::{Code, Fault};
use tokio::sync::Semaphore;

use super::dra_plugin::ended;
use super::serving::{Serving, listen, runtime};
use crate::report::remark;

/// Flags of `divvy k8s extender`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy k8s extender --grant-key grant.key --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt --client-name system:kube-scheduler
  divvy k8s extender --grant-key grant.key --plain-http      # beside the scheduler, at loopback

kube-scheduler calls /filter, /prioritize and /bind: docs/kubernetes.md has its configuration. One runs at a time.")]
pub struct Args {
    /// Where it listens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:18888")]
    listen: SocketAddr,
    /// The key that signs what pods have (PEM, by `divvy k8s grant-key`); it is read again when it changes
    #[arg(long, value_name = "FILE")]
    grant_key: PathBuf,
    /// Public keys that have signed before: what they signed counts still
    #[arg(long, value_name = "FILE")]
    earlier_grant_keys: Option<PathBuf>,
    /// Listen without TLS, at loopback only: every process of this host can have pods bound
    #[arg(long, conflicts_with = "tls_cert")]
    plain_http: bool,
    #[command(flatten)]
    serving: Serving,
}

/// Serves until it is told to end.
pub fn run(args: &Args) -> Result<u8, Fault> {
    known(args)?;
    let mut keys = KeyFiles::new(args.grant_key.clone(), args.earlier_grant_keys.clone());
    // New files always count as changed.
    let (signer, earlier) = match keys.changed() {
        Some(read) => read?,
        None => return Err(Fault::new(Code::Internal, "the keys of grants were not read")),
    };
    let tls = args.serving.tls();
    if let Some(files) = &tls {
        files.read()?;
    }
    let runtime = runtime()?;
    let served = runtime.block_on(async {
        let (client, watching) = (
            live::client(Some(live::TIMEOUT)).await?,
            live::client(None).await?,
        );
        let pods = Arc::new(LivePods::new(client.clone()));
        let extender = Arc::new(Extender::new(pods, args.serving.terms()?, signer, earlier));
        let remark: Remark = Arc::new(remark);
        // What an earlier extender sent cannot land any more, and then what has landed is read.
        begin(&client, &extender).await.map_err(|refusal| {
            Fault::new(Code::Cluster, "pods that wait cannot be fenced off")
                .cause(refusal.to_string())
                .hint("the chart in deploy/helm has the rights that are needed")
        })?;
        let ready = Arc::new(Semaphore::new(0));
        tokio::spawn(follow_nodes(
            watching.clone(),
            extender.clone(),
            remark.clone(),
            ready.clone(),
        ));
        tokio::spawn(follow_pods(
            watching,
            extender.clone(),
            remark.clone(),
            ready.clone(),
        ));
        let ended = ended()?;
        let mut ended = Box::pin(ended);
        tokio::select! {
            both = ready.acquire_many(2) => drop(both),
            () = &mut ended => return Ok(()),
        }
        tokio::spawn(settle(extender.clone()));
        tokio::spawn(follow_keys(keys, extender.clone(), remark.clone()));
        let listener = listen(args.listen).await?;
        serve(listener, tls, args.serving.callers(), extender, remark, ended).await
    });
    runtime.shutdown_background();
    served.map(|()| 0)
}

/// It binds pods for its callers, so it has to know them.
fn known(args: &Args) -> Result<(), Fault> {
    if args.plain_http {
        return match args.listen.ip().is_loopback() {
            true => Ok(()),
            false => Err(Fault::new(
                Code::Usage,
                format!("without TLS at {} every host could have pods bound", args.listen),
            )
            .hint("--plain-http is for 127.0.0.1, beside the scheduler")),
        };
    }
    if matches!(args.serving.callers(), Callers::Named(_)) {
        return Ok(());
    }
    Err(
        Fault::new(Code::Usage, "the extender binds pods for its callers, and has to know them").hint(
            "give --tls-cert, --tls-key, --client-ca and --client-name (kube-scheduler's certificate has the name \
             system:kube-scheduler), or --plain-http at loopback",
        ),
    )
}

//! `divvy k8s metrics`: figures of this node's slices with their pods' names, as Prometheus reads them (text format 0.0.4).

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use divvy_model::Fault;
use divvy_model::exposition::{head, label};

use super::dra_plugin::Said;
use super::top::{PodSlice, collect, of_slices};
use crate::context::Context;
use crate::output;
use crate::report::line;
use crate::verbs::agent::metrics::{figures, serve_figures};

/// Flags of `divvy k8s metrics`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy k8s metrics
  divvy k8s metrics | sponge /var/lib/node_exporter/textfile/divvy.prom
  divvy k8s metrics --listen 0.0.0.0:9445 --token-file /etc/divvy/metrics.token

With --listen it serves them at /metrics, with the agent's own figures, to callers that show the token (Authorization: Bearer).")]
pub struct Args {
    /// The kubelet's root directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Serve them at this address, together with the agent's, until it is ended
    #[arg(long, value_name = "ADDRESS:PORT", requires = "token_file")]
    listen: Option<SocketAddr>,
    /// The file with the token that a caller must have, mode 0600; made where it is missing
    #[arg(long, value_name = "FILE", requires = "listen")]
    token_file: Option<PathBuf>,
}

/// Prints them, or serves them.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let (Some(address), Some(file)) = (args.listen, &args.token_file) else {
        output::print(&text(&collect(&args.kubelet_dir, context)?))?;
        return Ok(0);
    };
    let (context, kubelet) = (context.clone(), args.kubelet_dir.clone());
    let said = Mutex::new(Said::default());
    serve_figures(
        address,
        file,
        Arc::new(move || {
            // It starts no agent: another container has that, with the rights that an agent needs.
            let agent = context.agent_if_any().ok_or(io::ErrorKind::NotConnected)?;
            let slices = agent
                .slices()
                .map_err(|fault| io::Error::other(fault.to_string()))?;
            let (items, trouble) = of_slices(&slices.body.items, &kubelet);
            let trouble = trouble.as_ref().map(line).unwrap_or_default();
            said.lock().unwrap_or_else(PoisonError::into_inner).say(trouble);
            Ok(figures(&context.peek())? + &text(&items))
        }),
    )
}

fn text(items: &[PodSlice]) -> String {
    type Figure = fn(&PodSlice) -> u64;
    let metrics: [(&str, &str, &str, Figure); 4] = [
        (
            "divvy_pod_memory_limit_bytes",
            "The slice's share of its first device's memory.",
            "gauge",
            |item| item.memory_limit_bytes.0,
        ),
        (
            "divvy_pod_memory_used_bytes",
            "What the slice's processes hold of it.",
            "gauge",
            |item| item.memory_used_bytes.0,
        ),
        (
            "divvy_pod_allocations_refused_total",
            "Allocations that did not fit into the slice.",
            "counter",
            |item| item.refused_allocations,
        ),
        (
            "divvy_pod_processes",
            "Processes of the slice that use its devices.",
            "gauge",
            |item| item.pids.len() as u64,
        ),
    ];
    let mut text = String::new();
    for (name, about, kind, figure) in metrics {
        head(&mut text, name, about, kind);
        for item in items {
            let labels = [
                ("namespace", &item.namespace),
                ("pod", &item.pod),
                ("container", &item.container),
                ("slice", &item.name),
                ("source", &item.source),
            ];
            let labels: Vec<String> = labels
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", label(value)))
                .collect();
            let _written = writeln!(text, "{name}{{{}}} {}", labels.join(","), figure(item));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use divvy_model::Bytes;

    use super::*;

    #[test]
    fn figures_have_their_pods_names() {
        let item = PodSlice {
            name: "odd\"name\n".into(),
            namespace: "default".into(),
            pod: "train".into(),
            container: "main".into(),
            source: "default/claim".into(),
            memory_limit_bytes: Bytes(4096),
            refused_allocations: 3,
            pids: vec![1, 2],
            ..PodSlice::default()
        };
        let text = text(&[item]);
        let labels = "{namespace=\"default\",pod=\"train\",container=\"main\",slice=\"odd\\\"name\\n\",source=\"default/claim\"}";
        for line in [
            format!("divvy_pod_memory_limit_bytes{labels} 4096"),
            format!("divvy_pod_allocations_refused_total{labels} 3"),
            format!("divvy_pod_processes{labels} 2"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
        assert_eq!(text.lines().count(), 12);
    }
}

//! The scheduler extender over a simulated cluster: how long filter and prioritize take, as a scheduler with names of nodes sends
//! them, by themselves and over HTTP at loopback, and how many binds a second go through beside an API server that takes its time.
//! `cargo xtask bench extender`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use divvy_kube::cluster::Refusal;
use divvy_kube::extender::cluster::{Binding, Failed, Pods};
use divvy_kube::extender::service::Extender;
use divvy_kube::grants::{Believed, GRANTS, SIGNATURE, Signer};
use divvy_kube::https::{Answer, Callers, serve};
use divvy_kube::names::Terms;
use divvy_placement::fallback::{Gpu, Grant};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

#[derive(Parser)]
struct Args {
    /// How many nodes, each with 8 GPUs
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// How many pods are scheduled
    #[arg(long, default_value_t = 1000)]
    pods: usize,
    /// How many binds are under way at once
    #[arg(long, default_value_t = 16)]
    binders: usize,
    /// How long the API server takes for each call, in milliseconds
    #[arg(long, default_value_t = 5)]
    server_ms: u64,
}

const MEMORY: u64 = 81_920;

struct Server {
    pods: Mutex<BTreeMap<String, Pod>>,
    version: AtomicU64,
    delay: Duration,
}

impl Pods for Server {
    fn pod(&self, _: &str, name: &str) -> Result<Pod, Refusal> {
        std::thread::sleep(self.delay);
        let pods = self.pods.lock().expect("pods");
        pods.get(name)
            .cloned()
            .ok_or_else(|| Refusal::NotFound("gone".into()))
    }

    fn bind(&self, binding: &Binding) -> Result<(), Failed> {
        std::thread::sleep(self.delay);
        let mut pods = self.pods.lock().expect("pods");
        let conflict = || Failed::Refused(Refusal::Conflict("changed".into()));
        let pod = pods.get_mut(&binding.name).ok_or_else(conflict)?;
        if pod.metadata.resource_version.as_ref() != Some(&binding.version) {
            return Err(conflict());
        }
        let version = self.version.fetch_add(1, Ordering::Relaxed);
        pod.metadata.resource_version = Some(version.to_string());
        let written = [
            (GRANTS, &binding.grants.text),
            (SIGNATURE, &binding.grants.signature),
        ];
        pod.metadata.annotations = Some(written.map(|(name, text)| (name.to_owned(), text.clone())).into());
        pod.spec.as_mut().ok_or_else(conflict)?.node_name = Some(binding.node.clone());
        Ok(())
    }

    fn fence(&self, pod: &Pod) -> Result<Pod, Refusal> {
        Ok(pod.clone())
    }
}

fn pod(place: usize) -> Value {
    let (memory, cores) = [(8192, 10), (16_384, 25), (24_576, 30)][place % 3];
    json!({
        "metadata": {"name": format!("p{place}"), "namespace": "n", "uid": format!("u{place}"), "resourceVersion": "0"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {
            "divvy.dev/gpu": "1", "divvy.dev/gpumem": memory.to_string(), "divvy.dev/gpucores": cores.to_string()}}}]},
    })
}

/// Nodes of 8 GPUs, six in ten parts of their memory taken.
fn fill(extender: &Extender, nodes: usize) {
    extender.ledger(|ledger| {
        for node in 0..nodes {
            let name = format!("n{node}");
            let gpus = (0..8_u32).map(|index| Gpu {
                uuid: format!("GPU-{node}-{index}"),
                model: "NVIDIA H100".into(),
                memory_mib: MEMORY,
                slots: 16,
                numa: Some(index / 4),
                link: Some(index / 2),
                healthy: true,
            });
            ledger.node(&name, gpus.collect());
            for index in 0..8 {
                let grant = Grant {
                    container: "c".into(),
                    uuid: format!("GPU-{node}-{index}"),
                    // From full to almost empty, 60 % in all.
                    memory_mib: MEMORY * [100, 90, 80, 70, 60, 40, 30, 10][index] / 100,
                    cores: [100, 60, 80, 50, 60, 40, 30, 10][index],
                    whole: false,
                };
                ledger.seen(&format!("old-{node}-{index}"), &name, vec![grant]);
            }
        }
    });
}

/// kube-scheduler's side: it asks one question after the other on a connection that it keeps.
struct Scheduler {
    stream: BufReader<TcpStream>,
    _server: tokio::runtime::Runtime,
}

impl Scheduler {
    /// Of an extender that is served at loopback.
    fn of(extender: Arc<Extender>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        runtime.spawn(serve(
            listener,
            None,
            Callers::All,
            extender,
            Arc::new(|_: &str| {}),
            std::future::pending(),
        ));
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
            _server: runtime,
        })
    }

    /// Asks; the status and the body.
    fn post(&mut self, path: &str, body: &[u8]) -> anyhow::Result<(u16, Vec<u8>)> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: extender\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.stream
            .get_mut()
            .write_all(&[head.as_bytes(), body].concat())?;
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            ensure!(self.stream.read_line(&mut line)? > 0, "the extender hung up");
            let line = line.trim().to_ascii_lowercase();
            match line.split_once(' ') {
                _ if line.is_empty() => break,
                Some(("http/1.1", words)) => status = words.get(..3).unwrap_or_default().parse()?,
                Some(("content-length:", number)) => length = number.trim().parse()?,
                _ => {}
            }
        }
        let mut text = vec![0; length];
        self.stream.read_exact(&mut text)?;
        Ok((status, text))
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let place = (sorted.len() * percent / 100).min(sorted.len() - 1);
    sorted[place].as_secs_f64() * 1000.0
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let server = Arc::new(Server {
        pods: Mutex::default(),
        version: AtomicU64::new(1),
        delay: Duration::from_millis(args.server_ms),
    });
    let (key, _) = Signer::make()?;
    let signer = Signer::of(key.as_bytes()).map_err(anyhow::Error::msg)?;
    let extender = Arc::new(Extender::new(
        server.clone(),
        Terms::default(),
        signer,
        Believed::default(),
    ));
    fill(&extender, args.nodes);
    let names: Vec<String> = (0..args.nodes).map(|node| format!("n{node}")).collect();
    println!("{} nodes x 8 GPUs, 60 % full", args.nodes);

    let mut targets = Vec::new();
    let mut scheduler = Scheduler::of(extender.clone())?;
    for (path, over_http) in [
        ("/filter", false),
        ("/prioritize", false),
        ("/filter", true),
        ("/prioritize", true),
    ] {
        let mut times = Vec::new();
        for place in 0..args.pods.min(300) {
            let body = json!({"Pod": pod(place), "NodeNames": names}).to_string();
            let begin = Instant::now();
            let (status, text) = match over_http {
                true => scheduler.post(path, body.as_bytes())?,
                false => extender.answer(path, body.as_bytes()),
            };
            times.push(begin.elapsed());
            ensure!(status == 200, "{path}: {status}");
            if path == "/filter" && !over_http {
                let answer: Value = serde_json::from_slice(&text)?;
                let fit = answer["NodeNames"].as_array().map_or(0, Vec::len);
                ensure!(fit > 0, "no node fits");
                targets.push(
                    answer["NodeNames"][place % fit]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned(),
                );
            }
        }
        times.sort_unstable();
        println!(
            "{:<14} p50 {:>7.2} ms   p99 {:>7.2} ms{}",
            path,
            percentile(&times, 50),
            percentile(&times, 99),
            if over_http { "   over HTTP" } else { "" }
        );
    }

    for place in 0..args.pods {
        let typed: Pod = serde_json::from_value(pod(place))?;
        server
            .pods
            .lock()
            .expect("pods")
            .insert(format!("p{place}"), typed);
    }
    let (next, bound) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..args.binders {
            scope.spawn(|| loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                if place >= args.pods {
                    return;
                }
                let body = json!({"PodName": format!("p{place}"), "PodNamespace": "n", "PodUID": format!("u{place}"),
                    "Node": targets[place % targets.len()]});
                let (_, text) = extender.answer("/bind", body.to_string().as_bytes());
                bound.fetch_add(usize::from(text == b"{}"), Ordering::Relaxed);
            });
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    let bound = bound.load(Ordering::Relaxed);
    println!(
        "/bind          {:>7.0} a second, {bound} of {} bound, {} at once, {} ms for each call of the API server",
        bound as f64 / seconds,
        args.pods,
        args.binders,
        args.server_ms
    );
    for name in &names {
        for (gpu, used) in extender.ledger(|ledger| ledger.used(name)) {
            ensure!(
                used.memory_mib <= gpu.memory_mib && used.cores <= 100,
                "{name} is oversold"
            );
        }
    }
    println!("no device is oversold");
    Ok(())
}

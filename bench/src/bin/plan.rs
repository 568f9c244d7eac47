//! How long `divvy k8s plan` takes for a large cluster, and how much memory: reading what `kubectl get -o json` would print, and
//! placing. `cargo xtask bench plan`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::Instant;

use clap::Parser;
use divvy_kube::cluster::{Cluster, Refusal};
use divvy_kube::publish::Publisher;
use divvy_model::DeviceRecord;
use divvy_placement::plan::{Options, plan};
use divvy_placement::read::read;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};

#[derive(Parser)]
struct Args {
    /// How many nodes, each with 8 GPUs
    #[arg(long, default_value_t = 10_000)]
    nodes: usize,
    /// How many claims
    #[arg(long, default_value_t = 100_000)]
    claims: usize,
    /// How many nodes, in percent of those, a second plan has in which some claims find no place; 0 for no such plan
    #[arg(long, default_value_t = 60)]
    short: usize,
}

/// An API server that counts.
#[derive(Default)]
struct Counting {
    slices: Mutex<BTreeMap<String, ResourceSlice>>,
    calls: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counting {
    fn call(&self, verb: &'static str) {
        *self.calls.lock().expect("calls").entry(verb).or_default() += 1;
    }

    fn keep(&self, slice: &ResourceSlice) -> ResourceSlice {
        let name = slice.metadata.name.clone().unwrap_or_default();
        self.slices.lock().expect("slices").insert(name, slice.clone());
        slice.clone()
    }
}

impl Cluster for Counting {
    fn node_uid(&self, _: &str) -> Result<String, Refusal> {
        self.call("get");
        Ok("node-uid".into())
    }
    fn resource_slices(&self, _: &str) -> Result<Vec<ResourceSlice>, Refusal> {
        self.call("list");
        Ok(self.slices.lock().expect("slices").values().cloned().collect())
    }
    fn slices_of_all(&self, node: &str) -> Result<Vec<ResourceSlice>, Refusal> {
        self.resource_slices(node)
    }
    fn create(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        self.call("create");
        Ok(self.keep(slice))
    }
    fn replace(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        self.call("update");
        Ok(self.keep(slice))
    }
    fn delete(&self, name: &str) -> Result<(), Refusal> {
        self.call("delete");
        self.slices.lock().expect("slices").remove(name);
        Ok(())
    }
    fn probe(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        Ok(slice.clone())
    }
    fn pod(&self, _: &str, name: &str) -> Result<Pod, Refusal> {
        Err(Refusal::NotFound(name.into()))
    }
    fn tell(&self, _: &Event) -> Result<(), Refusal> {
        Ok(())
    }
    fn claim(&self, _: &str, name: &str) -> Result<ResourceClaim, Refusal> {
        Err(Refusal::NotFound(name.into()))
    }
}

/// What so many nodes of 8 GPUs cost the API server: at their start, and while nothing changes.
fn publishing(nodes: usize) -> anyhow::Result<()> {
    /// Looks of 10 s in an hour.
    const HOUR: u32 = 360;
    let devices: Vec<DeviceRecord> = (0..8_u32)
        .map(|index| {
            serde_json::from_value(serde_json::json!({
                "index": index, "uuid": format!("GPU-00000000-0000-0000-0000-00000000000{index}"),
                "name": "NVIDIA H100 80GB HBM3", "kind": "gpu", "pci_address": format!("0000:{index:02x}:00.0"),
                "memory_total_bytes": 80_u64 << 30, "memory_used_bytes": 0, "sm_count": 132, "compute_capability": "9.0",
            }))
        })
        .collect::<Result<_, _>>()?;
    let server = Counting::default();
    let mut publisher = Publisher::new(&server, "worker-0001", 100);
    let mut publish = || {
        publisher
            .publish_if_due(&devices)
            .map_err(|refusal| anyhow::anyhow!("{refusal}"))
    };
    publish()?;
    let total = |calls: &BTreeMap<&'static str, u64>| calls.values().sum::<u64>();
    let start = total(&server.calls.lock().expect("calls"));
    for _ in 0..HOUR {
        publish()?;
    }
    let hour = total(&server.calls.lock().expect("calls")) - start;
    let slices = server.slices.lock().expect("slices");
    let bytes: usize = slices
        .values()
        .filter_map(|slice| serde_json::to_vec(slice).ok())
        .map(|text| text.len())
        .sum();
    let nodes = nodes as u64;
    println!(
        "publishing: {} objects of {} KiB for a node of 8 GPUs; for {nodes} nodes {} objects, {} MiB, {} calls at the start \
         and {:.1} a second while nothing changes",
        slices.len(),
        bytes >> 10,
        slices.len() as u64 * nodes,
        (bytes as u64 * nodes) >> 20,
        start * nodes,
        hour as f64 * nodes as f64 / 3600.0,
    );
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    publishing(args.nodes)?;
    planning(args.nodes, args.claims)?;
    match args.nodes * args.short / 100 {
        0 => Ok(()),
        short => planning(short, args.claims),
    }
}

/// How long it takes to read and to plan such a cluster, and the memory so far.
fn planning(nodes: usize, claims: usize) -> anyhow::Result<()> {
    let text = cluster(nodes, claims)?;
    println!(
        "{nodes} nodes x {claims} claims, {} MiB of JSON",
        text.len() >> 20
    );
    let begin = Instant::now();
    let files = [("cluster".to_owned(), text)];
    let cluster = read(&files).map_err(anyhow::Error::msg)?;
    drop(files);
    let reading = begin.elapsed();
    println!("{:<40} {:>8.1} s", "reading", reading.as_secs_f64());
    for try_others in [false, true] {
        let begin = Instant::now();
        let planned = plan(&cluster, Options { seed: 1, try_others });
        let what = if try_others {
            "placing, and other ways where some wait"
        } else {
            "placing"
        };
        println!(
            "{what:<40} {:>8.1} s, {} of {} placed, {:.1} % of free memory broken",
            begin.elapsed().as_secs_f64(),
            planned.placed,
            planned.asked,
            planned.fragmentation.broken_percent
        );
    }
    println!("{:<40} {:>8} MiB", "peak resident memory", peak_mib()?);
    println!("{:<40} {:>8.1} s", "all of it", begin.elapsed().as_secs_f64());
    Ok(())
}

/// The peak of this process's resident memory.
fn peak_mib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line
        .and_then(|line| line.split_whitespace().next())
        .unwrap_or("0");
    Ok(number.parse::<u64>()? >> 10)
}

/// A list as kubectl prints it. Ten claims a node all find a place; with fewer nodes, some find none, and other ways are tried.
fn cluster(nodes: usize, claims: usize) -> anyhow::Result<String> {
    let mut text = String::from("{\"kind\":\"List\",\"items\":[");
    text.push_str(
        r#"{"kind":"DeviceClass","metadata":{"name":"slice.gpu.divvy.dev"},"spec":{"selectors":[{"cel":{"expression":"device.driver == 'gpu.divvy.dev' && device.allowMultipleAllocations == true"}}]}},
           {"kind":"DeviceClass","metadata":{"name":"whole.gpu.divvy.dev"},"spec":{"selectors":[{"cel":{"expression":"device.driver == 'gpu.divvy.dev' && device.attributes['gpu.divvy.dev'].type == 'gpu'"}}]}}"#,
    );
    for node in 0..nodes {
        write!(
            text,
            r#",{{"kind":"Node","metadata":{{"name":"n{node}"}},"status":{{"allocatable":{{"cpu":"96","memory":"1Ti","pods":"250"}}}}}}"#
        )?;
        let pool = format!(
            r#""driver":"gpu.divvy.dev","nodeName":"n{node}","pool":{{"name":"n{node}","generation":1,"resourceSliceCount":2}}"#
        );
        let sets: Vec<String> = (0..8)
            .map(|gpu| format!(r#"{{"name":"gpu-{gpu}","counters":{{"owner":{{"value":"1"}}}}}}"#))
            .collect();
        write!(
            text,
            r#",{{"kind":"ResourceSlice","metadata":{{"name":"n{node}-c"}},"spec":{{{pool},"sharedCounters":[{}]}}}}"#,
            sets.join(",")
        )?;
        let device = |gpu: usize, shared: bool| {
            let (end, multiple) = if shared {
                ("-shared", r#""allowMultipleAllocations":true,"#)
            } else {
                ("", "")
            };
            let policies = [
                r#","requestPolicy":{"default":"80Gi","validRange":{"min":"256Mi","max":"80Gi","step":"256Mi"}}"#,
                r#","requestPolicy":{"default":"0","validRange":{"min":"0","max":"100","step":"1"}}"#,
            ];
            let [memory, cores] = policies.map(|policy| if shared { policy } else { "" });
            let slots = r#","slots":{"value":"16","requestPolicy":{"default":"1","validValues":["1"]}}"#;
            let slots = if shared { slots } else { "" };
            format!(
                r#"{{"name":"gpu-{gpu}{end}",{multiple}"attributes":{{"type":{{"string":"gpu{end}"}},"uuid":{{"string":"GPU-{node}-{gpu}"}},"productName":{{"string":"NVIDIA H100"}},"index":{{"int":{gpu}}},"cudaComputeCapability":{{"version":"9.0.0"}},"resource.kubernetes.io/pciBusID":{{"string":"0000:{gpu:02x}:00.0"}}}},"capacity":{{"memory":{{"value":"80Gi"{memory}}},"cores":{{"value":"100"{cores}}}{slots}}},"consumesCounters":[{{"counterSet":"gpu-{gpu}","counters":{{"owner":{{"value":"1"}}}}}}]}}"#
            )
        };
        let devices: Vec<String> = (0..16).map(|at| device(at % 8, at < 8)).collect();
        write!(
            text,
            r#",{{"kind":"ResourceSlice","metadata":{{"name":"n{node}-d"}},"spec":{{{pool},"devices":[{}]}}}}"#,
            devices.join(",")
        )?;
    }
    for claim in 0..claims {
        let exactly = match claim % 5 {
            0 => r#"{"deviceClassName":"whole.gpu.divvy.dev"}"#.to_owned(),
            kind => format!(
                r#"{{"deviceClassName":"slice.gpu.divvy.dev","capacity":{{"requests":{{"memory":"{}Gi","cores":"{}"}}}}}}"#,
                [10, 30, 50, 60][kind - 1] + claim % 7,
                [20, 40, 60, 70][kind - 1]
            ),
        };
        write!(
            text,
            r#",{{"kind":"ResourceClaim","metadata":{{"name":"c{claim}"}},"spec":{{"devices":{{"requests":[{{"name":"gpu","exactly":{exactly}}}]}}}}}}"#
        )?;
    }
    text.push_str("]}");
    Ok(text)
}

//! How long `divvy k8s plan` takes for a large cluster, and how much memory: reading what `kubectl get -o json` would print, and
//! placing. `cargo xtask bench plan`.

use std::fmt::Write as _;
use std::time::Instant;

use clap::Parser;
use divvy_placement::plan::{Options, plan};
use divvy_placement::read::read;

#[derive(Parser)]
struct Args {
    /// How many nodes, each with 8 GPUs
    #[arg(long, default_value_t = 10_000)]
    nodes: usize,
    /// How many claims
    #[arg(long, default_value_t = 100_000)]
    claims: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let text = cluster(args.nodes, args.claims)?;
    println!(
        "{} nodes x {} claims, {} MiB of JSON",
        args.nodes,
        args.claims,
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
            "placing, and five other ways"
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

/// A list as kubectl prints it. Claims ask for more than there is, so that placing has to look everywhere.
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

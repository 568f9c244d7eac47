//! `divvy agent metrics` as Prometheus meets it: Debian's own server scrapes it, and its promtool checks what it says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use divvy_tests::api_server::ApiServer;
use divvy_tests::clients;
use divvy_tests::dra::Driver;
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::pod_resources::PodResources;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};
use serde_json::{Value, json};

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `divvy agent metrics` on a free port, and tells its address.
fn serve(host: &Host) -> (Server, String) {
    serving(host.divvy(["agent", "metrics", "--listen", "127.0.0.1:0"]))
}

/// A command that says where it serves.
fn serving(mut command: Command) -> (Server, String) {
    let mut serving = command.stdout(Stdio::piped()).spawn().expect("divvy starts");
    let mut line = String::new();
    let said = serving.stdout.take().expect("piped");
    BufReader::new(said).read_line(&mut line).expect("a line");
    let address = line
        .trim_start_matches("http://")
        .split('/')
        .next()
        .expect("an address");
    (Server(serving), address.to_owned())
}

/// What a query has as its one value; nothing before the first scrape.
fn value(promtool: &std::path::Path, server: &str, query: &str) -> Option<f64> {
    let mut command = Command::new(promtool);
    command.args(["query", "instant", "--format", "json", server, query]);
    let output = finish(&mut command);
    let text = output.status.success().then(|| succeeded(&output))?;
    let found: Value = serde_json::from_str(&text).ok()?;
    let [sample] = found.as_array()?.as_slice() else {
        return None;
    };
    sample["value"][1].as_str()?.parse().ok()
}

/// A question with this token; the whole answer.
fn ask(address: &str, token: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    .expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// What the chart's container serves: the agent's figures and those of pods, and it starts no agent of its own.
#[test]
fn a_node_serves_its_figures_with_those_of_its_pods() {
    let (host, server) = (Host::new(), ApiServer::start(false));
    let driver = Driver::start(&host, &server);
    let kubelet = host.folder().join("kubelet");
    let list = PodResources::start(&kubelet);
    let device = until("the devices are published", || {
        let devices = server.devices();
        let mut names = devices.iter().filter_map(|device| device["name"].as_str());
        names.find(|name| name.ends_with("-shared")).map(str::to_owned)
    });
    let result = json!({"request": "gpu", "driver": "gpu.divvy.dev", "pool": "node-a", "device": device, "shareID": "s-1",
        "consumedCapacity": {"memory": "1Gi", "cores": "30", "slots": "1"}});
    server.allocate("train", "u-1", &json!([result]), &json!([]));
    let prepared = driver.prepare("v1", "train", "u-1").expect("prepared");
    list.add("p", "main", "train", &prepared[0].cdi[0]);
    let file = host.folder().join("token");
    let mut command = host.divvy(["k8s", "metrics", "--listen", "127.0.0.1:0", "--token-file"]);
    command.arg(&file).arg("--kubelet-dir").arg(&kubelet);
    let (_serving, address) = serving(command);
    let token = std::fs::read_to_string(&file).expect("a token");
    assert!(ask(&address, "0123456789abcdef").starts_with("HTTP/1.1 401"));
    let answer = ask(&address, &token);
    let (_, figures) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let pod = "divvy_pod_memory_limit_bytes{namespace=\"default\",pod=\"p\",container=\"main\",";
    let line = figures.lines().find(|line| line.starts_with(pod));
    assert!(
        line.is_some_and(|line| line.ends_with(" 1073741824")),
        "{figures}"
    );
    // One page of both: no name is there twice.
    let mut names: Vec<&str> = figures
        .lines()
        .filter(|line| line.starts_with("# TYPE "))
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    let agents = names.iter().filter(|name| !name.starts_with("# TYPE divvy_pod_"));
    assert!(names.len() == count && agents.count() > 4, "{names:?}");
    // The driver would start an agent.
    driver.kill();
    host.kill_agent();
    // One that is killed may seem to listen for a moment, and then none is started either.
    let starts = std::time::Instant::now();
    while starts.elapsed() < std::time::Duration::from_millis(500) {
        assert!(ask(&address, &token).starts_with("HTTP/1.1 503"));
    }
    assert!(host.agents().is_empty());
}

#[test]
fn prometheus_scrapes_what_slices_use() {
    let Some((prometheus, promtool)) = clients::prometheus() else {
        return;
    };
    let host = Host::new();
    let mut tenant = host.probe("one", "1GiB");
    assert_eq!(tenant.allocate(300 * MIB), Ok(()));
    assert!(tenant.allocate(GIB).is_err());
    let (_serving, address) = serve(&host);
    let token = host.run_directory().join("metrics.token");

    // Names, types and units are as Prometheus wants them.
    let mut check = Command::new(&promtool);
    check
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut check = check.spawn().expect("promtool starts");
    let figures = host.get("/metrics");
    check
        .stdin
        .take()
        .expect("piped")
        .write_all(figures.as_bytes())
        .expect("it reads");
    let checked = check.wait_with_output().expect("it ends");
    assert_eq!(
        succeeded(&checked) + &String::from_utf8_lossy(&checked.stderr),
        "",
        "{figures}"
    );

    // Two jobs: one has the token, the other has none.
    let configuration = host.folder().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n\
         - job_name: divvy\n  authorization: {{credentials_file: {}}}\n  static_configs: [{{targets: ['{address}']}}]\n\
         - job_name: without\n  static_configs: [{{targets: ['{address}']}}]\n",
        token.display()
    );
    std::fs::write(&configuration, text).expect("written");
    // Another program may take the port before the server does: then the server ends, and the test says so.
    let free = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("an address");
    let mut command = host.command(&prometheus);
    command
        .arg(format!("--config.file={}", configuration.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            host.folder().join("tsdb").display()
        ))
        .arg(format!("--web.listen-address={free}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut server = Server(command.spawn().expect("Prometheus starts"));
    until("Prometheus listens", || {
        assert!(
            server.0.try_wait().expect("a child").is_none(),
            "Prometheus ended"
        );
        TcpStream::connect(free).ok()
    });
    let server = format!("http://{free}");
    let figure = |query: &str| {
        until(&format!("a figure of {query}"), || {
            value(&promtool, &server, query)
        })
    };
    assert_eq!(figure("up{job=\"divvy\"}"), 1.0);
    assert_eq!(figure("up{job=\"without\"}"), 0.0);
    assert_eq!(
        figure("divvy_slice_memory_limit_bytes{slice=\"one\"}"),
        GIB as f64
    );
    // A pool's growth is charged in steps.
    let used = figure("divvy_slice_memory_used_bytes{slice=\"one\"}");
    assert!((300.0..310.0).contains(&(used / MIB as f64)), "{used}");
    assert_eq!(
        figure("divvy_slice_refused_allocations_total{slice=\"one\"}"),
        1.0
    );
    // The device's memory under the name that dashboards of NVIDIA's exporter ask for, in MiB.
    assert!(figure("DCGM_FI_DEV_FB_TOTAL{gpu=\"0\"}") > 80_000.0);
}

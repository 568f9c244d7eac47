//! `divvy agent metrics` as Prometheus meets it: Debian's own server scrapes it, and its promtool checks what it says.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use divvy_tests::clients;
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};
use serde_json::Value;

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
    let mut command = host.divvy(["agent", "metrics", "--listen", "127.0.0.1:0"]);
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

//! What slices used, after their end; and the figures over TCP.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use common::Host;

/// Runs the tenant that takes 64 MiB at a time, in a slice of 1 GiB, until it has 2 GiB or is refused.
fn fill(host: &Host) {
    let divvy = common::divvy().to_str().expect("a path").to_owned();
    let mut child = host
        .divvy(&[
            "run", "--memory", "1GiB", "--", &divvy, "selftest", "tenant", "memory",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("divvy starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin
        .write_all(b"fill plain 67108864 2147483648\n")
        .expect("it reads");
    drop(stdin);
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn what_a_program_used_is_known_after_its_end_and_its_agents() {
    let host = Host::new();
    fill(&host);
    host.text(&["agent", "stop"]);
    let list = host.json(&["history"]);
    let item = &list["items"][0];
    assert_eq!(item["devices"][0]["memory_limit_bytes"], 1_u64 << 30, "{list}");
    assert_eq!(item["devices"][0]["memory_peak_bytes"], 1_u64 << 30);
    assert!(item["devices"][0]["refused_allocations"].as_u64() >= Some(1));
    // The next agent knows it too, and adds.
    fill(&host);
    assert_eq!(
        host.json(&["history"])["items"].as_array().expect("items").len(),
        2
    );
    let advice = host.json(&["advise"]);
    let one = &advice["items"][0];
    assert_eq!(
        (&one["program"], &one["runs"]),
        (&"divvy selftest".into(), &2.into())
    );
    assert_eq!(one["memory"], 1536_u64 << 20, "{advice}");
    assert!(host.text(&["advise"]).contains("--memory 1.5GiB"));
}

#[test]
fn prometheus_gets_the_figures_with_the_token_only() {
    let host = Host::new();
    let _one = host.idle("one", "1GiB");
    let mut serving = host
        .divvy(&["agent", "metrics", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("divvy starts");
    let mut line = String::new();
    let mut said = BufReader::new(serving.stdout.take().expect("piped"));
    said.read_line(&mut line).expect("a line");
    let address = line
        .trim_start_matches("http://")
        .split('/')
        .next()
        .expect("an address")
        .to_owned();
    let token = std::fs::read_to_string(host.run_dir().join("metrics.token")).expect("a token");
    let ask = |token: &str| {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    };
    assert!(ask("wrong").starts_with("HTTP/1.1 401"));
    let answer = ask(&token);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let figures = answer.split_once("\r\n\r\n").expect("a body").1;
    for name in [
        "divvy_slice_memory_limit_bytes{slice=\"one\"",
        "DCGM_FI_DEV_FB_TOTAL{gpu=\"0\"",
    ] {
        assert!(figures.contains(name), "{name}: {figures}");
    }
    let taken = host.refused(&["agent", "metrics", "--listen", &address]);
    let told = format!("cannot listen on {address}: another program listens there");
    assert!(
        taken.1.contains(&told) && taken.1.contains("hint: --listen"),
        "{taken:?}"
    );
    assert!(!taken.1.contains("because"), "{taken:?}");
    // Another token counts from the next request on.
    std::fs::write(host.run_dir().join("metrics.token"), "another token, as long").expect("written");
    assert!(ask(&token).starts_with("HTTP/1.1 401"));
    serving.kill().expect("it is ours");
    serving.wait().expect("it ends");
}

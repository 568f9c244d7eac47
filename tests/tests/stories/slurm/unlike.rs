//! Clusters whose parts are unlike: jobs of unlike parts, a head without Divvy, an agent of another version, a node without devices.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use divvy_tests::host::{finish, stderr, succeeded};
use divvy_tests::wait::until;

use super::{SLEEP, Site, answers};

/// Only Slurm's backfill starts jobs of unlike parts, and looks every half minute where nothing is said.
const SOON: &str = "SchedulerParameters=bf_interval=1";

#[test]
fn each_part_of_a_job_of_unlike_parts_has_its_own_slice() {
    let Some(mut site) = Site::with_lines("h100*2", &["n1", "n2"], &[], |_| SOON.into()) else {
        return;
    };
    for node in ["n1", "n2"] {
        site.set_up(node, &["--shards", "80"]);
    }
    site.start(&["n1", "n2"]);
    let alice = &site.system.users.alice;
    let ask = site.ask_probe(&["info"]);
    let mut command = site.command_as(alice, "srun");
    command
        .args(["-w", "n1", "--gres=shard:8", "sh", "-c", &ask, ":"])
        .args(["-w", "n2", "--gres=shard:20", "sh", "-c", &ask]);
    let output = finish(&mut command);
    succeeded(&output);
    let mut seen: Vec<u64> = answers(&output)
        .iter()
        .filter_map(|line| line["total_bytes"].as_u64())
        .collect();
    seen.sort_unstable();
    assert_eq!(
        seen,
        [site.shards(0, 8, 80), site.shards(0, 20, 80)],
        "{}",
        stderr(&output)
    );
    site.until_no_slice();
}

/// The controller's host has neither Divvy's programs nor its SPANK plugin: both lie in a folder that it does not see.
#[test]
fn a_head_without_divvy_takes_jobs() {
    let Some(mut site) = Site::prepared("h100", &["n1"]) else {
        return;
    };
    site.set_up("n1", &["--shards", "80"]);
    let programs = site.cluster.conf_dir().join("divvy");
    site.cluster.hide(&programs);
    site.start(&["n1"]);
    let alice = site.system.users.alice.clone();
    let submit = |words: &[&str]| {
        let mut command = site.cluster.on_the_head("sbatch");
        command
            .args([
                "--parsable",
                "--uid",
                &alice.name,
                "--gid",
                &alice.gid.to_string(),
            ])
            .args(["--output", "/dev/null", "--chdir"])
            .arg(&alice.home)
            .args(words)
            .arg(format!("--wrap={SLEEP}"));
        finish(&mut command)
    };
    let seen = finish(
        site.cluster
            .on_the_head("test")
            .args(["-e"])
            .arg(programs.join("prolog")),
    );
    assert!(!seen.status.success(), "the head sees Divvy's programs");
    let job = succeeded(&submit(&["--gres=shard:20"])).trim().to_owned();
    let slice = until("the job has its slice", || site.slice_of(&job));
    assert_eq!(
        (&slice["memory_limit_bytes"], &slice["uid"]),
        (&site.shards(0, 20, 80).into(), &alice.uid.into())
    );
    site.until_started(&alice, 1);
    site.cluster.ask("scancel", &[&job]);
    site.until_no_slice();
    // Its srun knows no options, and says so.
    let unknown = submit(&["--gres=shard:20", "--divvy-memory=1GiB"]);
    assert!(
        !unknown.status.success() && stderr(&unknown).contains("unrecognized option"),
        "{}",
        stderr(&unknown)
    );
}

/// An agent of before there were jobs takes a request and passes over the field that names the job's user.
#[test]
fn an_agent_that_knows_no_jobs_drains_the_node_and_keeps_no_slice() {
    let Some(site) = Site::new("h100", "80") else {
        return;
    };
    let older = site.system.folder().join("older");
    std::fs::create_dir(&older).expect("a folder");
    let socket = |folder: &Path| folder.join("agent.sock");
    let real = socket(&site.system.run_directory());
    let listener = UnixListener::bind(socket(&older)).expect("a socket");
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let real = real.clone();
            std::thread::spawn(move || pass_on(client, &real));
        }
    });
    let file = site.node_file("n1");
    let text = std::fs::read_to_string(&file).expect("the node's file");
    let own = format!("run_dir = \"{}\"", site.system.run_directory().display());
    assert!(text.contains(&own), "{text}");
    std::fs::write(
        &file,
        text.replace(&own, &format!("run_dir = \"{}\"", older.display())),
    )
    .expect("written");
    let refused = finish(&mut site.srun(&site.system.users.alice, &["--gres=shard:8"], "echo ran"));
    assert!(!String::from_utf8_lossy(&refused.stdout).contains("ran"));
    let reason = until("the node is drained", || {
        let shown = site.reason("n1");
        shown.contains("DRAIN").then_some(shown)
    });
    assert!(reason.contains("makes no slices for jobs"), "{reason}");
    // What it made was root's, and is gone.
    let list = site.system.json(["ps"]);
    assert_eq!(list["items"].as_array().map(Vec::len), Some(0), "{list}");
}

/// Hands one request to the agent without its field `for_job`, and the answer back.
fn pass_on(mut client: UnixStream, real: &Path) {
    let mut request = Vec::new();
    let mut bytes = [0_u8; 4096];
    let (head, body) = loop {
        let count = client.read(&mut bytes).unwrap_or(0);
        request.extend_from_slice(&bytes[..count]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let length = |head: &str| {
            let line = head.lines().find_map(|line| {
                line.strip_prefix("content-length: ")?
                    .trim()
                    .parse::<usize>()
                    .ok()
            });
            line.unwrap_or(0)
        };
        match text.split_once("\r\n\r\n") {
            Some((head, body)) if body.len() >= length(head) => break (head.to_owned(), body.to_owned()),
            _ if count == 0 => return,
            _ => {}
        }
    };
    let body = match serde_json::from_str::<serde_json::Value>(&body) {
        Ok(mut value) => {
            value.as_object_mut().map(|fields| fields.remove("for_job"));
            value.to_string()
        }
        Err(_) => body,
    };
    // Nor has it the list of jobs' slices.
    let head = head.replace("/v1/jobs/slices", "/v1/not-known");
    let lines: Vec<&str> = head
        .lines()
        .filter(|line| !line.starts_with("content-length: "))
        .collect();
    let text = format!(
        "{}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        lines.join("\r\n"),
        body.len()
    );
    let mut agent = UnixStream::connect(real).expect("the agent listens");
    agent.write_all(text.as_bytes()).expect("written");
    let _gone = std::io::copy(&mut agent, &mut client);
}

/// Its health check has no file to read, and nothing to do.
#[test]
fn a_sweep_without_a_node_file_says_so_and_fails_only_where_jobs_have_slices() {
    let Some(site) = Site::new("h100", "80") else {
        return;
    };
    let sweep = |file: &str| {
        let mut command = site.system.divvy(["slurm", "sweep", "--node-file", file]);
        finish(command.env("DIVVY_SYSTEM_RUN_DIR", site.system.run_directory()))
    };
    for file in [
        "/nonexistent/slurm.toml",
        "/nonexistent/%n.toml",
        "/run/no-%n.toml",
    ] {
        let output = sweep(file);
        assert!(output.status.success(), "{file}: {}", stderr(&output));
        assert!(
            stderr(&output).contains("there is no node's file")
                && stderr(&output).contains("nothing is swept"),
            "{file}: {}",
            stderr(&output)
        );
    }
    let alice = &site.system.users.alice;
    let job = site.sbatch(alice, &["--gres=shard:8"], SLEEP);
    site.until_started(alice, 1);
    let output = sweep("/nonexistent/slurm.toml");
    assert!(
        !output.status.success() && stderr(&output).contains("1 slices of jobs are here"),
        "{}",
        stderr(&output)
    );
    assert!(site.slice_of(&job).is_some());
    site.cluster.ask("scancel", &[&job]);
    site.until_no_slice();
}

/// What the check says of files that are right, and of one mistake after the other. Slurm does not run for it.
#[test]
fn the_check_names_each_mistake_with_its_line_also_in_included_files() {
    let Some(site) = Site::prepared("h100*2", &["n1"]) else {
        return;
    };
    site.set_up("n1", &["--shards", "80"]);
    let conf = site.cluster.conf_dir();
    let (gres, slurm) = (conf.join("gres.conf"), conf.join("slurm.conf"));
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
    let write = |path: &Path, text: &str| std::fs::write(path, text).expect("written");
    let check = || {
        let output = site.setup("n1", &[]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error")).collect();
        assert_eq!(output.status.success(), errors.is_empty(), "{said}");
        errors.join("\n")
    };
    assert_eq!(check(), "");
    let (sound, sound_slurm) = (read(&gres), read(&slurm));
    // The device files of the two are exchanged: all counts are as before.
    let swapped = sound
        .replace("Name=gpu File=/dev/zero", "Name=gpu File=/dev/x")
        .replace("Name=gpu File=/dev/null", "Name=gpu File=/dev/zero")
        .replace("Name=gpu File=/dev/x", "Name=gpu File=/dev/null");
    write(&gres, &swapped);
    let said = check();
    assert!(
        said.lines().count() == 2
            && said.contains("device 0 is /dev/null, which is device 1 of the node's file"),
        "{said}"
    );
    // The same lines in a file that gres.conf includes.
    write(&conf.join("gpus.conf"), &swapped.replace("AutoDetect=off\n", ""));
    write(&gres, "AutoDetect=off\nInclude gpus.conf\n");
    let said = check();
    assert!(
        said.contains("gpus.conf line ") && said.contains("device 0 is /dev/null"),
        "{said}"
    );
    let refused = site.setup("n1", &["--apply"]);
    assert!(
        !refused.status.success() && stderr(&refused).contains("gpus.conf line"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(
        read(&conf.join("gpus.conf")),
        swapped.replace("AutoDetect=off\n", "")
    );
    write(&conf.join("gpus.conf"), &sound.replace("AutoDetect=off\n", ""));
    assert_eq!(check(), "");
    // The node's own line in an included file, and its resources in the line for all.
    let node = sound_slurm
        .lines()
        .find(|line| line.starts_with("NodeName=n1"))
        .expect("a line");
    let (head, resources) = node.split_once(" Gres=").expect("resources");
    let nodes = format!("NodeName=DEFAULT Gres={resources}\n{head}\n");
    write(&conf.join("nodes.conf"), &nodes);
    write(&slurm, &sound_slurm.replace(node, "include nodes.conf"));
    assert_eq!(check(), "");
    write(&conf.join("nodes.conf"), &nodes.replace("shard:160", "shard:100"));
    assert!(
        check().contains("has 100 of `shard` in Gres, and 160 are there"),
        "{}",
        check()
    );
    write(
        &conf.join("nodes.conf"),
        &format!("{nodes}Include ../../etc/shadow\n"),
    );
    let refused = site.setup("n1", &[]);
    assert!(
        !refused.status.success()
            && stderr(&refused).contains("nodes.conf line 3: `../../etc/shadow` leads upwards"),
        "{}",
        stderr(&refused)
    );
}

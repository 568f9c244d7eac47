//! Engines' command lines, as `divvy podman run --dry-run` and `divvy docker run --dry-run` say them.

use std::os::unix::fs::PermissionsExt;

use divvy_tests::golden::golden;
use divvy_tests::host::{Host, finish, succeeded};

const LINES: [&[&str]; 12] = [
    &["run", "--memory", "4GiB", "--name", "a", "image"],
    &[
        "run",
        "--memory=4GiB",
        "--compute",
        "30%",
        "--name=a",
        "image",
        "python",
        "train.py",
    ],
    &[
        "run",
        "-it",
        "--rm",
        "-v",
        "/data:/data",
        "--memory",
        "4GiB",
        "--name",
        "a",
        "image",
        "bash",
    ],
    // The engine's own memory, both ways.
    &["run", "--memory", "4GiB", "-m", "16g", "--name", "a", "image"],
    &[
        "run", "--memory", "4GiB", "--name", "a", "--", "--memory", "16g", "image",
    ],
    // Devices by their form.
    &[
        "run",
        "--device",
        "0",
        "--device",
        "/dev/fuse",
        "--memory",
        "4GiB",
        "--name",
        "a",
        "image",
    ],
    // The words behind the image are the program's.
    &[
        "run",
        "--memory",
        "4GiB",
        "--name",
        "a",
        "image",
        "sh",
        "-c",
        "echo 'it works' $HOME",
        "--memory",
        "1",
    ],
    // The engine's own flags before its verb, and a file of the caller's for the container's id.
    &[
        "--log-level",
        "debug",
        "run",
        "--memory",
        "4GiB",
        "--name",
        "a",
        "--cidfile",
        "/tmp/id",
        "image",
    ],
    &[
        "run",
        "-d",
        "--restart",
        "always",
        "--memory",
        "50%",
        "--name",
        "a",
        "image",
    ],
    &[
        "run",
        "--memory",
        "4GiB",
        "--oversubscribe=2x",
        "--on-oom",
        "wait=30s",
        "--cap",
        "hard",
        "--compute",
        "50%",
        "--name",
        "a",
        "image",
    ],
    &[
        "run",
        "--memory",
        "4GiB",
        "--policy",
        "best-effort",
        "--privileged",
        "--name",
        "a",
        "image",
    ],
    &["run", "--slice", "alice", "image"],
];

#[test]
fn command_lines() {
    for engine in ["podman", "docker"] {
        let host = Host::new();
        succeeded(&finish(
            &mut host.divvy(["slice", "create", "alice", "--memory", "1GiB"]),
        ));
        // None is called.
        let bin = host.folder().join("bin");
        std::fs::create_dir(&bin).expect("a folder");
        std::fs::write(bin.join(engine), "#!/bin/sh\nexit 1\n").expect("written");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bin.join(engine), mode).expect("a mode");
        let mut text = String::new();
        for line in LINES {
            // Ours go anywhere behind the verb.
            let at = line.iter().position(|word| *word == "run").expect("a verb");
            let (before, after) = line.split_at(at + 1);
            let mut command = host.divvy([engine]);
            command
                .args(before)
                .arg("--dry-run")
                .args(after)
                .env("PATH", &bin);
            let said = succeeded(&finish(&mut command));
            text.push_str(&format!(
                "$ divvy {engine} {}\n{}\n",
                line.join(" "),
                plain(&host, &said)
            ));
        }
        golden(&format!("engines/{engine}.txt"), &text);
        assert_eq!(host.slices().len(), 1, "nothing was made");
    }
}

/// What is another each time gets a name: the run directory, ids, process ids, the emulated device's UUID.
fn plain(host: &Host, said: &str) -> String {
    let mut said = said.replace(&host.run_directory().display().to_string(), "/RUN");
    for (before, after, name) in [
        ("divvy-slice-", ".json", "ID"),
        ("/containers/", "/cid-", "ID"),
        ("/cid-", " ", "PID"),
        ("device       ", "\n", "UUID"),
    ] {
        if let Some((start, rest)) = said.split_once(before)
            && let Some((_, end)) = rest.split_once(after)
        {
            said = format!("{start}{before}{name}{after}{end}");
        }
    }
    said
}

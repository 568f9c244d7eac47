//! What `divvy container runtime configure` makes of engines' files, of none and of one that was there.

use divvy_tests::golden::golden;
use divvy_tests::host::{Host, finish, succeeded};

const DOCKER: &str = r#"{
  "log-driver": "journald",
  "default-runtime": "nvidia",
  "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}
}
"#;
const CONTAINERD: &str = "version = 2\n# ours\nroot = \"/srv/containerd\"\n\
    [plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"pause:3.9\"  # pinned\n";
const CONTAINERD_2: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_selinux = true\n";

#[test]
fn engines_files() {
    let host = Host::new();
    let configure = |engine: &str, before: Option<&str>, undo: bool| {
        let folder = tempfile::tempdir_in(host.folder()).expect("a folder");
        let file = folder.path().join("file");
        if let Some(before) = before {
            std::fs::write(&file, before).expect("written");
        }
        let words = ["runtime", "configure", "--engine", engine];
        let call = |more: &[&str]| {
            let mut command = host.divvy(words);
            command.args(["--runtime", "/usr/bin/divvy-oci-runtime", "--file"]);
            succeeded(&finish(command.arg(&file).args(more)))
        };
        if undo {
            call(&[]);
        }
        let last = if undo {
            &["--undo", "--dry-run"][..]
        } else {
            &["--dry-run"]
        };
        let text = call(last);
        let now = std::fs::read_to_string(&file).ok();
        assert!(undo || now.as_deref() == before, "a dry run changes nothing");
        text.replace(&file.display().to_string(), "FILE")
    };
    for (name, engine, before) in [
        ("docker", "docker", Some(DOCKER)),
        // Ours is a file of its own.
        ("podman", "podman", None),
        ("crio", "crio", None),
        ("containerd", "containerd", Some(CONTAINERD)),
        ("containerd-2", "containerd", Some(CONTAINERD_2)),
    ] {
        let mut text = String::new();
        for (title, before) in [("no file", Some(None)), ("a file", before.map(Some))] {
            for (title, undo) in [(title.to_owned(), false), (format!("{title}, undone"), true)] {
                if let Some(before) = before {
                    let said = configure(engine, before, undo);
                    text.push_str(&format!("== {title}\n{}\n", said.trim_end()));
                }
            }
        }
        golden(&format!("configure/{name}.txt"), &text);
    }
}

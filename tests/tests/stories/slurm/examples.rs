//! The examples of examples/jobs/slurm, and what Slurm says of them afterwards.

use std::process::{Command, Output, Stdio};

use divvy_tests::host::succeeded;
use divvy_tests::slurm_accounts::Programs;
use divvy_tests::wait::until;

use super::Site;

/// Each of examples/jobs/slurm, with a program in the place of the user's.
#[test]
fn the_examples_run() {
    let Some(programs) = Programs::find() else {
        return;
    };
    let Some(mut site) = Site::prepared_with_accounts("h100", &["n1"], programs) else {
        return;
    };
    site.set_up("n1", &["--shards", "80"]);
    site.start(&["n1"]);
    let alice = &site.system.users.alice;
    for program in ["train.py", "serve.py"] {
        let text = "import os\nprint('ran', os.environ['DIVVY_SLICE'])\n";
        std::fs::write(alice.home.join(program), text).expect("written");
    }
    // What a job used is in its comment for administrators, where the node's file says so.
    let file = site.node_file("n1");
    let text = std::fs::read_to_string(&file).expect("the node's file");
    assert!(text.contains("comment = false"), "{text}");
    std::fs::write(&file, text.replace("comment = false", "comment = true")).expect("written");
    let folder = divvy_tests::build::workspace().join("examples/jobs/slurm");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("examples").flatten() {
        let script = std::fs::File::open(entry.path()).expect("a script");
        let mut command = site.command_as(alice, "sbatch");
        command
            .args(["--parsable", "--wait", "--output", "example-%j.out"])
            .stdin(script);
        let job = succeeded(&finish_with_input(&mut command));
        let job = job.trim();
        let files = std::fs::read_dir(&alice.home).expect("a folder").flatten();
        let outputs = files.filter(|file| file.file_name().to_string_lossy().starts_with("example-"));
        let text: String = outputs
            .filter_map(|file| {
                let text = std::fs::read_to_string(file.path()).ok();
                std::fs::remove_file(file.path()).expect("removed");
                text
            })
            .collect();
        let expected = match entry.file_name().to_str() {
            Some("array.sh") => 10,
            Some("steps.sh") => 2,
            _ => 1,
        };
        assert_eq!(
            text.matches("ran /").count(),
            expected,
            "{job}: {text}\n{}",
            site.cluster.logs()
        );
        let tasks = if entry.file_name() == "array.sh" { 10 } else { 1 };
        until("its use is in its comment", || {
            let words = [
                "--noheader",
                "--parsable2",
                "--allocations",
                "--format=AdminComment",
            ];
            let shown = site
                .cluster
                .ask("sacct", &[&words[..], &["--jobs", job]].concat());
            let is_said = |line: &str| line.starts_with("divvy: peak ") && line.ends_with(" s of the device");
            (shown.lines().count() == tasks && shown.lines().all(is_said)).then_some(())
        });
        count += 1;
    }
    assert_eq!(count, 3);
    site.until_no_slice();
}

/// As [`finish`], without closing the input.
fn finish_with_input(command: &mut Command) -> Output {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .expect("it starts")
}

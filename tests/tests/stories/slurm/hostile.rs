//! What a job's user tries against the slice.

use std::process::Stdio;

use divvy_tests::host::{finish, stderr, succeeded};
use divvy_tests::processes;
use divvy_tests::users::User;
use divvy_tests::wait::until;
use rustix::process::Signal;

use super::{SLEEP, Site};

#[test]
fn a_jobs_user_cannot_enlarge_steal_or_outlive_the_slice() {
    let Some(site) = Site::new("h100", "80") else {
        return;
    };
    let users = &site.system.users;
    let divvy = site.system.program("divvy");
    let run = site.system.run_directory();
    let job = site.sbatch(&users.alice, &["--gres=shard:8"], SLEEP);
    let slice = until("alice's job has its slice", || site.slice_of(&job));
    let id = slice["id"].as_str().expect("an id").to_owned();
    assert_eq!(slice["uid"], users.alice.uid);
    let refused = |user: &User, words: &[&str]| {
        let mut command = site.system.divvy_as(user, words.iter().copied());
        let output = finish(&mut command);
        assert!(
            !output.status.success(),
            "{} {words:?}: {}",
            user.name,
            String::from_utf8_lossy(&output.stdout)
        );
        stderr(&output)
    };
    // Its owner joins it, and changes nothing about it; nor does another user.
    for user in [&users.alice, &users.mallory] {
        for words in [
            vec!["resize", &id, "--memory", "60GiB"],
            vec!["resize", &id, "--compute", "90%"],
            vec!["slice", "delete", &id],
            vec!["run", "--memory", "60GiB", "--", "true"],
            vec!["slice", "create", "mine", "--memory", "60GiB"],
        ] {
            let said = refused(user, &words);
            assert!(said.contains("error[D"), "{words:?}: {said}");
        }
    }
    assert!(
        refused(&users.mallory, &["run", "--slice", &id, "--", "true"]).contains("D0"),
        "another's"
    );
    // From inside it is no other: neither a variable nor a new name leads to more.
    let inside = format!(
        "{} --run-dir {} resize {id} --memory 60GiB; echo $?",
        divvy.display(),
        run.display()
    );
    let said = finish(&mut site.srun(&users.bob, &["--gres=shard:8"], &inside));
    assert!(
        succeeded(&said).trim().ends_with(['1', '2', '3', '4']),
        "{said:?}"
    );
    // The prolog and the epilog by hand, with another's job in the variables.
    for verb in ["prolog", "epilog", "sweep"] {
        let mut command = site.system.divvy_as(&users.mallory, ["slurm", verb]);
        command
            .env("SLURM_JOB_ID", &job)
            .env("SLURM_JOB_UID", users.alice.uid.to_string())
            .env("SLURMD_NODENAME", "n1")
            .env("SLURM_JOB_GPUS", "0");
        let output = finish(&mut command);
        assert!(
            !output.status.success() && stderr(&output).contains("for root only"),
            "{}",
            stderr(&output)
        );
    }
    // A task's variables are for the job's user only.
    let mut command = site
        .system
        .divvy_as(&users.mallory, ["slurm", "task-prolog", "--node-file"]);
    command
        .arg(site.node_files())
        .env("SLURM_JOB_ID", &job)
        .env("SLURMD_NODENAME", "n1")
        .env("SLURM_SHARDS_ON_NODE", "8");
    let output = finish(&mut command);
    assert!(
        !output.status.success() && stderr(&output).contains("no slice"),
        "{}",
        stderr(&output)
    );
    // The reason, and no variable.
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.starts_with("print divvy D0098") && said.lines().count() == 1,
        "{said}"
    );
    // The variables of a job's own choosing reach neither prolog nor epilog.
    let mut command = site.srun(&users.mallory, &["--gres=shard:1"], "true");
    command
        .env("SLURM_JOB_UID", users.alice.uid.to_string())
        .env("DIVVY_RUN_DIR", "/nonexistent")
        .env("SLURM_JOB_GPUS", "0,1,2,3");
    succeeded(&finish(&mut command));
    assert_eq!(
        site.slice_of(&job).expect("still there")["memory_limit_bytes"],
        site.shards(0, 8, 80)
    );
    // What joins from outside the job keeps its slice no longer than the job.
    let mut outside = site
        .system
        .divvy_as(&users.alice, ["run", "--slice", &id, "--", "sleep", "600"]);
    let mut outside = outside
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    until("it has joined", || {
        let slice = site.slice_of(&job)?;
        let runs = slice["runs"].as_array()?;
        runs.iter().any(|run| run["pid"] == outside.id()).then_some(())
    });
    // It would notice the end of its program, so it is not to notice anything.
    processes::signal(outside.id(), Signal::STOP);
    site.cluster.ask("scancel", &[&job]);
    site.until_no_slice();
    until("what joined from outside is ended", || {
        outside.try_wait().expect("a child")
    });
    assert!(is_clean(&site.cluster.log_of("n1")));
}

/// Whether no prolog and no epilog failed.
fn is_clean(log: &str) -> bool {
    !log.contains("prolog failed") && !log.contains("epilog failed")
}

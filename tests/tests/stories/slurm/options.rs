//! `srun --divvy-memory --divvy-compute`, of the SPANK plugin: less than what Slurm gave, never more.

use std::path::Path;

use divvy_tests::host::{finish, stderr, succeeded};
use divvy_tests::wait::until;

use super::{SLEEP, Site, answers};

const GIB: u64 = 1 << 30;

#[test]
fn a_job_may_ask_for_less_than_its_shards_by_options_and_never_for_more() {
    let Some(site) = Site::new("h100", "80") else {
        return;
    };
    let users = &site.system.users;
    let alice = &users.alice;
    let is_sound = || {
        let state = site.cluster.ask("sinfo", &["-h", "-N", "-o", "%T"]);
        assert!(!state.contains("drain"), "{}", site.reason("n1"));
    };
    let info = site.ask_probe(&["info"]);
    let sees = |words: &[&str]| {
        let output = finish(&mut site.srun(alice, words, &info));
        succeeded(&output);
        answers(&output)[1]["total_bytes"].as_u64().expect("bytes")
    };
    let shards = site.shards(0, 20, 80);
    let less = ["--gres=shard:20", "--divvy-memory=4GiB", "--divvy-compute=10%"];
    assert_eq!(sees(&less), 4 * GIB);
    // What a user's variables say of it counts for nothing, as long as no option was typed. Nor is a task kept from its start
    // by a home that its user cannot read, or a setting that Divvy does not know.
    let mut command = site.srun(alice, &["--gres=shard:20"], &info);
    command.env("HOME", "/root").env("DIVVY_OUTPUT", "odd");
    for name in [
        "DIVVY_ASKED_MEMORY",
        "SPANK__SLURM_SPANK_OPTION_divvy_divvy_memory",
    ] {
        command.env(name, "70GiB");
    }
    let output = finish(&mut command);
    succeeded(&output);
    assert_eq!(answers(&output)[1]["total_bytes"], shards);
    // A host that knows nothing of Divvy submits jobs too, without the options.
    let elsewhere = site.system.folder().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a folder");
    for name in ["slurm.conf", "gres.conf"] {
        std::fs::copy(site.cluster.conf_dir().join(name), elsewhere.join(name)).expect("copied");
    }
    for (words, is_known) in [(&less[..1], true), (&less[..], false)] {
        let mut command = site.srun(alice, words, &info);
        let output = finish(command.env("SLURM_CONF", elsewhere.join("slurm.conf")));
        assert_eq!(
            output.status.success(),
            is_known,
            "{words:?}: {}",
            stderr(&output)
        );
        assert!(!is_known || answers(&output)[1]["total_bytes"] == shards);
    }
    // A whole device becomes a part of one.
    let quarter = site.usable(0) / 4 / super::MIB * super::MIB;
    assert_eq!(sees(&["--gres=gpu:1", "--divvy-memory=25%"]), quarter);
    assert_eq!(sees(&["--gres=gpu:1", "--divvy-compute=25%"]), site.usable(0));

    // A script's steps have its slice. One that asks for another does not start.
    let script = format!(
        "#SBATCH --gres=shard:20\n#SBATCH --divvy-memory=2GiB --divvy-compute=5%\n{info}\nsrun sh -c \"{info}\"\n\
         srun --divvy-memory=1GiB echo ran; srun --divvy-compute=6% echo ran; touch done; {SLEEP}\n",
        info = info.replace('"', "\\\"")
    );
    let path = alice.home.join("script.sh");
    std::fs::write(&path, format!("#!/bin/sh\n{script}")).expect("written");
    let mut command = site.command_as(alice, "sbatch");
    command.args(["--parsable", "--output", "job-%j.out"]).arg(&path);
    let job = succeeded(&finish(&mut command)).trim().to_owned();
    let slice = until("the job has its slice", || site.slice_of(&job));
    assert_eq!(
        (&slice["memory_limit_bytes"], &slice["compute"]),
        (&(2 * GIB).into(), &500.into()),
        "{slice}"
    );
    until("its steps are done", || {
        alice.home.join("done").exists().then_some(())
    });
    let text = std::fs::read_to_string(alice.home.join(format!("job-{job}.out"))).expect("its output");
    assert_eq!(
        text.matches(&format!("\"total_bytes\":{}", 2 * GIB)).count(),
        2,
        "{text}"
    );
    assert!(!text.lines().any(|line| line == "ran"), "{text}");
    for sentence in [
        "--divvy-memory=1 GiB",
        "--divvy-compute=6%",
        "steps of a job share one slice",
    ] {
        assert!(text.contains(sentence), "{sentence}: {text}");
    }
    site.cluster.ask("scancel", &[&job]);

    // What is more than Slurm gave, or divides nothing, is ended or held, and told why.
    for words in [
        ["--gres=shard:20", "--divvy-memory=30GiB"],
        ["--gres=shard:20", "--divvy-compute=26%"],
        ["--ntasks=1", "--divvy-memory=1GiB"],
    ] {
        let refused = finish(&mut site.srun(alice, &words, "echo ran"));
        let said = String::from_utf8_lossy(&refused.stdout).into_owned();
        assert!(
            !refused.status.success() && !said.contains("ran"),
            "{words:?}: {said}"
        );
        let why = stderr(&refused);
        assert!(why.contains("--divvy-"), "{words:?}: {why}");
    }
    let job = site.sbatch(alice, &["--gres=shard:20", "--divvy-memory=30GiB"], "echo ran");
    let said = until("it is held", || {
        let shown = site.cluster.ask("scontrol", &["show", "job", &job]);
        (shown.contains("AdminComment=divvy D0098") && shown.contains("held")).then_some(shown)
    });
    assert!(said.contains("is more than the"), "{said}");
    site.cluster.ask("scancel", &[&job]);
    // What is no amount does not leave srun.
    for (option, hint) in [("--divvy-memory=much", "4GiB"), ("--divvy-compute=30", "30%")] {
        let refused = finish(&mut site.srun(alice, &["--gres=shard:1", option], "echo ran"));
        let why = stderr(&refused);
        assert!(!refused.status.success() && why.contains(hint), "{option}: {why}");
        assert!(!why.contains("job"), "it was submitted: {why}");
    }
    is_sound();
    site.until_no_slice();

    // A Slurm of another release does not load the plugin: jobs run, and those with options are refused.
    let plugin = site.cluster.conf_dir().join("divvy/options.so");
    let list = site.cluster.conf_dir().join("plugstack.conf");
    let warned = |what: &str| {
        let said = String::from_utf8_lossy(&site.setup("n1", &["--shards", "80"]).stdout).into_owned();
        assert!(said.contains(what), "{what}: {said}");
    };
    set_version(&plugin, 0x0017_0b00);
    warned("is for Slurm 23.11.0");
    assert_eq!(sees(&["--gres=shard:20"]), shards);
    let refused = finish(&mut site.srun(alice, &less, "echo ran"));
    assert!(
        stderr(&refused).contains("unrecognized option"),
        "{}",
        stderr(&refused)
    );
    // Another line of the administrator's stays.
    let with = std::fs::read_to_string(&list).expect("a list");
    std::fs::write(&list, format!("# ours\n{with}")).expect("written");
    succeeded(&site.setup("n1", &["--shards", "80", "--apply"]));
    assert_eq!(sees(&less), 4 * GIB);
    std::fs::remove_file(&plugin).expect("removed");
    warned("is not there");
    succeeded(&site.setup("n1", &["--undo"]));
    assert_eq!(std::fs::read_to_string(&list).expect("a list"), "# ours\n");
    assert!(!site.cluster.conf_dir().join("divvy").exists());
}

/// Writes another version of Slurm into the plugin's file, before the mark that is there once.
fn set_version(plugin: &Path, number: u32) {
    let mut bytes = std::fs::read(plugin).expect("the plugin");
    let mark = b"divvy: the version of Slurm\0";
    let found: Vec<usize> = (0..bytes.len() - mark.len())
        .filter(|at| bytes[*at..].starts_with(mark))
        .collect();
    assert_eq!(found.len(), 1);
    bytes[found[0] - 4..found[0]].copy_from_slice(&number.to_le_bytes());
    std::fs::remove_file(plugin).expect("removed");
    std::fs::write(plugin, bytes).expect("written");
}

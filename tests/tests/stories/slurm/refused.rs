//! Jobs that do not start: each has its sentence, and only a node that is broken is drained.

use divvy_tests::host::{finish, stderr, succeeded};
use divvy_tests::wait::until;

use super::{SLEEP, Site};

#[test]
fn what_is_wrong_has_a_sentence_and_only_a_broken_node_is_drained() {
    let Some(site) = Site::new("h100", "80") else {
        return;
    };
    let users = &site.system.users;
    let alice = &users.alice;
    let is_sound = || {
        let state = site.cluster.ask("sinfo", &["-h", "-N", "-o", "%T"]);
        assert!(!state.contains("drain"), "{}", site.reason("n1"));
    };
    // A job without a device starts, and sees none.
    let none = finish(&mut site.srun(
        alice,
        &[],
        &format!("{} < /dev/null", site.system.program("probe").display()),
    ));
    assert!(!none.status.success());
    // Nor does what a step with devices hands on to the jobs that it submits count as one.
    let mut from_a_step = site.command_as(alice, "sbatch");
    from_a_step
        .env("SLURM_STEP_GPUS", "0")
        .args(["--wait", "--wrap=true"]);
    succeeded(&finish(&mut from_a_step));
    is_sound();
    // What the job has to change: it is held, or ended, and told why.
    let whole = ["--gres=shard:1,divvy_compute:100"];
    succeeded(&finish(&mut site.srun(alice, &whole, "true")));
    let forged = "x\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:80(IDX:0)";
    let refused = finish(&mut site.srun(alice, &["--gres=shard:1", "-J", forged], "echo ran"));
    assert!(!refused.status.success() && !String::from_utf8_lossy(&refused.stdout).contains("ran"));
    let job = site.sbatch(alice, &["--gres=shard:1", "-J", forged], "echo ran");
    until("it is held", || {
        let shown = site.cluster.root("scontrol", &["show", "job", &job]);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        (shown.contains("JobHeld") || shown.contains("held")).then_some(())
    });
    is_sound();
    site.cluster.ask("scancel", &[&job]);
    site.until_no_slice();

    // What an administrator has to repair drains the node, and says what.
    let broken = |what: &str| {
        let refused = finish(&mut site.srun(alice, &["--gres=shard:1"], "echo ran"));
        let said = String::from_utf8_lossy(&refused.stdout).into_owned();
        assert!(!said.contains("ran"), "{what}: {said}");
        let drained = until(what, || {
            let shown = site.reason("n1");
            shown.contains("DRAIN").then_some(shown)
        });
        assert!(drained.contains(what), "{drained}");
        let _gone = site.cluster.root("scancel", &["--full", "-u", &alice.name]);
        until("the queue is empty", || {
            site.cluster.ask("squeue", &["-h"]).is_empty().then_some(())
        });
        site.cluster
            .ask("scontrol", &["update", "NodeName=n1", "State=RESUME"]);
        site.cluster.until("it takes jobs again", |cluster| {
            cluster.ask("sinfo", &["-h", "-o", "%T"]).contains("idle")
        });
    };
    let file = site.node_file("n1");
    let sound = std::fs::read_to_string(&file).expect("the node's file");
    let with = |text: &str| std::fs::write(&file, text).expect("written");
    let usable = site.usable(0);
    with(&sound.replace(
        &format!("memory_bytes = {usable}"),
        &format!("memory_bytes = {}", usable + 1),
    ));
    broken("shards were made of");
    with(&sound.replace("uuid = \"", "uuid = \"GPU-0"));
    broken("is not on this node");
    with("colour = 1\n");
    broken("was not understood");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("a mode");
    broken("others may write it");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("a mode");
    with(&format!("agent_timeout_s = 1\n{sound}"));
    site.system.stop_agent();
    broken("no agent of Divvy answers");
    // Jobs without a device run all the same.
    succeeded(&finish(&mut site.srun(alice, &[], "true")));
    site.system.start_agent();
    with(&sound);
    succeeded(&finish(&mut site.srun(alice, &["--gres=shard:1"], "true")));

    // The mistakes of a configuration.
    let conf = site.cluster.conf_dir().join("slurm.conf");
    let text = std::fs::read_to_string(&conf).expect("slurm.conf");
    std::fs::write(&conf, text.replace("PrologFlags=Alloc\n", "")).expect("written");
    let checked = site.setup("n1", &["--shards", "7"]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(1), "{said}{}", stderr(&checked));
    for sentence in [
        "before its slice is made",
        "names other devices, memory or shards",
        "do not divide",
        "counts 80 of `shard`",
    ] {
        assert!(said.contains(sentence), "{sentence}: {said}");
    }
}

#[test]
fn a_user_over_the_quota_is_sent_back_and_the_node_stays() {
    let Some(mut site) = Site::with("h100", &["n1"], &[("DIVVY_USER_MEMORY", "10GiB")]) else {
        return;
    };
    site.set_up("n1", &["--shards", "80"]);
    site.start(&["n1"]);
    let alice = &site.system.users.alice;
    let small = site.sbatch(alice, &["--gres=shard:8"], SLEEP);
    until("a job within the quota has its slice", || site.slice_of(&small));
    for (shards, state) in [("--gres=shard:20", "held"), ("--gres=shard:4", "PENDING")] {
        let job = site.sbatch(alice, &[shards], "echo ran");
        let said = until("the next job is sent back", || {
            let shown = site.cluster.ask("scontrol", &["show", "job", &job]);
            (shown.contains("AdminComment=divvy D00") && shown.contains("PENDING")).then_some(shown)
        });
        assert!(said.contains(state), "{said}");
        assert!(
            said.contains("divvy D0017") || said.contains("divvy D0035"),
            "{said}"
        );
        site.cluster.ask("scancel", &[&job]);
    }
    let state = site.cluster.ask("sinfo", &["-h", "-N", "-o", "%T"]);
    assert!(!state.contains("drain"), "{}", site.reason("n1"));
    site.until_started(alice, 1);
    site.cluster.ask("scancel", &[&small]);
    site.until_no_slice();
}

//! A slice that an earlier job left: Slurm's numbers begin again when its controller and its node have lost their state.

use divvy_tests::processes;
use divvy_tests::wait::until;

use super::{SLEEP, Site, hold_memory};

#[test]
fn a_job_gets_no_slice_that_an_earlier_one_of_its_number_left() {
    let Some(mut site) = Site::new("h100", "80") else {
        return;
    };
    let (alice, bob) = (site.system.users.alice.clone(), site.system.users.bob.clone());
    // What slurmd runs by itself would find the slice first.
    let sweep = site.cluster.conf_dir().join("divvy/sweep");
    std::fs::write(&sweep, "#!/bin/sh\nexit 0\n").expect("written");
    let daemon = format!(
        "setsid sh -c '{}' & sleep 600",
        hold_memory(&site).replace('\'', "")
    );
    let first = site.sbatch(&alice, &["--gres=shard:8"], &daemon);
    let left = until("the job's program uses its slice", || {
        site.slice_of(&first)
            .filter(|slice| slice["processes"][0]["pid"].is_u64())
    });
    let left_running =
        u32::try_from(left["processes"][0]["pid"].as_u64().expect("a number")).expect("a process");

    // The same user, with another limit.
    site.cluster.lose_state("n1");
    assert!(processes::is_alive(left_running) && site.slice_of(&first).is_some());
    let second = site.sbatch(&alice, &["--gres=shard:20"], SLEEP);
    assert_eq!(first, second);
    site.until_started(&alice, 1);
    let own = site.slice_of(&second).expect("a slice");
    assert_eq!(own["memory_limit_bytes"], site.shards(0, 20, 80), "{own}");
    assert_ne!(own["id"], left["id"]);
    assert_eq!(site.job_slices(), 1);
    assert!(
        !processes::is_alive(left_running),
        "what the earlier job left is ended"
    );

    // The same limit, which the earlier job's program would share.
    site.cluster.lose_state("n1");
    let third = site.sbatch(&alice, &["--gres=shard:20"], SLEEP);
    assert_eq!(first, third);
    let again = until("it has a slice of its own", || {
        site.slice_of(&third).filter(|slice| slice["id"] != own["id"])
    });
    site.until_started(&alice, 1);

    // Another user, who has none of it.
    site.cluster.lose_state("n1");
    let fourth = site.sbatch(&bob, &["--gres=shard:20"], SLEEP);
    assert_eq!(first, fourth);
    site.until_started(&bob, 1);
    let own = site.slice_of(&fourth).expect("a slice");
    assert_eq!((&own["uid"], site.job_slices()), (&bob.uid.into(), 1), "{own}");
    assert_ne!(own["id"], again["id"]);
    site.cluster.ask("scancel", &[&fourth]);
    site.until_no_slice();
}

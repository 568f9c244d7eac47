//! F23. Read in the old code: without XDG_RUNTIME_DIR a user's run directory is /tmp/divvy-UID, and the commands that only look
//! talked to any process that listens there.

use std::path::PathBuf;
use std::time::Duration;

use divvy_tests::host::finish;
use divvy_tests::hostile::Hostile;
use divvy_tests::system::System;

#[test]
fn f23_no_process_is_talked_to_in_anothers_folder() {
    let Some(system) = System::new() else { return };
    let (alice, mallory) = (&system.users.alice, &system.users.mallory);
    let folder = PathBuf::from(format!("/tmp/divvy-{}", alice.uid));
    let _former = std::fs::remove_dir_all(&folder);
    let mut impostor = system.command_as(mallory, system.program("attacker"));
    let impostor = Hostile::start(impostor.arg("impostor").arg(&folder));
    assert_eq!(impostor.line().as_deref(), Some("listens"));
    for words in [
        &["ps"][..],
        &["kill", "own"],
        &["slice", "delete", "own"],
        &["inspect", "own"],
        &["agent", "status"],
    ] {
        let mut command = system.divvy_as(alice, words.iter().copied());
        command.env_remove("DIVVY_RUN_DIR").env_remove("XDG_RUNTIME_DIR");
        let _refused = finish(&mut command);
        let asked = impostor.line_within(Duration::from_millis(200));
        if asked.is_some() {
            let _gone = std::fs::remove_dir_all(&folder);
        }
        assert_eq!(asked, None, "`divvy {}` talked to mallory", words.join(" "));
    }
    drop(impostor);
    let _gone = std::fs::remove_dir_all(&folder);
    system.holds();
}

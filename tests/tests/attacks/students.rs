//! docs/one-card-thirty-students.md, followed literally by root and two users: its own settings, its own commands, in their order.

use std::os::unix::fs::symlink;

use divvy_tests::clients::system_python;
use divvy_tests::host::{finish, stderr};
use divvy_tests::processes;
use divvy_tests::system::System;

use super::class::code;

#[test]
fn a_class_on_one_card_ends_with_nothing_of_roots_but_the_helper() {
    let Some(python) = system_python() else { return };
    // The settings, as variables: the machine's own /etc is not the scenario's.
    let settings: Vec<(String, String)> = code()
        .iter()
        .filter_map(|line| line.split_once(" = "))
        // The scenario's own, not the machine's.
        .filter(|(key, _)| *key != "run_dir")
        .map(|(key, value)| {
            (
                format!("DIVVY_{}", key.to_uppercase()),
                value.trim_matches('"').to_owned(),
            )
        })
        .collect();
    assert!(settings.len() >= 5, "{settings:?}");
    let settings: Vec<(&str, &str)> = settings.iter().map(|(key, value)| (&**key, &**value)).collect();
    let Some(system) = System::unused(&settings) else {
        return;
    };
    let programs = system.folder().join("programs");
    std::fs::create_dir(&programs).expect("a folder");
    symlink(python, programs.join("python")).expect("a link");
    symlink(system.program("divvy"), programs.join("divvy")).expect("a link");
    let commands: Vec<String> = code()
        .into_iter()
        .filter(|line| line.starts_with("divvy ") && line != "divvy agent install")
        .collect();
    assert!(commands.len() >= 8, "{commands:?}");
    for user in [&system.users.alice, &system.users.bob] {
        for exercise in ["exercise-1.py", "exercise-2.py"] {
            std::fs::write(user.home.join(exercise), "print('done')\n").expect("written");
        }
        for line in &commands {
            let mut command = system.command_as(user, "/bin/sh");
            let path = format!("{}:/usr/bin:/bin", programs.display());
            let output = finish(command.args(["-c", line]).env("PATH", path));
            assert!(
                output.status.success(),
                "{}: `{line}`: {}",
                user.name,
                stderr(&output)
            );
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                !line.contains("python") || said.contains("done"),
                "`{line}`: {said}"
            );
        }
    }
    // Each sees the slice that was made without asking, and the other's.
    for user in [&system.users.alice, &system.users.bob] {
        let shown = finish(&mut system.divvy_as(user, ["ps", "-o", "json"]));
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        for owner in [&system.users.alice, &system.users.bob] {
            assert!(
                shown.contains(&owner.name),
                "{} does not see {}: {shown}",
                user.name,
                owner.name
            );
        }
    }
    let of_root: Vec<String> = processes::tree(system.agent_pid())
        .into_iter()
        .filter(|&pid| processes::user(pid) == Some(0))
        .map(|pid| format!("{pid} {}", processes::arguments(pid).join(" ")))
        .collect();
    let of_agent = processes::of_users(&[system.users.agent.uid]);
    assert!(
        of_root.len() <= 1 && !of_agent.is_empty(),
        "root runs more than a helper: {of_root:#?}; the agent's user runs {of_agent:?}"
    );
    system.holds();
}

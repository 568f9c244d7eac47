//! docs/one-card-thirty-students.md and docs/agent.md, on a machine that systemd runs, with the units installed.

use divvy_tests::booted::Booted;
use divvy_tests::host::{finish, stderr};
use divvy_tests::wait::until;
use divvy_tests::walker::writable_by_others;

use super::class::code;

const CONFIGURATION: &str = "/etc/divvy/config.toml";

/// The processes of `divvy` there that run as this user, by the words behind the name.
fn of(machine: &Booted, user: u32) -> Vec<String> {
    let ours = machine.processes().into_iter().filter(|(owner, words)| {
        *owner == user && words.first().is_some_and(|program| program.ends_with("/divvy"))
    });
    ours.map(|(_, words)| words[1..].join(" ").trim().to_owned())
        .collect()
}

/// A program of alice's that she has the agent end.
fn end_a_job(machine: &Booted) {
    let mut job = machine.shell_as("alice", "divvy run --name job --memory 1GiB -- sleep 600");
    let mut job = job.spawn().expect("it starts");
    let ask = |line: &str| finish(&mut machine.shell_as("alice", line));
    until("the job runs", || {
        let kills = ask("divvy kill --yes job");
        let runs = ask("divvy inspect job").status.success();
        (kills.status.success() && !runs).then_some(())
    });
    let status = job.wait().expect("it is over");
    assert!(!status.success(), "{status}");
}

#[test]
fn a_class_on_installed_units_ends_with_nothing_of_roots_but_the_helper() {
    let Some(machine) = Booted::new() else { return };
    machine.root("useradd --create-home alice && useradd --create-home bob && install -d /etc/divvy");
    let settings: Vec<String> = code().into_iter().filter(|line| line.contains(" = ")).collect();
    assert!(settings.len() >= 5, "{settings:?}");
    let settings = format!("emulated = \"h100\"\n{}\n", settings.join("\n"));
    std::fs::write(machine.file(CONFIGURATION), &settings).expect("written");
    let said = machine.root("divvy agent install");
    assert!(said.contains("divvy-agent"), "{said}");
    let uid: u32 = machine.root("id -u divvy").trim().parse().expect("a number");
    until("the agent answers", || {
        let status = finish(machine.command("divvy").args(["agent", "status"]));
        status.status.success().then_some(())
    });

    let commands: Vec<String> = code()
        .into_iter()
        .filter(|line| line.starts_with("divvy ") && line != "divvy agent install")
        .collect();
    assert!(commands.len() >= 8, "{commands:?}");
    for user in ["alice", "bob"] {
        let home = machine.file(&format!("/home/{user}"));
        for name in ["exercise-1.py", "exercise-2.py"] {
            std::fs::write(home.join(name), "print('done')\n").expect("written");
        }
        for line in &commands {
            // The page's `python` is Debian's own here.
            let output = finish(&mut machine.shell_as(user, &line.replace("python ", "/usr/bin/python3 ")));
            assert!(output.status.success(), "{user}: `{line}`: {}", stderr(&output));
            let done = String::from_utf8_lossy(&output.stdout).contains("done");
            assert!(!line.contains("python") || done, "`{line}`");
        }
    }

    // The helper does what only root may do; systemd starts it when it is asked for.
    end_a_job(&machine);
    assert_eq!(of(&machine, 0), ["agent helper"], "all of root's");
    let agents = of(&machine, uid);
    assert!(agents.iter().any(|words| words == "agent serve"), "{agents:?}");
    let run = machine.file("/run/divvy");
    assert_eq!(writable_by_others(&run, &[0, uid]), Vec::<String>::new());

    // A helper that dies comes back with the next request, and slices go on.
    let helper = || machine.root("systemctl show --property MainPID --value divvy-helper.service");
    let first = helper();
    machine.root(&format!("kill -9 {first}"));
    until("it is seen to be gone", || (helper() != first).then_some(()));
    end_a_job(&machine);
    assert_eq!(of(&machine, 0), ["agent helper"]);
    // So do they with an agent that is killed.
    machine.root("kill -9 $(systemctl show --property MainPID --value divvy-agent.service)");
    let listed = until("the next agent answers", || {
        let output = finish(&mut machine.shell_as("alice", "divvy ps"));
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    assert!(listed.contains("alice") && listed.contains("bob"), "{listed}");

    // A unit that was edited stays, and is said to.
    let unit = "/etc/systemd/system/divvy-agent.service";
    let installed = machine.root(&format!("cat {unit}"));
    std::fs::write(machine.file(unit), format!("{installed}# ours\n")).expect("written");
    let kept = finish(machine.command("divvy").args(["agent", "uninstall"]));
    let text = format!("{}{}", String::from_utf8_lossy(&kept.stdout), stderr(&kept));
    assert!(text.contains("edited") && machine.file(unit).exists(), "{text}");
    std::fs::write(machine.file(unit), installed).expect("written");
    machine.root("divvy agent uninstall");
    assert!(!machine.file(unit).exists());
    assert!(!of(&machine, uid).iter().any(|words| words.starts_with("agent")));
    assert!(of(&machine, 0).is_empty());
    let left = std::fs::read_to_string(machine.file(CONFIGURATION)).expect("the administrator's");
    assert_eq!(left, settings);
}

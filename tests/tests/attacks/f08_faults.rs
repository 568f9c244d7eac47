//! F8. Seen on the old code: memory that a hostile page server handed over was asked for its size first and for its
//! seals after. One that shrank in between ended the root agent by SIGBUS. So did a container that made its emulated
//! device's page shorter, which the agent, and every other program of the device, had mapped.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use divvy_tests::clients::{attacker, strace};
use divvy_tests::containers::Podman;
use divvy_tests::host::{finish, succeeded};
use divvy_tests::hostile::Hostile;
use divvy_tests::processes;
use divvy_tests::system::System;
use divvy_tests::tenant::Tenant;
use divvy_tests::users::User;
use divvy_tests::wait::until;

use super::containers::{HARDENED, image, slice};
use super::rounds::rounds;

/// So many looks at hostile memory, half of them for each pause of the page server's.
const LOOKS: u64 = 20;

/// Waits until each thread of the agent is watched by strace.
fn until_traced(system: &System) {
    let agent = system.agent_pid();
    until("the agent is watched", || {
        processes::is_traced(agent).then_some(())
    });
}

/// The agent, with a kernel that takes its time over fcntl.
fn slowed(strace: &Path, system: &System) -> Hostile {
    let mut slow = Command::new(strace);
    slow.args([
        "-f",
        "-qq",
        "-e",
        "trace=fcntl",
        "-e",
        "inject=fcntl:delay_enter=40000",
        "-o",
        "/dev/null",
    ])
    .arg(format!("--attach={}", system.agent_pid()))
    .stderr(Stdio::null());
    Hostile::start(&mut slow)
}

/// A kernel that takes its time over fcntl, which asks for seals, gives the page server all the time that it needs.
/// That leaves no time for ten thousand rounds: `f08_a_look_at_memory_that_shrinks_meanwhile_faults_no_process` makes
/// them with the same code.
#[test]
fn f08_a_page_server_that_shrinks_its_memory_while_it_is_looked_at_ends_no_agent() {
    let Some(strace) = strace() else { return };
    let Some(system) = System::new() else { return };
    let slow = slowed(&strace, &system);
    until_traced(&system);
    let mut fault = system.attacker_as(&system.users.alice, ["fault", &LOOKS.to_string(), "30"]);
    let said = succeeded(&finish(&mut fault));
    println!("{said}");
    let looks = said
        .lines()
        .find_map(|line| line.strip_prefix("looks ")?.parse().ok());
    assert!(
        looks.is_some_and(|looks: u64| looks >= LOOKS),
        "the agent was to look at hostile memory {LOOKS} times: {said}"
    );
    drop(slow);
    system.lives();
    system.holds();
}

/// The same by a page server that is its user's own `divvy run`, whose sockets that user takes over, and an agent that
/// asks for pages because it was restarted.
#[test]
fn f08_a_page_server_that_is_taken_over_by_its_user_ends_no_agent() {
    let Some(strace) = strace() else { return };
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    // How soon the look comes to its second step depends on how the agent was built.
    let thieves = ["10", "60"].map(|pause| {
        let name = format!("hers-{pause}");
        let thief = Hostile::start(&mut system.attacker_as(alice, ["steal", &name, pause]));
        println!("{}", thief.line().unwrap_or_default());
        thief
    });
    system.stop_agent();
    system.start_agent();
    let slow = slowed(&strace, &system);
    until_traced(&system);
    assert!(system.script_as(alice, "touch go", &[]).status.success());
    for thief in &thieves {
        assert_eq!(thief.line().as_deref(), Some("looked at"), "its memory was");
    }
    system.lives();
    drop(slow);
    system.lives();
    drop(thieves);
    system.holds();
}

/// Ten thousand times the look itself, against memory that shrinks and is sealed meanwhile.
#[test]
fn f08_a_look_at_memory_that_shrinks_meanwhile_faults_no_process() {
    let (rounds, seconds) = rounds();
    let mut race = Command::new(attacker());
    race.args(["race-pages", &rounds.to_string(), &seconds.to_string()]);
    let output = finish(&mut race);
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(
        output.status.success(),
        "the look ended its own process: {}",
        output.status
    );
    let said = String::from_utf8_lossy(&output.stdout);
    let mut counts = said
        .split_whitespace()
        .filter_map(|word| word.parse::<u64>().ok());
    let (done, shrunk) = (counts.next().unwrap_or(0), counts.next().unwrap_or(0));
    assert!(done >= 10_000, "{said}");
    assert!(shrunk >= 1000, "the memory was to shrink: {said}");
}

/// A tenant of the host's has the same device's pages mapped meanwhile. The container has no capability.
#[test]
fn f08_a_container_that_shortens_its_devices_page_ends_nothing_of_the_hosts() {
    const MIB: u64 = 1 << 20;
    let Some(system) = System::new() else { return };
    let Some(podman) = Podman::new(&system) else {
        return;
    };
    let (image, device) = (image(&system), slice(&system, &podman, "own", "1GiB"));
    let other = slice(&system, &podman, "others", "1GiB");
    let mut command = system.divvy_as(&system.users.alice, ["run", "--memory", "1GiB", "--"]);
    command.arg(system.program("probe"));
    let mut tenant = Tenant::start(command);
    tenant.allocate(64 * MIB).expect("it fits");
    let (rounds, seconds) = rounds();
    let attack = format!(
        "echo info | /bin/probe; exec /bin/attacker shorten /run/divvy/device \
         /run/divvy/device/pages/pages.sock granted {rounds} {seconds}"
    );
    let flags = [&["--device", &device][..], &HARDENED].concat();
    let hostile = Hostile::start(&mut podman.run(&flags, &image, &["/bin/sh", "-c", &attack]));
    let mut said: Vec<String> = (0..2).filter_map(|_| hostile.line()).collect();
    assert!(
        said.concat().contains("total_bytes"),
        "its device works: {said:?}"
    );
    let used = || {
        let devices = system.json(["devices"]);
        devices["items"][0]["memory_used_bytes"]
            .as_u64()
            .expect("a figure")
    };
    let mut asked = 0;
    loop {
        if let Some(line) = hostile.line_within(Duration::from_millis(50)) {
            let ended = line.contains("rounds");
            said.push(line);
            if ended {
                break;
            }
        }
        asked += 1;
        tenant.allocate(MIB).expect("it fits");
        assert!(tenant.copies(), "what the tenant computes");
        tenant.free();
        assert_eq!(used(), 64 * MIB, "the device's figures");
        assert!(asked < 600, "the container goes on: {said:?}");
    }
    println!("{asked} looks, {said:?}");
    let last = said.last().expect("a line");
    assert!(
        last.contains(" 0 harmed, 2 pages"),
        "the container has the pages and harms nothing: {said:?}"
    );
    system.lives();
    // The modes that it left are not in the way.
    let flags = [&["--device", &other][..], &HARDENED].concat();
    let said = finish(&mut podman.run(&flags, &image, &["/bin/sh", "-c", "echo info | /bin/probe"]));
    assert!(
        String::from_utf8_lossy(&said.stdout).contains("total_bytes"),
        "another container's program: {said:?}"
    );
    assert!(tenant.copies());
    assert_eq!(used(), 64 * MIB);
    drop(tenant);
    system.holds();
}

/// The same by one user of the host against another, each with a slice of one device.
#[test]
fn f08_two_users_of_one_device_see_each_others_use_and_shorten_nothing() {
    const MIB: u64 = 1 << 20;
    let Some(system) = System::new() else { return };
    let users = [&system.users.alice, &system.users.bob];
    let mut tenants = users.map(|user| {
        let mut command = system.divvy_as(user, ["run", "--memory", "1GiB", "--"]);
        command.arg(system.program("probe"));
        Tenant::start(command)
    });
    tenants[0].allocate(256 * MIB).expect("it fits");
    tenants[1].allocate(128 * MIB).expect("it fits");
    let driver = system.folder().join("driver");
    std::fs::create_dir(&driver).expect("a folder");
    std::os::unix::fs::symlink(
        system.program("libdivvy_emulated_cuda.so"),
        driver.join("libcuda.so.1"),
    )
    .expect("a link");
    let raw = |user: &User| {
        let mut command = system.command_as(user, system.program("probe"));
        command
            .env("LD_LIBRARY_PATH", &driver)
            .env("DIVVY_EMULATED", "h100");
        Tenant::start(command)
    };
    for user in users {
        // Without a slice in front: what the device itself says.
        let mut look = raw(user);
        let (free, total) = look.memory();
        assert_eq!(total - free, 384 * MIB, "what {} sees", user.name);
    }
    let device = system.json(["devices"])["items"][0]["uuid"]
        .as_str()
        .expect("a UUID")
        .to_owned();
    let (rounds, seconds) = rounds();
    let (rounds, seconds) = (rounds.to_string(), seconds.to_string());
    let run = system.run_directory();
    let (run, socket) = (run.to_str().expect("text"), run.join("pages.sock"));
    let socket = socket.to_str().expect("text");
    for (user, pages) in [(users[1], 2), (&system.users.mallory, 0)] {
        let mut attack = system.attacker_as(user, ["shorten", run, socket, &device, &rounds, &seconds]);
        let said = succeeded(&finish(&mut attack));
        println!("{}: {said}", user.name);
        assert!(said.contains(&format!(" 0 harmed, {pages} pages")), "{said}");
        assert_eq!(said.contains("NotAllowed"), pages == 0, "{said}");
    }
    assert!(tenants[0].copies(), "the victim goes on");
    let mut look = raw(users[0]);
    let (free, total) = look.memory();
    assert_eq!(total - free, 384 * MIB);
    // Of a user without a slice the device is not: the program says so, and its user is told what to do.
    let mut other = system.command_as(&system.users.mallory, system.program("probe"));
    other
        .env("LD_LIBRARY_PATH", &driver)
        .env("DIVVY_EMULATED", "h100")
        .env("DIVVY_LOG", "debug");
    let refused = finish(&mut other);
    assert!(!refused.status.success(), "{refused:?}");
    drop((look, tenants));
    system.holds();
}

//! The findings F1 to F8 on the level `enforced`. A tenant has sockets there and nothing else: no page, no device, no
//! folder. Each attack is made all the same, with what there is in the place of what it was made on.

use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use divvy_tests::clients::system_python;
use divvy_tests::containers::Podman;
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::hostile::Hostile;
use divvy_tests::system::System;
use divvy_tests::tenant::Tenant;
use divvy_tests::users::User;
use divvy_tests::{GIB, MIB, processes, wait};
use rustix::process::Signal;

use super::containers::{HARDENED, image};

/// Has a user make a lasting slice on this level; its id.
fn slice_of(system: &System, user: &User, name: &str, memory: &str) -> String {
    let words = [
        "slice",
        "create",
        "--isolation",
        "enforced",
        name,
        "--memory",
        memory,
    ];
    succeeded(&finish(&mut system.divvy_as(user, words)));
    system.id_of(name)
}

/// A slice of root's for containers; the name of its CDI device.
fn device_for_containers(host: &Host, podman: &Podman<'_>, name: &str) -> String {
    let words = [
        "cdi",
        "slice",
        "--isolation",
        "enforced",
        "--memory",
        "1GiB",
        "--name",
        name,
        "--directory",
    ];
    succeeded(&finish(host.divvy(words).arg(podman.cdi())))
        .trim()
        .to_owned()
}

/// The process that listens for a slice's programs.
fn listener(system: &System, name: &str) -> u32 {
    let shown = system.json(["inspect", name]);
    let pid = shown["worker"]["pid"].as_u64().expect("a worker");
    u32::try_from(pid).expect("a number")
}

/// A program in a lasting slice, by a user.
fn inside(system: &System, user: &User, slice: &str) -> Command {
    system.divvy_as(user, ["run", "--slice", slice, "--"])
}

/// All memory of the device that a new program of this slice is shown, in bytes.
fn limit_of_a_new_program(system: &System, user: &User, slice: &str) -> u64 {
    let mut command = inside(system, user, slice);
    command.arg(system.program("probe"));
    Tenant::start(command).memory().1
}

/// Links in the places of the sockets, while root and the agent make them again.
#[test]
fn enforced_f1_links_in_the_places_of_a_workers_sockets_lead_root_nowhere() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let id = slice_of(&system, alice, "own", "1GiB");
    let victim = system.victim("shadow");
    let folder = system.slice_folder(&id);
    let attack = "cd \"$1\" 2>/dev/null && for name in worker.sock nvml.sock attach.sock control.sock; do \
                  mv $name x; ln -s \"$2\" $name; done; cd \"$1/..\" && mv \"$1\" x && ln -s \"$2\" \"$1\"; true";
    system.script_as(alice, attack, &[&folder, victim.path()]);
    let swaps = ["worker.sock", "nvml.sock"].map(|name| {
        let mut swap = system.attacker_as(alice, ["swap"]);
        Hostile::start(swap.arg(&folder).arg(name).arg(victim.path()).arg("600"))
    });
    for _ in 0..2 {
        let former = listener(&system, "own");
        processes::signal(former, Signal::KILL);
        wait::until("another listens", || {
            victim.is_unharmed();
            (listener(&system, "own") != former).then_some(())
        });
    }
    victim.is_unharmed();
    assert_eq!(
        limit_of_a_new_program(&system, alice, "own"),
        GIB,
        "she is served there"
    );
    drop(swaps);
    victim.is_unharmed();
    system.holds();
}

/// The user's folder of MPS's pipes, and variables that lead there, are nothing to root and to a worker.
#[test]
fn enforced_f2_neither_pipes_nor_variables_of_a_tenant_reach_root_or_its_worker() {
    let Some(system) = System::with(&[("DIVVY_EMULATED", "h100*2")]) else {
        return;
    };
    let alice = &system.users.alice;
    let partition = |name: &str| {
        let words = [
            "slice",
            "create",
            name,
            "--memory",
            "1GiB",
            "--share",
            "mps",
            "--compute",
            "10%",
        ];
        let mut make = system.divvy_as(alice, words.into_iter().chain(["--cap=hard", "--device", "0"]));
        finish(&mut make)
    };
    assert!(partition("one").status.success(), "there is a folder of pipes");
    let victim = system.victim("shadow");
    let made = system.folder().join("ld.so.preload");
    let attack = "for pipe in \"$1\"/mps/user-*/*/pipe; do cd \"$pipe\" || continue; rm -f partitions control; \
                  ln -s \"$2\" partitions; ln -s \"$3\" control; done; true";
    system.script_as(alice, attack, &[&system.run_directory(), victim.path(), &made]);
    let _asked = partition("two");
    // With this level there is no MPS at all.
    let mut both = system.divvy_as(
        alice,
        [
            "run",
            "--isolation",
            "enforced",
            "--share",
            "mps",
            "--memory",
            "64MiB",
        ],
    );
    let refused = finish(both.args(["--", "true"]));
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(stderr(&refused).contains("not by mps"), "{}", stderr(&refused));
    // Beside that slice: whatever her program's environment says, a worker has none of it.
    let words = [
        "run",
        "--isolation",
        "enforced",
        "--name",
        "beside",
        "--device",
        "1",
        "--memory",
        "1GiB",
        "--",
    ];
    let mut program = system.divvy_as(alice, words);
    let hers = alice.home.join("hers");
    program.arg("env");
    for name in [
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
        "DIVVY_DRIVER",
        "DIVVY_NVML",
        "TMPDIR",
    ] {
        program.arg(format!("{name}={}", hers.display()));
    }
    program.arg(system.program("probe"));
    let mut tenant = Tenant::start(program);
    assert_eq!(tenant.allocate(MIB), Ok(()));
    let serving = processes::tree(listener(&system, "beside"));
    assert!(serving.len() > 1, "a listener, and a worker: {serving:?}");
    for pid in serving {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).expect("root may");
        let variables = String::from_utf8_lossy(&variables);
        assert!(!variables.contains(&*alice.home.to_string_lossy()), "{variables}");
    }
    assert!(!hers.exists() && !made.exists());
    victim.is_unharmed();
    drop(tenant);
    system.holds();
}

/// A container's root has two sockets. None takes a grant, and none gives a page.
#[test]
fn enforced_f3_a_containers_root_has_two_sockets_and_can_give_them_nothing() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let (image, device) = (image(&host), device_for_containers(&host, &podman, "own"));
    let attack = "ls /run/divvy/slice; ls -d /run/divvy/device /run/divvy/below /dev/nvidia* 2>/dev/null; \
                  echo attacks; for socket in /run/divvy/slice/* /run/divvy/slice/attach.sock; do \
                  /bin/attacker deliver $socket 84825604096; /bin/attacker limit $socket && echo has a page; done; \
                  echo after; echo info | /bin/probe";
    let flags = [&HARDENED[..], &["--device", &device]].concat();
    let run = |words: &[&str]| succeeded(&finish(&mut podman.run(&flags, &image, words)));
    let seen = run(&["/bin/sh", "-c", attack]);
    println!("{seen}");
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(&lines[..3], ["nvml.sock", "worker.sock", "attacks"], "{seen}");
    assert!(
        !seen.contains("has a page") && !lines.contains(&"84825604096"),
        "{seen}"
    );
    let total = |seen: &str, bytes: u64| {
        let after = seen.rsplit("after\n").next().expect("text");
        assert!(after.contains(&format!("\"total_bytes\":{bytes}")), "{seen}");
    };
    total(&seen, GIB);
    // Nor is it cut off from the agent: the next container finds what root changes.
    succeeded(&finish(&mut host.divvy(["resize", "own", "--memory", "2GiB"])));
    total(&run(&["/bin/sh", "-c", "echo info | /bin/probe"]), 2 * GIB);
}

/// Numbers of the host's processes that a container names: no one is ended for them, and root's requests are root's.
#[test]
fn enforced_f4_processes_that_a_container_claims_are_no_ones_of_its_slice() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let (image, device) = (image(&host), device_for_containers(&host, &podman, "tenant"));
    // One of an X server's kind: it has the vendor's library open, outside any slice.
    let library = host.folder().join("libcuda.so.1");
    std::fs::copy("/lib/x86_64-linux-gnu/libm.so.6", &library).expect("copied");
    let mut bystander = Command::new("sleep")
        .arg("600")
        .env("LD_PRELOAD", &library)
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let claimed = format!("{} {}", bystander.id(), std::process::id());
    let attack = format!(
        "for socket in /run/divvy/slice/* /run/divvy/slice/attach.sock; do \
         /bin/attacker forge $socket 2 {claimed}; done; echo claims; (echo info; exec sleep 600) | /bin/probe"
    );
    let flags = [&HARDENED[..], &["--name", "first", "--device", &device]].concat();
    let forger = Hostile::start(&mut podman.run(&flags, &image, &["/bin/sh", "-c", &attack]));
    assert_eq!(forger.line().as_deref(), Some("claims"));
    // Its own program lives meanwhile, and is of the slice.
    let said = [forger.line(), forger.line()].map(Option::unwrap_or_default);
    assert!(
        said[0].contains("pid") && said[1].contains("total_bytes"),
        "{said:?}"
    );
    let shown = host.slice("tenant");
    let named = |pid| shown.processes.iter().any(|process| process.pid == pid);
    assert!(!named(bystander.id()) && !named(std::process::id()), "{shown:?}");
    for words in [
        &["slice", "create", "other", "--memory", "5GiB"][..],
        &["resize", "other", "--memory", "6GiB"],
        &["run", "--memory", "2GiB", "--", "true"],
    ] {
        let output = finish(&mut host.divvy(words.iter().copied()));
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    }
    assert!(
        host.json(["inspect", "other"])["parent_id"].is_null(),
        "root's slice was put into the container's"
    );
    let _deleted = finish(&mut host.divvy(["slice", "delete", "tenant", "--yes", "--grace", "1s"]));
    assert!(
        bystander.try_wait().expect("a child").is_none(),
        "root's process was ended"
    );
    let _ended = (bystander.kill(), bystander.wait());
    drop(forger);
    let _gone = finish(&mut podman.command(&["rm", "--all", "--force", "--time", "0"]));
}

/// An agent that is led to another slice's pages sees whose they are. No user can put the link there, so root does.
#[test]
fn enforced_f5_an_agent_that_is_led_to_anothers_pages_changes_no_workers_limit() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let (hers, his) = (
        slice_of(&system, alice, "hers", "300MiB"),
        slice_of(&system, bob, "his", "2GiB"),
    );
    let mut running = {
        let mut command = inside(&system, bob, "his");
        command.arg(system.program("probe"));
        Tenant::start(command)
    };
    assert_eq!(running.memory().1, 2 * GIB);
    let place = system.slice_folder(&hers).join("control.sock");
    let other = system.slice_folder(&his).join("control.sock");
    let linked = system.script_as(alice, "rm -f \"$1\"; ln -s \"$2\" \"$1\"", &[&place, &other]);
    assert!(!linked.status.success(), "alice has no right to that");
    system.stop_agent();
    std::fs::remove_file(&place).expect("root may");
    symlink(&other, &place).expect("root may");
    system.start_agent();
    let told = || system.log_text().contains("pages of another slice");
    wait::until("the agent was led there, and says so", || told().then_some(()));
    assert_eq!(running.memory().1, 2 * GIB, "his running program");
    assert_eq!(
        limit_of_a_new_program(&system, bob, "his"),
        2 * GIB,
        "his next one"
    );
    // His own changes reach both.
    succeeded(&finish(
        &mut system.divvy_as(bob, ["resize", "his", "--memory", "3GiB"]),
    ));
    assert_eq!(running.memory().1, 3 * GIB);
    assert_eq!(limit_of_a_new_program(&system, bob, "his"), 3 * GIB);
    drop(running);
    system.holds();
}

/// What is mounted into a container of such a slice has sources that no user can put a link into.
#[test]
fn enforced_f6_what_is_mounted_into_a_container_is_the_agents_alone() {
    let Some(system) = System::new() else { return };
    let Some(podman) = Podman::new(&system) else {
        return;
    };
    let (bob, image) = (&system.users.bob, image(&system));
    let device = device_for_containers(&system, &podman, "own");
    let id = slice_of(&system, bob, "bobs", "1GiB");
    let secret = system.folder().join("secret");
    std::fs::create_dir(&secret).expect("a folder");
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("a mode");
    std::fs::write(secret.join("hostsecret"), "hostsecret\n").expect("written");
    let attack = "cd \"$1\"; for folder in boxes slices slices/* boxes/* stages; do mv \"$folder\" x && ln -s \"$2\" \"$folder\"; done; true";
    system.script_as(bob, attack, &[&system.run_directory(), &secret]);
    let mut mounted = 0;
    for entry in std::fs::read_dir(podman.cdi()).expect("the folder of CDI files") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a file");
        for source in host_paths(&text) {
            let real = std::fs::canonicalize(&source).expect("it is there");
            for path in real.ancestors() {
                let meta = std::fs::metadata(path).expect("it is there");
                let is_trusted = [0, system.users.agent.uid].contains(&meta.uid());
                // Sockets may be open to everybody, and a sticky folder lets no user replace what is another's.
                let is_open = meta.mode() & 0o022 != 0 && meta.mode() & 0o1000 == 0;
                let is_socket = meta.file_type().is_socket();
                assert!(
                    is_trusted && (!is_open || is_socket),
                    "{}: {meta:?}",
                    path.display()
                );
            }
            mounted += 1;
        }
    }
    assert!(mounted > 1, "sockets and libraries: {mounted}");
    let look = [
        "/bin/sh",
        "-c",
        "ls /run/divvy/slice; cat /run/divvy/slice/hostsecret; echo info | /bin/probe",
    ];
    let flags = [&HARDENED[..], &["--device", &device]].concat();
    let own = finish(&mut podman.run(&flags, &image, &look));
    assert!(succeeded(&own).contains("total_bytes"), "{own:?}");
    let mut seen = vec![own];
    for name in ["bobs", &id] {
        let annotation = format!("divvy.dev/slice={name}");
        seen.push(finish(&mut podman.run_over_wrapper(
            &[],
            &["--annotation", &annotation],
            &image,
            &look,
        )));
    }
    for output in seen {
        assert!(
            !String::from_utf8_lossy(&output.stdout).contains("hostsecret"),
            "{output:?}"
        );
    }
    system.holds();
}

/// The paths of the host that a CDI file mounts.
fn host_paths(text: &str) -> Vec<PathBuf> {
    fn walk(value: &serde_json::Value, found: &mut Vec<PathBuf>) {
        match value {
            serde_json::Value::Object(members) => {
                let source = members.get("hostPath").and_then(serde_json::Value::as_str);
                found.extend(source.map(PathBuf::from));
                members.values().for_each(|value| walk(value, found));
            }
            serde_json::Value::Array(all) => all.iter().for_each(|value| walk(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(&serde_json::from_str(text).expect("CDI as JSON"), &mut found);
    found
}

/// Connects again and again, to each of these sockets, and keeps what it has.
const CROWD: &str = r"
import socket, sys
kept = []
made = 0
print('begins', flush=True)
while made < 3000:
    for path in sys.argv[1:]:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(5)
        try:
            s.connect(path)
            s.send(b'?' * 24)
            kept.append(s)
        except OSError: pass
        made += 1
    kept = kept[-600:]
print('made', made, flush=True)
sys.stdin.read()
";

/// Thousands of connections of another user's keep no program from its worker, nor a tool from its answers.
#[test]
fn enforced_f7_a_crowd_of_connections_keeps_no_program_from_its_worker() {
    let Some(system) = System::new() else { return };
    let Some(python) = system_python() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let id = slice_of(&system, bob, "bobs", "1GiB");
    let folder = system.slice_folder(&id);
    let mut crowd = system.command_as(alice, python);
    crowd
        .args(["-c", CROWD])
        .args(["worker.sock", "nvml.sock"].map(|name| folder.join(name)));
    let crowd = Hostile::start(&mut crowd);
    assert_eq!(crowd.line().as_deref(), Some("begins"));
    let look = "import ctypes; n = ctypes.CDLL('libnvidia-ml.so.1'); print(n.nvmlInit_v2())";
    for _ in 0..3 {
        let mut program = inside(&system, bob, "bobs");
        let copies = program
            .arg(system.program("transfers"))
            .args(["pageable", "1048576"]);
        assert!(succeeded(&finish(copies)).contains("\"right\":true"));
        let mut tool = inside(&system, bob, "bobs");
        assert_eq!(succeeded(&finish(tool.args(["python3", "-c", look]))).trim(), "0");
    }
    assert_eq!(crowd.line().as_deref(), Some("made 3000"));
    drop(crowd);
    assert!(system.answers(bob, Duration::from_secs(20)));
    // The log has not been filled with them.
    let told = system.log_text().matches("is not served").count();
    assert!(told <= 21, "{told} lines");
    system.holds();
}

/// Shortens the memory that it shares with its worker, and brings memory that it could shorten. Says what it could do.
const SHORTEN: &str = r"
import array, fcntl, os, socket, struct
def connect():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(60)
    s.connect(os.environ['DIVVY_REMOTE'])
    s.send(b'!')
    greeting, control, _, _ = s.recvmsg(64, socket.CMSG_SPACE(4))
    return s, array.array('i', control[0][2])[0]
s, region = connect()
did = []
for size in (0, 4096):
    try:
        os.ftruncate(region, size)
        did.append(size)
    except OSError: pass
s.send((0).to_bytes(4, 'little'))
print('did', did, os.fstat(region).st_size > 4096)
F_ADD_SEALS, SHRINK, GROW = 1033, 2, 4
for seals in (0, GROW, SHRINK | GROW):
    s, _ = connect()
    memory = os.memfd_create('own', os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 8 << 20)
    if seals: fcntl.fcntl(memory, F_ADD_SEALS, seals)
    words = struct.pack('<QQQ', 0, 8 << 20, 0)
    s.sendmsg([words], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [memory]))])
    try: taken = len(s.recv(64)) > 0
    except OSError: taken = False
    print('sealed' if seals & SHRINK else 'unsealed', taken)
";

/// A program shortens the memory that it shares with its worker, or tries to: neither the worker nor the agent faults.
#[test]
fn enforced_f8_memory_that_a_program_shares_cannot_be_shortened() {
    let Some(system) = System::new() else { return };
    let Some(_python) = system_python() else { return };
    slice_of(&system, &system.users.alice, "own", "64MiB");
    let mut shortens = inside(&system, &system.users.alice, "own");
    let said = succeeded(&finish(shortens.args(["python3", "-c", SHORTEN])));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines,
        ["did [] True", "unsealed False", "unsealed False", "sealed True"]
    );
    assert_eq!(
        limit_of_a_new_program(&system, &system.users.alice, "own"),
        64 * MIB
    );
    assert!(
        !system.log_text().contains("was ended by signal"),
        "{}",
        system.log_text()
    );
    system.holds();
}

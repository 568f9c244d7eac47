//! Surroundings that are not as a program would like them: a system that cannot be written to, two installations,
//! narrow terminals, a locale without UTF-8, and a GPU that disappears while it is listed.

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Host, until};
use divvy_host::built::Built;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The command and its libraries, as a package or the tarball puts them: `bin` and `lib/divvy` in a folder.
fn installed(folder: &Path) -> PathBuf {
    let built = common::divvy().parent().expect("a folder");
    fs::create_dir_all(folder.join("bin")).expect("a folder");
    fs::create_dir_all(folder.join("lib/divvy")).expect("a folder");
    for entry in fs::read_dir(built).expect("a folder").flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().ends_with(".so") {
            fs::hard_link(entry.path(), folder.join("lib/divvy").join(name)).expect("another name");
        }
    }
    let command = folder.join("bin/divvy");
    fs::hard_link(common::divvy(), &command).expect("another name");
    command
}

/// A folder in which the built files can have another name.
fn beside_the_built() -> tempfile::TempDir {
    let built = common::divvy().parent().expect("a folder");
    tempfile::Builder::new()
        .prefix("installed-")
        .tempdir_in(built)
        .expect("a folder")
}

/// The same environment as [`Host::divvy`]'s, for another program.
fn like(host: &Host, program: &Path, words: &[&str]) -> Command {
    let model = host.divvy(&[]);
    let mut command = Command::new(program);
    for (name, value) in model.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .args(words)
        .current_dir(host.folder())
        .stdin(Stdio::null());
    command
}

#[test]
fn an_installation_that_cannot_be_written_to_serves() {
    let host = Host::new();
    let folder = beside_the_built();
    let divvy = installed(folder.path());
    // A mount of its own that is for reading only, as /usr is on some systems.
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && ! touch \"$1/bin/x\" 2>/dev/null || exit 99
        exec \"$2\" run --memory 1GiB -- \"$2\" selftest tenant memory";
    let own = format!("{}", folder.path().display());
    let words = [
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script,
        "sh",
        &own,
        divvy.to_str().expect("text"),
    ];
    let mut child = like(&host, Path::new("unshare"), &words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare starts");
    let mut ask = child.stdin.take().expect("piped");
    // A system that lets no user mount ends before it reads this.
    let _ended = std::io::Write::write_all(&mut ask, b"fill plain 67108864 2147483648\n");
    drop(ask);
    let output = child.wait_with_output().expect("it ends");
    if output.status.code() == Some(99) || String::from_utf8_lossy(&output.stderr).starts_with("unshare: ") {
        println!("this system lets no user mount: {output:?}");
        return;
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("\"out_of_memory\":true"),
        "{output:?}"
    );
}

#[test]
fn two_installations_share_an_agent_and_one_may_go() {
    let host = Host::new();
    let (one, other) = (beside_the_built(), beside_the_built());
    let (first, second) = (installed(one.path()), installed(other.path()));
    let done = |program: &Path, words: &[&str]| -> Output {
        let output = like(&host, program, words).output().expect("divvy starts");
        assert!(output.status.success(), "{words:?}: {output:?}");
        output
    };
    // The first one's agent has both ones' slices.
    done(&first, &["slice", "create", "kept", "--memory", "1GiB"]);
    let mut tenant = like(
        &host,
        &second,
        &["run", "--name", "train", "--memory", "1GiB", "--", "sleep", "600"],
    )
    .stdout(Stdio::null())
    .spawn()
    .expect("divvy starts");
    until("it runs", || host.slices().len() == 2);
    // It is removed, as an older one is.
    one.close().expect("removed");
    let names = String::from_utf8(done(&second, &["ps", "-o", "name"]).stdout).expect("text");
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["kept", "train"]);
    done(&second, &["run", "--slice", "kept", "--", "true"]);
    done(&second, &["agent", "stop"]);
    // The next agent is the other one's, and takes the slices over.
    done(&second, &["run", "--slice", "kept", "--", "true"]);
    assert_eq!(host.slices().len(), 2);
    tenant.kill().expect("ours");
    tenant.wait().expect("it ends");
    done(&second, &["slice", "delete", "kept"]);
}

/// What a command that succeeds prints on a terminal of so many columns.
fn on_a_terminal(command: Command, columns: u16) -> String {
    let (succeeds, shown) = ends_on_a_terminal(command, columns);
    assert!(succeeds, "{shown}");
    shown
}

/// Whether a command succeeds, and what it prints on a terminal of so many columns.
fn ends_on_a_terminal(mut command: Command, columns: u16) -> (bool, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).expect("ours");
    unlockpt(&master).expect("usable");
    let name = ptsname(&master, Vec::new()).expect("a name");
    let slave = File::options()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::NOCTTY.bits().cast_signed())
        .open(name.to_str().expect("text"))
        .expect("its other side");
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&slave, size).expect("a size");
    let mut child = command
        .stdout(slave.try_clone().expect("a copy"))
        .stderr(slave)
        .spawn()
        .expect("divvy starts");
    // The command's own copies are the last of that side.
    drop(command);
    let mut shown = Vec::new();
    // It ends with an error once the other side is closed.
    let _closed = File::from(master).read_to_end(&mut shown);
    let status = child.wait().expect("it ends");
    (status.success(), String::from_utf8(shown).expect("text"))
}

#[test]
fn colours_are_for_terminals_and_are_turned_off_by_no_color() {
    let host = Host::new();
    let refused = |set: &[(&str, &str)]| {
        let mut command = host.divvy(&["inspect", "nope"]);
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        command.envs(set.iter().copied()).env("TERM", "xterm");
        let (succeeds, shown) = ends_on_a_terminal(command, 100);
        assert!(!succeeds && shown.contains("no slice `nope`"), "{shown}");
        shown.contains("\x1b[")
    };
    assert!(refused(&[]), "a terminal has colours");
    assert!(!refused(&[("NO_COLOR", "1")]));
    assert!(
        refused(&[("NO_COLOR", "")]),
        "an empty NO_COLOR is none: no-color.org"
    );
    let (_, said) = host.refused(&["inspect", "nope"]);
    assert!(!said.contains("\x1b["), "a pipe has none: {said}");
}

#[test]
fn an_empty_list_says_what_to_type_where_a_person_looks() {
    let host = Host::new();
    for (words, told) in [
        (&["ps"][..], "`divvy run --memory 4GiB PROGRAM`"),
        (&["slice", "list"], "`divvy slice create NAME --memory 4GiB`"),
        (&["history"], "`divvy ps`"),
        (&["advise"], "`divvy run --memory 4GiB PROGRAM`"),
    ] {
        let shown = on_a_terminal(host.divvy(words), 100);
        assert!(shown.contains(told), "{words:?}: {shown}");
        let output = host.finish(words);
        assert!(output.stderr.is_empty(), "a pipe has the list alone: {output:?}");
    }
    host.text(&["slice", "create", "kept", "--memory", "1GiB"]);
    let shown = on_a_terminal(host.divvy(&["ps"]), 100);
    assert!(!shown.contains("divvy run"), "{shown}");
}

#[test]
fn a_run_directory_takes_little_room() {
    let host = Host::new();
    let _tenant = host.idle("train", "1GiB");
    // As `du` counts: blocks of files that have no other name. Under /run they are in memory.
    fn blocks(folder: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let entries = fs::read_dir(folder).expect("a folder").flatten();
        let of = |entry: fs::DirEntry| match entry.metadata() {
            Ok(found) if found.is_dir() => blocks(&entry.path()),
            Ok(found) if found.nlink() == 1 => found.blocks() * 512,
            _ => 0,
        };
        entries.map(of).sum()
    }
    let taken = blocks(&host.run_dir());
    assert!(taken < 4 << 20, "{taken} bytes");
}

#[test]
fn twenty_columns_cut_no_number_and_no_word() {
    let host = Host::new();
    host.text(&["slice", "create", "trainer", "--memory", "12800MiB"]);
    for (words, wanted) in [
        (&["ps"][..], &["trainer", "12.5 GiB", "idle"][..]),
        (&["slice", "list"], &["trainer", "12.5 GiB"]),
        (&["devices"], &["H100", "79.6 GiB"]),
        (&["top", "-n", "1"], &["trainer", "12.5 GiB"]),
        (&["history"], &[]),
        (&["advise"], &[]),
    ] {
        let mut command = host.divvy(words);
        command.env("TERM", "xterm").env("NO_COLOR", "1");
        let shown = on_a_terminal(command, 20);
        for text in wanted {
            assert!(shown.contains(text), "{words:?}: {text}: {shown}");
        }
    }
}

#[test]
fn a_dry_run_of_an_engines_configuration_names_the_link_that_is_not_there_yet() {
    let host = Host::new();
    let folder = beside_the_built();
    let divvy = installed(folder.path());
    let link = divvy.with_file_name("divvy-oci-runtime");
    let file = host.folder().join("daemon.json");
    let file = file.to_str().expect("a path");
    let words = [
        "container",
        "runtime",
        "configure",
        "--engine",
        "docker",
        "--file",
        file,
    ];
    let told = |more: &[&str]| {
        let output = like(&host, &divvy, &[&words[..], more].concat()).output();
        String::from_utf8(output.expect("divvy starts").stdout).expect("text")
    };
    let would = format!("would make the link {}", link.display());
    let dry = told(&["--dry-run"]);
    assert!(dry.starts_with(&would), "{dry}");
    assert!(
        !link.exists() && !Path::new(file).exists(),
        "a dry run changes nothing"
    );
    assert!(told(&[]).starts_with("wrote ") && link.exists());
    assert!(!told(&["--dry-run"]).contains("would make the link"));
}

#[test]
fn a_locale_without_utf_8_gets_plain_characters() {
    let host = Host::new();
    host.text(&["slice", "create", "trainer", "--memory", "1GiB"]);
    for words in [
        &["ps"][..],
        &["devices"],
        &["top", "-n", "1"],
        &["inspect", "trainer"],
        &["doctor"],
        &["explain", "D0012"],
        &["run", "--help"],
    ] {
        let mut command = host.divvy(words);
        command.env("LC_ALL", "C").env_remove("LANG");
        let output = command.output().expect("divvy starts");
        let all = [output.stdout, output.stderr].concat();
        assert!(all.is_ascii(), "{words:?}: {}", String::from_utf8_lossy(&all));
    }
    // A name that is no UTF-8 goes through as it is.
    use std::os::unix::ffi::OsStrExt;
    let mut command = host.divvy(&["run", "--memory", "1GiB", "--", "printf", "%s"]);
    command
        .arg(std::ffi::OsStr::from_bytes(b"caf\xe9"))
        .env("LC_ALL", "C");
    assert_eq!(command.output().expect("divvy starts").stdout, b"caf\xe9");
}

#[test]
fn a_gpu_that_disappears_while_it_is_listed_is_told_of() {
    let host = Host::new();
    let built = Built::mi300x(host.folder().join("mi300x"), 1);
    let sys = built.root().join("sys/devices");
    let aside = built.root().join("aside");
    let root = built.root().to_str().expect("a path").to_owned();
    let (done, was_gone) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Its files go and come back, at whatever moment of a look.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs::rename(&sys, &aside).expect("renamed");
                std::thread::yield_now();
                fs::rename(&aside, &sys).expect("renamed");
                std::thread::yield_now();
            }
        });
        for _ in 0..25 {
            for words in [
                &["devices", "--sysroot", &root][..],
                &["topology", "--sysroot", &root],
            ] {
                let output = host.finish(words);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(
                    matches!(output.status.code(), Some(0 | 1 | 5)) && !said.contains("panicked"),
                    "{words:?}: {output:?}"
                );
                if output.status.code() != Some(0) {
                    assert!(said.contains("error[D"), "{said}");
                }
                was_gone.fetch_or(!said.is_empty(), Ordering::Relaxed);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(was_gone.load(Ordering::Relaxed), "no look came at a bad moment");
    let devices = host.json(&["devices", "--sysroot", &root]);
    assert_eq!(devices["items"].as_array().map(Vec::len), Some(8), "all are back");
}

#[test]
fn at_a_terminal_a_run_ends_with_what_it_used() {
    let host = Host::new();
    let divvy = common::divvy().to_str().expect("a path").to_owned();
    let fill = format!("echo 'fill plain 67108864 2147483648' | {divvy} selftest tenant memory >tenant.out");
    let command = host.divvy(&["run", "--memory", "1GiB", "--", "sh", "-c", &fill]);
    let shown = on_a_terminal(command, 100);
    assert!(
        shown.contains("divvy: peak 1 GiB of 1 GiB, 1 allocation refused"),
        "{shown}"
    );
    // A log of a program's own does not change.
    let output = host.finish(&["run", "--memory", "1GiB", "--", "sh", "-c", &fill]);
    assert!(
        output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("peak"),
        "{output:?}"
    );
}

#[test]
fn the_limiters_log_is_quiet_about_what_goes_well() {
    let host = Host::new();
    // As NVIDIA's runtime gets at the driver's functions.
    let ask = "import ctypes as c
cuda = c.CDLL('libcuda.so.1')
found = c.c_void_p()
cuda.cuInit(0)
raise SystemExit(cuda.cuGetProcAddress_v2(b'cuDeviceGet', c.byref(found), 12000, c.c_uint64(0), None))";
    let logged = |level: &str| {
        let log = host.folder().join(format!("log.{level}"));
        let output = host
            .divvy(&["run", "--memory", "1GiB", "--", "python3", "-c", ask])
            .env("DIVVY_LOG", &log)
            .env("DIVVY_LOG_LEVEL", level)
            .output()
            .expect("divvy starts");
        assert!(output.status.success(), "{output:?}");
        fs::read_to_string(log).unwrap_or_default()
    };
    let (quiet, all) = (logged(""), logged("all"));
    let handed_out = |text: &str| text.lines().filter(|line| line.contains("handed out")).count();
    assert_eq!(handed_out(&quiet), 0, "{quiet}");
    assert!(handed_out(&all) > 0, "{all}");
}

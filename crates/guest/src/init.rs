//! The first process of a machine that `divvy vm run --root` started: it runs one program, says how that ended, and turns
//! the machine off. Its file is `/init` of the first file system, the files of the program's system are in `/root`.
//!
//! What it is to run it finds in `/divvy/request`; `crates/vm/src/launch` writes that. It answers on the second serial port:
//! `exit N`, or `cannot WHY` where the program could not be started. That console is the program's own: a program that is
//! root there could answer in its place, about itself.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount};
use rustix::process::WaitOptions;
use rustix::system::{RebootCommand, finit_module, reboot};
use rustix::termios::{OptionalActions, QueueSelector, tcdrain, tcflush, tcgetattr, tcsetattr};

/// Where the program's system is.
const ROOT: &str = "/root";
/// `MODULE_INIT_COMPRESSED_FILE` of the kernel's `linux/module.h`.
const COMPRESSED: i32 = 4;

/// What is to be run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    command: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    folder: Option<OsString>,
    has_terminal: bool,
    has_disk: bool,
}

impl Request {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut request = Self::default();
        for word in bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty()) {
            let mut parts = word.splitn(2, |byte| *byte == b'=');
            let (key, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let owned = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
            match key {
                b"arg" => request.command.push(owned(value)),
                b"env" => {
                    let mut pair = value.splitn(2, |byte| *byte == b'=');
                    let name = owned(pair.next().unwrap_or_default());
                    request
                        .environment
                        .push((name, owned(pair.next().unwrap_or_default())));
                }
                b"dir" => request.folder = Some(owned(value)),
                b"terminal" => request.has_terminal = value == b"yes",
                b"disk" => request.has_disk = value == b"yes",
                _ => return Err("the request is of another version".to_owned()),
            }
        }
        match request.command.is_empty() {
            true => Err("no program is named".to_owned()),
            false => Ok(request),
        }
    }
}

/// Whether this process is such a machine's first one.
#[must_use]
pub fn is_first() -> bool {
    std::process::id() == 1 && std::env::args_os().next().is_some_and(|name| name == "/init")
}

/// Runs the program, and turns the machine off. It returns only where that is impossible.
pub fn run() {
    let answer = match program() {
        Ok(status) => format!("exit {status}\n"),
        Err(why) => format!("cannot {why}\n"),
    };
    // After the change of root the ports are at the usual place; where that did not come about, below the other root.
    for place in ["/dev", "/root/dev"] {
        let Ok(mut port) = OpenOptions::new().write(true).open(format!("{place}/ttyS1")) else {
            continue;
        };
        let _raw = plain(&port);
        let _answered = port.write_all(answer.as_bytes());
        let _sent = tcdrain(port.as_fd());
        if let Ok(console) = OpenOptions::new().write(true).open(format!("{place}/ttyS0")) {
            let _sent = tcdrain(console.as_fd());
        }
        break;
    }
    rustix::fs::sync();
    let _off = reboot(RebootCommand::PowerOff);
}

/// Runs the program; its exit status as a shell has it.
fn program() -> Result<i32, String> {
    let request = fs::read("/divvy/request").map_err(|error| format!("read the request: {error}"))?;
    let request = Request::read(&request)?;
    if request.has_disk {
        disk()?;
    }
    for (kind, to) in [("proc", "proc"), ("sysfs", "sys"), ("devtmpfs", "dev")] {
        let to = format!("{ROOT}/{to}");
        let _there = fs::create_dir(&to);
        mount(kind, &to, kind, MountFlags::empty(), c"").map_err(|errno| format!("mount {to}: {errno}"))?;
    }
    for (kind, to) in [
        ("devpts", "dev/pts"),
        ("tmpfs", "dev/shm"),
        ("tmpfs", "run"),
        ("tmpfs", "tmp"),
    ] {
        let to = format!("{ROOT}/{to}");
        let _there = fs::create_dir(&to);
        // A system without these places does without them.
        let _mounted = mount(kind, &to, kind, MountFlags::empty(), c"");
    }
    let console = console(request.has_terminal).map_err(|error| format!("open the console: {error}"))?;
    load("/divvy/modules", &console);
    nodes();
    rustix::process::chroot(ROOT).map_err(|errno| format!("use the files: {errno}"))?;
    std::env::set_current_dir("/").map_err(|error| format!("use the files: {error}"))?;
    start(&request, &console)
}

/// Mounts the machine's disk, or the part of it that has a system.
fn disk() -> Result<(), String> {
    for (kind, to) in [("proc", "/proc"), ("devtmpfs", "/dev")] {
        let _there = fs::create_dir(to);
        mount(kind, to, kind, MountFlags::empty(), c"").map_err(|errno| format!("mount {to}: {errno}"))?;
    }
    let console = OpenOptions::new()
        .write(true)
        .open("/dev/ttyS0")
        .map_err(|error| format!("open the console: {error}"))?;
    load("/divvy/modules-of-disk", &console);
    let parts = parts()?;
    let kinds = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let kinds: Vec<&str> = kinds
        .lines()
        .filter(|line| !line.starts_with("nodev"))
        .map(str::trim)
        .collect();
    for part in &parts {
        let from = format!("/dev/{part}");
        let mounted = |kind: &&str| mount(from.as_str(), ROOT, *kind, MountFlags::empty(), c"").is_ok();
        if !kinds.iter().any(mounted) {
            continue;
        }
        if ["bin", "usr"]
            .iter()
            .any(|name| Path::new(ROOT).join(name).exists())
        {
            return Ok(());
        }
        let _gone = rustix::mount::unmount(ROOT, rustix::mount::UnmountFlags::empty());
    }
    Err(format!(
        "use the disk: none of {} has a system on one of {}",
        parts.join(", "),
        kinds.join(", ")
    ))
}

/// The disk and its parts, as the kernel has them. It may still be looking for them.
fn parts() -> Result<Vec<String>, String> {
    const LOOKS: u32 = 300;
    for _ in 0..LOOKS {
        let text = fs::read_to_string("/proc/partitions").unwrap_or_default();
        let names = text.lines().filter_map(|line| line.split_whitespace().nth(3));
        let names: Vec<String> = names
            .filter(|name| name.starts_with("vda"))
            .map(str::to_owned)
            .collect();
        if !names.is_empty() {
            return Ok(names);
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Err("use the disk: the kernel does not see it".to_owned())
}

/// The first serial port, as the terminal of this process's own session.
fn console(has_terminal: bool) -> io::Result<File> {
    // It is the first process, and no session's.
    let _session = rustix::process::setsid();
    let console = OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("{ROOT}/dev/ttyS0"))?;
    let _terminal = rustix::process::ioctl_tiocsctty(&console);
    if !has_terminal {
        // Bytes come out as the program writes them.
        plain(&console)?;
    }
    let _emptied = tcflush(&console, QueueSelector::IFlush);
    Ok(console)
}

fn plain(port: &File) -> io::Result<()> {
    let mut how = tcgetattr(port)?;
    how.make_raw();
    Ok(tcsetattr(port, OptionalActions::Now, &how)?)
}

/// Loads the modules in their order. One that does not load is told of: the program may do without it.
fn load(folder: &str, mut console: &File) {
    let Ok(list) = fs::read_dir(folder) else {
        return;
    };
    let mut files: Vec<_> = list.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files {
        let is_plain = file.extension().is_some_and(|extension| extension == "ko");
        let flags = if is_plain { 0 } else { COMPRESSED };
        let loaded = rustix::fs::open(&file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|opened| finit_module(&opened, c"", flags));
        match loaded {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let _told = write!(console, "divvy: the module {name} does not load: {errno}\r\n");
            }
        }
    }
}

/// NVIDIA's driver makes no files below /dev by itself.
fn nodes() {
    let devices = fs::read_to_string(format!("{ROOT}/proc/devices")).unwrap_or_default();
    let major = |wanted: &[&str]| -> Option<u32> {
        let mut lines = devices.lines().filter_map(|line| line.trim().split_once(' '));
        let (number, _) = lines.find(|(_, name)| wanted.contains(&name.trim()))?;
        number.parse().ok()
    };
    let make = |name: &str, major: u32, minor: u32| {
        let path = format!("{ROOT}/dev/{name}");
        let kind = rustix::fs::FileType::CharacterDevice;
        let _made = rustix::fs::mknodat(
            rustix::fs::CWD,
            Path::new(&path),
            kind,
            Mode::from_raw_mode(0o666),
            rustix::fs::makedev(major, minor),
        );
    };
    if let Some(major) = major(&["nvidia-frontend", "nvidia"]) {
        make("nvidiactl", major, 255);
        let gpus = fs::read_dir(format!("{ROOT}/sys/bus/pci/drivers/nvidia"));
        let count = gpus.map_or(0, |list| {
            list.flatten()
                .filter(|entry| entry.file_name().as_bytes().contains(&b':'))
                .count()
        });
        for minor in 0..u32::try_from(count).unwrap_or(0) {
            make(&format!("nvidia{minor}"), major, minor);
        }
    }
    if let Some(major) = major(&["nvidia-uvm"]) {
        make("nvidia-uvm", major, 0);
        make("nvidia-uvm-tools", major, 1);
    }
}

/// Starts the program, and waits for it and for what it leaves behind.
fn start(request: &Request, console: &File) -> Result<i32, String> {
    let (name, rest) = request.command.split_first().ok_or("no program is named")?;
    let stream = || {
        console
            .try_clone()
            .map_err(|error| format!("open the console: {error}"))
    };
    let mut command = Command::new(name);
    command
        .args(rest)
        .env_clear()
        .envs(request.environment.iter().map(|(name, value)| (name, value)))
        .stdout(stream()?)
        .stderr(stream()?);
    match request.has_terminal {
        true => command.stdin(stream()?),
        // A serial line has no end of its own.
        false => command.stdin(Stdio::null()),
    };
    if let Some(folder) = &request.folder {
        std::env::set_current_dir(folder)
            .map_err(|error| format!("enter {}: {error}", folder.to_string_lossy()))?;
    }
    // `execvp` looks along the path of the program's environment.
    command.arg0(name);
    let child = command
        .spawn()
        .map_err(|error| format!("run {}: {error}", name.to_string_lossy()))?;
    let own = i32::try_from(child.id()).unwrap_or(0);
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == own => {
                let by_signal = || status.terminating_signal().map_or(1, |signal| 128 + signal);
                return Ok(status.exit_status().unwrap_or_else(by_signal));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(format!("wait for the program: {errno}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let read = Request::read(b"arg=/bin/echo\0arg=a=b\0env=HOME=/root\0dir=/tmp\0terminal=yes\0");
        let request = read.expect("a request");
        assert_eq!(request.command, ["/bin/echo", "a=b"]);
        assert_eq!(request.environment, [("HOME".into(), "/root".into())]);
        assert_eq!(
            (request.folder, request.has_terminal),
            (Some("/tmp".into()), true)
        );
        let with = Request::read(b"arg=x\0disk=yes\0").expect("a request");
        assert!(with.has_disk);
        assert!(Request::read(b"").is_err() && Request::read(b"arg=x\0other=1\0").is_err());
        assert!(!is_first(), "tests have other processes");
    }
}

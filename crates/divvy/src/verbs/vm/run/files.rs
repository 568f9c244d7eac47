//! What a machine of `divvy vm run --root` starts from: a kernel, our first process, and the program's system.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_host::machine::Sysroot;
use divvy_model::{Bytes, Code, Fault};
use divvy_vm::launch::archive::{Archive, FILE, FOLDER, Facts};
use divvy_vm::launch::modules::{DISK, FILE_SYSTEMS, Modules};
use divvy_vm::launch::named::{hint, open_named};
use divvy_vm::launch::words::Kernel;
use divvy_vm::launch::{DISK_MODULES, MODULES, REQUEST, ROOT, plain, tree};
use divvy_vm::machine::Machine;
use rustix::fs::{MemfdFlags, OFlags};

use super::Args;
use super::disk::{Disk, Use};

/// Where the files of the program's system are.
pub(super) enum System {
    /// In a folder.
    Folder(PathBuf),
    /// On the image of a disk.
    Image(Disk),
}

impl System {
    /// What `--root` names.
    pub(super) fn at(path: &Path, is_caller: bool) -> Result<Self, Fault> {
        let failed = |error: &std::io::Error| {
            Fault::new(Code::Usage, format!("cannot read `{}`", path.display()))
                .because(error)
                .hint(hint(
                    error,
                    "--root names a folder with a system's files, as mmdebstrap makes one, or the image of a disk",
                ))
        };
        let found = open_named(path, OFlags::PATH).and_then(|file| file.metadata());
        let found = found.map_err(|error| failed(&error))?;
        let kind = found.file_type();
        if kind.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Err(failed(&std::io::Error::other(
                "it is neither a folder nor an image",
            )));
        }
        Disk::open(path, Use::Reads, is_caller).map(Self::Image)
    }
}

/// What a machine starts from, and what it answers: files in memory, which no other process sees by a path.
pub(super) struct Files {
    name: PathBuf,
    kernel: File,
    initrd: File,
    status: File,
    disk: Option<String>,
}

impl Files {
    pub(super) fn make(args: &Args, system: &System, machine: &Machine) -> Result<Self, Fault> {
        let (name, folder) = kernel(args)?;
        let init = crate::verbs::guest::broker()?;
        let mut wanted = args.module.clone();
        let functions = machine.cards.iter().flat_map(|card| &card.functions);
        let disk = match system {
            System::Folder(_) => None,
            System::Image(image) => Some(image.name()),
        };
        let mut of_disk = Vec::new();
        let modules = match args.gpus.is_empty() && wanted.is_empty() && disk.is_none() {
            true => Vec::new(),
            false => {
                let modules = Modules::read(&folder)?;
                wanted.extend(functions.flat_map(|function| modules.of(function)));
                if disk.is_some() {
                    let needed = DISK.iter().map(|name| (*name).to_owned());
                    let known = FILE_SYSTEMS.iter().filter(|name| modules.has(name));
                    of_disk = modules.files(
                        &needed
                            .chain(known.map(|name| (*name).to_owned()))
                            .collect::<Vec<_>>(),
                    )?;
                }
                modules.files(&wanted)?
            }
        };
        let failed = |what: &str, error: &std::io::Error| {
            Fault::new(Code::Guest, format!("cannot make the machine's {what}")).because(error)
        };
        let memory = |name: &str| -> Result<File, Fault> {
            let made = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC);
            made.map(File::from)
                .map_err(|errno| failed("files", &errno.into()))
        };
        let (kernel, initrd, status) = (
            memory("divvy-kernel")?,
            memory("divvy-initrd")?,
            memory("divvy-status")?,
        );
        let mut archive = Archive::new(BufWriter::new(&initrd));
        let read = |from: &Path| {
            const MOST: u64 = 1 << 30;
            plain(from, MOST).map_err(|error| {
                Fault::new(Code::VmHost, format!("cannot read `{}`", from.display())).because(&error)
            })
        };
        // On many hosts root alone reads it, and QEMU is another user.
        (&kernel)
            .write_all(&read(&name)?)
            .map_err(|error| failed("kernel", &error))?;
        let mut add = |path: &str, from: &Path, mode: u32| -> Result<(), Fault> {
            archive
                .file(path, Facts::of_root(FILE | mode), &read(from)?)
                .map_err(|error| failed("files", &error))
        };
        add("init", &init, 0o755)?;
        for library in libraries(&init)? {
            let path = library.to_string_lossy().into_owned();
            add(path.trim_start_matches('/'), &library, 0o755)?;
        }
        for (place, files) in [(DISK_MODULES, &of_disk), (MODULES, &modules)] {
            for (number, module) in files.iter().enumerate() {
                let name = module.file_name().unwrap_or_default().to_string_lossy();
                add(&format!("{place}/{number:03}-{name}"), module, 0o644)?;
            }
        }
        let written = |error: std::io::Error| failed("files", &error);
        archive
            .file(
                REQUEST,
                Facts::of_root(FILE | 0o600),
                &asked(&args.command, disk.is_some()),
            )
            .map_err(written)?;
        archive
            .folder(ROOT, Facts::of_root(FOLDER | 0o755))
            .map_err(written)?;
        if let System::Folder(root) = system {
            // The kernel unpacks what it has in memory already, so there is room for half.
            let most = (args.memory.0 / 2).min(super::half_left(&Sysroot::at("/")));
            tree::add(&mut archive, root, ROOT, Bytes(most))?;
        }
        archive.end().map_err(written)?.flush().map_err(written)?;
        Ok(Self {
            name,
            kernel,
            initrd,
            status,
            disk,
        })
    }

    /// What QEMU opens by its number.
    pub(super) fn open(&self) -> [&File; 3] {
        [&self.kernel, &self.initrd, &self.status]
    }

    /// Whether the machine said more than any answer: it would go on filling this host's memory.
    pub(super) fn says_too_much(&self) -> bool {
        const MOST: u64 = 1 << 16;
        self.status.metadata().is_ok_and(|found| found.len() > MOST)
    }

    /// What QEMU is told of them; what a person reads has the kernel's name.
    pub(super) fn kernel(&self, is_shown: bool) -> Kernel {
        let open = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
        Kernel {
            kernel: match is_shown {
                true => self.name.to_string_lossy().into_owned(),
                false => open(&self.kernel),
            },
            initrd: open(&self.initrd),
            status: open(&self.status),
            disk: self.disk.clone(),
        }
    }

    /// The program's exit status, as the machine's first process said it.
    pub(super) fn answer(mut self) -> Result<u8, Fault> {
        const LONGEST: u64 = 4096;
        let mut bytes = Vec::new();
        let read = self.status.rewind().and_then(|()| {
            let mut file = (&self.status).take(LONGEST);
            file.read_to_end(&mut bytes)
        });
        read.map_err(|error| Fault::new(Code::Guest, "the machine's answer cannot be read").because(&error))?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let line = text.lines().next().unwrap_or_default();
        if let Some(status) = line.strip_prefix("exit ").and_then(|number| number.parse().ok()) {
            return Ok(status);
        }
        match line.strip_prefix("cannot ") {
            Some(why) => Err(Fault::new(
                Code::ProgramCannotRun,
                "the machine cannot run the program",
            )
            .cause(why.escape_debug().to_string())
            .hint("the program and what it loads are to be in the system of --root")),
            None => Err(
                Fault::new(Code::Guest, "the machine ended before its program did").hint(
                    "it may have too little memory for the files (--memory), or its kernel stopped: the console says",
                ),
            ),
        }
    }
}

/// What the first process is to run. `REQUEST` has the format.
fn asked(command: &[OsString], has_disk: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut word = |key: &str, value: &[u8]| {
        bytes.extend_from_slice(key.as_bytes());
        bytes.extend(value.iter().filter(|byte| **byte != 0));
        bytes.push(0);
    };
    match command {
        [] => word("arg=", b"/bin/sh"),
        words => words.iter().for_each(|one| word("arg=", one.as_bytes())),
    }
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    word("env=PATH=", path.as_bytes());
    word("env=HOME=", b"/root");
    let is_terminal = std::io::stdin().is_terminal();
    if is_terminal && let Some(kind) = std::env::var_os("TERM") {
        word("env=TERM=", kind.as_bytes());
    }
    word("terminal=", if is_terminal { b"yes" } else { b"no" });
    if has_disk {
        word("disk=", b"yes");
    }
    bytes
}

/// The kernel, and the folder of its modules.
fn kernel(args: &Args) -> Result<(PathBuf, PathBuf), Fault> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let own = PathBuf::from("/lib/modules").join(&release);
    let folder = args.modules.clone().unwrap_or_else(|| own.clone());
    let places = match &args.kernel {
        Some(kernel) => vec![kernel.clone()],
        None => vec![
            PathBuf::from(format!("/boot/vmlinuz-{release}")),
            own.join("vmlinuz"),
        ],
    };
    let look = |file: &Path| open_named(file, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
    let found = places.iter().find(|file| look(file.as_path()).is_ok());
    let found = found.cloned().ok_or_else(|| {
        let fault = Fault::new(
            Code::VmHost,
            format!("there is no kernel at `{}` that may be read", places[0].display()),
        );
        let usual = "name one with --kernel, and the folder of its modules with --modules";
        match look(places[0].as_path()) {
            Err(error) => fault.because(&error).hint(hint(&error, usual)),
            Ok(_) => fault.hint(usual),
        }
    })?;
    if found.to_str().is_none() {
        return Err(Fault::new(
            Code::Usage,
            format!("the name of the kernel `{}` is no text", found.display()),
        ));
    }
    Ok((found, folder))
}

/// The libraries that a program of ours is loaded with, the loader among them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, Fault> {
    let failed = || {
        Fault::new(
            Code::DropIn,
            format!("`ldd` does not say what {} is loaded with", program.display()),
        )
    };
    let output = Command::new(super::programs::find("ldd").ok_or_else(failed)?)
        .arg(program)
        .env_clear()
        .output()
        .map_err(|error| failed().because(&error))?;
    if !output.status.success() {
        return Err(failed());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths
        .map(|path| PathBuf::from(path.trim_end_matches(':')))
        .collect())
}

//! `divvy vm run`: a small machine with the device and its console in this terminal, for a test or for one program.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use divvy_guest::machine::Machine as Process;
use divvy_host::machine::Sysroot;
use divvy_model::{Bytes, Code, Fault};
use divvy_vm::bind::Consent;
use divvy_vm::group::Group;
use divvy_vm::kernel::Running;
use divvy_vm::launch::archive::{Archive, FILE, FOLDER, Facts};
use divvy_vm::launch::modules::Modules;
use divvy_vm::launch::words::{Kernel, Processor, words};
use divvy_vm::launch::{MODULES, REQUEST, ROOT, tree};
use divvy_vm::machine::{Machine, Pages, Request};
use divvy_vm::output::qemu::line;
use divvy_vm::record::{Runner, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{address, args::pages};
use crate::context::Context;
use crate::flags::parse;
use crate::output;
use crate::report::remark;

/// Flags of `divvy vm run`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy vm run 65:00.0 --disk trainer.qcow2 --vcpus 6 --memory 32GiB
  divvy vm run 65:00.0 --root /srv/debian --memory 8GiB -- nvidia-smi
  divvy vm run --root /srv/debian                  # without a GPU: a shell, to try the kernel and the files
  divvy vm run 65:00.0 --root /srv/debian --dry-run")]
pub struct Args {
    /// The GPUs' PCI addresses: their groups go to VFIO before, and come back after
    #[arg(value_name = "ADDRESS", value_parser = address)]
    gpus: Vec<String>,
    /// Run a program in the system whose files are in this folder. They are copied into the machine's memory
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with = "disk",
        required_unless_present = "disk"
    )]
    root: Option<PathBuf>,
    /// Start what is on this disk, as its firmware does
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kernel", "modules", "module", "command"])]
    disk: Option<String>,
    /// With --root: the kernel [default: this host's]
    #[arg(long, value_name = "FILE", requires = "modules")]
    kernel: Option<PathBuf>,
    /// With --root: the folder of that kernel's modules [default: this host's, below /lib/modules]
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// With --root: load this module too, besides the drivers of the GPUs
    #[arg(long, value_name = "NAME")]
    module: Vec<String>,
    /// How many processors the machine has
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1024))]
    vcpus: u32,
    /// How much memory it has
    #[arg(long, value_name = "SIZE", value_parser = parse::<Bytes>, default_value = "2GiB")]
    memory: Bytes,
    /// What its memory is made of: huge pages of 1GiB or 2MiB, or ordinary ones (4KiB)
    #[arg(long, value_name = "SIZE", value_parser = pages, default_value = "4KiB")]
    pages: Pages,
    /// By iommufd: QEMU 8.2 and later, on kernels of 6.6 and later
    #[arg(long)]
    iommufd: bool,
    /// A function of another card that may go along, where it is in a GPU's group
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    with: Vec<String>,
    /// Though a GPU shows this machine's console
    #[arg(long)]
    boot_display: bool,
    /// By QEMU's own processor though there is KVM: slow, and it needs nothing of the host
    #[arg(long)]
    no_kvm: bool,
    /// Print QEMU's command line, and start nothing
    #[arg(long)]
    dry_run: bool,
    /// The program and its arguments [default: /bin/sh]
    #[arg(last = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl Args {
    /// A program on one GPU, for `divvy run --isolation vm`.
    pub fn of_program(gpu: &str, root: &Path, command: &[OsString], dry_run: bool) -> Self {
        Self {
            gpus: vec![gpu.to_owned()],
            root: Some(root.to_owned()),
            disk: None,
            kernel: None,
            modules: None,
            module: Vec::new(),
            vcpus: 1,
            memory: Bytes(4 << 30),
            pages: Pages::Ordinary,
            iommufd: false,
            with: Vec::new(),
            boot_display: false,
            no_kvm: false,
            dry_run,
            command: command.to_vec(),
        }
    }
}

/// Starts the machine, and waits for its end.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let tree = Sysroot::at("/");
    let request = Request {
        name: "divvy-run".to_owned(),
        gpus: args.gpus.clone(),
        vcpus: args.vcpus,
        memory: args.memory,
        pages: args.pages,
        iommufd: args.iommufd,
        windows: false,
        disk: args.disk.clone(),
    };
    let machine = Machine::plan(&tree, request)?;
    let processor = match args.no_kvm {
        true => Processor::Emulated,
        false => processor(),
    };
    let qemu = qemu()?;
    let started = match &args.root {
        Some(root) => Some(Files::make(args, root, &machine)?),
        None => None,
    };
    let kernel = started.as_ref().map(Files::kernel);
    let mut all = words(&machine, processor, kernel.as_ref());
    all[0] = qemu.to_string_lossy().into_owned();
    if args.dry_run {
        output::print(&line(&all))?;
        return Ok(0);
    }
    if processor == Processor::Emulated && !args.no_kvm {
        remark(
            "there is no KVM for this user: QEMU's own processor runs the machine, at a small part of the speed",
        );
    }
    // Before anything changes: from here on Ctrl-C ends the machine, and the groups come back.
    let signals = Signals::watch()?;
    let mut groups = Groups::new(&tree);
    let ended = groups
        .take(args, context)
        .and_then(|()| machine_ends(&all, &signals, started));
    let given_back = groups.give_back();
    let status = ended?;
    given_back?;
    Ok(status)
}

/// Starts QEMU and waits for it; the exit status.
fn machine_ends(words: &[String], signals: &Signals, files: Option<Files>) -> Result<u8, Fault> {
    let failed = |what: &str, error: &std::io::Error| Fault::new(Code::Guest, what.to_owned()).because(error);
    let machine = Process::start(Command::new(&words[0]).args(&words[1..])).map_err(|error| {
        Fault::new(Code::ProgramCannotRun, format!("{} cannot be started", words[0])).because(&error)
    })?;
    let watched = machine
        .ended()
        .map_err(|errno| failed("the machine cannot be watched", &errno.into()))?;
    loop {
        if let Some(signal) = signals.seen() {
            // Dropping the machine kills it.
            return Ok(u8::try_from(128 + signal).unwrap_or(1));
        }
        let mut look = [PollFd::new(&watched, PollFlags::IN)];
        let most = Timespec {
            tv_sec: 0,
            tv_nsec: 200_000_000,
        };
        match poll(&mut look, Some(&most)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => break,
            Err(errno) => return Err(failed("the machine cannot be watched", &errno.into())),
        }
    }
    let status = machine
        .wait()
        .map_err(|error| failed("the machine's end cannot be waited for", &error))?;
    if let Some(signal) = signals.seen() {
        return Ok(u8::try_from(128 + signal).unwrap_or(1));
    }
    match (status.code(), files) {
        (Some(0), None) => Ok(0),
        (Some(0), Some(files)) => files.answer(),
        (Some(_), _) => Err(Fault::new(Code::Guest, "QEMU did not run the machine")
            .hint("its own message is above; `--dry-run` prints its command line")),
        (None, _) => {
            let signal = status.signal().unwrap_or(1);
            Err(
                Fault::new(Code::Guest, format!("QEMU was ended by signal {signal}"))
                    .hint("its own message is above; `--no-kvm` runs the machine without KVM"),
            )
        }
    }
}

/// The host's own processors where this user may have them.
fn processor() -> Processor {
    let kvm = File::options().read(true).write(true).open("/dev/kvm");
    match kvm {
        Ok(_) => Processor::Kvm,
        Err(_) => Processor::Emulated,
    }
}

fn qemu() -> Result<PathBuf, Fault> {
    const NAME: &str = "qemu-system-x86_64";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(NAME));
    places.find(|file| file.is_file()).ok_or_else(|| {
        Fault::new(Code::VmHost, format!("there is no {NAME} on this host"))
            .hint("install QEMU: `apt-get install qemu-system-x86`, or `dnf install qemu-kvm`")
    })
}

/// The groups that were given to VFIO for this machine.
struct Groups<'a> {
    tree: &'a Sysroot,
    taken: Vec<String>,
}

impl<'a> Groups<'a> {
    fn new(tree: &'a Sysroot) -> Self {
        Self {
            tree,
            taken: Vec::new(),
        }
    }

    /// Gives them to VFIO. What is there already stays there afterwards too.
    fn take(&mut self, args: &Args, context: &Context) -> Result<(), Fault> {
        let consent = Consent {
            with: args.with.clone(),
            boot_display: args.boot_display,
        };
        for gpu in &args.gpus {
            super::bind::no_slices(context, &Group::of(self.tree, gpu)?)?;
            let store = Store::open(Path::new("/"))?;
            let plan = divvy_vm::bind::bind(self.tree, &mut Running::new(), &store, gpu, &consent)?;
            if !plan.changes.is_empty() {
                self.taken.push(gpu.clone());
                // Where this process is killed, `divvy vm restore` gives it back.
                store.note_runner(gpu, Runner::of(self.tree, std::process::id()))?;
            }
        }
        Ok(())
    }

    /// Gives them back.
    fn give_back(&mut self) -> Result<(), Fault> {
        let mut first = Ok(());
        for gpu in self.taken.drain(..).rev() {
            let back = Store::open(Path::new("/")).and_then(|store| {
                divvy_vm::bind::unbind(self.tree, &mut Running::new(), &store, &gpu).map(|_| ())
            });
            let back = back.map_err(|fault| {
                fault.hint(format!(
                    "`divvy vm unbind {gpu}` gives it back to its first driver"
                ))
            });
            first = first.and(back);
        }
        first
    }
}

/// The signals that end the machine.
struct Signals(Arc<AtomicUsize>);

impl Signals {
    fn watch() -> Result<Self, Fault> {
        let seen = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let value = usize::try_from(signal).unwrap_or(1);
            signal_hook::flag::register_usize(signal, seen.clone(), value)
                .map_err(|error| Fault::new(Code::Internal, "cannot listen for signals").because(&error))?;
        }
        Ok(Self(seen))
    }

    fn seen(&self) -> Option<i32> {
        let signal = self.0.load(Ordering::Relaxed);
        i32::try_from(signal).ok().filter(|signal| *signal != 0)
    }
}

/// What a machine starts from, and what it answers: files in memory, which no other process sees by a path.
struct Files {
    kernel: PathBuf,
    initrd: File,
    status: File,
}

impl Files {
    fn make(args: &Args, root: &Path, machine: &Machine) -> Result<Self, Fault> {
        let (kernel, folder) = kernel(args)?;
        let init = crate::verbs::guest::broker()?;
        let mut wanted = args.module.clone();
        let functions = machine.cards.iter().flat_map(|card| &card.functions);
        let modules = match (args.gpus.is_empty(), wanted.is_empty()) {
            (true, true) => Vec::new(),
            _ => {
                let modules = Modules::read(&folder)?;
                wanted.extend(functions.flat_map(|function| modules.of(function)));
                modules.files(&wanted)?
            }
        };
        let failed = |what: &str, error: &std::io::Error| {
            Fault::new(Code::Guest, format!("cannot make the machine's {what}")).because(error)
        };
        let memory = |name: &str| -> Result<File, Fault> {
            // QEMU opens them by the number, so they stay open in it.
            let made = rustix::fs::memfd_create(name, MemfdFlags::empty());
            made.map(File::from)
                .map_err(|errno| failed("files", &errno.into()))
        };
        let (initrd, status) = (memory("divvy-initrd")?, memory("divvy-status")?);
        let mut archive = Archive::new(BufWriter::new(&initrd));
        let mut add = |path: &str, from: &Path, mode: u32| -> Result<(), Fault> {
            let bytes = std::fs::read(from).map_err(|error| {
                Fault::new(Code::VmHost, format!("cannot read `{}`", from.display())).because(&error)
            })?;
            archive
                .file(path, Facts::of_root(FILE | mode), &bytes)
                .map_err(|error| failed("files", &error))
        };
        add("init", &init, 0o755)?;
        for library in libraries(&init)? {
            let path = library.to_string_lossy().into_owned();
            add(path.trim_start_matches('/'), &library, 0o755)?;
        }
        for (number, module) in modules.iter().enumerate() {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            add(&format!("{MODULES}/{number:03}-{name}"), module, 0o644)?;
        }
        let written = |error: std::io::Error| failed("files", &error);
        archive
            .file(REQUEST, Facts::of_root(FILE | 0o600), &asked(&args.command))
            .map_err(written)?;
        archive
            .folder(ROOT, Facts::of_root(FOLDER | 0o755))
            .map_err(written)?;
        // The kernel unpacks what it has in memory already, so there is room for half.
        tree::add(&mut archive, root, ROOT, Bytes(args.memory.0 / 2))?;
        archive.end().map_err(written)?.flush().map_err(written)?;
        Ok(Self {
            kernel,
            initrd,
            status,
        })
    }

    fn kernel(&self) -> Kernel {
        let open = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
        Kernel {
            kernel: self.kernel.to_string_lossy().into_owned(),
            initrd: open(&self.initrd),
            status: open(&self.status),
        }
    }

    /// The program's exit status, as the machine's first process said it.
    fn answer(mut self) -> Result<u8, Fault> {
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
            .hint("the program and what it loads are to be in the folder of --root")),
            None => Err(
                Fault::new(Code::Guest, "the machine ended before its program did").hint(
                    "it may have too little memory for the files (--memory), or its kernel stopped: the console says",
                ),
            ),
        }
    }
}

/// What the first process is to run. `REQUEST` has the format.
fn asked(command: &[OsString]) -> Vec<u8> {
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
    let found = places.iter().find(|file| File::open(file).is_ok());
    let found = found.cloned().ok_or_else(|| {
        Fault::new(
            Code::VmHost,
            format!("there is no kernel at `{}` that may be read", places[0].display()),
        )
        .hint("name one with --kernel, and the folder of its modules with --modules")
    })?;
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
    let output = Command::new("ldd")
        .arg(program)
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

//! `divvy vm run`: a small machine with the device and its console in this terminal, for a test or for one program.

mod disk;
mod files;
mod programs;
mod user;

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use divvy_guest::machine::Machine as Process;
use divvy_host::machine::Sysroot;
use divvy_model::{Bytes, Code, Fault};
use divvy_vm::bind::Consent;
use divvy_vm::group::Group;
use divvy_vm::kernel::Running;
use divvy_vm::launch::words::{Processor, with_iommu, words};
use divvy_vm::lent::{self, Loan};
use divvy_vm::machine::{Machine, Pages, Request};
use divvy_vm::output::qemu::line;
use divvy_vm::record::{Runner, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use self::disk::{Disk, Use};
use self::files::{Files, System};
use self::user::User;
use super::{address, args};
use crate::context::Context;
use crate::output;
use crate::report::remark;

/// How long another `divvy vm` may be at work: each is for a moment.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Flags of `divvy vm run`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy vm run 65:00.0 --disk trainer.qcow2 --vcpus 6 --memory 32GiB
  divvy vm run 65:00.0 --root /srv/debian --memory 8GiB -- nvidia-smi
  divvy vm run --root /srv/debian                  # without a GPU: a shell, to try the kernel and the files
  divvy vm run 65:00.0 --root /srv/debian --dry-run")]
pub struct Args {
    /// The GPUs' PCI addresses: their groups go to VFIO before, and come back after
    #[arg(value_name = "ADDRESS", value_parser = gpu)]
    gpus: Vec<String>,
    /// Run a program in the system whose files are in this folder, or on this disk's image (raw, or `.qcow2`). A folder is
    /// copied into the machine's memory, an image is read where it is; neither is changed
    #[arg(
        long,
        value_name = "DIR|IMAGE",
        conflicts_with = "disk",
        required_unless_present = "disk"
    )]
    root: Option<PathBuf>,
    /// Start what is on this disk, as its firmware does
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kernel", "modules", "module", "command"], value_parser = NonEmptyStringValueParser::new())]
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
    #[arg(long, value_name = "SIZE", value_parser = args::memory, default_value = "2GiB")]
    memory: Bytes,
    /// What its memory is made of: huge pages of 1GiB or 2MiB, or ordinary ones (4KiB)
    #[arg(long, value_name = "SIZE", value_parser = args::pages, default_value = "4KiB")]
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
            memory: memory(&Sysroot::at("/")),
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

/// A GPU's address; a program without `--` before it lands here too.
fn gpu(text: &str) -> Result<String, Fault> {
    address(text).map_err(|fault| {
        fault.hint(
            "an address is like 0000:65:00.0, as `divvy vm status` lists them; a program comes behind `--`",
        )
    })
}

/// The memory of a program's machine: 4 GiB, or half of what this host has left where that is less.
fn memory(host: &Sysroot) -> Bytes {
    // Whole pages of 2 MiB, for QEMU counts in MiB.
    Bytes(half_left(host).clamp(256 << 20, 4 << 30) >> 21 << 21)
}

/// Half of the memory that this host has left, in bytes.
fn half_left(host: &Sysroot) -> u64 {
    let text = host.text("proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let left = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    left.map_or(u64::MAX, |kib| kib.saturating_mul(1024) / 2)
}

/// Starts the machine, and waits for its end.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let tree = Sysroot::at("/");
    // What was typed comes before what this host lacks.
    let user = User::own()?;
    let is_caller = user.is_none();
    let system = args
        .root
        .as_deref()
        .map(|root| System::at(root, is_caller))
        .transpose()?;
    let disk = args
        .disk
        .as_deref()
        .map(|disk| Disk::open(Path::new(disk), Use::Writes, is_caller))
        .transpose()?;
    let request = Request {
        name: "divvy-run".to_owned(),
        gpus: args.gpus.clone(),
        vcpus: args.vcpus,
        memory: args.memory,
        pages: args.pages,
        iommufd: args.iommufd,
        windows: false,
        disk: disk.as_ref().map(Disk::name),
        vgpus: Vec::new(),
    };
    let machine = Machine::plan(&tree, request)?;
    let processor = match args.no_kvm {
        true => Processor::Emulated,
        false => processor(user),
    };
    let qemu = qemu()?;
    let started = match &system {
        Some(system) => Some(Files::make(args, system, &machine)?),
        None => None,
    };
    let kernel = started.as_ref().map(|files| files.kernel(args.dry_run));
    let mut all = words(&machine, processor, kernel.as_ref());
    all[0] = qemu.to_string_lossy().into_owned();
    if args.dry_run {
        output::print(&line(&all))?;
        return Ok(0);
    }
    let disk = match &system {
        Some(System::Image(image)) => Some(image),
        _ => disk.as_ref(),
    };
    if let Some(disk) = disk {
        disk.opened().put(&mut all);
    }
    if processor == Processor::Emulated && !args.no_kvm {
        remark(
            "there is no KVM for this user: QEMU's own processor runs the machine, at a small part of the speed",
        );
    }
    let mut functions = machine.cards.iter().flat_map(|card| &card.functions);
    if let Some(function) = functions.find(|function| function.resets.as_ref().is_none_or(Vec::is_empty)) {
        remark(&format!(
            "the kernel has no way to reset {}: the next program may find there what this one leaves",
            function.address
        ));
    }
    // Before anything changes: from here on Ctrl-C ends the machine, and the groups come back.
    let signals = Signals::watch()?;
    let mut groups = Groups::new(&tree);
    let ended = groups.take(args, context).and_then(|()| {
        let mut files: Vec<&File> = disk.map(|disk| disk.files().iter().collect()).unwrap_or_default();
        let iommu = groups.lend(args, user)?;
        if let Some(iommu) = &iommu {
            with_iommu(&mut all, iommu.as_raw_fd());
            files.push(iommu);
        }
        machine_ends(&all, user, &files, &signals, started)
    });
    let given_back = groups.give_back();
    let status = ended?;
    given_back?;
    Ok(status)
}

/// Starts QEMU with these files open and waits for it; the exit status.
fn machine_ends(
    words: &[String],
    user: Option<User>,
    open: &[&File],
    signals: &Signals,
    files: Option<Files>,
) -> Result<u8, Fault> {
    let failed = |what: &str, error: &std::io::Error| Fault::new(Code::Guest, what.to_owned()).because(error);
    let own = files.iter().flat_map(Files::open);
    for file in own.chain(open.iter().copied()) {
        rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())
            .map_err(|errno| failed("the machine cannot have its files", &errno.into()))?;
    }
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    if let Some(user) = user {
        user.becomes(&mut command);
    }
    let _terminal = Terminal::keep();
    let machine = Process::start(&mut command).map_err(|error| {
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
        if files.as_ref().is_some_and(Files::says_too_much) {
            return Err(Fault::new(
                Code::Guest,
                "the machine filled its second serial port, and was ended",
            )
            .hint("that port is for the program's exit status alone: look at what writes to /dev/ttyS1"));
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

/// The host's own processors where QEMU's user may have them.
fn processor(user: Option<User>) -> Processor {
    let kvm = File::options().read(true).write(true).open("/dev/kvm");
    match kvm.is_ok() && user.is_none_or(User::has_kvm) {
        true => Processor::Kvm,
        false => Processor::Emulated,
    }
}

fn qemu() -> Result<PathBuf, Fault> {
    const NAME: &str = "qemu-system-x86_64";
    programs::find(NAME).ok_or_else(|| {
        Fault::new(Code::VmHost, format!("there is no {NAME} on this host"))
            .hint("install QEMU: `apt-get install qemu-system-x86`, or `dnf install qemu-kvm`")
    })
}

/// The groups that were given to VFIO for this machine.
struct Groups<'a> {
    tree: &'a Sysroot,
    taken: Vec<String>,
    loan: Option<Loan>,
}

impl<'a> Groups<'a> {
    fn new(tree: &'a Sysroot) -> Self {
        Self {
            tree,
            taken: Vec::new(),
            loan: None,
        }
    }

    /// Gives them to VFIO. What is there already stays there afterwards too.
    fn take(&mut self, args: &Args, context: &Context) -> Result<(), Fault> {
        let consent = Consent {
            with: args.with.clone(),
            boot_display: args.boot_display,
        };
        // A machine without a GPU has a user too, who must not be the one that a killed machine's files were left with.
        if !lent::left(self.tree, Path::new("/")).is_empty() {
            super::store_within(TIMEOUT)?;
        }
        for gpu in &args.gpus {
            super::bind::no_slices(context, &Group::of(self.tree, gpu)?)?;
            let store = super::store()?;
            // Where this process is killed, `divvy vm restore` gives it back.
            let runner = Runner::of(self.tree, std::process::id());
            let plan =
                divvy_vm::bind::bind_for(self.tree, &mut Running::new(), &store, gpu, &consent, runner)?;
            if !plan.changes.is_empty() {
                self.taken.push(gpu.clone());
            }
            // One may have been made meanwhile: nothing of it runs on a device that is on VFIO.
            super::bind::no_slices(context, &plan.group)?;
        }
        Ok(())
    }

    /// Lets QEMU's user have them; `/dev/iommu`, where QEMU needs it.
    fn lend(&mut self, args: &Args, user: Option<User>) -> Result<Option<File>, Fault> {
        let failed = |error: &std::io::Error| {
            Fault::new(Code::Guest, "the machine's user cannot have the GPU's files").because(error)
        };
        let Some(user) = user.filter(|_| !args.gpus.is_empty()) else {
            return Ok(None);
        };
        let groups = args.gpus.iter().map(|gpu| Group::of(self.tree, gpu));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let store = super::store_within(TIMEOUT)?;
        self.loan = Some(user.lend(self.tree, &store, &groups)?);
        match args.iommufd {
            true => {
                let file = File::options().read(true).write(true).open("/dev/iommu");
                file.map(Some).map_err(|error| failed(&error))
            }
            false => Ok(None),
        }
    }

    /// Gives them back.
    fn give_back(&mut self) -> Result<(), Fault> {
        let mut first = Ok(());
        if let Some(loan) = self.loan.take() {
            let store = Store::open_within(Path::new("/"), TIMEOUT);
            first = store.and_then(|store| loan.give_back(self.tree, &store).map(|_| ()));
        }
        for gpu in self.taken.drain(..).rev() {
            let back = Store::open_within(Path::new("/"), TIMEOUT)
                .and_then(|store| divvy_vm::bind::put_back_run(self.tree, &mut Running::new(), &store, &gpu));
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

/// How this terminal was. QEMU makes it raw, and puts it back at its own end alone: not where it is killed.
struct Terminal(Option<Termios>);

impl Terminal {
    fn keep() -> Self {
        Self(tcgetattr(std::io::stdin()).ok())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(was) = &self.0 {
            let _as_it_was = tcsetattr(std::io::stdin(), OptionalActions::Now, was);
        }
    }
}

/// The signals that end the machine.
struct Signals(Arc<AtomicUsize>);

impl Signals {
    fn watch() -> Result<Self, Fault> {
        let seen = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM] {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_its_dashes_is_told_of_them() {
        assert_eq!(gpu("65:00.0").expect("an address"), "0000:65:00.0");
        let hint = gpu("true").expect_err("a program").hint.expect("a hint");
        assert!(hint.contains("behind `--`"), "{hint}");
    }
}

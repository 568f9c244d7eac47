//! `divvy emulate profile`: what each instruction of a program's kernels did, counted while they run.
//!
//! A process is profiled where `DIVVY_PROFILE` names a folder for the counts. As with checks, modules have functions
//! that count in front of their instructions' own there, and nowhere else (docs/adr/0070).

mod traffic;

use crate::fork;
use divvy_device::log;
use divvy_ptx::{Module, Place, Touch, WarpAt, Watch, Window};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The folder that counts are written to.
const FOLDER: &str = "DIVVY_PROFILE";

static PROFILER: OnceLock<Option<Profiler>> = OnceLock::new();

/// What profiles this process.
pub struct Profiler {
    folder: PathBuf,
    kernels: Mutex<BTreeMap<String, Kernel>>,
}

/// What a kernel did in all its launches.
#[derive(Default)]
struct Kernel {
    launches: u64,
    blocks: u64,
    /// By the line in the PTX text and the text of it: a kernel of the same name in another module has others.
    lines: BTreeMap<(u32, String), Line>,
}

#[derive(Default)]
struct Line {
    source: Option<(String, u32)>,
    counts: Counts,
}

/// What an instruction did.
#[derive(Default, Clone, Copy)]
struct Counts {
    /// Times that a warp executed it.
    warps: u64,
    /// Lanes that did, all times together.
    lanes: u64,
    /// Accesses of warps to device memory, the bytes that their lanes asked for, the sectors of 32 bytes that these lie
    /// in, and how many sectors would do if the bytes were neighbours.
    requests: u64,
    bytes: u64,
    sectors: u64,
    ideal: u64,
    /// Accesses of warps to shared memory, and the passes they take: one without bank conflicts.
    shared: u64,
    passes: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.warps += other.warps;
        self.lanes += other.lanes;
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.sectors += other.sectors;
        self.ideal += other.ideal;
        self.shared += other.shared;
        self.passes += other.passes;
    }
}

/// The profiler, where this process is profiled and `cuInit` was called.
pub fn on() -> Option<&'static Profiler> {
    PROFILER.get()?.as_ref()
}

/// At `cuInit`: whether this process is to be profiled.
pub fn begin() {
    PROFILER.get_or_init(|| {
        let folder = PathBuf::from(std::env::var_os(FOLDER).filter(|folder| !folder.is_empty())?);
        // A set-id program writes to no folder that its caller names.
        if log::is_secure() {
            return None;
        }
        // SAFETY: the function takes nothing and keeps to what is static.
        let _registered = unsafe { libc::atexit(write_at_exit) };
        let profiler = Profiler {
            folder,
            kernels: Mutex::default(),
        };
        profiler.write();
        Some(profiler)
    });
}

extern "C" fn write_at_exit() {
    // A panic must not pass into the C library.
    let _ended = std::panic::catch_unwind(|| {
        if let Some(profiler) = on().filter(|_| !fork::is_child()) {
            profiler.write();
        }
    });
}

impl Profiler {
    fn kernels(&self) -> MutexGuard<'_, BTreeMap<String, Kernel>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all counts, in the place of what was written before.
    fn write(&self) {
        let mut text = String::new();
        for (name, kernel) in &*self.kernels() {
            for ((ptx_line, instruction), line) in &kernel.lines {
                let counts = &line.counts;
                let source = line.source.as_ref().map_or("null".into(), |(file, line)| {
                    crate::check::quoted(&format!("{file}:{line}"))
                });
                let _ = writeln!(
                    text,
                    "{{\"kernel\":{},\"launches\":{},\"blocks\":{},\"source\":{source},\"ptx_line\":{ptx_line},\
                     \"instruction\":{},\"warps\":{},\"lanes\":{},\"requests\":{},\"bytes\":{},\"sectors\":{},\
                     \"ideal_sectors\":{},\"shared_accesses\":{},\"shared_passes\":{}}}",
                    crate::check::quoted(name),
                    kernel.launches,
                    kernel.blocks,
                    crate::check::quoted(instruction),
                    counts.warps,
                    counts.lanes,
                    counts.requests,
                    counts.bytes,
                    counts.sectors,
                    counts.ideal,
                    counts.shared,
                    counts.passes,
                );
            }
        }
        let file = self.folder.join(format!("{}.jsonl", std::process::id()));
        let unfinished = file.with_extension("new");
        let written = std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(&unfinished, &file));
        if let Err(why) = written {
            log::once("profile", format_args!("cannot write {}: {why}", file.display()));
        }
    }
}

/// A launch that is counted.
pub struct Counted<'a> {
    profiler: &'a Profiler,
    module: &'a Module,
    kernel: &'a str,
    blocks: u64,
    counts: Mutex<Vec<Counts>>,
}

impl<'a> Counted<'a> {
    /// A launch of a kernel with so many blocks.
    pub fn new(profiler: &'a Profiler, module: &'a Module, kernel: &'a str, grid: [u32; 3]) -> Counted<'a> {
        Counted {
            profiler,
            module,
            kernel,
            blocks: grid.iter().map(|&size| u64::from(size)).product(),
            counts: Mutex::default(),
        }
    }

    /// The launch is over: its counts go to its kernel's.
    pub fn ended(self) {
        let counts = self.counts.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut kernels = self.profiler.kernels();
        let kernel = kernels.entry(self.kernel.to_owned()).or_default();
        kernel.launches += 1;
        kernel.blocks += self.blocks;
        for (n, counts) in counts.iter().enumerate().filter(|(_, counts)| counts.warps > 0) {
            let Some(Place { line, text, source }) = self.module.place(n as u32) else {
                continue;
            };
            let line = kernel.lines.entry((line, text)).or_default();
            line.source = source;
            line.counts.add(counts);
        }
    }

    fn at(&self, at: &WarpAt, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let n = at.instruction as usize;
        if counts.len() <= n {
            counts.resize(n + 1, Counts::default());
        }
        change(&mut counts[n]);
    }
}

impl Watch for Counted<'_> {
    fn issue(&self, at: &WarpAt) {
        self.at(at, |counts| {
            counts.warps += 1;
            counts.lanes += u64::from(at.lanes.count_ones());
        });
    }

    fn touch(&self, at: &WarpAt, touch: &Touch<'_>) {
        let addresses: Vec<u64> = (0..32)
            .filter(|lane| touch.lanes >> lane & 1 != 0)
            .map(|lane| touch.addresses[lane])
            .collect();
        match touch.window {
            Window::Global => {
                let sectors = traffic::sectors(&addresses, touch.bytes);
                let bytes = touch.bytes * addresses.len() as u64;
                self.at(at, |counts| {
                    counts.requests += 1;
                    counts.bytes += bytes;
                    counts.sectors += sectors;
                    counts.ideal += traffic::ideal(&addresses, touch.bytes);
                });
            }
            Window::Shared => {
                let passes = traffic::passes(&addresses, touch.bytes);
                self.at(at, |counts| {
                    counts.shared += 1;
                    counts.passes += passes;
                });
            }
            Window::Local | Window::System => {}
        }
    }

    fn fence(&self, _: &WarpAt, _: bool) {}
    fn arrive(&self, _: &WarpAt, _: u32, _: u32, _: bool, _: bool) {}
    fn open(&self, _: u64, _: u32) {}
    fn open_grid(&self) {}
    fn meet(&self, _: &WarpAt) {}
    fn object(&self, _: &WarpAt, _: u64, _: bool) {}
}

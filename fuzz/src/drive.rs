//! What the targets do with one input; the stable replay in crates/ptx/tests/corpus.rs includes this file as well.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use divvy_ptx::{AddressSpace, Addressing, Channel, Engine, Fault, Image, Kernel, Launch, Module, Texture};

/// Longest a launch may take before it is told to stop.
const BUDGET: Duration = Duration::from_millis(20);

/// Longest after that until it must have stopped; generous, for machines that are busy.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of device memory the mutants get: enough for their variables and all their arguments.
const ARENA_BYTES: usize = 1 << 20;

/// Parses any bytes; an error must be one sentence with a place in the text.
pub fn parse(data: &[u8]) -> Option<Arc<Module>> {
    match Module::parse(data) {
        Ok(module) => Some(Arc::new(module)),
        Err(error) => {
            let sentence = error.to_string();
            assert!(!sentence.is_empty() && !sentence.contains('\n'), "{sentence:?}");
            let lines = data.iter().filter(|byte| **byte == b'\n').count() as u32 + 1;
            assert!(error.line <= lines, "line {} of {lines}", error.line);
            None
        }
    }
}

/// How the launches of one input ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    pub well: u32,
    pub faults: u32,
    pub cancelled: u32,
    pub refused: u32,
}

/// Parses, links and launches every kernel (the first few) with arguments that point into the arena.
pub fn run(data: &[u8]) -> Ends {
    let mut ends = Ends::default();
    let Some(module) = parse(data) else { return ends };
    let arena = Arena::new();
    let mut used = 0u64;
    let program = module.link(&mut |global| {
        // A variable too large for the arena lies outside of it: touching it must fault.
        let at = used.next_multiple_of(global.align.clamp(1, 4096));
        used = at.saturating_add(global.size).min(1 << 40);
        arena.address() + at
    });
    let Ok(program) = program else { return ends };
    for (global, at) in module.globals().iter().zip(0..64u64) {
        // Initialisers are data of their own; only their making is under test here.
        if global.size <= ARENA_BYTES as u64 {
            let bytes = program.initial_bytes(global);
            assert!(
                bytes.is_none_or(|bytes| bytes.len() as u64 == global.size),
                "global {at}"
            );
        }
    }
    for kernel in module.kernels().iter().take(4) {
        let params = arguments(kernel, arena.address());
        let cancel = AtomicBool::new(false);
        let ticks = AtomicU64::new(0);
        let launch = Launch {
            kernel: &kernel.name,
            grid: [3, 1, 1],
            block: [48, 1, 1],
            dynamic_shared_bytes: 1024,
            params: &params,
            memory: &arena,
            cooperative: false,
            clock_ns: &|| ticks.fetch_add(1000, Ordering::Relaxed),
            print: &|_| (),
            cancel: &cancel,
            sm_count: 2,
            clock_khz: 1_000_000,
            timing: None,
            compile: false,
        };
        match watched(&cancel, || engine().run(&program, &launch)) {
            Ok(_) => ends.well += 1,
            Err(Fault::Cancelled) => ends.cancelled += 1,
            Err(fault @ (Fault::BadLaunch(_) | Fault::Unsupported(_))) => {
                assert!(!fault.to_string().contains('\n'), "{fault}");
                ends.refused += 1;
            }
            Err(fault) => {
                assert!(!fault.to_string().contains('\n'), "{fault}");
                ends.faults += 1;
            }
        }
    }
    ends
}

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new(2))
}

/// Pointers get places in the arena, words a small number: what the seeds' kernels expect.
fn arguments(kernel: &Kernel, arena: u64) -> Vec<u8> {
    let mut params = vec![0u8; (kernel.param_bytes as usize).min(1 << 16)];
    for (k, param) in kernel.params.iter().enumerate() {
        let (from, to) = (param.offset as usize, param.offset as usize + param.size as usize);
        let Some(place) = params.get_mut(from..to) else {
            continue;
        };
        match place.len() {
            8 => place.copy_from_slice(&(arena + 65536 + k as u64 * 16384).to_le_bytes()),
            4 => place.copy_from_slice(&40u32.to_le_bytes()),
            _ => place.fill(1),
        }
    }
    params
}

/// Runs `work`, setting `cancel` when its budget is spent; dies loudly if that does not help.
fn watched<T>(cancel: &AtomicBool, work: impl FnOnce() -> T) -> T {
    let done = (Mutex::new(false), Condvar::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let wait = |time| {
                let finished = done.0.lock().unwrap();
                *done
                    .1
                    .wait_timeout_while(finished, time, |finished| !*finished)
                    .unwrap()
                    .0
            };
            if !wait(BUDGET) {
                cancel.store(true, Ordering::Relaxed);
                if !wait(TIMEOUT) {
                    eprintln!("A cancelled launch did not stop");
                    std::process::abort();
                }
            }
        });
        let result = work();
        *done.0.lock().unwrap() = true;
        done.1.notify_all();
        result
    })
}

/// The mutants' device memory. Words, because kernels and we may both hold it.
struct Arena(Vec<AtomicU64>);

impl Arena {
    fn new() -> Arena {
        Arena((0..ARENA_BYTES / 8).map(|_| AtomicU64::new(0)).collect())
    }

    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
}

impl AddressSpace for Arena {
    fn range(&self, address: u64) -> Option<Range<u64>> {
        let range = self.address()..self.address() + ARENA_BYTES as u64;
        range.contains(&address).then_some(range)
    }

    /// Any object stands for the same small image.
    fn texture(&self, object: u64) -> Option<Texture> {
        Some(Texture {
            image: self.surface(object)?,
            addressing: [Addressing::Mirror, Addressing::Border, Addressing::Wrap],
            linear: true,
            normalised: true,
            as_float: true,
            border: [0.5; 4],
            of_memory: false,
        })
    }

    fn surface(&self, _object: u64) -> Option<Image> {
        Some(Image {
            address: self.address(),
            pitch: 64,
            slice: 512,
            extent: [16, 8, 2],
            channel: Channel::F32,
            channels: 1,
        })
    }
}

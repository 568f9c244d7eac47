//! From PTX text to a finished launch: [`Loaded`] parses and links, [`Run`] collects the arguments and runs.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use divvy_ptx::{Engine, Fault, Image, Launch, Module, Program, Stats, Texture, Timing, VectorSet};

use super::{Buffer, Memory};

/// The engine all tests of one program share: tests run at once, so launches do too.
pub fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new(2))
}

/// An engine with one worker, on which blocks follow one another.
fn alone() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new(1))
}

/// A linked module with memory behind its variables.
pub struct Loaded {
    pub module: Arc<Module>,
    pub program: Program,
    globals: Vec<(String, Buffer)>,
}

impl Loaded {
    /// Parses and links `text`; a refusal fails the test with the text beside it.
    pub fn new(text: &str) -> Loaded {
        Loaded::with(text, VectorSet::detect())
    }

    /// The same, of a processor that has no other vector instructions.
    pub fn with(text: &str, set: VectorSet) -> Loaded {
        let module = match Module::parse_for(text.as_bytes(), set) {
            Ok(module) => Arc::new(module),
            Err(error) => panic!("{error}\n{}", numbered(text)),
        };
        let globals: Vec<(String, Buffer)> = (module.globals().iter())
            .map(|global| (global.name.clone(), Buffer::zeroed(global.size as usize)))
            .collect();
        let place = &mut |wanted: &divvy_ptx::Global| {
            let (_, buffer) = globals
                .iter()
                .find(|(name, _)| *name == wanted.name)
                .expect("a global of the module");
            buffer.address()
        };
        let program = module
            .link(place)
            .unwrap_or_else(|error| panic!("{error}\n{}", numbered(text)));
        let mut loaded = Loaded {
            module,
            program,
            globals,
        };
        for index in 0..loaded.globals.len() {
            if let Some(bytes) = loaded.program.initial_bytes(&loaded.module.globals()[index]) {
                let (_, buffer) = &loaded.globals[index];
                assert_eq!(
                    bytes.len(),
                    buffer.bytes().len(),
                    "initial bytes of {}",
                    loaded.globals[index].0
                );
                buffer.fill(&bytes);
            }
        }
        loaded.globals.sort_by(|a, b| a.0.cmp(&b.0));
        loaded
    }

    /// The memory behind the module variable `name`.
    pub fn global(&self, name: &str) -> &Buffer {
        &self
            .globals
            .iter()
            .find(|(known, _)| known == name)
            .unwrap_or_else(|| panic!("no global {name}"))
            .1
    }

    /// Begins a launch of `kernel`: one block of 32 threads, no arguments, memory of the module's variables.
    pub fn kernel<'a>(&'a self, kernel: &'a str) -> Run<'a> {
        Run {
            loaded: self,
            kernel,
            grid: [1; 3],
            block: [32, 1, 1],
            shared: 0,
            params: Vec::new(),
            taken: 0,
            memory: Memory {
                ranges: self.globals.iter().map(|(_, buffer)| buffer.range()).collect(),
                ..Memory::default()
            },
            cooperative: false,
            cancel: None,
            timing: None,
            compile: None,
        }
    }
}

/// A launch in the making. Arguments are given in the kernel's order.
pub struct Run<'a> {
    loaded: &'a Loaded,
    kernel: &'a str,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: Vec<u8>,
    taken: usize,
    memory: Memory,
    cooperative: bool,
    cancel: Option<&'a AtomicBool>,
    timing: Option<Timing<'a>>,
    compile: Option<bool>,
}

impl<'a> Run<'a> {
    pub fn grid(mut self, x: u32) -> Self {
        self.grid = [x, 1, 1];
        self
    }

    pub fn grid3(mut self, grid: [u32; 3]) -> Self {
        self.grid = grid;
        self
    }

    pub fn block(mut self, x: u32) -> Self {
        self.block = [x, 1, 1];
        self
    }

    pub fn block3(mut self, block: [u32; 3]) -> Self {
        self.block = block;
        self
    }

    /// Bytes of dynamic shared memory.
    pub fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }

    pub fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }

    /// The model of its time.
    pub fn timing(mut self, timing: Timing<'a>) -> Self {
        self.timing = Some(timing);
        self
    }

    /// Only compiled, or only interpreted.
    pub fn compile(mut self, compile: bool) -> Self {
        self.compile = Some(compile);
        self
    }

    /// The flag that ends the launch when it is set.
    pub fn cancel(mut self, flag: &'a AtomicBool) -> Self {
        self.cancel = Some(flag);
        self
    }

    /// Lends a buffer for the launch and passes its address.
    pub fn buffer(self, buffer: &'a Buffer) -> Self {
        let address = buffer.address();
        self.lend(buffer).u64(address)
    }

    /// Lends a buffer without passing it.
    pub fn lend(mut self, buffer: &'a Buffer) -> Self {
        self.memory.ranges.push(buffer.range());
        self
    }

    /// Makes `object` stand for a texture.
    pub fn texture(mut self, object: u64, texture: Texture) -> Self {
        self.memory.textures.push((object, texture));
        self
    }

    /// Makes `object` stand for a surface.
    pub fn surface(mut self, object: u64, surface: Image) -> Self {
        self.memory.surfaces.push((object, surface));
        self
    }

    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn f32(self, value: f32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// The next argument, byte for byte; its size must be the parameter's.
    pub fn bytes(mut self, value: &[u8]) -> Self {
        let kernel = self
            .loaded
            .module
            .kernel(self.kernel)
            .unwrap_or_else(|| panic!("no kernel {}", self.kernel));
        let param = kernel
            .params
            .get(self.taken)
            .unwrap_or_else(|| panic!("{} takes fewer arguments", self.kernel));
        assert_eq!(
            param.size as usize,
            value.len(),
            "argument {} of {}",
            self.taken,
            self.kernel
        );
        self.params.resize(param.offset as usize, 0);
        self.params.extend_from_slice(value);
        self.taken += 1;
        self
    }

    /// Runs it and hands back how it ended, with what the kernel printed. It runs interpreted and then compiled, from
    /// the same memory, and both must end the same: bit for bit, to the count of instructions.
    pub fn outcome(mut self) -> (Result<Stats, Fault>, Vec<Vec<u8>>) {
        let bytes = self
            .loaded
            .module
            .kernel(self.kernel)
            .map_or(0, |kernel| kernel.param_bytes as usize);
        assert!(
            self.params.len() <= bytes,
            "{} says it takes {bytes} bytes",
            self.kernel
        );
        self.params.resize(bytes, 0);
        if let Some(compile) = self.compile {
            return self.once(compile);
        }
        // What comes from outside comes once.
        if self.cancel.is_some() || self.timing.is_some() || !self.memory.surfaces.is_empty() {
            return self.once(false);
        }
        let before = self.memory.snapshot();
        let (end, printed) = self.once(false);
        let interpreted = self.memory.snapshot();
        self.memory.restore(&before);
        let compiled = self.once(true);
        // A fault stops the other blocks wherever they are.
        let same = |ended: &(Result<Stats, Fault>, Vec<Vec<u8>>)| {
            match (&ended.0, &end) {
                // Any of several blocks may be the first.
                (Err(a), Err(b)) if self.grid != [1; 3] => {
                    std::mem::discriminant(a) == std::mem::discriminant(b)
                }
                (Err(a), Err(b)) => a == b,
                (a, b) => a == b && ended.1 == printed && self.memory.snapshot() == interpreted,
            }
        };
        if !same(&compiled) {
            // Blocks that race may end differently. With one worker they follow one another.
            let after = self.memory.snapshot();
            // A kernel that reads a launch's number does not end the same twice even then.
            let [interpreted, again, compiled] = [false, false, true].map(|compile| {
                self.memory.restore(&before);
                let (mut end, printed) = self.once_on(alone(), compile);
                if let Err(Fault::MisalignedAddress { address, .. }) = &mut end {
                    // In shared memory it is the host's, and differs from launch to launch.
                    *address %= 16;
                }
                ((end, printed), self.memory.snapshot())
            });
            self.memory.restore(&after);
            assert!(
                interpreted == compiled || interpreted != again,
                "{}: interpreted it ends with {:?}, compiled with {:?}{}",
                self.kernel,
                interpreted.0.0,
                compiled.0.0,
                difference(&interpreted.1, &compiled.1)
            );
        }
        compiled
    }

    /// Runs it once, interpreted or compiled.
    fn once(&self, compile: bool) -> (Result<Stats, Fault>, Vec<Vec<u8>>) {
        self.once_on(engine(), compile)
    }

    fn once_on(&self, engine: &Engine, compile: bool) -> (Result<Stats, Fault>, Vec<Vec<u8>>) {
        let begun = Instant::now();
        let printed = Mutex::new(Vec::new());
        let never = AtomicBool::new(false);
        let launch = Launch {
            kernel: self.kernel,
            grid: self.grid,
            block: self.block,
            dynamic_shared_bytes: self.shared,
            params: &self.params,
            memory: &self.memory,
            cooperative: self.cooperative,
            clock_ns: &|| begun.elapsed().as_nanos() as u64,
            print: &|text| printed.lock().unwrap().push(text.to_vec()),
            cancel: self.cancel.unwrap_or(&never),
            sm_count: 4,
            clock_khz: 1_000_000,
            timing: self.timing,
            compile,
        };
        let end = engine.run(&self.loaded.program, &launch);
        (end, printed.into_inner().unwrap())
    }

    /// Runs it and hands back how it ended.
    pub fn end(self) -> Result<Stats, Fault> {
        self.outcome().0
    }

    /// Runs it; a fault fails the test.
    pub fn ok(self) -> Stats {
        let kernel = self.kernel;
        self.end().unwrap_or_else(|fault| panic!("{kernel}: {fault}"))
    }
}

/// `text` with line numbers, as faults and errors count them.
fn numbered(text: &str) -> String {
    text.lines()
        .enumerate()
        .map(|(at, line)| format!("{:4} {line}\n", at + 1))
        .collect()
}

/// Where memory differs first.
fn difference(interpreted: &[Vec<u8>], compiled: &[Vec<u8>]) -> String {
    for (n, (a, b)) in interpreted.iter().zip(compiled).enumerate() {
        if let Some(at) = (0..a.len()).find(|at| a[*at] != b[*at]) {
            let word = |of: &[u8]| {
                of[at & !7..]
                    .iter()
                    .take(8)
                    .rev()
                    .map(|b| format!("{b:02x}"))
                    .collect::<String>()
            };
            return format!(
                "; byte {at} of range {n}: interpreted {}, compiled {}",
                word(a),
                word(b)
            );
        }
    }
    String::new()
}

//! Whole kernels as a compiler makes them, with inputs that are the same everywhere: `crates/ptx/tests/kernels` has them.

use std::ffi::CString;
use std::path::Path;

use super::driver::{CudaError, Gpu};
use super::kernels::Shape;

/// One launch of a kernel.
pub struct Program {
    /// The file, without its ending.
    pub file: &'static str,
    /// The kernel.
    pub entry: &'static str,
    /// Whether the ISA says what each bit of the result is. What is left to the device is held to be near.
    pub exact: bool,
    shape: Shape,
    arguments: &'static [Argument],
}

/// What a kernel is given. Sizes are counts of elements.
enum Argument {
    U32(u32),
    F32(f32),
    /// Single precision between 0 and 1.
    Floats(usize),
    /// Double precision: whole numbers, so that sums do not depend on their order.
    Doubles(usize),
    /// Numbers of 32 bits, less than so many.
    Numbers(usize, u32),
    Bytes(usize),
    /// Single precision that is read and written: a result.
    Changed(usize),
    /// A result of so many bytes.
    Result(usize),
    /// Zeros that are no result.
    Scratch(usize),
}

use Argument::{Bytes, Changed, Doubles, F32, Floats, Numbers, Result as Results, Scratch, U32};

const fn shape(grid: (u32, u32), block: (u32, u32), shared: u32) -> Shape {
    Shape { grid, block, shared }
}

const fn program(
    file: &'static str,
    entry: &'static str,
    exact: bool,
    shape: Shape,
    arguments: &'static [Argument],
) -> Program {
    Program {
        file,
        entry,
        exact,
        shape,
        arguments,
    }
}

const LINE: Shape = shape((20, 1), (256, 1), 0);

/// All of them.
pub const PROGRAMS: &[Program] = &[
    program(
        "saxpy",
        "saxpy",
        true,
        LINE,
        &[U32(5000), F32(1.7), Floats(5000), Changed(5000)],
    ),
    program(
        "saxpy",
        "saxpy_strided",
        true,
        shape((3, 1), (96, 1), 0),
        &[U32(5000), F32(-0.3), Floats(5000), Changed(5000)],
    ),
    program(
        "saxpy",
        "saxpy_vector",
        true,
        shape((5, 1), (256, 1), 0),
        &[U32(1250), F32(2.5), Floats(5000), Changed(5000)],
    ),
    program(
        "reduce",
        "reduce_tree",
        true,
        shape((20, 1), (256, 1), 1024),
        &[Floats(5000), Results(80), U32(5000)],
    ),
    program(
        "reduce",
        "reduce_shuffle",
        true,
        shape((7, 1), (192, 1), 0),
        &[Doubles(5000), Results(8), U32(5000)],
    ),
    program(
        "reduce",
        "reduce_atomic",
        true,
        LINE,
        &[Numbers(5000, 1 << 30), Results(8), U32(5000)],
    ),
    program(
        "reduce",
        "reduce_redux",
        true,
        LINE,
        &[Numbers(5000, 1 << 20), Results(4), Results(4), U32(5000)],
    ),
    program(
        "reduce",
        "max_by_cas",
        true,
        LINE,
        &[Floats(5000), Results(4), U32(5000)],
    ),
    program(
        "scan",
        "scan",
        true,
        LINE,
        &[
            Numbers(5000, 1000),
            Results(20_000),
            U32(5000),
            Scratch(80),
            Scratch(80),
        ],
    ),
    program(
        "matmul",
        "matmul_f32",
        true,
        shape((7, 7), (16, 16), 0),
        &[Floats(10_000), Floats(10_000), Results(40_000), U32(100)],
    ),
    program(
        "matmul",
        "matmul_f64",
        true,
        shape((3, 3), (16, 16), 0),
        &[Doubles(1600), Doubles(1600), Results(12_800), U32(40)],
    ),
    program(
        "histogram",
        "histogram",
        true,
        shape((4, 1), (128, 1), 0),
        &[Bytes(5000), Results(1024), U32(5000)],
    ),
    program(
        "histogram",
        "histogram_matched",
        true,
        LINE,
        &[Bytes(5000), Results(1024), U32(5000)],
    ),
    program(
        "stencil",
        "heat",
        true,
        shape((7, 7), (16, 16), 0),
        &[Floats(10_000), Results(40_000), U32(100), U32(100), F32(0.2)],
    ),
    program(
        "stencil",
        "blur",
        true,
        LINE,
        &[Floats(5000), Results(20_000), U32(5000)],
    ),
    program(
        "mandelbrot",
        "mandelbrot",
        true,
        shape((5, 5), (16, 16), 0),
        &[
            Results(25_600),
            U32(80),
            U32(80),
            F32(-2.0),
            F32(-1.2),
            F32(0.03),
            U32(200),
        ],
    ),
    program(
        "various",
        "switches",
        true,
        LINE,
        &[Numbers(5000, 12), Results(20_000), U32(5000)],
    ),
    program(
        "various",
        "pointers",
        true,
        LINE,
        &[Numbers(5000, 3), Results(20_000), U32(5000)],
    ),
    program(
        "softmax",
        "softmax",
        false,
        shape((10, 1), (128, 1), 0),
        &[Floats(5000), Results(20_000), U32(500)],
    ),
    program(
        "softmax",
        "softmax_fast",
        false,
        shape((10, 1), (128, 1), 0),
        &[Floats(5000), Results(20_000), U32(500)],
    ),
    program(
        "nbody",
        "nbody",
        false,
        shape((4, 1), (64, 1), 1024),
        &[Results(4096), Floats(1024), Scratch(4096), F32(0.01), U32(256)],
    ),
];

/// The same numbers on every machine: Knuth's MMIX generator, its upper half.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 32).unwrap_or_default()
    }

    /// Between 0 and 1, in steps that single precision has.
    fn float(&mut self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
        let number = (self.next() >> 8) as f32;
        number / 16_777_216.0
    }
}

impl Argument {
    /// The memory that it needs, as bytes; none where it is a value.
    fn memory(&self, random: &mut Random) -> Option<Vec<u8>> {
        let mut each = |count: usize, make: &mut dyn FnMut(&mut Random) -> Vec<u8>| {
            (0..count).flat_map(|_| make(random)).collect()
        };
        Some(match self {
            U32(_) | F32(_) => return None,
            Floats(count) | Changed(count) => {
                each(*count, &mut |random| random.float().to_le_bytes().to_vec())
            }
            Doubles(count) => each(*count, &mut |random| {
                f64::from(random.next() % 1000).to_le_bytes().to_vec()
            }),
            Numbers(count, below) => each(*count, &mut |random| {
                (random.next() % below).to_le_bytes().to_vec()
            }),
            Bytes(count) => each(*count, &mut |random| vec![random.next().to_le_bytes()[3]]),
            Results(bytes) | Scratch(bytes) => vec![0; *bytes],
        })
    }

    fn is_result(&self) -> bool {
        matches!(self, Changed(_) | Results(_))
    }
}

impl Gpu {
    /// Runs one; its results, in words of four bytes. The kernels are in `folder`.
    ///
    /// # Errors
    /// Why it could not be run.
    pub fn results_of(&self, program: &Program, folder: &Path) -> Result<Vec<u32>, String> {
        let words = |error: CudaError| error.to_string();
        let file = folder.join(format!("{}.ptx", program.file));
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", program.file))?;
        // The compiler's own version is newer than drivers are, and nothing in these kernels is.
        let text: Vec<&str> = text
            .lines()
            .map(|line| {
                if line.starts_with(".version") {
                    ".version 7.8"
                } else {
                    line
                }
            })
            .collect();
        let source = CString::new(text.join("\n")).map_err(|error| error.to_string())?;
        let entry = CString::new(program.entry).map_err(|error| error.to_string())?;
        let kernel = self.kernel(&source, &entry).map_err(words)?;
        let mut random = Random(7);
        let (mut parameters, mut places) = (Vec::new(), Vec::new());
        for argument in program.arguments {
            match (argument.memory(&mut random), argument) {
                (Some(bytes), _) => {
                    let place = self.zeroed(bytes.len()).map_err(words)?;
                    self.write(place, &bytes).map_err(words)?;
                    places.push((place, bytes.len(), argument.is_result()));
                    parameters.push(place.to_le_bytes().to_vec());
                }
                (None, F32(value)) => parameters.push(value.to_le_bytes().to_vec()),
                (None, U32(value)) => parameters.push(value.to_le_bytes().to_vec()),
                (None, _) => {}
            }
        }
        self.launch(kernel, program.shape, &mut parameters)
            .and_then(|()| self.synchronize())
            .map_err(words)?;
        let mut results = Vec::new();
        for (place, length, is_result) in places {
            if is_result {
                let bytes = self.read(place, length).map_err(words)?;
                let words = bytes
                    .chunks_exact(4)
                    .map(|word| word.try_into().unwrap_or_default());
                results.extend(words.map(u32::from_le_bytes));
            }
            self.free(place).map_err(words)?;
        }
        Ok(results)
    }
}

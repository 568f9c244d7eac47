//! Workloads that are a few arrays and numbers: what the kernel and the C loop get, and which arrays must be alike.

use divvy_ptx::{Engine, Stats};

use super::device::{Four, Lent};
use super::kernel::{Kernel, difference, values};
use super::native::Native;
use super::workload::Workload;

/// An array on a 16-byte boundary, as kernels see memory. Its elements have 1, 4 or 8 bytes.
#[derive(Clone)]
struct Array(Vec<Four>);

impl Array {
    fn of<T: Copy>(elements: &[T]) -> Array {
        let mut array = Array(vec![
            Four::default();
            size_of_val(elements).div_ceil(size_of::<Four>())
        ]);
        // SAFETY: the array has at least as many bytes, and the elements are plain numbers.
        unsafe {
            std::ptr::copy_nonoverlapping(
                elements.as_ptr().cast::<u8>(),
                array.0.as_mut_ptr().cast::<u8>(),
                size_of_val(elements),
            );
        }
        array
    }

    fn floats(&self) -> impl Iterator<Item = &f32> {
        self.0.iter().flat_map(|four| &four.0)
    }

    fn doubles(&self) -> impl Iterator<Item = f64> {
        let pair =
            |low: f32, high: f32| f64::from_bits(u64::from(high.to_bits()) << 32 | u64::from(low.to_bits()));
        (self.0.iter()).flat_map(move |four| [pair(four.0[0], four.0[1]), pair(four.0[2], four.0[3])])
    }

    /// Where it begins.
    fn start<T>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }
}

/// A kernel's argument.
#[derive(Clone, Copy)]
enum Argument {
    Array(usize),
    Int(i32),
    Float(f32),
    Double(f64),
}
use Argument::{Array as A, Double, Float, Int};

/// What the results' elements are.
#[derive(Clone, Copy)]
enum Compare {
    Floats,
    Doubles,
    /// Bit for bit.
    Words,
    /// Relative to the largest: a spectrum has elements that are almost nothing.
    Spectrum,
    /// The sum of the engine's elements is C's first.
    Sum,
}

/// A workload whose memory is some arrays.
pub struct Buffers {
    name: &'static str,
    size: String,
    kernel: Kernel,
    shape: [[u32; 3]; 2],
    arguments: Vec<Argument>,
    /// As a round finds them.
    fresh: Vec<Array>,
    /// Arrays that are put in their place again before each round.
    restored: &'static [usize],
    /// The engine's, and C's.
    arrays: [Vec<Array>; 2],
    results: &'static [usize],
    compare: Compare,
    c: fn(&Native, &mut [Array], i32),
    /// Passed to C.
    count: i32,
}

impl Workload for Buffers {
    fn name(&self) -> &'static str {
        self.name
    }

    fn size(&self) -> String {
        self.size.clone()
    }

    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn prepare(&mut self) {
        for side in &mut self.arrays {
            for n in self.restored {
                side[*n].0.copy_from_slice(&self.fresh[*n].0);
            }
        }
    }

    fn on_engine(&mut self, engine: &Engine, compile: bool) -> anyhow::Result<Stats> {
        let mut lent = Lent::default();
        let addresses: Vec<u64> = (self.arrays[0].iter_mut())
            .map(|array| lent.lend(&mut array.0))
            .collect();
        let arguments: Vec<Vec<u8>> = (self.arguments.iter())
            .map(|argument| match *argument {
                A(n) => addresses[n].to_le_bytes().to_vec(),
                Int(value) => value.to_le_bytes().to_vec(),
                Float(value) => value.to_le_bytes().to_vec(),
                Double(value) => value.to_le_bytes().to_vec(),
            })
            .collect();
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        self.kernel
            .run((engine, compile), self.shape, 0, &lent, &arguments)
    }

    fn in_c(&mut self, native: &Native) {
        (self.c)(native, &mut self.arrays[1], self.count);
    }

    fn difference(&self) -> f64 {
        let [engine, c] = &self.arrays;
        let one = |n: &usize| {
            let (a, b) = (&engine[*n], &c[*n]);
            match self.compare {
                Compare::Floats => difference(a.floats(), b.floats()),
                Compare::Doubles => (a.doubles().zip(b.doubles()))
                    .map(|(a, b)| (a - b).abs() / b.abs().max(1e-9))
                    .fold(0.0, f64::max),
                Compare::Words => {
                    let same = (a.floats().zip(b.floats())).all(|(a, b)| a.to_bits() == b.to_bits());
                    f64::from(u8::from(!same))
                }
                Compare::Spectrum => {
                    let most = b.floats().fold(0f32, |most, v| most.max(v.abs()));
                    let pairs = a.floats().zip(b.floats());
                    f64::from(pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / most)
                }
                Compare::Sum => {
                    let sum: f64 = a.floats().map(|part| f64::from(*part)).sum();
                    let c = b.floats().next().map_or(0.0, |sum| f64::from(*sum));
                    (sum - c).abs() / c.abs()
                }
            }
        };
        self.results.iter().map(one).fold(0.0, f64::max)
    }
}

const WORKLOADS: &str = include_str!("../../../../crates/ptx/tests/kernels/workloads.ptx");
const STENCIL: &str = include_str!("../../../../crates/ptx/tests/kernels/stencil.ptx");
const HISTOGRAM: &str = include_str!("../../../../crates/ptx/tests/kernels/histogram.ptx");

/// What [`workload`] needs of one.
struct Plan {
    text: &'static str,
    kernel: &'static str,
    name: &'static str,
    size: String,
    grid: [u32; 2],
    block: [u32; 2],
    arguments: Vec<Argument>,
    arrays: Vec<Array>,
    restored: &'static [usize],
    results: &'static [usize],
    compare: Compare,
    c: fn(&Native, &mut [Array], i32),
    count: usize,
}

fn workload(plan: Plan) -> anyhow::Result<Buffers> {
    let three = |[x, y]: [u32; 2]| [x, y, 1];
    Ok(Buffers {
        name: plan.name,
        size: plan.size,
        kernel: Kernel::new(plan.text, plan.kernel)?,
        shape: [three(plan.grid), three(plan.block)],
        arguments: plan.arguments,
        arrays: [plan.arrays.clone(), plan.arrays.clone()],
        fresh: plan.arrays,
        restored: plan.restored,
        results: plan.results,
        compare: plan.compare,
        c: plan.c,
        count: plan.count as i32,
    })
}

/// Numbers in no order.
fn shuffled(count: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    (0..count).map(|_| next()).collect()
}

fn blocks(count: usize, each: usize) -> [u32; 2] {
    [count.div_ceil(each) as u32, 1]
}

/// All of them, divided by `shrink`.
pub fn all(shrink: usize) -> anyhow::Result<Vec<Buffers>> {
    let plans = [
        sum((1 << 22) / shrink),
        stencil(2048 / shrink),
        histogram((1 << 22) / shrink),
        black_scholes((1 << 20) / shrink),
        fma((1 << 20) / shrink),
        fft((1 << 20) / shrink),
        sort((1 << 20) / shrink),
        conv2d(1024 / shrink),
    ];
    plans.into_iter().map(workload).collect()
}

fn sum(n: usize) -> Plan {
    const BLOCKS: u32 = 1024;
    Plan {
        text: WORKLOADS,
        kernel: "sum",
        name: "sum",
        size: format!("{n} elements, a tree in each block"),
        grid: [BLOCKS, 1],
        block: [256, 1],
        arguments: vec![A(0), A(1), Int(n as i32)],
        arrays: vec![Array::of(&values(n)), Array::of(&[0f32; BLOCKS as usize])],
        restored: &[],
        results: &[1],
        compare: Compare::Sum,
        c: |native, arrays, n| {
            // SAFETY: the array has `n` elements.
            let sum = unsafe { (native.sum)(n, arrays[0].start()) };
            arrays[1].0[0] = Four([sum, 0.0, 0.0, 0.0]);
        },
        count: n,
    }
}

fn stencil(width: usize) -> Plan {
    const RATE: f32 = 0.1;
    let side = width as i32;
    Plan {
        text: STENCIL,
        kernel: "heat",
        name: "stencil",
        size: format!("{width} x {width}, five points"),
        grid: [width.div_ceil(32) as u32, width.div_ceil(8) as u32],
        block: [32, 8],
        arguments: vec![A(0), A(1), Int(side), Int(side), Float(RATE)],
        arrays: vec![
            Array::of(&values(width * width)),
            Array::of(&vec![0f32; width * width]),
        ],
        restored: &[],
        results: &[1],
        compare: Compare::Floats,
        // SAFETY: both arrays have `width` rows of `width`.
        c: |native, arrays, width| unsafe {
            (native.heat)(width, width, RATE, arrays[0].start(), arrays[1].start());
        },
        count: width,
    }
}

fn histogram(n: usize) -> Plan {
    let bytes: Vec<u8> = shuffled(n).iter().map(|word| (word >> 11) as u8).collect();
    Plan {
        text: HISTOGRAM,
        kernel: "histogram",
        name: "histogram",
        size: format!("{n} bytes, 256 bins"),
        grid: [64, 1],
        block: [256, 1],
        arguments: vec![A(0), A(1), Int(n as i32)],
        arrays: vec![Array::of(&bytes), Array::of(&[0u32; 256])],
        restored: &[1],
        results: &[1],
        compare: Compare::Words,
        // SAFETY: `n` bytes, and a bin for each value of one.
        c: |native, arrays, n| unsafe { (native.histogram)(n, arrays[0].start(), arrays[1].start()) },
        count: n,
    }
}

fn black_scholes(n: usize) -> Plan {
    const RATE: f32 = 0.02;
    const VOLATILITY: f32 = 0.3;
    let scaled = |from: f32, to: f32| -> Vec<f32> {
        let values = values(n);
        values.iter().map(|v| from + (to - from) * v).collect()
    };
    let empty = vec![0f32; n];
    Plan {
        text: WORKLOADS,
        kernel: "black_scholes",
        name: "options",
        size: format!("{n} prices by Black and Scholes"),
        grid: blocks(n, 256),
        block: [256, 1],
        arguments: vec![
            A(0),
            A(1),
            A(2),
            A(3),
            A(4),
            Float(RATE),
            Float(VOLATILITY),
            Int(n as i32),
        ],
        arrays: vec![
            Array::of(&empty),
            Array::of(&empty),
            Array::of(&scaled(5.0, 30.0)),
            Array::of(&scaled(60.0, 1.0)),
            Array::of(&scaled(0.25, 10.0)),
        ],
        restored: &[],
        results: &[0, 1],
        compare: Compare::Floats,
        // SAFETY: each array has `n` elements.
        c: |native, arrays, n| unsafe {
            let [call, put, price, strike, years] = [0, 1, 2, 3, 4].map(|k| arrays[k].start::<f32>());
            (native.black_scholes)(n, price, strike, years, RATE, VOLATILITY, call, put);
        },
        count: n,
    }
}

fn fma(n: usize) -> Plan {
    const BY: [f64; 2] = [0.999, 0.001];
    let values: Vec<f64> = values(n).iter().map(|v| f64::from(*v)).collect();
    Plan {
        text: WORKLOADS,
        kernel: "fma_f64",
        name: "fma f64",
        size: format!("{n} elements, 64 each"),
        grid: blocks(n, 256),
        block: [256, 1],
        arguments: vec![A(0), Double(BY[0]), Double(BY[1]), Int(n as i32)],
        arrays: vec![Array::of(&values)],
        restored: &[0],
        results: &[0],
        compare: Compare::Doubles,
        // SAFETY: the array has `n` elements.
        c: |native, arrays, n| unsafe { (native.fma_f64)(n, BY[0], BY[1], arrays[0].start()) },
        count: n,
    }
}

fn fft(n: usize) -> Plan {
    let angles = (0..512).map(|k| -std::f64::consts::TAU * f64::from(k) / 1024.0);
    let roots: [Vec<f32>; 2] = [
        angles.clone().map(|angle| angle.cos() as f32).collect(),
        angles.map(|angle| angle.sin() as f32).collect(),
    ];
    let real: Vec<f32> = values(n).iter().map(|v| v + 0.5).collect();
    Plan {
        text: WORKLOADS,
        kernel: "fft",
        name: "fft",
        size: format!("{} of 1,024 points", n / 1024),
        grid: blocks(n, 1024),
        block: [512, 1],
        arguments: vec![A(0), A(1), A(2), A(3), A(4), A(5)],
        arrays: vec![
            Array::of(&real),
            Array::of(&values(n)),
            Array::of(&vec![0f32; n]),
            Array::of(&vec![0f32; n]),
            Array::of(&roots[0]),
            Array::of(&roots[1]),
        ],
        restored: &[],
        results: &[2, 3],
        compare: Compare::Spectrum,
        // SAFETY: the first four have `n` elements, the roots 512.
        c: |native, arrays, n| unsafe {
            let [re, im, to_re, to_im, root_re, root_im] =
                [0, 1, 2, 3, 4, 5].map(|k| arrays[k].start::<f32>());
            (native.fft)(n, re, im, to_re, to_im, root_re, root_im);
        },
        count: n,
    }
}

fn sort(n: usize) -> Plan {
    Plan {
        text: WORKLOADS,
        kernel: "sort",
        name: "sort",
        size: format!("{} of 1,024, bitonic", n / 1024),
        grid: blocks(n, 1024),
        block: [512, 1],
        arguments: vec![A(0)],
        arrays: vec![Array::of(&shuffled(n))],
        restored: &[0],
        results: &[0],
        compare: Compare::Words,
        // SAFETY: the array has `n` elements.
        c: |native, arrays, n| unsafe { (native.sort)(n, arrays[0].start()) },
        count: n,
    }
}

fn conv2d(width: usize) -> Plan {
    let side = width as i32;
    Plan {
        text: WORKLOADS,
        kernel: "conv2d",
        name: "conv2d",
        size: format!("{width} x {width}, filter of 5 x 5"),
        grid: [width.div_ceil(32) as u32, width.div_ceil(8) as u32],
        block: [32, 8],
        arguments: vec![A(0), A(1), A(2), Int(side), Int(side)],
        arrays: vec![
            Array::of(&values((width + 4) * (width + 4))),
            Array::of(&values(25)),
            Array::of(&vec![0f32; width * width]),
        ],
        restored: &[],
        results: &[2],
        compare: Compare::Floats,
        // SAFETY: the picture has a rim of two elements, the filter 25 elements.
        c: |native, arrays, width| unsafe {
            (native.conv2d)(
                width,
                width,
                arrays[0].start(),
                arrays[1].start(),
                arrays[2].start(),
            );
        },
        count: width,
    }
}

//! Workloads: the kernel, its launch, its arguments, the C loop of the same, and whether both agree.

use divvy_ptx::{Engine, Stats};

use super::device::{Four, Lent};
use super::kernel::{Kernel, difference, values};
use super::native::Native;

/// A computation that both sides can do.
pub trait Workload {
    /// Its name in the report.
    fn name(&self) -> &'static str;
    /// How much of it, in words.
    fn size(&self) -> String;
    /// Its kernel.
    fn kernel(&self) -> &Kernel;
    /// Puts the values that a round begins with in their place.
    fn prepare(&mut self) {}
    /// Once on the engine, compiled or interpreted.
    fn on_engine(&mut self, engine: &Engine, compile: bool) -> anyhow::Result<Stats>;
    /// Once in C.
    fn in_c(&mut self, native: &Native);
    /// After one round of each: the largest relative difference between the results.
    fn difference(&self) -> f64;
}

pub struct Saxpy {
    kernel: Kernel,
    x: Vec<f32>,
    sums: [Vec<f32>; 2],
}

impl Saxpy {
    pub fn new(n: usize) -> anyhow::Result<Saxpy> {
        let kernel = Kernel::new(
            include_str!("../../../../crates/ptx/tests/kernels/saxpy.ptx"),
            "saxpy",
        )?;
        Ok(Saxpy {
            kernel,
            x: values(n),
            sums: [values(n), values(n)],
        })
    }
}

impl Workload for Saxpy {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn name(&self) -> &'static str {
        "saxpy"
    }

    fn size(&self) -> String {
        format!("{} elements", self.x.len())
    }

    fn on_engine(&mut self, engine: &Engine, compile: bool) -> anyhow::Result<Stats> {
        let (n, mut lent) = (self.x.len(), Lent::default());
        let (x, y) = (lent.lend(&mut self.x), lent.lend(&mut self.sums[0]));
        let arguments: [&[u8]; 4] = [
            &(n as u32).to_le_bytes(),
            &0.5f32.to_le_bytes(),
            &x.to_le_bytes(),
            &y.to_le_bytes(),
        ];
        let shape = [[n.div_ceil(256) as u32, 1, 1], [256, 1, 1]];
        self.kernel.run((engine, compile), shape, 0, &lent, &arguments)
    }

    fn in_c(&mut self, native: &Native) {
        native.saxpy(0.5, &self.x, &mut self.sums[1]);
    }

    fn difference(&self) -> f64 {
        difference(&self.sums[0], &self.sums[1])
    }
}

pub struct Matmul {
    kernel: Kernel,
    n: usize,
    factors: [Vec<f32>; 2],
    products: [Vec<f32>; 2],
}

impl Matmul {
    pub fn new(n: usize) -> anyhow::Result<Matmul> {
        let kernel = Kernel::new(
            include_str!("../../../../crates/ptx/tests/kernels/matmul.ptx"),
            "matmul_f32",
        )?;
        Ok(Matmul {
            kernel,
            n,
            factors: [values(n * n), values(n * n)],
            products: [values(n * n), values(n * n)],
        })
    }
}

impl Workload for Matmul {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn name(&self) -> &'static str {
        "matmul"
    }

    fn size(&self) -> String {
        format!("{0} x {0}, tiles of 16", self.n)
    }

    fn on_engine(&mut self, engine: &Engine, compile: bool) -> anyhow::Result<Stats> {
        let mut lent = Lent::default();
        let [a, b] = [0, 1].map(|k| lent.lend(&mut self.factors[k]).to_le_bytes());
        let c = lent.lend(&mut self.products[0]).to_le_bytes();
        let tiles = self.n.div_ceil(16) as u32;
        let shape = [[tiles, tiles, 1], [16, 16, 1]];
        self.kernel.run(
            (engine, compile),
            shape,
            0,
            &lent,
            &[&a, &b, &c, &(self.n as u32).to_le_bytes()],
        )
    }

    fn in_c(&mut self, native: &Native) {
        native.matmul(self.n, &self.factors[0], &self.factors[1], &mut self.products[1]);
    }

    fn difference(&self) -> f64 {
        difference(&self.products[0], &self.products[1])
    }
}

pub struct Nbody {
    kernel: Kernel,
    from: Vec<Four>,
    velocity: [Vec<Four>; 2],
    position: [Vec<Four>; 2],
}

impl Nbody {
    pub fn new(n: usize) -> anyhow::Result<Nbody> {
        let kernel = Kernel::new(
            include_str!("../../../../crates/ptx/tests/kernels/nbody.ptx"),
            "nbody",
        )?;
        let fours = |values: &[f32]| {
            values
                .chunks_exact(4)
                .map(|four| Four(four.try_into().expect("four")))
                .collect()
        };
        let from: Vec<Four> = fours(&values(n * 4));
        let still = vec![Four::default(); n];
        Ok(Nbody {
            kernel,
            velocity: [still.clone(), still.clone()],
            position: [still.clone(), still],
            from,
        })
    }
}

impl Workload for Nbody {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn name(&self) -> &'static str {
        "n-body"
    }

    fn size(&self) -> String {
        format!("{} bodies, one step", self.from.len())
    }

    fn on_engine(&mut self, engine: &Engine, compile: bool) -> anyhow::Result<Stats> {
        let (n, mut lent) = (self.from.len(), Lent::default());
        let position = lent.lend(&mut self.position[0]).to_le_bytes();
        let (from, velocity) = (
            lent.lend(&mut self.from).to_le_bytes(),
            lent.lend(&mut self.velocity[0]).to_le_bytes(),
        );
        let arguments: [&[u8]; 5] = [
            &position,
            &from,
            &velocity,
            &1e-3f32.to_le_bytes(),
            &(n as u32).to_le_bytes(),
        ];
        let shape = [[n.div_ceil(128) as u32, 1, 1], [128, 1, 1]];
        self.kernel
            .run((engine, compile), shape, 128 * 16, &lent, &arguments)
    }

    fn in_c(&mut self, native: &Native) {
        native.nbody(1e-3, &self.from, &mut self.velocity[1], &mut self.position[1]);
    }

    fn difference(&self) -> f64 {
        let flat = |k: usize| self.position[k].iter().flat_map(|four| &four.0);
        difference(flat(0), flat(1))
    }
}

pub struct Mandelbrot {
    kernel: Kernel,
    width: usize,
    counts: [Vec<u32>; 2],
}

/// Left and top edge, step per pixel of a picture `width` wide, and the most iterations.
const CORNER: [f32; 2] = [-2.0, -1.25];
const SPAN: f32 = 2.5;
const LIMIT: i32 = 256;

impl Mandelbrot {
    pub fn new(width: usize) -> anyhow::Result<Mandelbrot> {
        let kernel = Kernel::new(
            include_str!("../../../../crates/ptx/tests/kernels/mandelbrot.ptx"),
            "mandelbrot",
        )?;
        Ok(Mandelbrot {
            kernel,
            width,
            counts: [vec![0; width * width], vec![0; width * width]],
        })
    }

    fn pixel(&self) -> f32 {
        SPAN / self.width as f32
    }
}

impl Workload for Mandelbrot {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn name(&self) -> &'static str {
        "mandelbrot"
    }

    fn size(&self) -> String {
        format!("{0} x {0}, at most {LIMIT} rounds", self.width)
    }

    fn on_engine(&mut self, engine: &Engine, compile: bool) -> anyhow::Result<Stats> {
        let mut lent = Lent::default();
        let out = lent.lend(&mut self.counts[0]).to_le_bytes();
        let width = (self.width as u32).to_le_bytes();
        let [left, top, pixel] = [CORNER[0], CORNER[1], self.pixel()].map(f32::to_le_bytes);
        let tiles = self.width.div_ceil(16) as u32;
        let arguments: [&[u8]; 7] = [&out, &width, &width, &left, &top, &pixel, &LIMIT.to_le_bytes()];
        self.kernel.run(
            (engine, compile),
            [[tiles, tiles, 1], [16, 16, 1]],
            0,
            &lent,
            &arguments,
        )
    }

    fn in_c(&mut self, native: &Native) {
        let pixel = self.pixel();
        native.mandelbrot(self.width, CORNER, pixel, LIMIT, &mut self.counts[1]);
    }

    /// The share of pixels that differ: on the rim one rounding decides when a point escapes.
    fn difference(&self) -> f64 {
        let differing = self.counts[0]
            .iter()
            .zip(&self.counts[1])
            .filter(|(a, b)| a != b)
            .count();
        differing as f64 / self.counts[0].len() as f64
    }
}

//! The C side: `bench/c/loops.c`, compiled by the machine's own compiler when the bench starts, and loaded.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::device::Four;

type Saxpy = unsafe extern "C" fn(i32, f32, *const f32, *mut f32);
type Matmul = unsafe extern "C" fn(i32, *const f32, *const f32, *mut f32);
type Nbody = unsafe extern "C" fn(i32, f32, *const Four, *mut Four, *mut Four);
type Sum = unsafe extern "C" fn(i32, *const f32) -> f32;
type BlackScholes =
    unsafe extern "C" fn(i32, *const f32, *const f32, *const f32, f32, f32, *mut f32, *mut f32);
type FmaF64 = unsafe extern "C" fn(i32, f64, f64, *mut f64);
type Heat = unsafe extern "C" fn(i32, i32, f32, *const f32, *mut f32);
type Histogram = unsafe extern "C" fn(i32, *const u8, *mut u32);
type Fft = unsafe extern "C" fn(i32, *const f32, *const f32, *mut f32, *mut f32, *const f32, *const f32);
type Sort = unsafe extern "C" fn(i32, *mut u32);
type Conv2d = unsafe extern "C" fn(i32, i32, *const f32, *const f32, *mut f32);
type Mandelbrot = unsafe extern "C" fn(i32, i32, f32, f32, f32, i32, *mut u32);

/// The compiled loops. The library stays loaded for good.
pub struct Native {
    /// What compiled them, in the compiler's own words.
    pub compiler: String,
    saxpy: Saxpy,
    matmul: Matmul,
    nbody: Nbody,
    mandelbrot: Mandelbrot,
    /// The sum of so many elements.
    pub sum: Sum,
    /// Prices of so many options: price, strike, years, rate, volatility, then the two results.
    pub black_scholes: BlackScholes,
    /// 64 times `x = x a + b` for each of so many elements.
    pub fma_f64: FmaF64,
    /// A step of heat in a picture: width, height, rate, from, to.
    pub heat: Heat,
    /// Counts so many bytes in 256 bins.
    pub histogram: Histogram,
    /// Transforms of 1,024 numbers each: how many numbers in all, real and imaginary parts, results, roots of one.
    pub fft: Fft,
    /// Sorts each 1,024 of so many numbers.
    pub sort: Sort,
    /// A filter of 5 x 5 over a picture with a rim of two: width, height, picture, filter, result.
    pub conv2d: Conv2d,
}

impl Native {
    /// Compiles with `cc -O3 -march=native` into `folder` and loads the result.
    pub fn build(folder: &Path) -> anyhow::Result<Native> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/loops.c");
        std::fs::create_dir_all(folder).with_context(|| format!("Cannot make {}", folder.display()))?;
        let library = folder.join("loops.so");
        let status = Command::new("cc")
            .args(["-O3", "-march=native", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(&source)
            .arg("-lm")
            .status()
            .context("Cannot start cc")?;
        ensure!(status.success(), "cc ended with {status}");
        let version = Command::new("cc")
            .arg("--version")
            .output()
            .context("Cannot start cc")?;
        let compiler = String::from_utf8_lossy(&version.stdout)
            .lines()
            .next()
            .unwrap_or("cc")
            .to_string();
        let path = CString::new(library.into_os_string().into_encoded_bytes())?;
        // SAFETY: the path is a NUL-terminated string; the library is our own and has no initialisers.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            bail!("Cannot load the compiled loops");
        }
        let symbol = |name: &CStr| -> anyhow::Result<*mut libc::c_void> {
            // SAFETY: the handle is the library just loaded, which is never closed.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            ensure!(!address.is_null(), "The compiled loops lack {name:?}");
            Ok(address)
        };
        // SAFETY: each name is a function of loops.c with exactly this signature.
        unsafe {
            Ok(Native {
                compiler,
                saxpy: std::mem::transmute::<*mut libc::c_void, Saxpy>(symbol(c"saxpy")?),
                matmul: std::mem::transmute::<*mut libc::c_void, Matmul>(symbol(c"matmul")?),
                nbody: std::mem::transmute::<*mut libc::c_void, Nbody>(symbol(c"nbody")?),
                sum: std::mem::transmute::<*mut libc::c_void, Sum>(symbol(c"sum")?),
                black_scholes: std::mem::transmute::<*mut libc::c_void, BlackScholes>(symbol(
                    c"black_scholes",
                )?),
                fma_f64: std::mem::transmute::<*mut libc::c_void, FmaF64>(symbol(c"fma_f64")?),
                heat: std::mem::transmute::<*mut libc::c_void, Heat>(symbol(c"heat")?),
                histogram: std::mem::transmute::<*mut libc::c_void, Histogram>(symbol(c"histogram")?),
                fft: std::mem::transmute::<*mut libc::c_void, Fft>(symbol(c"fft")?),
                sort: std::mem::transmute::<*mut libc::c_void, Sort>(symbol(c"sort")?),
                conv2d: std::mem::transmute::<*mut libc::c_void, Conv2d>(symbol(c"conv2d")?),
                mandelbrot: std::mem::transmute::<*mut libc::c_void, Mandelbrot>(symbol(c"mandelbrot")?),
            })
        }
    }

    /// y = a x + y.
    pub fn saxpy(&self, a: f32, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len());
        // SAFETY: both arrays have the given length.
        unsafe { (self.saxpy)(x.len() as i32, a, x.as_ptr(), y.as_mut_ptr()) }
    }

    /// Row-major n x n product.
    pub fn matmul(&self, n: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
        assert!([a.len(), b.len(), c.len()] == [n * n; 3]);
        // SAFETY: all three arrays have n x n elements.
        unsafe { (self.matmul)(n as i32, a.as_ptr(), b.as_ptr(), c.as_mut_ptr()) }
    }

    /// One step of gravity.
    pub fn nbody(&self, step: f32, from: &[Four], velocity: &mut [Four], position: &mut [Four]) {
        assert!(from.len() == velocity.len() && from.len() == position.len());
        // SAFETY: all three arrays have the given length; `Four` is four floats in a row.
        unsafe {
            (self.nbody)(
                from.len() as i32,
                step,
                from.as_ptr(),
                velocity.as_mut_ptr(),
                position.as_mut_ptr(),
            );
        }
    }

    /// Iterations until escape, per pixel, `width` to a row.
    pub fn mandelbrot(&self, width: usize, corner: [f32; 2], pixel: f32, limit: i32, out: &mut [u32]) {
        let height = out.len() / width;
        let [left, top] = corner;
        // SAFETY: `out` holds at least width x height pixels.
        unsafe {
            (self.mandelbrot)(
                width as i32,
                height as i32,
                left,
                top,
                pixel,
                limit,
                out.as_mut_ptr(),
            );
        }
    }
}

//! Sums and extremes by tree, shuffle, atomic, redux and compare-and-swap; prefix sums; histograms.

use crate::random::{Random, assert_close};
use crate::support::{Buffer, Loaded};

/// For two generations of devices, one with line numbers.
const REDUCE: [&str; 2] = [include_str!("reduce.ptx"), include_str!("reduce_lines.ptx")];

#[test]
fn reduce_by_tree_and_by_shuffle() {
    for text in REDUCE {
        by_tree_and_by_shuffle(&Loaded::new(text));
    }
}

fn by_tree_and_by_shuffle(loaded: &Loaded) {
    // Whole numbers: every order of adding gives the same float.
    let n = 5000usize;
    let mut random = Random::new(1);
    let values: Vec<u32> = (0..n).map(|_| random.below(100) as u32).collect();
    let total: u32 = values.iter().sum();

    let singles = Buffer::of_f32(&values.iter().map(|v| *v as f32).collect::<Vec<_>>());
    let parts = Buffer::zeroed(20 * 4);
    loaded
        .kernel("reduce_tree")
        .grid(20)
        .block(256)
        .shared(1024)
        .buffer(&singles)
        .buffer(&parts)
        .u32(n as u32)
        .ok();
    let want: Vec<f32> = (0..20)
        .map(|b| values.iter().skip(b * 256).take(256).sum::<u32>() as f32)
        .collect();
    assert_eq!(parts.f32s(), want);

    let doubles = Buffer::of_u64(&values.iter().map(|v| f64::from(*v).to_bits()).collect::<Vec<_>>());
    let sum = Buffer::zeroed(8);
    loaded
        .kernel("reduce_shuffle")
        .grid(7)
        .block(192)
        .buffer(&doubles)
        .buffer(&sum)
        .u32(n as u32)
        .ok();
    assert_close("sum", &sum.f64s(), &[f64::from(total)], 0.0, 0.0);
}

/// Thousands of threads of many blocks on one word: nothing is lost.
#[test]
fn reduce_by_atomics() {
    for text in REDUCE {
        by_atomics(&Loaded::new(text));
    }
}

fn by_atomics(loaded: &Loaded) {
    let n = 20_000usize;
    let mut random = Random::new(2);
    let values: Vec<u32> = (0..n).map(|_| random.below(1 << 31) as u32).collect();
    let input = Buffer::of_u32(&values);
    let blocks = n.div_ceil(256) as u32;

    let sum = Buffer::zeroed(8);
    loaded
        .kernel("reduce_atomic")
        .grid(blocks)
        .block(256)
        .buffer(&input)
        .buffer(&sum)
        .u32(n as u32)
        .ok();
    assert_eq!(sum.u64s(), [values.iter().copied().map(u64::from).sum::<u64>()]);

    let (sum, least) = (Buffer::zeroed(4), Buffer::of_u32(&[i32::MAX as u32]));
    let run = loaded
        .kernel("reduce_redux")
        .grid(blocks)
        .block(256)
        .buffer(&input);
    run.buffer(&sum).buffer(&least).u32(n as u32).ok();
    assert_eq!(
        sum.u32s(),
        [values.iter().fold(0u32, |sum, v| sum.wrapping_add(*v))]
    );
    // The last warp is padded with zeros, so zero is the least.
    assert_eq!(least.u32s(), [0]);

    let floats: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    let most = Buffer::zeroed(4);
    let run = loaded.kernel("max_by_cas").grid(blocks).block(256);
    run.buffer(&Buffer::of_f32(&floats))
        .buffer(&most)
        .u32(n as u32)
        .ok();
    assert_eq!(most.f32s(), [floats.iter().copied().fold(0.0, f32::max)]);
}

/// Each block waits for the one before it, spinning on global memory: more blocks than workers must not hang.
#[test]
fn scan_chained_over_blocks() {
    for text in [include_str!("scan.ptx"), include_str!("scan_debug.ptx")] {
        chained_scan(&Loaded::new(text));
    }
}

fn chained_scan(loaded: &Loaded) {
    let n = 6000usize;
    let mut random = Random::new(3);
    let values: Vec<u32> = (0..n).map(|_| random.below(1000) as u32).collect();
    let blocks = n.div_ceil(256);
    let (input, output) = (Buffer::of_u32(&values), Buffer::zeroed(n * 4));
    let (sums, ready) = (Buffer::zeroed(blocks * 4), Buffer::zeroed(blocks * 4));
    let run = loaded
        .kernel("scan")
        .grid(blocks as u32)
        .block(256)
        .buffer(&input)
        .buffer(&output);
    run.u32(n as u32).buffer(&sums).buffer(&ready).ok();
    let mut sum = 0;
    let want: Vec<u32> = values
        .iter()
        .map(|v| {
            sum += v;
            sum
        })
        .collect();
    assert_eq!(output.u32s(), want);
}

#[test]
fn histograms() {
    for text in [include_str!("histogram.ptx"), include_str!("histogram_debug.ptx")] {
        histogram(&Loaded::new(text));
    }
}

fn histogram(loaded: &Loaded) {
    let n = 10_000usize;
    let mut random = Random::new(4);
    // Squared, so that some bins are crowded.
    let bytes: Vec<u8> = (0..n).map(|_| (random.unit().powi(2) * 255.0) as u8).collect();
    let mut want = vec![0u32; 256];
    bytes.iter().for_each(|byte| want[usize::from(*byte)] += 1);
    for (kernel, blocks) in [("histogram", 5), ("histogram_matched", n.div_ceil(192))] {
        let bins = Buffer::zeroed(1024);
        let run = loaded.kernel(kernel).grid(blocks as u32).block(192);
        run.buffer(&Buffer::of_bytes(&bytes))
            .buffer(&bins)
            .u32(n as u32)
            .ok();
        assert_eq!(bins.u32s(), want, "{kernel}");
    }
}

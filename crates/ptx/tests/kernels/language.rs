//! The results of ordinary C++: switches, function pointers, local arrays, software division, double maths, structures,
//! locks, printf.

use crate::random::{Random, assert_close};
use crate::support::{Buffer, Loaded};

fn various() -> Loaded {
    Loaded::new(include_str!("various.ptx"))
}

#[test]
fn switches() {
    let n = 500u32;
    let mut random = Random::new(1);
    let input: Vec<u32> = (0..n).map(|_| random.below(11) as u32).collect();
    let out = Buffer::zeroed(n as usize * 4);
    various()
        .kernel("switches")
        .grid(4)
        .block(128)
        .buffer(&Buffer::of_u32(&input))
        .buffer(&out)
        .u32(n)
        .ok();
    let arm = |i: u32, v: u32| match v {
        0 => 17,
        1 => v * 3 + i,
        2 | 3 => i.wrapping_sub(5),
        4 => (0..).find(|r| r * r >= i).unwrap(),
        5 => i ^ 0x55,
        6 => i / 3,
        7 => i % 7,
        _ => v.wrapping_neg(),
    };
    let want: Vec<u32> = (0..n).map(|i| arm(i, input[i as usize])).collect();
    assert_eq!(out.u32s(), want);
}

/// Lanes of one warp call different functions through a table in global memory.
#[test]
fn calls_through_pointers() {
    let n = 200u32;
    let input: Vec<u32> = (0..n).map(|i| i * 7 % 10).collect();
    let out = Buffer::zeroed(n as usize * 4);
    various()
        .kernel("pointers")
        .grid(2)
        .block(128)
        .buffer(&Buffer::of_u32(&input))
        .buffer(&out)
        .u32(n)
        .ok();
    let arm = |i: u32| match input[i as usize] % 3 {
        0 => 2 * i,
        1 => i * i,
        _ => i.wrapping_neg(),
    };
    assert_eq!(out.u32s(), (0..n).map(arm).collect::<Vec<_>>());
}

#[test]
fn local_arrays() {
    let n = 100u32;
    let mut random = Random::new(2);
    let mut values: Vec<u32> = (0..n * 16).map(|_| random.below(1000) as u32).collect();
    let out = Buffer::zeroed(values.len() * 4);
    let run = various();
    run.kernel("insertion_sort")
        .grid(2)
        .block(64)
        .buffer(&Buffer::of_u32(&values))
        .buffer(&out)
        .u32(n)
        .ok();
    values.chunks_mut(16).for_each(<[u32]>::sort_unstable);
    assert_eq!(out.u32s(), values);
}

#[test]
fn wide_division() {
    let n = 300usize;
    let mut random = Random::new(3);
    let a: Vec<u64> = (0..n).map(|_| random.word() >> random.below(64)).collect();
    let b: Vec<u64> = (0..n)
        .map(|_| (random.word() >> random.below(63)).max(1))
        .collect();
    let (dividends, divisors, out) = (Buffer::of_u64(&a), Buffer::of_u64(&b), Buffer::zeroed(n * 32));
    let run = various();
    let run = run
        .kernel("divisions")
        .grid(3)
        .block(128)
        .buffer(&dividends)
        .buffer(&divisors);
    run.buffer(&out).u32(n as u32).ok();
    let want: Vec<u64> = a
        .iter()
        .zip(&b)
        .flat_map(|(&a, &b)| {
            let (x, y) = (a as i64, b as i64);
            [x.wrapping_div(y) as u64, x.wrapping_rem(y) as u64, a / b, a % b]
        })
        .collect();
    assert_eq!(out.u64s(), want);
}

/// The compiler's own double maths: long chains of fma, bit tricks and slow paths in called functions.
#[test]
fn double_maths() {
    let mut random = Random::new(4);
    let input: Vec<f64> = (0..200)
        .map(|k| random.unit() * if k % 10 == 0 { 1e9 } else { 100.0 })
        .collect();
    let out = Buffer::zeroed(input.len() * 64);
    let bits: Vec<u64> = input.iter().map(|v| v.to_bits()).collect();
    let run = various();
    run.kernel("maths")
        .grid(2)
        .block(128)
        .buffer(&Buffer::of_u64(&bits))
        .buffer(&out)
        .u32(200)
        .ok();
    let want: Vec<f64> = input
        .iter()
        .flat_map(|x| functions(*x, f64::tan(*x), 1.0 / (x.abs() + 2.0).cbrt()))
        .collect();
    assert_close("maths", &out.f64s(), &want, 1e-13, 1e-14);
}

#[test]
fn single_maths() {
    let mut random = Random::new(5);
    let input = random.floats(200, 100.0);
    let out = Buffer::zeroed(input.len() * 32);
    let run = various();
    run.kernel("maths_single")
        .grid(2)
        .block(128)
        .buffer(&Buffer::of_f32(&input))
        .buffer(&out)
        .u32(200)
        .ok();
    let want: Vec<f64> = input
        .iter()
        .map(|x| f64::from(*x))
        .flat_map(|x| {
            let mut row = functions(x, x.cos(), x.atan2(1.5));
            row[6] = f64::from((x as f32) % 3.7f32);
            row
        })
        .collect();
    let got: Vec<f64> = out.f32s().into_iter().map(f64::from).collect();
    assert_close("single maths", &got, &want, 1e-5, 2e-6);
}

fn functions(x: f64, fourth: f64, last: f64) -> [f64; 8] {
    let whole = x.floor() + (x * 0.5).ceil() + (x * 0.25).round_ties_even();
    [
        x.sin(),
        (x * 0.01).exp(),
        (x.abs() + 1.0).ln(),
        x.abs().powf(0.3),
        fourth,
        whole,
        x % 3.7,
        last,
    ]
}

/// A structure by value in the parameters, bytes and shorts in memory.
#[test]
fn structures() {
    let mut pair = [0u8; 16];
    pair[..2].copy_from_slice(&(-300i16).to_le_bytes());
    pair[2] = 250;
    pair[8..].copy_from_slice(&(-5_000_000_000i64).to_le_bytes());
    let (out, bytes) = (Buffer::zeroed(32 * 16), Buffer::zeroed(32));
    various()
        .kernel("structures")
        .bytes(&pair)
        .buffer(&out)
        .buffer(&bytes)
        .ok();
    for (i, row) in out.bytes().chunks(16).enumerate() {
        assert_eq!(
            row[..2],
            (-300i16).wrapping_mul(i as i16).to_le_bytes(),
            "row {i}"
        );
        assert_eq!(row[2], 250u8.wrapping_add(i as u8), "row {i}");
        assert_eq!(row[8..], (-5_000_000_000i64 - i as i64).to_le_bytes(), "row {i}");
    }
    let want: Vec<u8> = (0..32u8)
        .map(|i| ((i.wrapping_mul(9) as i8) >> 1) as u8)
        .collect();
    assert_eq!(bytes.bytes(), want);
}

/// Every lane of every warp takes one lock in turn: progress needs lanes that run apart.
#[test]
fn spin_locks() {
    let loaded = various();
    loaded.kernel("spin_lock").grid(4).block(64).u32(3).ok();
    assert_eq!(loaded.global("guarded").u32s(), [4 * 64 * 3]);
    assert_eq!(loaded.global("lock").u32s(), [0]);
    let counter = Buffer::zeroed(4);
    loaded
        .kernel("naive_lock")
        .grid(3)
        .block(64)
        .buffer(&counter)
        .ok();
    assert_eq!(counter.u32s(), [3 * 64]);
}

#[test]
fn printf() {
    let loaded = various();
    let (end, printed) = loaded.kernel("says_hello").grid(2).u32(21).outcome();
    end.unwrap_or_else(|fault| panic!("{fault}"));
    let text = String::from_utf8(printed.concat()).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let want = [
        "thread 0 of block 0: 21 31.500 ok",
        "thread 0 of block 1: 21 31.500 ok",
        "thread 1 of block 0: 21 31.500 ok",
        "thread 1 of block 1: 21 31.500 ok",
    ];
    assert_eq!(lines, want);
}

//! Kernels with regular access: saxpy, matrix product, n-body, Mandelbrot, stencils, softmax.

use crate::random::{Random, assert_close, widened};
use crate::support::{Buffer, Loaded};

/// One fused multiply-add per element: every bit must agree, and nothing beyond the end be touched.
#[test]
fn saxpy() {
    let loaded = Loaded::new(include_str!("saxpy.ptx"));
    for n in [1, 31, 32, 33, 1000, 4096] {
        let mut random = Random::new(n as u64);
        let (x, y, a) = (random.floats(n, 100.0), random.floats(n, 100.0), 1.7f32);
        let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| a.mul_add(*x, *y)).collect();
        for kernel in ["saxpy", "saxpy_strided"] {
            let (input, output) = (Buffer::of_f32(&x), Buffer::of_f32(&y));
            let blocks = if kernel == "saxpy" { n.div_ceil(128) } else { 3 };
            loaded
                .kernel(kernel)
                .grid(blocks as u32)
                .block(128)
                .u32(n as u32)
                .f32(a)
                .buffer(&input)
                .buffer(&output)
                .ok();
            assert_eq!(output.f32s(), want, "{kernel} of {n}");
        }
        if n % 4 == 0 {
            let (input, output) = (Buffer::of_f32(&x), Buffer::of_f32(&y));
            let run = loaded
                .kernel("saxpy_vector")
                .grid(n.div_ceil(256) as u32)
                .block(64);
            run.u32(n as u32 / 4).f32(a).buffer(&input).buffer(&output).ok();
            assert_eq!(output.f32s(), want, "saxpy_vector of {n}");
        }
    }
}

/// The tile loop adds in the order of the inner index, so the sums agree to the bit.
#[test]
fn matmul() {
    let loaded = Loaded::new(include_str!("matmul.ptx"));
    for n in [1usize, 16, 33, 64] {
        let mut random = Random::new(n as u64);
        let (a, b) = (random.floats(n * n, 1.0), random.floats(n * n, 1.0));
        let at = |k: usize| (k / n, k % n);
        let grid = [n.div_ceil(16) as u32, n.div_ceil(16) as u32, 1];
        let run = |kernel: &str, a: &Buffer, b: &Buffer, c: &Buffer| {
            let run = loaded.kernel(kernel).grid3(grid).block3([16, 16, 1]);
            run.buffer(a).buffer(b).buffer(c).u32(n as u32).ok();
        };

        let c = Buffer::zeroed(n * n * 4);
        run("matmul_f32", &Buffer::of_f32(&a), &Buffer::of_f32(&b), &c);
        let want: Vec<f32> = (0..n * n)
            .map(|k| {
                (0..n).fold(0.0f32, |sum, i| {
                    a[at(k).0 * n + i].mul_add(b[i * n + at(k).1], sum)
                })
            })
            .collect();
        assert_eq!(c.f32s(), want, "{n} singles");

        let bits = |v: &[f32]| Buffer::of_u64(&v.iter().map(|v| f64::from(*v).to_bits()).collect::<Vec<_>>());
        let c = Buffer::zeroed(n * n * 8);
        run("matmul_f64", &bits(&a), &bits(&b), &c);
        let wide = |v: f32| f64::from(v);
        let want: Vec<f64> = (0..n * n)
            .map(|k| {
                (0..n).fold(0.0, |sum, i| {
                    wide(a[at(k).0 * n + i]).mul_add(wide(b[i * n + at(k).1]), sum)
                })
            })
            .collect();
        assert_eq!(c.f64s(), want, "{n} doubles");

        let words: Vec<u64> = (0..n * n).map(|_| random.word()).collect();
        let c = Buffer::zeroed(n * n * 8);
        run("matmul_i64", &Buffer::of_u64(&words), &Buffer::of_u64(&words), &c);
        let product =
            |row: usize, column: usize, i: usize| words[row * n + i].wrapping_mul(words[i * n + column]);
        let want: Vec<u64> = (0..n * n)
            .map(|k| (0..n).fold(0u64, |sum, i| sum.wrapping_add(product(at(k).0, at(k).1, i))))
            .collect();
        assert_eq!(c.u64s(), want, "{n} integers");
    }
}

#[test]
fn nbody() {
    let loaded = Loaded::new(include_str!("nbody.ptx"));
    let (n, step, block) = (200usize, 0.01f32, 64u32);
    let mut random = Random::new(7);
    let mut from = random.floats(n * 4, 1.0);
    from.iter_mut()
        .skip(3)
        .step_by(4)
        .for_each(|mass| *mass = mass.abs());
    let velocity = random.floats(n * 4, 0.1);
    let (to, start, speed) = (
        Buffer::zeroed(n * 16),
        Buffer::of_f32(&from),
        Buffer::of_f32(&velocity),
    );
    let run = loaded
        .kernel("nbody")
        .grid(n.div_ceil(64) as u32)
        .block(block)
        .shared(block * 16);
    run.buffer(&to)
        .buffer(&start)
        .buffer(&speed)
        .f32(step)
        .u32(n as u32)
        .ok();

    let body = |i: usize, axis: usize| f64::from(from[i * 4 + axis]);
    let mut moved = Vec::new();
    for i in 0..n {
        let mut pull = [0.0; 3];
        for k in 0..n {
            let apart = [0, 1, 2].map(|axis| body(k, axis) - body(i, axis));
            let inverse = 1.0 / (apart.iter().map(|d| d * d).sum::<f64>() + 1e-4).sqrt();
            (0..3).for_each(|axis| pull[axis] += apart[axis] * body(k, 3) * inverse.powi(3));
        }
        let step = f64::from(step);
        let speed = |axis: usize| f64::from(velocity[i * 4 + axis]) + pull[axis] * step;
        moved.extend((0..3).map(|axis| body(i, axis) + speed(axis) * step));
        moved.push(body(i, 3));
    }
    assert_close("position", &widened(&to.f32s()), &moved, 2e-4, 2e-4);
}

/// The same roundings in the same order, so that every pixel escapes at the same step.
#[test]
fn mandelbrot() {
    let loaded = Loaded::new(include_str!("mandelbrot.ptx"));
    let (width, height, limit) = (100usize, 70usize, 300u32);
    let (left, top, pixel) = (-2.2f32, -1.1f32, 0.031f32);
    let out = Buffer::zeroed(width * height * 4);
    let run = loaded.kernel("mandelbrot").grid3([7, 5, 1]).block3([16, 16, 1]);
    let run = run.buffer(&out).u32(width as u32).u32(height as u32);
    run.f32(left).f32(top).f32(pixel).u32(limit).ok();
    let escape = |k: usize| {
        let cx = pixel.mul_add((k % width) as f32, left);
        let cy = pixel.mul_add((k / width) as f32, top);
        let (mut x, mut y, mut xx, mut yy, mut count) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0);
        while count < limit && xx + yy <= 4.0 {
            let next = cx + (xx - yy);
            y = (x + x).mul_add(y, cy);
            x = next;
            (xx, yy) = (x * x, y * y);
            count += 1;
        }
        count
    };
    assert_eq!(out.u32s(), (0..width * height).map(escape).collect::<Vec<_>>());
}

#[test]
fn heat_stencil() {
    let loaded = Loaded::new(include_str!("stencil.ptx"));
    let (width, height) = (77usize, 40usize);
    let grid = Random::new(3).floats(width * height, 10.0);
    let (input, output) = (Buffer::of_f32(&grid), Buffer::zeroed(width * height * 4));
    let run = loaded.kernel("heat").grid3([3, 5, 1]).block3([32, 8, 1]);
    run.buffer(&input)
        .buffer(&output)
        .u32(width as u32)
        .u32(height as u32)
        .f32(0.1)
        .ok();
    let old = |x: usize, y: usize| f64::from(grid[y * width + x]);
    let want: Vec<f64> = (0..width * height)
        .map(|k| (k % width, k / width))
        .map(
            |(x, y)| match x == 0 || y == 0 || x == width - 1 || y == height - 1 {
                true => old(x, y),
                false => {
                    let around = old(x - 1, y) + old(x + 1, y) + old(x, y - 1) + old(x, y + 1);
                    old(x, y) + 0.1 * (around - 4.0 * old(x, y))
                }
            },
        )
        .collect();
    assert_close("heat", &widened(&output.f32s()), &want, 1e-6, 1e-5);
}

/// Weights in constant memory, a module variable counted up.
#[test]
fn blur_with_module_variables() {
    let loaded = Loaded::new(include_str!("stencil.ptx"));
    let n = 1000usize;
    let values = Random::new(4).floats(n, 1.0);
    let (input, output) = (Buffer::of_f32(&values), Buffer::zeroed(n * 4));
    loaded
        .kernel("blur")
        .grid(4)
        .block(256)
        .buffer(&input)
        .buffer(&output)
        .u32(n as u32)
        .ok();
    let weights = [0.03125, 0.109375, 0.21875, 0.28125, 0.21875, 0.109375, 0.03125];
    let at = |i: i64| {
        if (0..n as i64).contains(&i) {
            f64::from(values[i as usize])
        } else {
            0.0
        }
    };
    let want: Vec<f64> = (0..n as i64)
        .map(|i| (0..7).map(|k| weights[k as usize] * at(i + k - 3)).sum())
        .collect();
    assert_close("blur", &widened(&output.f32s()), &want, 1e-5, 1e-6);
    assert_eq!(loaded.global("touched").u64s(), [n as u64]);
}

#[test]
fn softmax() {
    let loaded = Loaded::new(include_str!("softmax.ptx"));
    let (rows, columns) = (5usize, 300usize);
    let input = Random::new(5).floats(rows * columns, 8.0);
    let want: Vec<f64> = input
        .chunks(columns)
        .flat_map(|row| {
            let powers: Vec<f64> = row.iter().map(|v| f64::from(*v).exp()).collect();
            let sum: f64 = powers.iter().sum();
            powers.into_iter().map(move |power| power / sum)
        })
        .collect();
    for (kernel, relative) in [("softmax", 3e-6), ("softmax_fast", 2e-5)] {
        let (from, to) = (Buffer::of_f32(&input), Buffer::zeroed(rows * columns * 4));
        let run = loaded.kernel(kernel).grid(rows as u32).block(128);
        run.buffer(&from).buffer(&to).u32(columns as u32).ok();
        assert_close(kernel, &widened(&to.f32s()), &want, relative, 1e-9);
    }
}

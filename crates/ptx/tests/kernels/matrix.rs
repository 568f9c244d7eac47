//! `mma`: every shape and type, against a product over whole numbers. Which element is where is from the ISA's tables,
//! one formula a shape.

use std::fmt::Write;

use crate::numbers::{bits_of, encode, range};
use crate::random::Random;
use crate::support::{Buffer, Loaded};

type Shape = (usize, usize, usize);

/// Number of the group, number in the group.
fn of_lane(lane: usize) -> (usize, usize) {
    (lane >> 2, lane % 4)
}

/// Row and column of element `i` of A.
fn place_a(shape: Shape, bits: u32, lane: usize, i: usize) -> (usize, usize) {
    let (g, t) = of_lane(lane);
    let upper = |low: bool| if low { g } else { g + 8 };
    match (shape, bits) {
        ((8, 8, 4), 64) => (g, t),
        ((16, 8, 4), 32 | 64) => (upper(i == 0), t),
        ((16, 8, 8), 32 | 64) => (upper(i == 0 || i == 2), if i < 2 { t } else { t + 4 }),
        ((16, 8, 16), 64) if i.is_multiple_of(2) => (g, i * 2 + t),
        ((16, 8, 16), 64) => (g + 8, i * 2 - 2 + t),
        ((16, 8, 8), 16) => (upper(i < 2), t * 2 + (i & 1)),
        ((16, 8, 16), 16) => (
            upper(i < 2 || (4..6).contains(&i)),
            t * 2 + (i & 1) + if i < 4 { 0 } else { 8 },
        ),
        ((8, 8, 16), 8) => (g, t * 4 + i),
        ((16, 8, 16), 8) => (upper(i < 4), t * 4 + (i & 3)),
        ((16, 8, 32), 8) => (
            upper(i < 4 || (8..12).contains(&i)),
            t * 4 + (i & 3) + if i < 8 { 0 } else { 16 },
        ),
        ((8, 8, 32), 4) => (g, t * 8 + i),
        ((16, 8, 32), 4) => (upper(i < 8), t * 8 + (i & 7)),
        ((16, 8, 64), 4) => (
            upper(i < 8 || (16..24).contains(&i)),
            t * 8 + (i & 7) + if i < 16 { 0 } else { 32 },
        ),
        ((8, 8, 128), 1) => (g, t * 32 + i),
        ((16, 8, 128), 1) => (upper(i < 32), t * 32 + (i & 31)),
        ((16, 8, 256), 1) => (
            upper(i < 32 || (64..96).contains(&i)),
            t * 32 + (i & 31) + if i < 64 { 0 } else { 128 },
        ),
        _ => panic!("{shape:?} of {bits} bits"),
    }
}

/// Row and column of element `i` of B.
fn place_b(shape: Shape, bits: u32, lane: usize, i: usize) -> (usize, usize) {
    let (g, t) = of_lane(lane);
    let row = match (shape.2, bits) {
        (4, _) => t,
        (8, 32 | 64) => [t, t + 4][i],
        (16, 64) => t + i * 4,
        (8, 16) => t * 2 + i,
        (16, 16) => t * 2 + (i & 1) + if i < 2 { 0 } else { 8 },
        (16, 8) => t * 4 + i,
        (32, 8) => t * 4 + (i & 3) + if i < 4 { 0 } else { 16 },
        (32, 4) => t * 8 + i,
        (64, 4) => t * 8 + (i & 7) + if i < 8 { 0 } else { 32 },
        (128, 1) => t * 32 + i,
        (256, 1) => t * 32 + (i & 31) + if i < 32 { 0 } else { 128 },
        _ => panic!("{shape:?} of {bits} bits"),
    };
    (row, g)
}

/// Row and column of element `i` of C and D.
fn place_c(shape: Shape, _bits: u32, lane: usize, i: usize) -> (usize, usize) {
    let (g, t) = of_lane(lane);
    (if i < 2 { g } else { g + shape.0 - 8 }, t * 2 + (i & 1))
}

/// The registers of all lanes: 8 bytes each, `count` a lane.
fn registers(
    name: &str,
    count: usize,
    place: impl Fn(usize, usize) -> (usize, usize),
    value: impl Fn(usize, usize) -> u64,
) -> Vec<Vec<u64>> {
    let bits = bits_of(name);
    let each = (bits.max(32) / bits) as usize;
    let register = |lane: usize, r: usize| {
        (0..each).fold(0u64, |word, e| {
            let (row, column) = place(lane, r * each + e);
            word | value(row, column) << (e as u32 * bits)
        })
    };
    (0..32)
        .map(|lane| (0..count).map(|r| register(lane, r)).collect())
        .collect()
}

/// Registers that a lane has for `elements` of a matrix over `lanes` of them.
fn count(name: &str, elements: usize, lanes: usize) -> usize {
    elements * bits_of(name) as usize / (bits_of(name).max(32) as usize * lanes)
}

/// Runs an instruction over registers of D, A, B and C; gives back those of D.
fn run(text: &str, names: [&str; 4], counts: [usize; 4], given: [Vec<Vec<u64>>; 3]) -> Vec<Vec<u64>> {
    let mut module = String::from(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 in_p, .param .u64 out_p)\n{\n\
         .reg .b32 %lane; .reg .b64 %in, %out;\n ld.param.u64 %in, [in_p];\n ld.param.u64 %out, [out_p];\n\
         mov.u32 %lane, %laneid;\n mad.wide.u32 %in, %lane, 512, %in;\n mad.wide.u32 %out, %lane, 512, %out;\n",
    );
    let wide = |n: usize| if bits_of(names[n]) == 64 { "b64" } else { "b32" };
    let mut lists = Vec::new();
    let mut at = 0;
    for (n, letter) in ["d", "a", "b", "c"].into_iter().enumerate() {
        writeln!(module, " .reg .{} %{letter}<9>;", wide(n)).unwrap();
        let list: Vec<String> = (0..counts[n]).map(|r| format!("%{letter}{r}")).collect();
        if n > 0 {
            for register in &list {
                writeln!(module, " ld.global.{} {register}, [%in+{at}];", wide(n)).unwrap();
                at += 8;
            }
        }
        lists.push(format!("{{{}}}", list.join(", ")));
    }
    writeln!(module, " {text} {};", lists.join(", ")).unwrap();
    for r in 0..counts[0] {
        writeln!(module, " st.global.{} [%out+{}], %d{r};", wide(0), 8 * r).unwrap();
    }
    module += " ret;\n}\n";
    let mut input = vec![0u64; 32 * 64];
    for lane in 0..32 {
        let all = given.iter().flat_map(|g| &g[lane]);
        for (to, word) in input[lane * 64..].iter_mut().zip(all) {
            *to = *word;
        }
    }
    let (input, out) = (Buffer::of_u64(&input), Buffer::zeroed(32 * 512));
    let loaded = Loaded::new(&module);
    loaded.kernel("k").buffer(&input).buffer(&out).ok();
    let words = out.u64s();
    (0..32)
        .map(|lane| words[lane * 64..][..counts[0]].to_vec())
        .collect()
}

/// Whole numbers in rows.
fn numbers(random: &mut Random, name: &str, rows: usize, columns: usize) -> Vec<Vec<i64>> {
    let (least, most) = range(name);
    let number = |random: &mut Random| least + (random.word() % (most - least + 1) as u64) as i64;
    (0..rows)
        .map(|_| (0..columns).map(|_| number(random)).collect())
        .collect()
}

/// One instruction against the product. `suffix` follows the types.
fn check((m, n, k): Shape, [d, a, b, c]: [&str; 4], infix: &str, suffix: &str) {
    let shape = (m, n, k);
    let mut random = Random::new((m + 3 * n + 7 * k) as u64);
    let left = numbers(&mut random, a, m, k);
    let right = numbers(&mut random, b, k, n);
    let addend = numbers(&mut random, c, m, n);
    let counts = [
        count(d, m * n, 32),
        count(a, m * k, 32),
        count(b, k * n, 32),
        count(c, m * n, 32),
    ];
    let text = format!("mma.sync.aligned.m{m}n{n}k{k}.row.col{infix}.{d}.{a}.{b}.{c}{suffix}");
    let got = run(
        &text,
        [d, a, b, c],
        counts,
        [
            registers(
                a,
                counts[1],
                |l, i| place_a(shape, bits_of(a), l, i),
                |r, q| encode(a, left[r][q]),
            ),
            registers(
                b,
                counts[2],
                |l, i| place_b(shape, bits_of(b), l, i),
                |r, q| encode(b, right[r][q]),
            ),
            registers(
                c,
                counts[3],
                |l, i| place_c(shape, bits_of(c), l, i),
                |r, q| encode(c, addend[r][q]),
            ),
        ],
    );
    let product = |row: usize, column: usize, i: usize| match suffix {
        ".xor.popc" => left[row][i] ^ right[i][column],
        _ => left[row][i] * right[i][column],
    };
    let want = registers(
        d,
        counts[0],
        |l, i| place_c(shape, bits_of(d), l, i),
        |row, column| {
            encode(
                d,
                addend[row][column] + (0..k).map(|i| product(row, column, i)).sum::<i64>(),
            )
        },
    );
    assert_eq!(got, want, "{text}");
}

#[test]
fn floats() {
    for (shape, types) in [
        ((16, 8, 8), ["f16", "bf16"].as_slice()),
        ((16, 8, 16), &["f16", "bf16", "e4m3", "e5m2"]),
        ((16, 8, 32), &["e4m3", "e5m2"]),
        ((16, 8, 4), &["tf32"]),
        ((16, 8, 8), &["tf32"]),
    ] {
        for ab in types {
            check(shape, ["f32", ab, ab, "f32"], "", "");
            if matches!(*ab, "f16" | "e4m3" | "e5m2") {
                check(shape, ["f16", ab, ab, "f16"], "", "");
            }
        }
    }
    check((16, 8, 32), ["f32", "e4m3", "e5m2", "f32"], "", "");
}

#[test]
fn doubles() {
    for shape in [(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)] {
        check(shape, ["f64"; 4], "", "");
        check(shape, ["f64"; 4], ".rz", "");
    }
}

#[test]
fn whole_numbers() {
    for (shapes, types) in [
        ([(8, 8, 16), (16, 8, 16), (16, 8, 32)], ["s8", "u8"]),
        ([(8, 8, 32), (16, 8, 32), (16, 8, 64)], ["s4", "u4"]),
    ] {
        for shape in shapes {
            for a in types {
                for b in types {
                    check(shape, ["s32", a, b, "s32"], "", "");
                    check(shape, ["s32", a, b, "s32"], ".satfinite", "");
                }
            }
        }
    }
}

#[test]
fn single_bits() {
    for shape in [(8, 8, 128), (16, 8, 128), (16, 8, 256)] {
        check(shape, ["s32", "b1", "b1", "s32"], "", ".xor.popc");
        check(shape, ["s32", "b1", "b1", "s32"], "", ".and.popc");
    }
}

/// Sums beyond 32 bits wrap, and are clamped with `.satfinite`.
#[test]
fn saturation() {
    for (modifier, want) in [("", i32::MAX.wrapping_add(16)), (".satfinite", i32::MAX)] {
        let text = format!("mma.sync.aligned.m8n8k16.row.col{modifier}.s32.u8.u8.s32");
        let ones = || vec![vec![0x0101_0101u64]; 32];
        let got = run(
            &text,
            ["s32", "u8", "u8", "s32"],
            [2, 1, 1, 2],
            [ones(), ones(), vec![vec![i32::MAX as u64; 2]; 32]],
        );
        assert_eq!(got, vec![vec![u64::from(want as u32); 2]; 32], "{text}");
    }
}

/// Any floats: the result is the exact sum within the error of one addition of singles a step; NaN and infinity stay.
#[test]
fn any_halves() {
    let mut random = Random::new(5);
    let bits = |random: &mut Random| random.word() & 0xffff;
    let half = |bits: u64| {
        let (sign, field, fraction) = (bits >> 15, bits >> 10 & 31, (bits & 0x3ff) as f64);
        let magnitude = match field {
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            0 => fraction * 2f64.powi(-24),
            _ => (1024.0 + fraction) * 2f64.powi(field as i32 - 25),
        };
        if sign == 1 { -magnitude } else { magnitude }
    };
    let shape = (16, 8, 16);
    for _ in 0..8 {
        let a: Vec<Vec<u64>> = (0..16)
            .map(|_| (0..16).map(|_| bits(&mut random)).collect())
            .collect();
        let b: Vec<Vec<u64>> = (0..16)
            .map(|_| (0..8).map(|_| bits(&mut random)).collect())
            .collect();
        let got = run(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
            ["f32", "f16", "f16", "f32"],
            [4, 4, 2, 4],
            [
                registers("f16", 4, |l, i| place_a(shape, 16, l, i), |r, c| a[r][c]),
                registers("f16", 2, |l, i| place_b(shape, 16, l, i), |r, c| b[r][c]),
                vec![vec![0; 4]; 32],
            ],
        );
        for (lane, words) in got.iter().enumerate() {
            for (i, word) in words.iter().enumerate() {
                let (row, column) = place_c(shape, 32, lane, i);
                let products = (0..16).map(|k| half(a[row][k]) * half(b[k][column]));
                let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                let got = f64::from(f32::from_bits(*word as u32));
                let right = (got - sum).abs() <= size * 2f64.powi(-20) || got == sum;
                assert!(right || got.is_nan() && sum.is_nan(), "{got} for {sum}");
            }
        }
    }
}

/// `mma.m8n8k4` of halves: four products at once, with A and B in either order.
#[test]
fn four_products_at_once() {
    let place_a = |by_rows: bool, lane: usize, i: usize| {
        let upper = if lane < 16 { 0 } else { 4 };
        if by_rows {
            (lane % 4 + upper, i)
        } else {
            (i + upper, lane % 4)
        }
    };
    let place_b = |by_rows: bool, lane: usize, i: usize| {
        let upper = if lane < 16 { 0 } else { 4 };
        if by_rows {
            (lane % 4, i + upper)
        } else {
            (i, lane % 4 + upper)
        }
    };
    let place_c = |name: &str, lane: usize, i: usize| {
        let upper = if lane < 16 { 0 } else { 4 };
        match name {
            "f16" => (lane % 4 + upper, i),
            _ => ((lane & 1) + (i & 2) + upper, (i & 4) + (lane & 2) + (i & 1)),
        }
    };
    let which = |lane: usize| lane % 16 / 4;
    let mut random = Random::new(11);
    let a: Vec<_> = (0..4).map(|_| numbers(&mut random, "f16", 8, 4)).collect();
    let b: Vec<_> = (0..4).map(|_| numbers(&mut random, "f16", 4, 8)).collect();
    let c: Vec<_> = (0..4).map(|_| numbers(&mut random, "f32", 8, 8)).collect();
    // The matrix of a lane is hidden in the row: the helper knows of one matrix only.
    let hide = |lane: usize, (row, column): (usize, usize)| (row + 8 * which(lane), column);
    let value = |of: &[Vec<Vec<i64>>], row: usize, column: usize| of[row / 8][row % 8][column];
    for (d_name, c_name) in [("f32", "f32"), ("f16", "f16"), ("f32", "f16")] {
        for orders in ["row.col", "row.row", "col.col", "col.row"] {
            let (a_rows, b_rows) = (orders.starts_with("row"), orders.ends_with("row"));
            let text = format!("mma.sync.aligned.m8n8k4.{orders}.{d_name}.f16.f16.{c_name}");
            let counts = [count(d_name, 64, 8), 2, 2, count(c_name, 64, 8)];
            let got = run(
                &text,
                [d_name, "f16", "f16", c_name],
                counts,
                [
                    registers(
                        "f16",
                        2,
                        |l, i| hide(l, place_a(a_rows, l, i)),
                        |r, q| encode("f16", value(&a, r, q)),
                    ),
                    registers(
                        "f16",
                        2,
                        |l, i| hide(l, place_b(b_rows, l, i)),
                        |r, q| encode("f16", value(&b, r, q)),
                    ),
                    registers(
                        c_name,
                        counts[3],
                        |l, i| hide(l, place_c(c_name, l, i)),
                        |r, q| encode(c_name, value(&c, r, q)),
                    ),
                ],
            );
            let want = registers(
                d_name,
                counts[0],
                |l, i| hide(l, place_c(d_name, l, i)),
                |r, q| {
                    let n = r / 8;
                    let products = (0..4).map(|k| a[n][r % 8][k] * b[n][k][q]);
                    encode(d_name, value(&c, r, q) + products.sum::<i64>())
                },
            );
            assert_eq!(got, want, "{text}");
        }
    }
}

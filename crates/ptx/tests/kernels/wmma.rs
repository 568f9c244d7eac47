//! `wmma` as whole programs: two matrices from memory, their product, and back, in each shape, type and order.
//! `ldmatrix`, `stmatrix` and `movmatrix` against the ISA's layout.

use std::fmt::Write;

use crate::numbers::{bits_of, encode, range};
use crate::random::Random;
use crate::support::{Buffer, Loaded};

/// Registers of a fragment, by the ISA's table of `wmma`.
fn registers(name: &str, elements: usize, operand: bool) -> usize {
    match name {
        "f16" if operand => 8,
        _ => elements * bits_of(name) as usize / (32 * bits_of(name).max(32) as usize),
    }
}

/// A matrix in memory, with a stride longer than its rows or columns.
struct Matrix {
    name: &'static str,
    rows: usize,
    columns: usize,
    by_rows: bool,
    stride: usize,
    values: Vec<i64>,
}

impl Matrix {
    fn new(random: &mut Random, name: &'static str, rows: usize, columns: usize, by_rows: bool) -> Matrix {
        let (least, most) = range(name);
        let values = (0..rows * columns)
            .map(|_| least + (random.word() % (most - least + 1) as u64) as i64)
            .collect();
        let along = if by_rows { columns } else { rows };
        // Elements smaller than a byte begin on a whole word.
        let stride = along + 128 / bits_of(name).min(16) as usize;
        Matrix {
            name,
            rows,
            columns,
            by_rows,
            stride,
            values,
        }
    }

    fn at(&self, row: usize, column: usize) -> usize {
        if self.by_rows {
            row * self.stride + column
        } else {
            column * self.stride + row
        }
    }

    fn value(&self, row: usize, column: usize) -> i64 {
        self.values[row * self.columns + column]
    }

    fn bytes(&self) -> Vec<u8> {
        let bits = bits_of(self.name) as usize;
        let lines = if self.by_rows { self.rows } else { self.columns };
        let mut bytes = vec![0u8; lines * self.stride * bits / 8];
        for row in 0..self.rows {
            for column in 0..self.columns {
                let (element, at) = (
                    encode(self.name, self.value(row, column)),
                    self.at(row, column) * bits,
                );
                if bits < 8 {
                    bytes[at / 8] |= (element as u8) << (at % 8);
                } else {
                    bytes[at / 8..][..bits / 8].copy_from_slice(&element.to_le_bytes()[..bits / 8]);
                }
            }
        }
        bytes
    }
}

fn list(letter: &str, count: usize) -> String {
    let names: Vec<String> = (0..count).map(|r| format!("%{letter}{r}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// One program: `space` is where the matrices of A and B are loaded from.
fn check(
    (m, n, k): (usize, usize, usize),
    ab: [&'static str; 2],
    dc: [&'static str; 2],
    orders: [bool; 4],
    shared: bool,
) {
    let mut random = Random::new((m + 5 * n + 11 * k) as u64);
    let [a_rows, b_rows, c_rows, d_rows] = orders;
    let a = Matrix::new(&mut random, ab[0], m, k, a_rows);
    let b = Matrix::new(&mut random, ab[1], k, n, b_rows);
    let c = Matrix::new(&mut random, dc[1], m, n, c_rows);
    let d = Matrix::new(&mut random, dc[0], m, n, d_rows);
    let order = |by_rows: bool| if by_rows { "row" } else { "col" };
    let shape = format!("m{m}n{n}k{k}");
    let bits = bits_of(ab[0]) as usize;
    let counts = [
        registers(dc[0], m * n, false),
        registers(ab[0], m * k, true),
        registers(ab[1], k * n, true),
        registers(dc[1], m * n, false),
    ];
    let wide = |name: &str| if bits_of(name) == 64 { "b64" } else { "b32" };
    let mut text = format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 a_p, .param .u64 b_p, .param .u64 c_p, .param .u64 d_p)\n{{\n\
         .reg .b64 %pa, %pb, %pc, %pd, %x; .reg .b32 %n, %w; .reg .pred %p; .shared .align 32 .b8 s[8192];\n\
         .reg .{} %d<8>; .reg .{} %a<8>; .reg .{} %b<8>; .reg .{} %c<8>;\n\
         ld.param.u64 %pa, [a_p]; ld.param.u64 %pb, [b_p]; ld.param.u64 %pc, [c_p]; ld.param.u64 %pd, [d_p];\n",
        wide(dc[0]),
        wide(ab[0]),
        wide(ab[1]),
        wide(dc[1])
    );
    let mut from = "%pa";
    let mut space = ".global";
    if shared {
        // A goes to shared memory first, word by word.
        let words = a.bytes().len() / 4;
        writeln!(
            text,
            " mov.u32 %n, 0;\nNEXT: mul.wide.u32 %x, %n, 4; add.s64 %x, %pa, %x; ld.global.u32 %w, [%x];\n\
             cvta.to.global.u64 %x, %x; sub.s64 %x, %x, %pa; add.s64 %x, %x, s; st.shared.u32 [%x], %w;\n\
             add.u32 %n, %n, 1; setp.lt.u32 %p, %n, {words}; @%p bra NEXT;\n mov.u64 %x, s;"
        )
        .unwrap();
        (from, space) = ("%x", ".shared");
    }
    let operation = if bits == 1 { ".xor.popc" } else { "" };
    let types = match ab[0] {
        "f16" => format!("{}.{}", dc[0], dc[1]),
        _ => format!("{}.{}.{}.{}", dc[0], ab[0], ab[1], dc[1]),
    };
    writeln!(
        text,
        " wmma.load.a.sync.aligned.{}.{shape}{space}.{} {}, [{from}], {};\n\
         wmma.load.b.sync.aligned.{}.{shape}.global.{} {}, [%pb], {};\n\
         mov.u32 %n, {};\n wmma.load.c.sync.aligned.{}.{shape}.{} {}, [%pc], %n;\n\
         wmma.mma{operation}.sync.aligned.{}.{}.{shape}.{types} {}, {}, {}, {};\n\
         wmma.store.d.sync.aligned.{}.{shape}.global.{} [%pd], {}, {};\n ret;\n}}",
        order(a_rows),
        ab[0],
        list("a", counts[1]),
        a.stride,
        order(b_rows),
        ab[1],
        list("b", counts[2]),
        b.stride,
        c.stride,
        order(c_rows),
        dc[1],
        list("c", counts[3]),
        order(a_rows),
        order(b_rows),
        list("d", counts[0]),
        list("a", counts[1]),
        list("b", counts[2]),
        list("c", counts[3]),
        order(d_rows),
        dc[0],
        list("d", counts[0]),
        d.stride,
    )
    .unwrap();
    let [pa, pb, pc] = [&a, &b, &c].map(|x| Buffer::of_bytes(&x.bytes()));
    let pd = Buffer::of_bytes(&vec![0xab; d.bytes().len()]);
    let loaded = Loaded::new(&text);
    loaded
        .kernel("k")
        .buffer(&pa)
        .buffer(&pb)
        .buffer(&pc)
        .buffer(&pd)
        .ok();
    let got = pd.bytes();
    let size = bits_of(dc[0]) as usize / 8;
    let mut want = vec![0xab; got.len()];
    for row in 0..m {
        for column in 0..n {
            let product = |i: usize| match operation {
                "" => a.value(row, i) * b.value(i, column),
                _ => a.value(row, i) ^ b.value(i, column),
            };
            let sum = c.value(row, column) + (0..k).map(product).sum::<i64>();
            want[d.at(row, column) * size..][..size]
                .copy_from_slice(&encode(dc[0], sum).to_le_bytes()[..size]);
        }
    }
    assert_eq!(got, want, "{text}");
}

const SHAPES: [(usize, usize, usize); 3] = [(16, 16, 16), (8, 32, 16), (32, 8, 16)];

#[test]
fn products_of_halves() {
    for shape in SHAPES {
        for orders in 0..16 {
            let orders = [8, 4, 2, 1].map(|bit| orders & bit != 0);
            check(shape, ["f16"; 2], ["f32"; 2], orders, false);
            check(shape, ["bf16"; 2], ["f32"; 2], orders, false);
        }
        check(shape, ["f16"; 2], ["f16"; 2], [true, false, true, false], true);
        check(shape, ["f16"; 2], ["f32", "f16"], [true, true, true, true], true);
        check(shape, ["f16"; 2], ["f16", "f32"], [false, true, true, true], true);
    }
}

#[test]
fn products_of_other_types() {
    for shape in SHAPES {
        for ab in ["s8", "u8"] {
            check(shape, [ab; 2], ["s32"; 2], [true, false, true, true], false);
            check(shape, [ab; 2], ["s32"; 2], [false, true, false, false], true);
        }
    }
    for orders in [[true, false, true, true], [false, true, false, true]] {
        check((16, 16, 8), ["tf32"; 2], ["f32"; 2], orders, true);
        check((8, 8, 4), ["f64"; 2], ["f64"; 2], orders, false);
    }
    for ab in ["s4", "u4"] {
        check((8, 8, 32), [ab; 2], ["s32"; 2], [true, false, true, false], false);
    }
    check(
        (8, 8, 128),
        ["b1"; 2],
        ["s32"; 2],
        [true, false, false, true],
        true,
    );
}

/// A kernel that fills 1 KiB of shared memory with the halves 0, 1, 2, …, runs `body`, and stores `%r0` to `%r3`.
/// `%row` is the address of the row that a lane names.
fn rows(body: &str) -> Vec<u32> {
    let text = format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out_p)\n{{\n\
         .reg .b32 %r<4>, %lane, %n, %w, %row, %to; .reg .b64 %out; .reg .pred %p; .shared .align 16 .b8 s[1024];\n\
         mov.u32 %lane, %laneid; ld.param.u64 %out, [out_p]; mad.wide.u32 %out, %lane, 16, %out;\n\
         mov.u32 %n, %lane;\nNEXT: mul.lo.u32 %w, %n, 0x20002; add.u32 %w, %w, 0x10000;\n\
         mov.u32 %row, s; mad.lo.u32 %row, %n, 4, %row; st.shared.u32 [%row], %w;\n\
         add.u32 %n, %n, 32; setp.lt.u32 %p, %n, 128; @%p bra NEXT;\n\
         mov.u32 %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0;\n\
         mov.u32 %row, s; mad.lo.u32 %row, %lane, 16, %row; add.u32 %to, %row, 512;\n\
         {body}\n st.global.v4.u32 [%out], {{%r0, %r1, %r2, %r3}};\n ret;\n}}\n"
    );
    let out = Buffer::zeroed(512);
    Loaded::new(&text).kernel("k").buffer(&out).ok();
    out.u32s()
}

/// The halves of matrix `n` that a lane has: element (row, column) of it is 64 * n + 8 * row + column.
fn halves(lane: u32, n: u32, transposed: bool) -> u32 {
    let (row, column) = (lane / 4, 2 * (lane % 4));
    let at = |row: u32, column: u32| match transposed {
        true => 64 * n + 8 * column + row,
        false => 64 * n + 8 * row + column,
    };
    at(row, column + 1) << 16 | at(row, column)
}

#[test]
fn rows_of_shared_memory() {
    for (count, list) in [(1, "{%r0}"), (2, "{%r0, %r1}"), (4, "{%r0, %r1, %r2, %r3}")] {
        for transposed in [false, true] {
            let trans = if transposed { ".trans" } else { "" };
            let load = format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {list}, [%row];");
            let want: Vec<u32> = (0..128)
                .map(|at| {
                    if at % 4 < count {
                        halves(at / 4, at % 4, transposed)
                    } else {
                        0
                    }
                })
                .collect();
            assert_eq!(rows(&load), want, "{load}");
            // What `stmatrix` writes from the same registers are the same rows, where both transpose or neither does.
            let back = format!(
                "{load}\n stmatrix.sync.aligned.m8n8.x{count}{trans}.shared::cta.b16 [%to], {list};\n\
                 mov.u32 %to, s; mad.lo.u32 %to, %lane, 16, %to; ld.shared.v4.u32 {{%r0, %r1, %r2, %r3}}, [%to+512];"
            );
            let want: Vec<u32> = (0..128)
                .map(|word| {
                    if word < 32 * count {
                        0x1_0000 + 0x2_0002 * word
                    } else {
                        0
                    }
                })
                .collect();
            assert_eq!(rows(&back), want, "{back}");
        }
    }
    // One destination is the address itself; addresses may be generic.
    let own = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%row}, [%row];\n mov.b32 %r0, %row;";
    assert_eq!(rows(own)[4], halves(1, 0, false));
    let generic = ".reg .b64 %g; cvt.u64.u32 %g, %row; cvta.shared.u64 %g, %g;\n\
         ldmatrix.sync.aligned.m8n8.x1.b16 {%r0}, [%g];";
    assert_eq!(rows(generic)[124], halves(31, 0, false));
}

#[test]
fn a_matrix_transposed_in_registers() {
    let body = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%row];\n movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;";
    let got = rows(body);
    for lane in 0..32 {
        assert_eq!(got[lane as usize * 4], halves(lane, 0, true), "lane {lane}");
    }
}

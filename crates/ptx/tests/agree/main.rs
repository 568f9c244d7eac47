//! Compiled kernels end as interpreted ones do, bit for bit: random programs over what the compiler has code for, with
//! divergence, loops, barriers, shared memory, and now and then an access that is out of bounds.
//!
//! `DIVVY_PTX_PROGRAMS` says how many programs, `DIVVY_PTX_SEED` with which one to begin: a million are
//! `DIVVY_PTX_PROGRAMS=1000000 cargo test --release -p divvy-ptx --test agree random`. The comparison is in `support`,
//! where each launch of every suite goes through both. A program that ends differently is printed as short as it can be
//! made.

#[path = "../support/mod.rs"]
mod support;

mod shrink;

use std::fmt::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use divvy_ptx::{Fault, Timing};
use support::{Buffer, Loaded};

/// Repeatable random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len() as u64) as usize]
    }

    /// A register of a class: `r` 32 bits, `d` 64, `f` f32, `g` f64, `p` a predicate.
    fn register(&mut self, class: char) -> String {
        format!("%{class}{}", self.below(COUNT))
    }

    /// A register or now and then a literal.
    fn source(&mut self, class: char) -> String {
        match class {
            'r' if self.one_in(5) => format!("{:#x}", self.next() as u32),
            'd' if self.one_in(5) => format!("{:#x}", self.next()),
            'f' if self.one_in(5) => format!("0f{:08x}", number32(self)),
            'g' if self.one_in(5) => format!("0d{:016x}", number64(self)),
            _ => self.register(class),
        }
    }
}

/// Registers of each class.
const COUNT: u64 = 9;
/// Bytes of each block's part of the scratch memory, and of shared memory.
const SCRATCH: u64 = 2048;

/// Bits of an f32: any, a NaN with a payload, a subnormal, an infinity, a zero, or something near one.
fn number32(random: &mut Random) -> u32 {
    let bits = random.next() as u32;
    match random.below(8) {
        0 => bits,
        1 => bits | 0x7f80_0000,
        2 => bits & 0x807f_ffff,
        3 => bits & 0x8000_0000 | 0x7f80_0000,
        4 => bits & 0x8000_0000,
        _ => bits & 0x83ff_ffff | 0x3c00_0000,
    }
}

fn number64(random: &mut Random) -> u64 {
    let bits = random.next();
    match random.below(8) {
        0 => bits,
        1 => bits | 0x7ff0_0000_0000_0000,
        2 => bits & 0x800f_ffff_ffff_ffff,
        3 => bits & 0x8000_0000_0000_0000 | 0x7ff0_0000_0000_0000,
        4 => bits & 0x8000_0000_0000_0000,
        _ => bits & 0x80ff_ffff_ffff_ffff | 0x3f00_0000_0000_0000,
    }
}

/// Instructions, their result's class, and their operands' classes.
const FORMS: &[(&[&str], char, &str)] = &[
    (
        &[
            "add.s32",
            "sub.s32",
            "mul.lo.s32",
            "and.b32",
            "or.b32",
            "xor.b32",
            "min.s32",
            "max.s32",
            "min.u32",
            "max.u32",
            "mul.hi.u32",
            "div.u32",
            "rem.s32",
        ],
        'r',
        "rr",
    ),
    (&["shl.b32", "shr.u32", "shr.s32"], 'r', "rr"),
    (&["mad.lo.s32", "bfe.u32", "prmt.b32"], 'r', "rrr"),
    (
        &[
            "not.b32", "neg.s32", "abs.s32", "mov.u32", "clz.b32", "popc.b32", "brev.b32",
        ],
        'r',
        "r",
    ),
    (
        &[
            "add.s64",
            "sub.s64",
            "mul.lo.s64",
            "and.b64",
            "or.b64",
            "xor.b64",
            "min.s64",
            "max.s64",
            "min.u64",
            "max.u64",
        ],
        'd',
        "dd",
    ),
    (&["shl.b64", "shr.u64", "shr.s64"], 'd', "dr"),
    (&["mad.lo.s64"], 'd', "ddd"),
    (
        &["not.b64", "neg.s64", "abs.s64", "mov.u64", "cvta.to.global.u64"],
        'd',
        "d",
    ),
    (&["mul.wide.s32", "mul.wide.u32"], 'd', "rr"),
    (&["mad.wide.s32", "mad.wide.u32"], 'd', "rrd"),
    (&["cvt.u64.u32", "cvt.s64.s32"], 'd', "r"),
    (&["cvt.u32.u64"], 'r', "d"),
    (
        &[
            "add.f32",
            "sub.f32",
            "mul.f32",
            "min.f32",
            "max.f32",
            "div.rn.f32",
            "add.ftz.f32",
            "mul.rz.f32",
        ],
        'f',
        "ff",
    ),
    (&["fma.rn.f32"], 'f', "fff"),
    (
        &[
            "abs.f32",
            "neg.f32",
            "sqrt.rn.f32",
            "rcp.rn.f32",
            "rsqrt.approx.f32",
            "mov.f32",
            "cvt.rmi.f32.f32",
            "cvt.rpi.f32.f32",
            "cvt.rzi.f32.f32",
            "cvt.rni.f32.f32",
            "ex2.approx.f32",
        ],
        'f',
        "f",
    ),
    (
        &[
            "add.f64",
            "sub.f64",
            "mul.f64",
            "div.rn.f64",
            "min.f64",
            "max.f64",
        ],
        'g',
        "gg",
    ),
    (&["fma.rn.f64"], 'g', "ggg"),
    (
        &[
            "abs.f64",
            "neg.f64",
            "sqrt.rn.f64",
            "rcp.rn.f64",
            "mov.f64",
            "cvt.rmi.f64.f64",
        ],
        'g',
        "g",
    ),
    (&["cvt.rn.f32.s32", "cvt.rn.f32.u32"], 'f', "r"),
    (&["cvt.rzi.s32.f32", "cvt.rzi.u32.f32", "mov.b32"], 'r', "f"),
    (&["cvt.f64.f32"], 'g', "f"),
    (&["cvt.rn.f32.f64"], 'f', "g"),
    (&["cvt.rn.f64.s32", "cvt.rn.f64.u32"], 'g', "r"),
    (&["cvt.rzi.s32.f64", "cvt.rzi.u32.f64"], 'r', "g"),
    (
        &[
            "setp.eq.s32",
            "setp.ne.s32",
            "setp.lt.s32",
            "setp.le.u32",
            "setp.gt.u32",
            "setp.ge.s32",
        ],
        'p',
        "rr",
    ),
    (
        &["setp.eq.s64", "setp.lt.u64", "setp.ge.s64", "setp.gt.s64"],
        'p',
        "dd",
    ),
    (
        &[
            "setp.eq.f32",
            "setp.ne.f32",
            "setp.lt.f32",
            "setp.le.f32",
            "setp.gt.f32",
            "setp.ge.f32",
            "setp.equ.f32",
            "setp.neu.f32",
            "setp.ltu.f32",
            "setp.leu.f32",
            "setp.gtu.f32",
            "setp.geu.f32",
            "setp.num.f32",
            "setp.nan.f32",
        ],
        'p',
        "ff",
    ),
    (
        &[
            "setp.eq.f64",
            "setp.ne.f64",
            "setp.lt.f64",
            "setp.le.f64",
            "setp.gt.f64",
            "setp.ge.f64",
            "setp.equ.f64",
            "setp.neu.f64",
            "setp.ltu.f64",
            "setp.leu.f64",
            "setp.gtu.f64",
            "setp.geu.f64",
            "setp.num.f64",
            "setp.nan.f64",
        ],
        'p',
        "gg",
    ),
    (&["and.pred", "or.pred", "xor.pred"], 'p', "pp"),
    (&["not.pred", "mov.pred"], 'p', "p"),
    (&["selp.b32"], 'r', "rrp"),
    (&["selp.b64"], 'd', "ddp"),
    (&["selp.f32"], 'f', "ffp"),
    (&["selp.f64"], 'g', "ggp"),
];

/// What stands around a program's own part.
const BODY: &str = " // body\n";
const END: &str = " // end\n";

struct Program {
    random: Random,
    text: String,
    labels: u32,
    loops: u32,
    /// Registers that one instruction writes: of 32 bits, and of 64.
    once: [u32; 2],
}

impl Program {
    fn line(&mut self, line: &str) {
        writeln!(self.text, " {line}").unwrap();
    }

    fn guard(&mut self) -> String {
        match self.random.below(8) {
            0 => format!("@{} ", self.random.register('p')),
            1 => format!("@!{} ", self.random.register('p')),
            _ => String::new(),
        }
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    fn compute(&mut self) {
        let (names, result, operands) = FORMS[self.random.below(FORMS.len() as u64) as usize];
        let name = self.random.pick(names);
        let guard = self.guard();
        let d = self.random.register(result);
        let literals = operands.len() > 1;
        let sources: Vec<String> = operands
            .chars()
            .map(|class| {
                if literals {
                    self.random.source(class)
                } else {
                    self.random.register(class)
                }
            })
            .collect();
        self.line(&format!("{guard}{name} {d}, {};", sources.join(", ")));
    }

    /// A register that nothing else writes, `x` of 32 bits or `y` of 64; or now and then one that others write too.
    fn target(&mut self, class: char, shared: &'static str) -> String {
        if self.random.one_in(3) {
            return shared.into();
        }
        let count = &mut self.once[usize::from(class == 'y')];
        *count += 1;
        format!("%{class}{}", *count - 1)
    }

    /// A register with an offset in bytes, aligned to 16, of one of the patterns that programs have.
    fn index(&mut self, width: u64) -> String {
        let index = self.target('x', "%index");
        match self.random.below(8) {
            0 => self.line(&format!("mul.lo.u32 {index}, %lane, {width};")),
            1 => {
                let offset = 16 * self.random.below(64);
                self.line(&format!("mov.u32 {index}, {offset};"));
            }
            2 => {
                self.line("and.b32 %index, %lane, 15;");
                self.line(&format!("mul.lo.u32 {index}, %index, {width};"));
            }
            3 => {
                self.line("shr.u32 %index, %lane, 4;");
                self.line(&format!("shl.b32 {index}, %index, 6;"));
            }
            4 => {
                let r = self.random.register('r');
                self.line(&format!("and.b32 {index}, {r}, 0x3f0;"));
            }
            5 => {
                let offset = 16 * self.random.below(20);
                self.line(&format!("mad.lo.s32 {index}, %lane, {width}, {offset};"));
            }
            // What bitonic networks do.
            6 => {
                let mask = (1 << self.random.below(5)) - 1;
                self.line(&format!("and.b32 %word, %lane, {mask};"));
                self.line("shl.b32 %index, %lane, 1;");
                self.line("sub.s32 %index, %index, %word;");
                self.line(&format!("mul.lo.u32 {index}, %index, {width};"));
            }
            _ => self.line(&format!("shl.b32 {index}, %lane, 4;")),
        }
        if self.random.one_in(400) {
            let r = self.random.register('r');
            let mask = self.random.pick(&["0x7", "0xffff", "0xfffff0"]);
            self.line(&format!("mov.u32 %any, {r};"));
            self.line(&format!("and.b32 %index, %any, {mask};"));
            return "%index".into();
        }
        index
    }

    fn memory(&mut self) {
        let (ty, class, width) = [
            ("b32", 'r', 4),
            ("u32", 'r', 4),
            ("f32", 'f', 4),
            ("b64", 'd', 8),
            ("f64", 'g', 8),
            ("v2.b32", 'r', 8),
            ("v4.f32", 'f', 16),
            ("v2.b64", 'd', 16),
            ("u8", 'r', 1),
            ("s8", 'r', 1),
            ("u16", 'r', 2),
            ("s16", 'r', 2),
        ][self.random.below(12) as usize];
        let index = self.index(width);
        let count = match ty.as_bytes()[1] {
            b'2' => 2,
            b'4' => 4,
            _ => 1,
        };
        let offset = self.random.pick(&["", "+16", "+32"]);
        let space = ["global", "", "shared"][self.random.below(3) as usize];
        let place = if space == "shared" {
            let at = self.target('x', "%index");
            self.line("mov.u32 %word, tile;");
            self.line(&format!("add.u32 {at}, {index}, %word;"));
            format!("[{at}{offset}]")
        } else {
            let (wide, at) = (self.target('y', "%address"), self.target('y', "%address"));
            let extend = self.random.pick(&["cvt.u64.u32", "cvt.s64.s32"]);
            if self.random.one_in(2) {
                self.line(&format!("{extend} {wide}, {index};"));
            } else {
                self.line(&format!("mul.wide.s32 {wide}, {index}, 1;"));
            }
            self.line(&format!("add.s64 {at}, %scratch, {wide};"));
            format!("[{at}{offset}]")
        };
        let dot = if space.is_empty() { "" } else { "." };
        let first = self.random.below(COUNT - 3);
        let registers: Vec<String> = (0..count).map(|n| format!("%{class}{}", first + n)).collect();
        let registers = if count == 1 {
            registers[0].clone()
        } else {
            format!("{{{}}}", registers.join(", "))
        };
        let guard = self.guard();
        // Others at the same address, before the one below.
        if !place.contains('+') && self.random.one_in(3) {
            for n in 1..1 + self.random.below(3) {
                let (d, at) = (self.random.register('f'), place.trim_end_matches(']'));
                let what = if self.random.one_in(4) { "st" } else { "ld" };
                self.line(&if what == "ld" {
                    format!("ld{dot}{space}.f32 {d}, {at}+{}];", 4 * n)
                } else {
                    format!("st{dot}{space}.f32 {at}+{}], {d};", 4 * n)
                });
            }
        }
        match self.random.below(5) {
            0 if ty == "u32" => {
                let by = self.random.below(3);
                let space = if space.is_empty() { "global" } else { space };
                self.line(&format!("{guard}red.{space}.add.u32 {place}, {by};"));
            }
            1 if ty == "u32" && space == "shared" => {
                self.line(&format!("{guard}atom.shared.add.u32 {registers}, {place}, 7;"));
            }
            0..3 => self.line(&format!("{guard}ld{dot}{space}.{ty} {registers}, {place};")),
            _ => {
                let ty = match ty {
                    "s8" => "u8",
                    "s16" => "u16",
                    ty => ty,
                };
                self.line(&format!("{guard}st{dot}{space}.{ty} {place}, {registers};"));
            }
        }
    }

    /// Sums and multiples of the lane's number, now and then beyond the end of 32 bits, that end in other registers.
    fn even(&mut self) {
        let mut narrow = String::from("%lane");
        let mut wide: Option<String> = None;
        for _ in 0..1 + self.random.below(5) {
            let number = match self.random.below(5) {
                0 => self.random.next() as u32,
                1 => 0x7fff_ffffu32.wrapping_sub(self.random.below(200) as u32),
                2 => (self.random.below(200) as u32).wrapping_sub(100),
                _ => self.random.below(64) as u32,
            };
            if let Some(from) = wide.take() {
                match self.random.below(5) {
                    0 => {
                        narrow = self.target('x', "%index");
                        self.line(&format!("cvt.u32.u64 {narrow}, {from};"));
                    }
                    n => {
                        let to = self.target('y', "%address");
                        self.line(&match n {
                            1 => format!("add.s64 {to}, {from}, {number};"),
                            2 => format!("shl.b64 {to}, {from}, {};", number % 6),
                            3 => format!("mad.wide.s32 {to}, {narrow}, {}, {from};", number as i32),
                            _ => format!("neg.s64 {to}, {from};"),
                        });
                        wide = Some(to);
                    }
                }
                continue;
            }
            match self.random.below(8) {
                n @ 0..3 => {
                    let to = self.target('y', "%address");
                    let name = ["mul.wide.s32", "mul.wide.u32", "cvt.s64.s32"][n as usize];
                    if n == 2 {
                        self.line(&format!("{name} {to}, {narrow};"));
                    } else {
                        self.line(&format!("{name} {to}, {narrow}, {};", number as i32 % 1000));
                    }
                    wide = Some(to);
                }
                n => {
                    let to = self.target('x', "%index");
                    self.line(&match n {
                        3 => format!("add.s32 {to}, {narrow}, {};", number as i32),
                        4 => format!("shl.b32 {to}, {narrow}, {};", number % 20),
                        5 => format!("mad.lo.s32 {to}, {narrow}, {}, %word;", number as i32),
                        6 => format!("neg.s32 {to}, {narrow};"),
                        _ => format!("sub.s32 {to}, {}, {narrow};", number as i32),
                    });
                    narrow = to;
                }
            }
        }
        match wide {
            Some(wide) => {
                let d = self.random.register('d');
                self.line(&format!("xor.b64 {d}, {d}, {wide};"));
            }
            None => {
                let r = self.random.register('r');
                self.line(&format!("xor.b32 {r}, {r}, {narrow};"));
            }
        }
    }

    fn statement(&mut self, depth: u32) {
        match self.random.below(24) {
            0..=2 if depth > 0 => {
                let (other, end) = (self.label(), self.label());
                let p = self.random.register('p');
                let not = if self.random.one_in(2) { "!" } else { "" };
                self.line(&format!("@{not}{p} bra {other};"));
                self.statements(depth - 1);
                if self.random.one_in(2) {
                    self.line(&format!("bra {end};"));
                    self.line(&format!("{other}:"));
                    self.statements(depth - 1);
                    self.line(&format!("{end}:"));
                } else {
                    self.line(&format!("{other}:"));
                }
            }
            3 if depth > 0 => {
                let n = self.loops;
                self.loops += 1;
                let start = self.label();
                self.line(&format!("mov.u32 %n{n}, 0;"));
                match self.random.below(3) {
                    0 => self.line(&format!("and.b32 %m{n}, %lane, 3;")),
                    _ => {
                        let rounds = self.random.below(5);
                        self.line(&format!("mov.u32 %m{n}, {rounds};"));
                    }
                }
                self.line(&format!("{start}:"));
                self.statements(depth - 1);
                self.line(&format!("add.u32 %n{n}, %n{n}, 1;"));
                self.line(&format!("setp.le.u32 %again, %n{n}, %m{n};"));
                self.line(&format!("@%again bra {start};"));
            }
            4..=8 => self.memory(),
            9..=10 => self.even(),
            _ => self.compute(),
        }
    }

    fn statements(&mut self, depth: u32) {
        for _ in 0..1 + self.random.below(7) {
            self.statement(depth);
        }
    }

    /// A whole kernel.
    fn new(seed: u64) -> Program {
        let mut program = Program {
            random: Random::new(seed),
            text: String::new(),
            labels: 0,
            loops: 0,
            once: [0; 2],
        };
        let mut body = String::new();
        for _ in 0..2 + program.random.below(5) {
            program.statements(3);
            // Where all lanes are together again.
            match program.random.below(5) {
                0 => program.line("bar.sync 0;"),
                1 => {
                    let (d, a) = (program.random.register('r'), program.random.register('r'));
                    program.line(&format!("shfl.sync.bfly.b32 {d}, {a}, 5, 31, 0xffffffff;"));
                }
                2 => {
                    let (d, p) = (program.random.register('r'), program.random.register('p'));
                    program.line(&format!("vote.sync.ballot.b32 {d}, {p}, 0xffffffff;"));
                }
                3 if program.random.one_in(4) => {
                    let p = program.random.register('p');
                    program.line(&format!("@{p} exit;"));
                    break;
                }
                _ => {}
            }
        }
        std::mem::swap(&mut body, &mut program.text);
        program.text = format!(
            ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry random(.param .u64 values, .param .u64 memory)\n{{\n \
             .reg .b32 %r<{COUNT}>, %n<{loops}>, %m<{loops}>, %x<{narrow}>, %index, %word, %lane, %thread, %any;\n \
             .reg .b64 %d<{COUNT}>, %y<{wide}>, %address, %scratch, %mine;\n .reg .f32 %f<{COUNT}>;\n .reg .f64 %g<{COUNT}>;\n \
             .reg .pred %p<{COUNT}>, %again;\n .shared .align 16 .b8 tile[{SCRATCH}];\n \
             mov.u32 %lane, %tid.x;\n mov.u32 %word, %ctaid.x;\n mov.u32 %index, %ntid.x;\n \
             mad.lo.u32 %thread, %word, %index, %lane;\n ld.param.u64 %scratch, [memory];\n \
             mul.wide.u32 %address, %word, {SCRATCH};\n add.s64 %scratch, %scratch, %address;\n \
             ld.param.u64 %mine, [values];\n mul.wide.u32 %address, %thread, {BYTES};\n add.s64 %mine, %mine, %address;\n",
            loops = program.loops + 1,
            narrow = program.once[0] + 1,
            wide = program.once[1] + 1,
        );
        for n in 0..COUNT {
            program.line(&format!("ld.global.b32 %r{n}, [%mine+{}];", 8 * n));
            program.line(&format!("ld.global.b64 %d{n}, [%mine+{}];", 8 * (COUNT + n)));
            program.line(&format!("ld.global.f32 %f{n}, [%mine+{}];", 8 * (2 * COUNT + n)));
            program.line(&format!("ld.global.f64 %g{n}, [%mine+{}];", 8 * (3 * COUNT + n)));
            program.line(&format!("setp.lt.s32 %p{n}, %r{n}, {};", n as i64 - 3));
        }
        // Shared memory holds what the block before left there.
        program.line("mov.u32 %index, tile; shl.b32 %word, %lane, 2; add.u32 %any, %index, %word;");
        program.line("mov.u32 %word, %ntid.x; shl.b32 %word, %word, 2;");
        program.line(&format!("add.u32 %index, %index, {SCRATCH};\nCLEAR:"));
        program.line("setp.lt.u32 %again, %any, %index;\n @%again st.shared.u32 [%any], 0;");
        program.line("add.u32 %any, %any, %word;\n @%again bra CLEAR;\n bar.sync 0;");
        program.text += &format!("{BODY}{body}{END}");
        for n in 0..COUNT {
            program.line(&format!("st.global.b32 [%mine+{}], %r{n};", 8 * n));
            program.line(&format!("selp.b32 %word, 1, 2, %p{n};"));
            program.line(&format!("st.global.b32 [%mine+{}], %word;", 8 * n + 4));
            program.line(&format!("st.global.b64 [%mine+{}], %d{n};", 8 * (COUNT + n)));
            program.line(&format!("st.global.f32 [%mine+{}], %f{n};", 8 * (2 * COUNT + n)));
            program.line(&format!("st.global.f64 [%mine+{}], %g{n};", 8 * (3 * COUNT + n)));
        }
        program.text += " ret;\n}\n";
        program
    }
}

/// Bytes of each thread's values.
const BYTES: u64 = 8 * 4 * COUNT;

fn run(seed: u64) {
    let Program { mut random, text, .. } = Program::new(seed);
    let block = [32, 64, 96, 40, 7][random.below(5) as usize];
    let grid = 1 + random.below(2) as u32;
    // Which of two blocks faults first is chance.
    let grid = if text.contains("mov.u32 %any, %r") {
        1
    } else {
        grid
    };
    let mut values = Vec::new();
    for _ in 0..grid * block {
        for n in 0..4 * COUNT {
            let bits = match n / COUNT {
                0 if random.one_in(2) => random.below(70),
                0 | 1 => random.next(),
                2 => u64::from(number32(&mut random)),
                _ => number64(&mut random),
            };
            values.push(bits);
        }
    }
    let (values, memory) = (
        Buffer::of_u64(&values),
        Buffer::zeroed((u64::from(grid) * SCRATCH) as usize),
    );
    let (start, empty) = (values.bytes(), memory.bytes());
    // How it ends is compared there. A fault is an end like another.
    let differs = |text: &str| {
        values.fill(&start);
        memory.fill(&empty);
        let loaded = Loaded::new(text);
        let launch = loaded.kernel("random").grid(grid).block(block);
        let end = || launch.buffer(&values).buffer(&memory).end();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(end)).is_err()
    };
    if differs(&text) {
        let short = shrink::shrink(&text, differs);
        panic!("seed {seed}\n{short}");
    }
}

#[test]
fn random_programs_end_the_same_on_both() {
    let setting = |name: &str, or: u64| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(or)
    };
    let first = setting("DIVVY_PTX_SEED", 1);
    for seed in first..first + setting("DIVVY_PTX_PROGRAMS", 1500) {
        run(seed);
    }
}

/// A kernel whose lanes go round loops of different lengths, or for ever.
fn rounds(end: &str) -> Loaded {
    Loaded::new(&format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry rounds(.param .u64 out)\n{{\n \
         .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p;\n mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 7; mov.u32 %r2, 0;\n\
         AGAIN:\n add.u32 %r2, %r2, 3;\n sub.s32 %r1, %r1, 1;\n {end}\n @%p bra AGAIN;\n \
         ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r0, 4; add.s64 %d0, %d0, %d1; st.global.u32 [%d0], %r2;\n ret;\n}}\n"
    ))
}

const ENDS: &str = "setp.ge.s32 %p, %r1, 0;";

#[test]
fn a_compiled_kernel_that_never_ends_is_stopped() {
    for never in [
        "setp.ne.s32 %p, 0, 1;",
        "setp.ne.s32 %p, %r1, -9;\n @!%p bra AGAIN;",
    ] {
        let (loaded, out, stop) = (rounds(never), Buffer::zeroed(256), AtomicBool::new(false));
        let run = loaded
            .kernel("rounds")
            .block(64)
            .buffer(&out)
            .cancel(&stop)
            .compile(true);
        let end = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                stop.store(true, Ordering::Relaxed);
            });
            run.end()
        });
        assert_eq!(end, Err(Fault::Cancelled));
    }
}

#[test]
fn the_model_of_time_counts_the_same_for_both() {
    let (loaded, out) = (rounds(ENDS), Buffer::zeroed(4 * 96));
    let times = [false, true].map(|compile| {
        let timing = Timing {
            start_ns: 1000,
            instruction_ps: 2500,
            cpu_ns: &|| 0,
            progress: &|_| (),
        };
        let run = loaded.kernel("rounds").block(96).buffer(&out);
        run.timing(timing).compile(compile).ok()
    });
    assert!(times[0].times.longest_ps > 2500 * 10);
    assert_eq!(times[0], times[1]);
    assert_eq!(out.u32s()[..9], [3, 6, 9, 12, 15, 18, 21, 24, 3]);
}

/// Names the test that runs in a child.
const CHILD: &str = "DIVVY_TEST_IN_CHILD";

/// Runs `test`, which has this name, in a process of its own.
fn in_child(name: &str, test: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return test();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(
        child.status.success(),
        "{}",
        String::from_utf8_lossy(&child.stdout)
    );
}

/// Whether a kernel that can be compiled is, and runs right either way.
fn is_compiled() -> bool {
    let (loaded, out) = (rounds(ENDS), Buffer::zeroed(128));
    loaded.kernel("rounds").buffer(&out).compile(true).ok();
    assert_eq!(out.u32s()[..3], [3, 6, 9]);
    loaded.module.interpreted_lines("rounds").is_some()
}

#[test]
fn where_no_memory_may_become_executable_kernels_are_interpreted() {
    in_child(
        "where_no_memory_may_become_executable_kernels_are_interpreted",
        || {
            const PR_SET_MDWE: i32 = 65;
            const REFUSE_EXEC_GAIN: usize = 1;
            // SAFETY: plain numbers; from here on this process cannot make memory executable.
            let status = unsafe { libc::prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0usize, 0usize, 0usize) };
            if status != 0 {
                eprintln!("this kernel has no PR_SET_MDWE: not tested");
                return;
            }
            assert!(!is_compiled());
        },
    );
}

#[cfg(target_arch = "x86_64")]
#[test]
fn beyond_the_limit_of_code_kernels_are_interpreted_until_code_is_freed() {
    in_child(
        "beyond_the_limit_of_code_kernels_are_interpreted_until_code_is_freed",
        || {
            let first = rounds(ENDS);
            let Some(left) = first.module.interpreted_lines("rounds") else {
                eprintln!("this processor has no AVX-512: not tested");
                return;
            };
            assert_eq!(left, [0u32; 0], "every instruction of the kernel is compiled");
            // Room for the code of one such module.
            let one = executable_bytes();
            divvy_ptx::limit_code(one);
            assert!(!is_compiled());
            drop(first);
            assert!(is_compiled());
            assert_eq!(executable_bytes(), 0, "the code of modules that are gone is gone");
        },
    );
}

/// Bytes of memory without a file that this process may execute, but for the kernel's own.
#[cfg(target_arch = "x86_64")]
fn executable_bytes() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut sum = 0;
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert!(
            !(fields[1].contains('w') && fields[1].contains('x')),
            "no memory is both writable and executable: {line}"
        );
        if fields[1].contains('x') && fields.len() == 5 {
            let (from, to) = fields[0].split_once('-').unwrap();
            let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
            sum += number(to) - number(from);
        }
    }
    sum
}

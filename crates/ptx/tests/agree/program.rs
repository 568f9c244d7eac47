//! Random kernels: computations, accesses, branches and loops, over registers of each class.

use std::fmt::Write;

use super::forms::FORMS;
use super::random::Random;

/// Registers of each class.
pub const COUNT: u64 = 9;
/// Bytes of each block's part of the scratch memory, and of shared memory.
pub const SCRATCH: u64 = 2048;

/// What stands around a program's own part.
pub const BODY: &str = " // body\n";
pub const END: &str = " // end\n";

pub struct Program {
    pub random: Random,
    pub text: String,
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
    pub fn new(seed: u64) -> Program {
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

//! An assembler for the few forms of x86-64 that compiled kernels consist of: 512-bit vectors (EVEX), mask registers
//! (VEX), and a handful of scalar instructions.

/// A general register, by its number in the instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gp(pub u8);

pub(super) const RAX: Gp = Gp(0);
pub(super) const RCX: Gp = Gp(1);
pub(super) const RDX: Gp = Gp(2);
/// The `Ctx`.
pub(super) const CTX: Gp = Gp(3);
/// The function's register area.
pub(super) const REGS: Gp = Gp(5);
pub(super) const RSI: Gp = Gp(6);
pub(super) const RDI: Gp = Gp(7);
/// The module's instructions.
pub(super) const INSTS: Gp = Gp(13);
/// Instructions issued so far.
pub(super) const COUNT: Gp = Gp(14);
/// The active lanes.
pub(super) const MASK: Gp = Gp(15);

/// The operand that may lie in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rm {
    /// A vector register, or a general one where the instruction takes that.
    Reg(u8),
    Mem(Gp, i32),
    /// An offset in the code's buffer, where constants lie.
    Pool(u32),
    /// The same, one element for every lane.
    Each(u32),
}

/// Which table of opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Map {
    M0F = 1,
    M0F38 = 2,
    M0F3A = 3,
}

/// An instruction's mandatory prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pp {
    None = 0,
    P66 = 1,
    F3 = 2,
    F2 = 3,
}

/// A vector instruction: prefix, table, opcode, and whether its elements are 64 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct V(pub Pp, pub Map, pub u8, pub bool);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cond {
    Overflow = 0,
    Below = 2,
    Equal = 4,
    NotEqual = 5,
    NotAbove = 6,
    Above = 7,
    NotLess = 13,
}

/// A place in the code that is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(pub u32);

#[derive(Default)]
pub(super) struct Asm {
    pub bytes: Vec<u8>,
    /// Where each label is.
    labels: Vec<Option<u32>>,
    /// Where a distance of four bytes to a label is still to be written.
    fixups: Vec<(usize, Label)>,
}

impl Asm {
    pub fn here(&self) -> u32 {
        self.bytes.len() as u32
    }

    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() as u32 - 1)
    }

    pub fn bind(&mut self, label: Label) {
        self.labels[label.0 as usize] = Some(self.here());
    }

    /// Writes the distances. False if a label was never bound.
    pub fn link(&mut self) -> bool {
        for (at, label) in std::mem::take(&mut self.fixups) {
            let Some(target) = self.labels[label.0 as usize] else {
                return false;
            };
            let distance = (i64::from(target) - (at as i64 + 4)) as i32;
            self.bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        true
    }

    /// How much there is of it, to go back to.
    pub fn mark(&self) -> [usize; 3] {
        [self.bytes.len(), self.labels.len(), self.fixups.len()]
    }

    /// Takes back what was written since the mark. No label of before may have been bound since.
    pub fn rewind(&mut self, [bytes, labels, fixups]: [usize; 3]) {
        self.bytes.truncate(bytes);
        self.labels.truncate(labels);
        self.fixups.truncate(fixups);
    }

    fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn word(&mut self, word: u32) {
        self.bytes.extend_from_slice(&word.to_le_bytes());
    }

    /// ModRM and what follows it. `after` bytes of the instruction follow the displacement.
    fn modrm(&mut self, reg: u8, rm: Rm, after: u32) {
        let reg = (reg & 7) << 3;
        match rm {
            Rm::Reg(r) => self.byte(0xc0 | reg | r & 7),
            Rm::Mem(base, offset) => {
                self.byte(0x80 | reg | base.0 & 7);
                if base.0 & 7 == 4 {
                    self.byte(0x24);
                }
                self.word(offset as u32);
            }
            Rm::Pool(at) | Rm::Each(at) => {
                self.byte(reg | 5);
                let end = self.here() + 4 + after;
                self.word(at.wrapping_sub(end));
            }
        }
    }

    /// `reg`, `vvvv` and `rm` in the places the instruction set calls so; `k` masks (0: all lanes), keeping what the
    /// masked-out lanes of the target hold.
    fn evex(&mut self, v: V, [reg, vvvv]: [u8; 2], rm: Rm, k: u8, imm: Option<u8>) {
        let V(pp, map, opcode, wide) = v;
        let (b3, x4) = match rm {
            Rm::Reg(r) => (r >> 3 & 1, r >> 4 & 1),
            Rm::Mem(base, _) => (base.0 >> 3 & 1, 0),
            Rm::Pool(_) | Rm::Each(_) => (0, 0),
        };
        let each = u8::from(matches!(rm, Rm::Each(_)));
        self.byte(0x62);
        self.byte((!reg >> 3 & 1) << 7 | (1 - x4) << 6 | (1 - b3) << 5 | (!reg >> 4 & 1) << 4 | map as u8);
        self.byte(u8::from(wide) << 7 | (!vvvv & 15) << 3 | 4 | pp as u8);
        self.byte(2 << 5 | each << 4 | (!vvvv >> 4 & 1) << 3 | k);
        self.byte(opcode);
        self.modrm(reg, rm, u32::from(imm.is_some()));
        if let Some(imm) = imm {
            self.byte(imm);
        }
    }

    /// Three operands: `d = op(a, b)`.
    pub fn v3(&mut self, v: V, d: u8, a: u8, b: Rm) {
        self.evex(v, [d, a], b, 0, None);
    }

    /// The same in the lanes of mask `k` only.
    pub fn v3_masked(&mut self, v: V, d: u8, k: u8, a: u8, b: Rm) {
        self.evex(v, [d, a], b, k, None);
    }

    /// Two operands: `d = op(a)`.
    pub fn v2(&mut self, v: V, d: u8, a: Rm) {
        self.evex(v, [d, 0], a, 0, None);
    }

    pub fn v2_masked(&mut self, v: V, d: u8, k: u8, a: Rm) {
        self.evex(v, [d, 0], a, k, None);
    }

    pub fn v2_imm(&mut self, v: V, d: u8, a: Rm, imm: u8) {
        self.evex(v, [d, 0], a, 0, Some(imm));
    }

    /// A gather or a scatter of `data`, whose elements have 64 bits or 32: elements at `base` (or nothing) plus `index`'s lanes plus `offset`, in the lanes of `k`,
    /// which is then empty.
    pub fn indexed(&mut self, opcode: u8, data: (u8, bool), base: Option<Gp>, index: u8, offset: i32, k: u8) {
        let (data, wide) = data;
        let base_high = base.map_or(0, |base| base.0 >> 3 & 1);
        self.byte(0x62);
        self.byte(
            (!data >> 3 & 1) << 7
                | (!index >> 3 & 1) << 6
                | (1 - base_high) << 5
                | (!data >> 4 & 1) << 4
                | Map::M0F38 as u8,
        );
        self.byte(u8::from(wide) << 7 | 15 << 3 | 4 | Pp::P66 as u8);
        self.byte(2 << 5 | (!index >> 4 & 1) << 3 | k);
        self.byte(opcode);
        let mode = if base.is_some() { 0x80 } else { 0 };
        self.byte(mode | (data & 7) << 3 | 4);
        self.byte((index & 7) << 3 | base.map_or(5, |base| base.0 & 7));
        self.word(offset as u32);
    }

    /// A general register's low 32 or 64 bits in every lane.
    pub fn spread(&mut self, d: u8, a: Gp, wide: bool) {
        self.evex(V(Pp::P66, Map::M0F38, 0x7c, wide), [d, 0], Rm::Reg(a.0), 0, None);
    }

    pub fn v3_imm(&mut self, v: V, d: u8, a: u8, b: Rm, imm: u8) {
        self.evex(v, [d, a], b, 0, Some(imm));
    }

    /// Stores register `a`.
    pub fn store(&mut self, a: u8, to: Rm) {
        self.evex(V(Pp::F3, Map::M0F, 0x7f, false), [a, 0], to, 0, None);
    }

    /// Loads 64 bytes, or copies a register.
    pub fn load(&mut self, d: u8, from: Rm) {
        let pp = if matches!(from, Rm::Reg(_)) {
            Pp::P66
        } else {
            Pp::F3
        };
        self.evex(V(pp, Map::M0F, 0x6f, false), [d, 0], from, 0, None);
    }

    /// The lowest element of a vector register, 32 or 64 bits, in a general one.
    pub fn lowest(&mut self, d: Gp, a: u8, wide: bool) {
        // 128 bits is the only length this one has.
        let v = V(Pp::P66, Map::M0F, 0x7e, wide);
        let at = self.bytes.len();
        self.evex(v, [a, 0], Rm::Reg(d.0), 0, None);
        self.bytes[at + 3] &= !(3 << 5);
    }

    /// A mask instruction: `reg`, `vvvv` and `rm` are mask or general registers.
    pub fn mask(&mut self, v: V, long: bool, reg: u8, vvvv: u8, rm: Rm, imm: Option<u8>) {
        let V(pp, map, opcode, wide) = v;
        let b3 = match rm {
            Rm::Reg(r) => r >> 3 & 1,
            Rm::Mem(base, _) => base.0 >> 3 & 1,
            Rm::Pool(_) | Rm::Each(_) => 0,
        };
        self.byte(0xc4);
        self.byte((!reg >> 3 & 1) << 7 | 1 << 6 | (1 - b3) << 5 | map as u8);
        self.byte(u8::from(wide) << 7 | (!vvvv & 15) << 3 | u8::from(long) << 2 | pp as u8);
        self.byte(opcode);
        self.modrm(reg, rm, u32::from(imm.is_some()));
        if let Some(imm) = imm {
            self.byte(imm);
        }
    }

    /// A scalar instruction of one opcode byte.
    pub fn scalar(&mut self, opcode: u8, wide: bool, reg: u8, rm: Rm) {
        let b3 = match rm {
            Rm::Reg(r) => r >> 3 & 1,
            Rm::Mem(base, _) => base.0 >> 3 & 1,
            Rm::Pool(_) | Rm::Each(_) => 0,
        };
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3 & 1) << 2 | b3;
        if rex != 0x40 {
            self.byte(rex);
        }
        self.byte(opcode);
        self.modrm(reg, rm, 0);
    }

    pub fn mov_load(&mut self, d: Gp, from: Rm, wide: bool) {
        self.scalar(0x8b, wide, d.0, from);
    }

    pub fn mov_store(&mut self, to: Rm, a: Gp, wide: bool) {
        self.scalar(0x89, wide, a.0, to);
    }

    pub fn mov_imm(&mut self, d: Gp, value: u32) {
        self.scalar_imm(0xc7, 0, Rm::Reg(d.0), value, false);
    }

    /// The number, with its sign in the upper half.
    pub fn mov_wide(&mut self, d: Gp, value: i32) {
        self.scalar_imm(0xc7, 0, Rm::Reg(d.0), value as u32, true);
    }

    pub fn store_imm(&mut self, to: Rm, value: u32) {
        self.scalar_imm(0xc7, 0, to, value, false);
    }

    /// A scalar instruction with four bytes of immediate.
    fn scalar_imm(&mut self, opcode: u8, extension: u8, rm: Rm, value: u32, wide: bool) {
        self.scalar(opcode, wide, extension, rm);
        self.word(value);
    }

    pub fn add_imm(&mut self, d: Gp, value: i32, wide: bool) {
        self.scalar_imm(0x81, 0, Rm::Reg(d.0), value as u32, wide);
    }

    pub fn sub_imm(&mut self, d: Gp, value: i32, wide: bool) {
        self.scalar_imm(0x81, 5, Rm::Reg(d.0), value as u32, wide);
    }

    pub fn cmp_imm(&mut self, a: Rm, value: u32) {
        self.scalar_imm(0x81, 7, a, value, false);
    }

    pub fn cmp(&mut self, a: Gp, b: Rm, wide: bool) {
        self.scalar(0x3b, wide, a.0, b);
    }

    pub fn add(&mut self, a: Gp, b: Rm, wide: bool) {
        self.scalar(0x03, wide, a.0, b);
    }

    pub fn sub(&mut self, d: Gp, b: Gp) {
        self.scalar(0x2b, true, d.0, Rm::Reg(b.0));
    }

    /// Adds to the 32 bits at the sum of two of the first four registers.
    pub fn add_to_memory(&mut self, base: Gp, index: Gp, value: u32) {
        self.raw(&[0x81, 0x04, index.0 << 3 | base.0]);
        self.word(value);
    }

    /// Asks for the line at an address, which may be none.
    pub fn prefetch(&mut self, at: Gp, offset: i32) {
        self.raw(&[0x0f]);
        self.scalar(0x18, false, 1, Rm::Mem(at, offset));
    }

    pub fn and(&mut self, a: Gp, b: Rm) {
        self.scalar(0x23, false, a.0, b);
    }

    pub fn or(&mut self, a: Gp, b: Rm) {
        self.scalar(0x0b, false, a.0, b);
    }

    pub fn xor(&mut self, a: Gp, b: Rm) {
        self.scalar(0x33, false, a.0, b);
    }

    pub fn not(&mut self, a: Gp) {
        self.scalar(0xf7, false, 2, Rm::Reg(a.0));
    }

    pub fn test(&mut self, a: Gp, b: Gp) {
        self.scalar(0x85, false, a.0, Rm::Reg(b.0));
    }

    pub fn test_imm(&mut self, a: Gp, value: u32) {
        self.scalar_imm(0xf7, 0, Rm::Reg(a.0), value, false);
    }

    /// `d = base + offset`.
    pub fn lea(&mut self, d: Gp, base: Gp, offset: i32) {
        self.scalar(0x8d, true, d.0, Rm::Mem(base, offset));
    }

    pub fn jump(&mut self, to: Label) {
        self.byte(0xe9);
        self.fixups.push((self.bytes.len(), to));
        self.word(0);
    }

    pub fn jump_if(&mut self, cond: Cond, to: Label) {
        self.raw(&[0x0f, 0x80 | cond as u8]);
        self.fixups.push((self.bytes.len(), to));
        self.word(0);
    }

    pub fn call(&mut self, at: Rm) {
        self.scalar(0xff, false, 2, at);
    }
}

//! Which instructions are compiled, and to what. An instruction is known by the function that interprets it: two that
//! the linker made one do the same. Such a function is `#[inline(never)]`. Otherwise the compiler may give each unit of
//! code its own copy of a small one, and the copies have different addresses.

use super::asm::Map::{M0F, M0F3A, M0F38};
use super::asm::Pp::{F2, F3, None as P0, P66};
use super::asm::V;
use crate::engine::map::{moved, one, select, setp, three, two};
use crate::engine::memory::{self, M8, M8S, M16, M16S, M32, M64, load, store};
use crate::engine::{alu_float::*, alu_int::*, compare::*, control, convert::*, moves};
use crate::inst::{Exec, Flow, Inst, VectorSet};
use std::collections::HashMap;
use std::sync::OnceLock;

/// How an instruction is compiled. `bool`: its registers are 64 bits wide; where there is a `V`, that says so.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Nop,
    Branch,
    BranchIf,
    Move(bool),
    One(V),
    OneImm(V, u8),
    Two(V),
    /// A 64-bit register by the low 32 bits of another.
    ShiftWide(V),
    Mad(bool),
    Fma(bool),
    Neg(bool),
    Not(bool),
    FloatAbs(bool),
    FloatNeg(bool),
    MulWide {
        signed: bool,
        add: bool,
    },
    /// 32 bits to 64.
    Extend(V),
    /// The low halves of 64-bit lanes.
    Truncate,
    /// f64 to f32.
    Demote,
    Reciprocal(bool),
    ReciprocalRoot,
    ToSigned,
    ToUnsigned,
    Minimum(V),
    Compare(V, u8),
    Select(bool),
    PredicateLogic,
    PredicateConstant,
    ToGeneric,
    /// The product of the low halves of 32-bit lanes, without a sign.
    MulHalves,
    Load(Element),
    /// Bytes of an element.
    Store(u8),
    /// Adds 32 bits in memory.
    AddInMemory,
    /// The lanes end or return.
    End(Flow),
    Barrier,
}

/// What a load reads in each lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    pub bytes: u8,
    /// Of elements smaller than a register: their sign goes into its upper bits.
    pub signed: bool,
}

impl Op {
    /// A whole number of 32 bits becomes one of 64.
    pub fn extends(self) -> bool {
        match self {
            Op::MulWide { .. } => true,
            Op::Extend(v) => v == extension(0x35) || v == extension(0x25),
            _ => false,
        }
    }
}

/// `vpmovzxdq`, `vpmovsxdq`.
const fn extension(opcode: u8) -> V {
    V(P66, M0F38, opcode, false)
}

/// How the function's instruction is compiled; `None` where the interpreter's function is called.
pub(super) fn op(exec: Exec) -> Option<Op> {
    static TABLE: OnceLock<HashMap<usize, Op>> = OnceLock::new();
    TABLE.get_or_init(table).get(&(exec as usize)).copied()
}

impl Op {
    /// Whether it computes each lane's value from its operands: only such a one is compiled with a guard.
    pub(super) fn is_data(self) -> bool {
        !matches!(
            self,
            Self::Branch
                | Self::BranchIf
                | Self::Load(_)
                | Self::Store(_)
                | Self::AddInMemory
                | Self::End(_)
                | Self::Barrier
                | Self::Compare(..)
                | Self::PredicateLogic
                | Self::PredicateConstant
                | Self::Nop
        )
    }
}

/// Whether compiled code computes the instruction itself, in warps whose lanes are all active at least.
pub(super) fn is_compiled(inst: &Inst) -> bool {
    if !is_guarded(inst.exec) {
        return op(inst.exec).is_some();
    }
    op(inst.inner).is_some_and(Op::is_data)
}

/// Whether `exec` runs another function for the lanes whose guard holds.
pub(super) fn is_guarded(exec: Exec) -> bool {
    exec as usize == control::guarded as *const () as usize
}

const fn v(pp: super::asm::Pp, map: super::asm::Map, opcode: u8, wide: bool) -> V {
    V(pp, map, opcode, wide)
}

fn table() -> HashMap<usize, Op> {
    let s = VectorSet::Avx2;
    let mut t = HashMap::new();
    let mut is = |exec: Exec, op: Op| {
        t.entry(exec as usize).or_insert(op);
    };
    is(control::nop, Op::Nop);
    is(control::branch, Op::Branch);
    is(control::branch_if, Op::BranchIf);
    is(moved::<u32>(s), Op::Move(false));
    is(moved::<u64>(s), Op::Move(true));
    is(select::<u32>(s), Op::Select(false));
    is(select::<u64>(s), Op::Select(true));
    is(moves::predicate_logic, Op::PredicateLogic);
    is(moves::predicate_constant, Op::PredicateConstant);
    is(memory::convert_address, Op::ToGeneric);
    for (exec, bytes, signed) in [
        (load::<M8>(s), 1, false),
        (load::<M8S>(s), 1, true),
        (load::<M16>(s), 2, false),
        (load::<M16S>(s), 2, true),
        (load::<M32>(s), 4, false),
        (load::<M64>(s), 8, false),
    ] {
        is(exec, Op::Load(Element { bytes, signed }));
    }
    is(crate::engine::atomics::add_words(), Op::AddInMemory);
    is(control::leave, Op::End(Flow::Return));
    is(control::exit, Op::End(Flow::Exit));
    is(control::barrier, Op::Barrier);
    is(two::<MulWideU16>(s), Op::MulHalves);
    is(store::<M32>(s), Op::Store(4));
    is(store::<M64>(s), Op::Store(8));

    for (exec, opcode) in [(two::<Add32>(s), 0xfe), (two::<Sub32>(s), 0xfa)] {
        is(exec, Op::Two(v(P66, M0F, opcode, false)));
    }
    for (exec, opcode) in [
        (two::<And32>(s), 0xdb),
        (two::<Or32>(s), 0xeb),
        (two::<Xor32>(s), 0xef),
    ] {
        is(exec, Op::Two(v(P66, M0F, opcode, false)));
    }
    for (exec, opcode) in [
        (two::<Add64>(s), 0xd4),
        (two::<Sub64>(s), 0xfb),
        (two::<And64>(s), 0xdb),
        (two::<Or64>(s), 0xeb),
        (two::<Xor64>(s), 0xef),
    ] {
        is(exec, Op::Two(v(P66, M0F, opcode, true)));
    }
    for (exec, opcode, wide) in [
        (two::<Mul32>(s), 0x40, false),
        (two::<Mul64>(s), 0x40, true),
        (two::<MinS32>(s), 0x39, false),
        (two::<MinU32>(s), 0x3b, false),
        (two::<MaxS32>(s), 0x3d, false),
        (two::<MaxU32>(s), 0x3f, false),
        (two::<MinS64>(s), 0x39, true),
        (two::<MinU64>(s), 0x3b, true),
        (two::<MaxS64>(s), 0x3d, true),
        (two::<MaxU64>(s), 0x3f, true),
        // Counts beyond the width give zero, or the sign, as PTX's do.
        (two::<Shl32>(s), 0x47, false),
        (two::<ShrU32>(s), 0x45, false),
        (two::<ShrS32>(s), 0x46, false),
    ] {
        is(exec, Op::Two(v(P66, M0F38, opcode, wide)));
    }
    for (exec, opcode) in [
        (two::<Shl64>(s), 0x47),
        (two::<ShrU64>(s), 0x45),
        (two::<ShrS64>(s), 0x46),
    ] {
        is(exec, Op::ShiftWide(v(P66, M0F38, opcode, true)));
    }
    is(three::<Mad32>(s), Op::Mad(false));
    is(three::<Mad64>(s), Op::Mad(true));
    is(one::<Neg32>(s), Op::Neg(false));
    is(one::<Neg64>(s), Op::Neg(true));
    is(one::<Not32>(s), Op::Not(false));
    is(one::<Not64>(s), Op::Not(true));
    is(one::<Abs32>(s), Op::One(v(P66, M0F38, 0x1e, false)));
    is(one::<Abs64>(s), Op::One(v(P66, M0F38, 0x1f, true)));
    is(one::<Clz32>(s), Op::One(v(P66, M0F38, 0x44, false)));
    for (exec, signed, add) in [
        (two::<MulWideU32>(s), false, false),
        (two::<MulWideS32>(s), true, false),
        (three::<MadWideU32>(s), false, true),
        (three::<MadWideS32>(s), true, true),
    ] {
        is(exec, Op::MulWide { signed, add });
    }

    for (exec, opcode) in [
        (two::<AddF32<0>>(s), 0x58),
        (two::<SubF32<0>>(s), 0x5c),
        (two::<MulF32<0>>(s), 0x59),
        (two::<DivF32<0>>(s), 0x5e),
    ] {
        is(exec, Op::Two(v(P0, M0F, opcode, false)));
    }
    for (exec, opcode) in [
        (two::<AddF64>(s), 0x58),
        (two::<SubF64>(s), 0x5c),
        (two::<MulF64>(s), 0x59),
        (two::<DivF64>(s), 0x5e),
    ] {
        is(exec, Op::Two(v(P66, M0F, opcode, true)));
    }
    is(three::<FmaF32<0>>(s), Op::Fma(false));
    is(three::<FmaF64>(s), Op::Fma(true));
    is(one::<SqrtF32<0>>(s), Op::One(v(P0, M0F, 0x51, false)));
    is(one::<SqrtF64>(s), Op::One(v(P66, M0F, 0x51, true)));
    is(one::<RcpF32<0>>(s), Op::Reciprocal(false));
    is(one::<RcpF64>(s), Op::Reciprocal(true));
    is(one::<RsqrtF32<0>>(s), Op::ReciprocalRoot);
    is(one::<AbsF32<0>>(s), Op::FloatAbs(false));
    is(one::<NegF32<0>>(s), Op::FloatNeg(false));
    is(one::<AbsF64>(s), Op::FloatAbs(true));
    is(one::<NegF64>(s), Op::FloatNeg(true));
    is(two::<MinF32<0>>(s), Op::Minimum(v(P0, M0F, 0x5d, false)));
    is(two::<MaxF32<0>>(s), Op::Minimum(v(P0, M0F, 0x5f, false)));

    is(one::<Widen>(s), Op::Extend(v(P66, M0F38, 0x35, false)));
    is(one::<WidenS>(s), Op::Extend(v(P66, M0F38, 0x25, false)));
    is(one::<F64FromF32<0>>(s), Op::Extend(v(P0, M0F, 0x5a, false)));
    is(one::<F64FromS32>(s), Op::Extend(v(F3, M0F, 0xe6, false)));
    is(one::<F64FromU32>(s), Op::Extend(v(F3, M0F, 0x7a, false)));
    is(one::<Narrow>(s), Op::Truncate);
    is(one::<F32FromF64<0>>(s), Op::Demote);
    is(one::<F32FromS32>(s), Op::One(v(P0, M0F, 0x5b, false)));
    is(one::<F32FromU32>(s), Op::One(v(F2, M0F, 0x7a, false)));
    is(one::<S32FromF32>(s), Op::ToSigned);
    is(one::<U32FromF32>(s), Op::ToUnsigned);
    for (exec, imm) in [
        (one::<RoundF32>(s), 8),
        (one::<FloorF32>(s), 9),
        (one::<CeilF32>(s), 10),
        (one::<TruncF32>(s), 11),
    ] {
        is(exec, Op::OneImm(v(P66, M0F3A, 0x08, false), imm));
    }
    for (exec, imm) in [
        (one::<RoundF64>(s), 8),
        (one::<FloorF64>(s), 9),
        (one::<CeilF64>(s), 10),
        (one::<TruncF64>(s), 11),
    ] {
        is(exec, Op::OneImm(v(P66, M0F3A, 0x09, true), imm));
    }

    for (opcode, wide, list) in [
        (
            0x1f,
            false,
            [
                (setp::<Eq32>(s), 0),
                (setp::<LtS32>(s), 1),
                (setp::<LeS32>(s), 2),
                (setp::<Ne32>(s), 4),
                (setp::<GeS32>(s), 5),
                (setp::<GtS32>(s), 6),
            ],
        ),
        (
            0x1e,
            false,
            [
                (setp::<Eq32>(s), 0),
                (setp::<LtU32>(s), 1),
                (setp::<LeU32>(s), 2),
                (setp::<Ne32>(s), 4),
                (setp::<GeU32>(s), 5),
                (setp::<GtU32>(s), 6),
            ],
        ),
        (
            0x1f,
            true,
            [
                (setp::<Eq64>(s), 0),
                (setp::<LtS64>(s), 1),
                (setp::<LeS64>(s), 2),
                (setp::<Ne64>(s), 4),
                (setp::<GeS64>(s), 5),
                (setp::<GtS64>(s), 6),
            ],
        ),
        (
            0x1e,
            true,
            [
                (setp::<Eq64>(s), 0),
                (setp::<LtU64>(s), 1),
                (setp::<LeU64>(s), 2),
                (setp::<Ne64>(s), 4),
                (setp::<GeU64>(s), 5),
                (setp::<GtU64>(s), 6),
            ],
        ),
    ] {
        for (exec, imm) in list {
            is(exec, Op::Compare(v(P66, M0F3A, opcode, wide), imm));
        }
    }
    let f32s = [
        (setp::<EqF32<false>>(s), 0),
        (setp::<LtF32<false>>(s), 17),
        (setp::<LeF32<false>>(s), 18),
        (setp::<GtF32<false>>(s), 30),
        (setp::<GeF32<false>>(s), 29),
        (setp::<NeF32<false>>(s), 12),
        (setp::<EquF32<false>>(s), 8),
        (setp::<NeuF32<false>>(s), 4),
        (setp::<LtuF32<false>>(s), 25),
        (setp::<LeuF32<false>>(s), 26),
        (setp::<GtuF32<false>>(s), 22),
        (setp::<GeuF32<false>>(s), 21),
        (setp::<NumF32>(s), 7),
        (setp::<NanF32>(s), 3),
    ];
    let f64s = [
        (setp::<EqF64>(s), 0),
        (setp::<LtF64>(s), 17),
        (setp::<LeF64>(s), 18),
        (setp::<GtF64>(s), 30),
        (setp::<GeF64>(s), 29),
        (setp::<NeF64>(s), 12),
        (setp::<EquF64>(s), 8),
        (setp::<NeuF64>(s), 4),
        (setp::<LtuF64>(s), 25),
        (setp::<LeuF64>(s), 26),
        (setp::<GtuF64>(s), 22),
        (setp::<GeuF64>(s), 21),
        (setp::<NumF64>(s), 7),
        (setp::<NanF64>(s), 3),
    ];
    for (exec, imm) in f32s {
        is(exec, Op::Compare(v(P0, M0F, 0xc2, false), imm));
    }
    for (exec, imm) in f64s {
        is(exec, Op::Compare(v(P66, M0F, 0xc2, true), imm));
    }
    t
}

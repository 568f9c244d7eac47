//! The result of decoding a module: one list of instructions, and what launching needs to know of each function.

use crate::engine::matrix::Multiplication;
use crate::engine::matrix_memory::Transfer;
use crate::engine::watch::Seen;
use crate::inst::{Exec, Inst};
use std::collections::{BTreeSet, HashMap};

/// What a constant slot of a register area holds. Filled before a block runs; never written by instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Const {
    Bits(u64),
    /// Address of module variable n plus an addend.
    Global(u32, i64),
    /// Offset in the block's shared memory of shared variable n plus an addend.
    Shared(u32, i64),
    /// A function's address, as far as calls through registers go.
    Function(u32),
    /// Host address of the launch's parameter bytes plus an addend.
    ParamAddress(i64),
    /// A value in the launch's parameters.
    Param {
        offset: u32,
        bytes: u8,
        signed: bool,
    },
    Special(Special),
}

/// Special registers that do not change while a block runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    WarpCount,
    Sm,
    SmCount,
    Grid,
    MaskEq,
    MaskLe,
    MaskLt,
    MaskGe,
    MaskGt,
    DynamicShared,
    TotalShared,
    /// The address of the grid's workspace, its low half or its high half.
    Workspace {
        high: bool,
    },
    /// The shared memory that CUDA's own library has in each block: its offset and so many bytes.
    ReservedShared(u16),
    /// The bytes of that memory.
    ReservedCapacity,
    /// Registers that read as zero here: clusters of one block, environment registers, performance counters.
    Zero,
    /// Cluster extents: one.
    One,
}

impl Const {
    /// The same in every lane and warp.
    pub fn uniform(self) -> bool {
        use Special::{LaneId, MaskEq, MaskGe, MaskGt, MaskLe, MaskLt, Tid, WarpId};
        let Const::Special(special) = self else {
            return true;
        };
        !matches!(
            special,
            Tid(_) | LaneId | WarpId | MaskEq | MaskGe | MaskGt | MaskLe | MaskLt
        )
    }

    /// Differs between the blocks that run in the same place.
    pub fn per_block(self) -> bool {
        matches!(self, Const::Special(Special::Ctaid(_) | Special::Sm))
    }
}

/// Where a call's argument, parameter or result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Reg(u32),
    Wide(u32),
    Pred(u32),
    /// Bytes per lane, lane after lane.
    Memory {
        slot: u32,
        bytes: u32,
    },
    /// Not needed.
    Nowhere,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub callee: u32,
    pub arguments: Vec<Place>,
    pub results: Vec<Place>,
}

/// A constant's slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConstSlot {
    pub slot: u32,
    pub wide: bool,
    pub value: Const,
}

/// How long a slot holds one register's value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub slot: u32,
    /// The first and the last instruction that need it there.
    pub from: u32,
    pub to: u32,
    /// One instruction writes it, and that one in every lane that comes there.
    pub written_once: bool,
}

/// Shared memory that the system has in each block of a kernel that asks where it is. Cooperative groups keep the
/// barriers and the scratch of their tiles there.
pub(crate) const RESERVED_SHARED: u64 = 2 << 10;

#[derive(Clone, Debug, Default)]
pub(crate) struct FunctionCode {
    /// Has a body, and is no kernel.
    pub callable: bool,
    pub entry: u32,
    /// Behind its last instruction.
    pub end: u32,
    /// What its slots hold when.
    pub lives: Vec<Life>,
    pub consts: Vec<ConstSlot>,
    pub area_bytes: u32,
    /// Byte ranges of the area: 32-bit registers, 64-bit ones, predicates.
    pub narrow: (u32, u32),
    pub wide: (u32, u32),
    pub preds: (u32, u32),
    /// Parameter variables: slot and bytes per lane.
    pub memory: Vec<(u32, u32)>,
    pub local_bytes: u32,
    /// Alignment of its local variables' start in bytes: the largest that one of them declares, at least
    /// [`LOCAL_ALIGN`].
    pub local_align: u64,
    /// Shared variables it names.
    pub shared: Vec<u32>,
    /// It asks where the system's shared memory is.
    pub reserved_shared: bool,
    pub callees: Vec<u32>,
    /// Calls through a register: each function whose address is taken may be the callee.
    pub indirect: bool,
    pub recursive: bool,
    pub params: Vec<Place>,
    pub returns: Vec<Place>,
    pub unsupported: Option<(String, u32)>,
    /// Live 32-bit registers per thread.
    pub registers: u32,
}

/// A `.shared` variable.
#[derive(Clone, Debug)]
pub(crate) struct SharedVariable {
    pub bytes: u64,
    pub align: u64,
    /// Extern `[]`: stands for the dynamic shared memory.
    pub dynamic: bool,
}

/// What a module for watched launches has beside its instructions.
#[derive(Default)]
pub(crate) struct Watched {
    /// One for each instruction.
    pub insts: Vec<WatchedInst>,
    /// The names of the source files, by number.
    pub files: HashMap<u32, String>,
    /// The module's text.
    pub text: Vec<u8>,
    /// Every instruction is told of, and not only those that touch memory or meet others.
    pub everything: bool,
}

/// An instruction that `engine::watch::watched` may stand in front of.
#[derive(Clone, Copy)]
pub(crate) struct WatchedInst {
    /// What the instruction does.
    pub exec: Exec,
    /// With its guard, and with what is told of it.
    pub outer: Exec,
    pub seen: Seen,
    /// The file's number and the line in it, or zeros.
    pub source: (u32, u32),
}

#[derive(Default)]
pub(crate) struct Code {
    pub insts: Vec<Inst>,
    pub functions: Vec<FunctionCode>,
    pub tables: Vec<u32>,
    pub calls: Vec<Call>,
    /// Register slots of the instructions that have lists of operands.
    pub slots: Vec<u32>,
    /// What `mma` and `wmma.mma` multiply.
    pub matrices: Vec<Multiplication>,
    /// What `wmma.load` and `wmma.store` move.
    pub transfers: Vec<Transfer>,
    pub shared: Vec<SharedVariable>,
    /// Memory instructions so far.
    pub sites: u32,
    /// Functions whose address is taken.
    pub addressed: BTreeSet<u32>,
    /// What is known of each instruction beside it, where launches are watched.
    pub watched: Option<Watched>,
    /// The module's machine code, once a launch has asked for it; nothing where there is none.
    #[cfg(target_arch = "x86_64")]
    pub native: std::sync::OnceLock<Option<crate::compile::Native>>,
}

#[cfg(target_arch = "x86_64")]
impl Code {
    /// The module's machine code, made at the first call.
    pub fn native(&self) -> Option<&crate::compile::Native> {
        let native = self.native.get_or_init(|| crate::compile::Native::compile(self));
        native.as_ref()
    }
}

/// Frames in local memory begin at multiples of this many bytes at least.
pub(crate) const LOCAL_ALIGN: u64 = 16;

/// `Call::callee` of a call through a register.
pub(crate) const INDIRECT: u32 = u32::MAX;

/// What a function's address looks like to a kernel; not an address of anything.
pub(crate) const FUNCTION_ADDRESS: u64 = 0x4654_0000_0000_0000;

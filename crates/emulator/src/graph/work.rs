//! What a node does: its kind and parameters.

use super::foreign::Foreign;
use super::kernel::KernelWork;
use super::memory::Reserved;
use super::topology::Graph;
use crate::Result;
use crate::array::Array;
use crate::block;
use crate::context::Context;
use crate::copy::{Fill, Known, Value};
use crate::event::Event;
use crate::handle::Handles;
use crate::memop::MemOps;
use divvy_abi::*;
use std::sync::Arc;

/// A node's kind and parameters.
#[derive(Clone)]
pub enum Work {
    /// Launches a kernel.
    Kernel(KernelWork),
    /// Copies memory.
    Memcpy(MemcpyWork),
    /// Fills memory.
    Memset(MemsetWork),
    /// Calls a function of the program.
    Host(HostWork),
    /// Runs a graph of the node's own.
    Child(Arc<Graph>),
    /// Does nothing, and orders others.
    Empty,
    /// Waits for an event.
    Wait(Arc<Event>),
    /// Records an event.
    Record(Arc<Event>),
    /// Gives memory its bytes.
    Alloc(Arc<Reserved>),
    /// Takes them away.
    Free(Arc<Reserved>),
    /// Waits for and writes words of memory.
    MemOps(MemOpsWork),
}

/// A copy of up to three dimensions.
#[derive(Clone)]
pub struct MemcpyWork {
    /// As the program gave it.
    pub copy: Foreign<CUDA_MEMCPY3D>,
    /// Where it runs.
    pub context: Arc<Context>,
}

/// A filling of up to two dimensions.
#[derive(Clone)]
pub struct MemsetWork {
    /// As the program gave it.
    pub fill: CUDA_MEMSET_NODE_PARAMS,
    /// Where it runs.
    pub context: Arc<Context>,
}

/// A call into the program.
#[derive(Clone)]
pub struct HostWork {
    /// What is called.
    pub function: unsafe extern "C" fn(*mut c_void),
    /// What it is given.
    pub data: u64,
    /// CU_HOST_TASK_*, as given.
    pub mode: u32,
}

/// Waits and writes, in a context.
#[derive(Clone)]
pub struct MemOpsWork {
    /// The operations.
    pub ops: Arc<MemOps>,
    /// As given; CUDA defines none.
    pub flags: u32,
    /// Where they run.
    pub context: Arc<Context>,
}

impl Work {
    /// CU_GRAPH_NODE_TYPE_*.
    pub fn kind(&self) -> CUgraphNodeType {
        match self {
            Work::Kernel(_) => CU_GRAPH_NODE_TYPE_KERNEL,
            Work::Memcpy(_) => CU_GRAPH_NODE_TYPE_MEMCPY,
            Work::Memset(_) => CU_GRAPH_NODE_TYPE_MEMSET,
            Work::Host(_) => CU_GRAPH_NODE_TYPE_HOST,
            Work::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
            Work::Empty => CU_GRAPH_NODE_TYPE_EMPTY,
            Work::Wait(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Work::Record(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Work::Alloc(_) => CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Work::Free(_) => CU_GRAPH_NODE_TYPE_MEM_FREE,
            Work::MemOps(_) => CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        }
    }

    /// It launches a kernel.
    pub fn is_kernel(&self) -> bool {
        matches!(self, Work::Kernel(_))
    }

    /// It allocates or frees.
    pub fn is_memory(&self) -> bool {
        matches!(self, Work::Alloc(_) | Work::Free(_))
    }

    /// The context it runs in, if it runs in any.
    pub fn context(&self) -> Option<&Arc<Context>> {
        match self {
            Work::Kernel(kernel) => Some(kernel.context()),
            Work::Memcpy(copy) => Some(&copy.context),
            Work::Memset(fill) => Some(&fill.context),
            Work::MemOps(ops) => Some(&ops.context),
            _ => None,
        }
    }

    /// The node is gone: what belongs to it alone goes too.
    pub fn end(self) -> Result {
        match self {
            Work::Child(graph) => graph.destroy(),
            _ => Ok(()),
        }
    }
}

impl MemcpyWork {
    /// Checks a copy in a context.
    pub fn read(copy: CUDA_MEMCPY3D, context: Arc<Context>, arrays: &Handles<Array>) -> Result<MemcpyWork> {
        block::transfer(&copy, Known::Reserved(&context.addresses), arrays)?
            .ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok(MemcpyWork {
            copy: Foreign(copy),
            context,
        })
    }

    /// Runs it on the calling thread. Memory that is gone by then is an illegal address.
    pub fn run(&self, arrays: &Handles<Array>) {
        match block::transfer(&self.copy.0, Known::Live(&self.context.addresses), arrays) {
            // SAFETY: the program vouches for its own memory as long as the graph may run.
            Ok(Some(transfer)) => unsafe { transfer.run() },
            Ok(None) => {}
            Err(_) => self.context.fail(
                CUDA_ERROR_ILLEGAL_ADDRESS,
                "a copy in a graph names memory that is gone",
            ),
        }
    }

    /// Bytes of a row, if it is a single row.
    pub fn is_linear(&self) -> bool {
        self.copy.0.Height == 1 && self.copy.0.Depth == 1
    }
}

impl MemsetWork {
    /// Checks a filling in a context.
    pub fn read(fill: CUDA_MEMSET_NODE_PARAMS, context: Arc<Context>) -> Result<MemsetWork> {
        let work = MemsetWork { fill, context };
        work.check(Known::Reserved(&work.context.addresses))?
            .ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok(work)
    }

    fn check(&self, known: Known<'_>) -> Result<Option<Fill>> {
        let fill = &self.fill;
        let value = match fill.elementSize {
            1 => Value::U8(fill.value as u8),
            2 => Value::U16(fill.value as u16),
            4 => Value::U32(fill.value),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        let (pitch, width, height) = (fill.pitch as u64, fill.width as u64, fill.height as u64);
        Fill::check(fill.dst, pitch, value, width, height, known)
    }

    /// Runs it on the calling thread. Memory that is gone by then is an illegal address. The engine time it takes, in
    /// nanoseconds.
    pub fn run(&self) -> u64 {
        match self.check(Known::Live(&self.context.addresses)) {
            Ok(Some(fill)) => fill.run(&self.context.device.facts),
            Ok(None) => 0,
            Err(_) => {
                self.context.fail(
                    CUDA_ERROR_ILLEGAL_ADDRESS,
                    "a memset in a graph names memory that is gone",
                );
                0
            }
        }
    }
}

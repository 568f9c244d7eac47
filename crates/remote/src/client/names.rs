//! Strings and lists that the driver owns: they are kept here, for the program to read.
#![allow(non_snake_case)]

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use divvy_abi::*;

use super::thread;
use crate::fork::OfProcess;
use crate::handle::Word;
use crate::wire::by_hand::{CAPTURE, NAME, PER_THREAD};
use crate::wire::{Malformed, Reader};

static NAMES: OfProcess<Mutex<Option<HashMap<u64, CString>>>> = OfProcess::new();

/// # Safety
/// `to` is null or may be written.
unsafe fn name(symbol: Symbol, to: *mut *const c_char, function: u64) -> CUresult {
    if to.is_null() || function == 0 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let mut came = CString::default();
    let code = thread::call(
        NAME,
        symbol,
        |m| m.plain(function),
        |m, good| {
            if good {
                came = CString::new(m.rest()).map_err(|_| Malformed)?;
            }
            Ok(())
        },
    );
    if code == CUDA_SUCCESS {
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        // A function keeps its name, so what was given out stays as it is.
        let name = names.get_or_insert_default().entry(function).or_insert(came);
        // SAFETY: the caller vouches for the place.
        unsafe { to.write(name.as_ptr()) };
    }
    code
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuFuncGetName(to: *mut *const c_char, hfunc: CUfunction) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    unsafe { name(Symbol::cuFuncGetName, to, hfunc.bits()) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuKernelGetName(to: *mut *const c_char, hfunc: CUkernel) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    unsafe { name(Symbol::cuKernelGetName, to, hfunc.bits()) }
}

/// What a stream's next captured work follows: it stays until it is read again.
#[derive(Default)]
struct Dependencies {
    nodes: Vec<u64>,
    edges: Vec<CUgraphEdgeData>,
}

impl Dependencies {
    /// Takes them from an answer. The program is told one count: each node has an edge, or none has one.
    fn take(m: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut came = Self::default();
        let (nodes, _) = m.list(8)?.ok_or(Malformed)?.as_chunks();
        came.nodes = nodes.iter().map(|node| u64::from_le_bytes(*node)).collect();
        let edges = m.plain::<u32>()? as usize;
        if edges != 0 && edges != came.nodes.len() {
            return Err(Malformed);
        }
        for _ in 0..edges {
            came.edges.push(m.plain()?);
        }
        Ok(came)
    }
}

static CAPTURED: OfProcess<Mutex<Option<HashMap<u64, Dependencies>>>> = OfProcess::new();

/// Where a program wants what is told of a capture; each may be null.
struct Wanted {
    status: *mut CUstreamCaptureStatus,
    id: *mut cuuint64_t,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
}

/// # Safety
/// Each pointer is null or may be written.
unsafe fn write<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller vouches for the place.
        unsafe { to.write(value) };
    }
}

impl Wanted {
    /// # Safety
    /// The program vouches for its pointers.
    unsafe fn ask(self, symbol: Symbol, flags: u8, stream: CUstream) -> CUresult {
        if self.status.is_null() {
            return CUDA_ERROR_INVALID_VALUE;
        }
        let mut facts = (0_u32, 0_u64, 0_u64);
        let mut came = Dependencies::default();
        let code = thread::call(
            CAPTURE,
            symbol,
            |m| {
                m.plain(flags);
                m.plain(stream.bits());
                m.flag(!self.edges.is_null());
            },
            |m, good| {
                if good {
                    facts = (m.plain()?, m.plain()?, m.plain()?);
                    came = Dependencies::take(m)?;
                }
                Ok(())
            },
        );
        if code != CUDA_SUCCESS {
            return code;
        }
        let (status, id, graph) = facts;
        let mut all = CAPTURED.lock().unwrap_or_else(PoisonError::into_inner);
        let key = stream.bits() ^ u64::from(flags) << 63;
        let kept = all.get_or_insert_default().entry(key).or_default();
        *kept = came;
        let status = CUstreamCaptureStatus(status);
        // SAFETY: promised by the caller.
        unsafe {
            write(self.status, status);
            if status == CU_STREAM_CAPTURE_STATUS_ACTIVE {
                write(self.id, id);
                write(self.graph, Word::from_bits(graph));
                write(self.nodes, kept.nodes.as_ptr().cast());
                write(
                    self.edges,
                    match kept.edges.is_empty() {
                        true => std::ptr::null(),
                        false => kept.edges.as_ptr(),
                    },
                );
                write(self.count, kept.nodes.len());
            }
        }
        code
    }
}

macro_rules! capture {
    ($($name:ident $flags:expr, ($($edges:ident)?);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C-unwind" fn $name(
            hStream: CUstream,
            status: *mut CUstreamCaptureStatus,
            id: *mut cuuint64_t,
            graph: *mut CUgraph,
            nodes: *mut *const CUgraphNode,
            $($edges: *mut *const CUgraphEdgeData,)?
            count: *mut usize,
        ) -> CUresult {
            let edges: &[*mut *const CUgraphEdgeData] = &[$($edges)?];
            let edges = edges.first().copied().unwrap_or(std::ptr::null_mut());
            let wanted = Wanted { status, id, graph, nodes, edges, count };
            // SAFETY: the program vouches for its pointers.
            unsafe { wanted.ask(Symbol::$name, $flags, hStream) }
        }
    )*};
}

capture! {
    cuStreamGetCaptureInfo_v2 0, ();
    cuStreamGetCaptureInfo_v2_ptsz PER_THREAD, ();
    cuStreamGetCaptureInfo_v3 0, (edges);
    cuStreamGetCaptureInfo_v3_ptsz PER_THREAD, (edges);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Writer;

    #[test]
    fn each_node_of_a_capture_has_an_edge_or_none_has_one() {
        let taken = |nodes: usize, edges: usize| {
            let mut message = [0; 256];
            let mut m = Writer::new(&mut message);
            m.count(Some(nodes));
            (0..nodes).for_each(|node| m.plain(node as u64));
            m.plain(edges as u32);
            (0..edges).for_each(|_| m.plain(CUgraphEdgeData::default()));
            let length = m.finish().unwrap();
            let came = Dependencies::take(&mut Reader::new(&message[..length]));
            came.map(|came| (came.nodes.len(), came.edges.len()))
        };
        for good in [(0, 0), (3, 0), (3, 3)] {
            assert_eq!(taken(good.0, good.1), Ok(good));
        }
        for (nodes, edges) in [(3, 1), (1, 3), (0, 1)] {
            assert_eq!(taken(nodes, edges), Err(Malformed), "{nodes} {edges}");
        }
    }
}

//! Graphs, as a program makes them: launches are captured in a stream, and launched as one.

use divvy_abi::{CU_STREAM_CAPTURE_MODE_RELAXED, CUgraph, CUgraphExec, CUstream};

use super::driver::{CudaError, Gpu, check};
use super::kernels::{Kernel, Shape};

/// Launches that go as one.
#[derive(Clone, Copy, Debug)]
pub struct Graph(CUgraphExec);

impl Gpu {
    /// A graph of so many launches of a kernel, each with these parameters, one after the other.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn graph(&self, kernel: Kernel, launches: u32, parameters: &[Vec<u8>]) -> Result<Graph, CudaError> {
        let mut stream: CUstream = std::ptr::null_mut();
        let mut graph: CUgraph = std::ptr::null_mut();
        let mut ready: CUgraphExec = std::ptr::null_mut();
        // Beside the default stream, which cannot be captured.
        const CU_STREAM_NON_BLOCKING: u32 = 1;
        // SAFETY: pointers to live variables, and handles that this driver gave.
        unsafe {
            let made = (self.table.cuStreamCreate)(&mut stream, CU_STREAM_NON_BLOCKING);
            check("cuStreamCreate", made)?;
            let begun = (self.table.cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
            check("cuStreamBeginCapture", begun)?;
        }
        let captured = (0..launches)
            .try_for_each(|_| self.launch_into(stream, kernel, Shape::line(1, 1), &mut parameters.to_vec()));
        // SAFETY: as above. A capture is ended also where a launch was refused.
        unsafe {
            let ended = (self.table.cuStreamEndCapture)(stream, &mut graph);
            captured?;
            check("cuStreamEndCapture", ended)?;
            let made = (self.table.cuGraphInstantiateWithFlags)(&mut ready, graph, 0);
            check("cuGraphInstantiate", made)?;
        }
        Ok(Graph(ready))
    }

    /// Launches it in the default stream.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn launch_graph(&self, graph: Graph) -> Result<(), CudaError> {
        // SAFETY: a graph of this driver's, which is never destroyed.
        let launched = unsafe { (self.table.cuGraphLaunch)(graph.0, std::ptr::null_mut()) };
        check("cuGraphLaunch", launched)
    }
}

//! Captures: what a stream is told to do becomes nodes of a graph, which count from that moment on.
//!
//! The driver below owns the graph until the capture ends. So a name of it goes with the stream where the capture began.

use std::collections::BTreeMap;

use divvy_abi::*;

use super::{Call, Stop};
use crate::handle::{Id, Kind, Word};

/// The captures of a connection.
#[derive(Default)]
pub struct Captures {
    /// By the number that the driver gave each.
    by_number: BTreeMap<u64, Capture>,
    /// Nodes of all of them.
    nodes: u64,
}

/// A capture.
#[derive(Default)]
struct Capture {
    /// The stream where it began; none where that is one of the default streams.
    origin: Option<Id>,
    /// The name of its graph, where the program has asked for it. It is the program's own where it gave the graph.
    graph: Option<Id>,
    nodes: u64,
}

/// What a call does to a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Nothing.
    #[default]
    None,
    /// It begins one.
    Begins,
    /// It adds to this one.
    Adds(u64),
    /// It ends this one.
    Ends(u64),
}

impl Captures {
    /// Nodes that calls have added to captures which go on.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    fn begin(&mut self, number: u64, origin: Option<Id>) {
        self.end(number);
        let capture = Capture {
            origin,
            ..Capture::default()
        };
        self.by_number.insert(number, capture);
    }

    fn add(&mut self, number: u64, nodes: u64) {
        if let Some(capture) = self.by_number.get_mut(&number) {
            capture.nodes = capture.nodes.saturating_add(nodes);
            self.nodes = self.nodes.saturating_add(nodes);
        }
    }

    fn end(&mut self, number: u64) -> Option<Capture> {
        let capture = self.by_number.remove(&number)?;
        self.nodes = self.nodes.saturating_sub(capture.nodes);
        Some(capture)
    }

    /// The object that the graph of a capture goes with.
    pub fn origin(&self, number: u64) -> Option<Id> {
        self.by_number.get(&number)?.origin
    }

    /// The program has a name of the graph of a capture.
    pub fn has_graph(&mut self, number: u64, graph: Option<Id>) {
        if let Some(capture) = self.by_number.get_mut(&number) {
            capture.graph = graph;
        }
    }

    /// Ends what began in streams that are gone.
    pub fn forget(&mut self, gone: &[Id]) {
        if self.by_number.is_empty() {
            return;
        }
        let began = |capture: &Capture| capture.origin.is_some_and(|origin| gone.contains(&origin));
        let ended: Vec<u64> = self
            .by_number
            .iter()
            .filter(|(_, one)| began(one))
            .map(|(at, _)| *at)
            .collect();
        for number in ended {
            self.end(number);
        }
    }
}

impl Call<'_> {
    /// The call is about to be made, and its arguments are known.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where it would add to a capture, and the connection has as many nodes as it may.
    pub fn begin_part(&mut self, symbol: Symbol) -> Result<(), Stop> {
        let Some(stream) = self.stream else {
            return Ok(());
        };
        match symbol {
            Symbol::cuStreamBeginCapture_v2
            | Symbol::cuStreamBeginCapture_v2_ptsz
            | Symbol::cuStreamBeginCaptureToGraph
            | Symbol::cuStreamBeginCaptureToGraph_ptsz => {
                self.capture = Part::Begins;
                return Ok(());
            }
            _ if self.server.tables().captures.by_number.is_empty() => return Ok(()),
            Symbol::cuStreamEndCapture | Symbol::cuStreamEndCapture_ptsz => {
                // A graph that the capture made ends with one that fails.
                self.hold_graphs(Kind::Graph);
                self.capture = self.number(stream).map_or(Part::None, Part::Ends);
                return Ok(());
            }
            Symbol::cuStreamIsCapturing
            | Symbol::cuStreamIsCapturing_ptsz
            | Symbol::cuStreamDestroy
            | Symbol::cuStreamDestroy_v2 => return Ok(()),
            _ => {}
        }
        let Some(number) = self.number(stream) else {
            return Ok(());
        };
        // The program can have a name of the graph.
        self.hold_graphs(Kind::Graph);
        if self.server.tables().nodes() >= self.server.quota.nodes {
            return Err(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY));
        }
        self.capture = Part::Adds(number);
        Ok(())
    }

    /// The call was made.
    pub fn end_part(&mut self, code: CUresult) {
        let (part, stream) = (std::mem::take(&mut self.capture), self.stream.unwrap_or(0));
        match part {
            Part::Begins if code == CUDA_SUCCESS => {
                if let Some(number) = self.number(stream) {
                    // What begins in a default stream goes with the context.
                    let named = self.server.tables().objects.id(Kind::Stream, stream);
                    let origin = named.or_else(|| self.current());
                    self.server.tables().captures.begin(number, origin);
                }
            }
            Part::Adds(number) if code == CUDA_SUCCESS => {
                let mut tables = self.server.tables();
                // A launch of a graph adds all of its nodes.
                let more = self.exec.map_or(0, |exec| tables.weights.of(exec));
                tables.captures.add(number, more.saturating_add(1));
            }
            Part::Ends(number) => {
                let mut tables = self.server.tables();
                let graph = tables.captures.end(number).and_then(|capture| capture.graph);
                if let Some(graph) = graph.filter(|_| code != CUDA_SUCCESS) {
                    tables.remove(graph);
                }
            }
            Part::None | Part::Begins | Part::Adds(_) => {}
        }
    }

    /// The call has found a graph. One that a capture has made is the program's own from now on, and has its nodes.
    pub fn captured_graph(&self, found: u64, real: u64) {
        if let (Part::Ends(_), Some(id)) = (self.capture, Id::from_bits(found)) {
            let nodes = self.nodes_of_new(Kind::Graph, real);
            let mut tables = self.server.tables();
            tables.objects.orphan(id);
            tables.weights.remove(id);
            tables.weights.add(id, nodes);
        }
    }

    /// The call has found a graph for which there is no name. One that a capture has made would stay with the driver for
    /// ever, since the program cannot name it.
    pub fn nameless_graph(&self, real: u64) {
        if matches!(self.capture, Part::Ends(_)) {
            // SAFETY: the driver gave the graph with the end of the capture. It has no name, so no other call uses it.
            unsafe { (self.driver.cuGraphDestroy)(Word::from_bits(real)) };
        }
    }

    /// The number of the capture that a stream is part of.
    fn number(&self, stream: u64) -> Option<u64> {
        let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
        let mut number = 0;
        let stream: CUstream = Word::from_bits(stream);
        let none: *mut c_void = std::ptr::null_mut();
        let asks = [
            self.driver.cuStreamGetCaptureInfo_v2,
            self.driver.cuStreamGetCaptureInfo_v2_ptsz,
        ];
        // Null is another stream to each of the two. A stream of the program's own is the same to both.
        let count = if stream.addr() == 0 { 2 } else { 1 };
        asks.into_iter().take(count).find_map(|ask| {
            let (to_status, to_number) = (&raw mut status, &raw mut number);
            // SAFETY: the stream is the driver's, and what it writes goes to memory of ours; the rest is not wanted.
            let code = unsafe {
                ask(
                    stream,
                    to_status,
                    to_number,
                    none.cast(),
                    none.cast(),
                    none.cast(),
                )
            };
            (code == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE).then_some(number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Origin;

    #[test]
    fn nodes_count_until_the_capture_ends_or_its_stream_is_gone() {
        let stream = Id::new(Kind::Stream, Origin::Client, 1);
        let mut captures = Captures::default();
        captures.begin(7, Some(stream));
        captures.begin(8, None);
        captures.add(7, 3);
        captures.add(8, 2);
        captures.add(9, 100);
        assert_eq!(captures.nodes(), 5, "a capture that is not known adds nothing");
        captures.end(8);
        assert_eq!(captures.nodes(), 3);
        captures.forget(&[stream]);
        assert_eq!((captures.nodes(), captures.by_number.len()), (0, 0));
    }
}

//! A graph as a drawing: cuGraphDebugDotPrint.

use super::topology::{Graph, Node};
use super::work::Work;
use divvy_abi::*;
use std::fmt::Write;

/// The graph in Graphviz's language. `flags`: CU_GRAPH_DEBUG_DOT_FLAGS_*; any of them adds the parameters.
pub fn text(graph: &Graph, flags: u32) -> String {
    let mut text = String::from("digraph dot {\n");
    cluster(graph, flags, &mut text);
    text.push_str("}\n");
    text
}

// Writing to a String cannot fail.
fn cluster(graph: &Graph, flags: u32, text: &mut String) {
    let inner = graph.lock();
    let id = graph.id;
    let _ = writeln!(
        text,
        "subgraph cluster_{id} {{\nlabel=\"graph_{id}\" graph[style=\"dashed\"];"
    );
    let name = |node: &Node| format!("\"graph_{id}_node_{}\"", node.local);
    for (handle, node) in &inner.nodes {
        let mut label = format!("{}\\n{}", node.local, describe(&node.work, flags));
        if flags & (CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES.0 | CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE.0) != 0 {
            let _ = write!(label, "\\nnode handle {handle:#x}");
        }
        let _ = writeln!(text, "{}[shape=\"rectangle\" label=\"{label}\"];", name(node));
    }
    for node in inner.nodes.values() {
        for (earlier, data) in &node.before {
            let style = if data.kind == 0 { "" } else { " [style=\"dashed\"]" };
            let _ = writeln!(text, "{} -> {}{style};", name(&inner.nodes[earlier]), name(node));
        }
    }
    for node in inner.nodes.values() {
        if let Work::Child(child) = &node.work {
            cluster(child, flags, text);
        }
    }
    text.push_str("}\n");
}

fn describe(work: &Work, flags: u32) -> String {
    let full = flags != 0;
    match work {
        Work::Kernel(kernel) => {
            let name = kernel.function.c_name.to_string_lossy();
            let geometry = &kernel.geometry;
            if full {
                let (grid, block) = (geometry.grid, geometry.block);
                format!("{name}\\n<<<{grid:?}, {block:?}, {}>>>", geometry.shared_bytes)
            } else {
                name.into_owned()
            }
        }
        Work::Memcpy(copy) => {
            let copy = &copy.copy.0;
            let side = |kind| match kind {
                CU_MEMORYTYPE_HOST => "H",
                CU_MEMORYTYPE_ARRAY => "A",
                CU_MEMORYTYPE_UNIFIED => "U",
                _ => "D",
            };
            let (from, to) = (side(copy.srcMemoryType), side(copy.dstMemoryType));
            let (width, height, depth) = (copy.WidthInBytes, copy.Height, copy.Depth);
            format!("MEMCPY\\n{from}to{to}{}", extent(full, &[width, height, depth]))
        }
        Work::Memset(fill) => format!("MEMSET{}", extent(full, &[fill.fill.width, fill.fill.height])),
        Work::Host(_) => "HOST".into(),
        Work::Child(child) => format!("CHILD_GRAPH\\ngraph_{}", child.id),
        Work::Empty => "EMPTY".into(),
        Work::Wait(_) => "EVENT_WAIT".into(),
        Work::Record(_) => "EVENT_RECORD".into(),
        Work::Alloc(reserved) => format!("MEM_ALLOC\\n{:#x}{}", reserved.base(), {
            extent(full, &[reserved.allocation.bytes as usize])
        }),
        Work::Free(reserved) => format!("MEM_FREE\\n{:#x}", reserved.base()),
        Work::MemOps(ops) => format!("BATCH_MEM_OP{}", extent(full, &[ops.ops.raw.len()])),
    }
}

fn extent(full: bool, sizes: &[usize]) -> String {
    if full {
        format!("\\n{sizes:?}")
    } else {
        String::new()
    }
}

//! Graphs: making, copying and ending them, their edges, and what they consist of.

use super::args::{Handle, In, Out, Text};
use super::find;
use crate::Result;
use crate::driver::driver;
use crate::graph::dot;
use crate::graph::edge::{Before, EdgeData};
use crate::graph::topology::{Graph, Node};
use crate::graph::work::Work;
use divvy_abi::*;
use std::sync::Arc;

entry! {
    fn cuGraphCreate(graph: Out<CUgraph>, flags: u32) {
        graph.required()?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        graph.set(Graph::create(&driver()?.graphs.handles).handle as CUgraph)
    }

    fn cuGraphDestroy(graph: Handle<CUgraph>) {
        let graph = find::graph(graph.0)?;
        if graph.is_embedded() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        graph.destroy()
    }

    fn cuGraphClone(clone: Out<CUgraph>, graph: Handle<CUgraph>) {
        clone.required()?;
        let graph = find::graph(graph.0)?;
        if graph.has_memory() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        clone.set(graph.copy()?.handle as CUgraph)
    }

    fn cuGraphGetId(graph: Handle<CUgraph>, id: Out<u32>) {
        id.set(find::graph(graph.0)?.id)
    }

    fn cuGraphDebugDotPrint(graph: Handle<CUgraph>, path: Text, flags: u32) {
        let text = dot::text(&*find::graph(graph.0)?, flags);
        std::fs::write(path.get()?, text).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
    }

    fn cuGraphNodeFindInClone(node: Out<CUgraphNode>, original: Handle<CUgraphNode>, clone: Handle<CUgraph>) {
        node.required()?;
        let clone = find::graph(clone.0)?;
        let inner = clone.lock();
        let copy = inner.copies.get(&original.0).filter(|copy| inner.nodes.contains_key(copy));
        node.set(*copy.ok_or(CUDA_ERROR_INVALID_VALUE)? as CUgraphNode)
    }

    fn cuGraphNodeGetType(node: Handle<CUgraphNode>, kind: Out<CUgraphNodeType>) {
        kind.set(look(node.0, |node| node.work.kind())?)
    }

    fn cuGraphNodeGetContainingGraph(node: Handle<CUgraphNode>, graph: Out<CUgraph>) {
        graph.set(find::graph_of(node.0)?.handle as CUgraph)
    }

    fn cuGraphNodeGetLocalId(node: Handle<CUgraphNode>, id: Out<u32>) {
        id.set(look(node.0, |node| node.local)?)
    }

    fn cuGraphNodeGetToolsId(node: Handle<CUgraphNode>, id: Out<u64>) {
        let graph = u64::from(find::graph_of(node.0)?.id);
        id.set(graph << 32 | u64::from(look(node.0, |node| node.local)?))
    }

    fn cuGraphGetNodes(graph: Handle<CUgraph>, nodes: Out<CUgraphNode>, count: Out<usize>) {
        let all: Vec<u64> = find::graph(graph.0)?.lock().nodes.keys().copied().collect();
        fill(&nodes, &count, all)
    }

    fn cuGraphGetRootNodes(graph: Handle<CUgraph>, nodes: Out<CUgraphNode>, count: Out<usize>) {
        let graph = find::graph(graph.0)?;
        let inner = graph.lock();
        let roots = inner.nodes.iter().filter(|(_, node)| node.before.is_empty());
        fill(&nodes, &count, roots.map(|(node, _)| *node).collect())
    }

    fn cuGraphGetEdges(graph: Handle<CUgraph>, from: Out<CUgraphNode>, to: Out<CUgraphNode>, count: Out<usize>) {
        edges(graph.0, &from, &to, None, &count)
    }

    fn cuGraphGetEdges_v2(
        graph: Handle<CUgraph>,
        from: Out<CUgraphNode>,
        to: Out<CUgraphNode>,
        data: Out<CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        edges(graph.0, &from, &to, Some(&data), &count)
    }

    fn cuGraphNodeGetDependencies(node: Handle<CUgraphNode>, nodes: Out<CUgraphNode>, count: Out<usize>) {
        neighbours(look(node.0, |node| node.before.clone())?, &nodes, None, &count)
    }

    fn cuGraphNodeGetDependencies_v2(
        node: Handle<CUgraphNode>,
        nodes: Out<CUgraphNode>,
        data: Out<CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        neighbours(look(node.0, |node| node.before.clone())?, &nodes, Some(&data), &count)
    }

    fn cuGraphNodeGetDependentNodes(node: Handle<CUgraphNode>, nodes: Out<CUgraphNode>, count: Out<usize>) {
        neighbours(dependents(node.0)?, &nodes, None, &count)
    }

    fn cuGraphNodeGetDependentNodes_v2(
        node: Handle<CUgraphNode>,
        nodes: Out<CUgraphNode>,
        data: Out<CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        neighbours(dependents(node.0)?, &nodes, Some(&data), &count)
    }

    fn cuGraphAddDependencies(graph: Handle<CUgraph>, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) {
        change_edges(graph.0, &from, &to, None, count, true)
    }

    fn cuGraphAddDependencies_v2(
        graph: Handle<CUgraph>,
        from: In<CUgraphNode>,
        to: In<CUgraphNode>,
        data: In<CUgraphEdgeData>,
        count: usize,
    ) {
        change_edges(graph.0, &from, &to, Some(&data), count, true)
    }

    fn cuGraphRemoveDependencies(graph: Handle<CUgraph>, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) {
        change_edges(graph.0, &from, &to, None, count, false)
    }

    fn cuGraphRemoveDependencies_v2(
        graph: Handle<CUgraph>,
        from: In<CUgraphNode>,
        to: In<CUgraphNode>,
        data: In<CUgraphEdgeData>,
        count: usize,
    ) {
        change_edges(graph.0, &from, &to, Some(&data), count, false)
    }

    fn cuGraphDestroyNode(node: Handle<CUgraphNode>) {
        let graph = find::graph_of(node.0)?;
        let removed = {
            let mut inner = graph.lock();
            if inner.has_memory() || inner.captures > 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            inner.remove(node.0)?
        };
        driver()?.graphs.handles.forget_node(node.0);
        removed.work.end()
    }

    fn cuGraphChildGraphNodeGetGraph(node: Handle<CUgraphNode>, graph: Out<CUgraph>) {
        graph.required()?;
        let child = look(node.0, |node| match &node.work {
            Work::Child(child) => Some(Arc::clone(child)),
            _ => None,
        })?;
        graph.set(child.ok_or(CUDA_ERROR_INVALID_VALUE)?.handle as CUgraph)
    }
}

/// Looks at a node.
pub fn look<T>(node: u64, see: impl FnOnce(&Node) -> T) -> Result<T> {
    let graph = find::graph_of(node)?;
    let inner = graph.lock();
    inner.nodes.get(&node).map(see).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// A list of edges as C passes it: the nodes they come from, and what they say if anything.
pub fn before(
    nodes: &In<CUgraphNode>,
    data: Option<&In<CUgraphEdgeData>>,
    count: usize,
) -> Result<Vec<Before>> {
    let nodes = nodes.list(count)?;
    let data = match data.filter(|data| !data.pointer().is_null()) {
        Some(data) => data
            .list(count)?
            .into_iter()
            .map(EdgeData::read)
            .collect::<Result<_>>()?,
        None => vec![EdgeData::default(); count],
    };
    Ok(nodes.into_iter().map(|node| node as u64).zip(data).collect())
}

/// Writes as many nodes as fit into the program's list, NULL in the rest of it, and their number. Without a list,
/// writes only the number.
fn fill(nodes: &Out<CUgraphNode>, count: &Out<usize>, all: Vec<u64>) -> Result {
    count.required()?;
    if nodes.is_null() {
        return count.set(all.len());
    }
    let room = count.before()?;
    let padded = all
        .iter()
        .map(|&node| node as CUgraphNode)
        .chain(std::iter::repeat(std::ptr::null_mut()));
    nodes.set_list(padded, room)?;
    count.set(all.len().min(room))
}

/// The same for edges, whose data may only be left out if it says nothing.
fn neighbours(
    all: Vec<Before>,
    nodes: &Out<CUgraphNode>,
    data: Option<&Out<CUgraphEdgeData>>,
    count: &Out<usize>,
) -> Result {
    let data = data.filter(|data| !data.is_null());
    match data {
        Some(data) => {
            if nodes.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let padded = all.iter().map(|(_, data)| data.write());
            let padded = padded.chain(std::iter::repeat(CUgraphEdgeData::default()));
            data.set_list(padded, count.before()?)?;
        }
        None if !nodes.is_null() && all.iter().any(|(_, data)| *data != EdgeData::default()) => {
            return Err(CUDA_ERROR_LOSSY_QUERY);
        }
        None => {}
    }
    fill(nodes, count, all.into_iter().map(|(node, _)| node).collect())
}

fn dependents(node: u64) -> Result<Vec<Before>> {
    let graph = find::graph_of(node)?;
    let inner = graph.lock();
    let after = &inner.nodes.get(&node).ok_or(CUDA_ERROR_INVALID_VALUE)?.after;
    Ok(after
        .iter()
        .filter_map(|later| {
            let edges = &inner.nodes.get(later)?.before;
            edges
                .iter()
                .find(|(earlier, _)| *earlier == node)
                .map(|(_, data)| (*later, *data))
        })
        .collect())
}

fn edges(
    graph: u64,
    from: &Out<CUgraphNode>,
    to: &Out<CUgraphNode>,
    data: Option<&Out<CUgraphEdgeData>>,
    count: &Out<usize>,
) -> Result {
    let graph = find::graph(graph)?;
    let inner = graph.lock();
    let all = inner.nodes.iter().flat_map(|(&later, node)| {
        node.before
            .iter()
            .map(move |(earlier, data)| (*earlier, later, *data))
    });
    let all: Vec<(u64, u64, EdgeData)> = all.collect();
    if from.is_null() != to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let room = count.before()?;
    neighbours(
        all.iter().map(|(from, _, data)| (*from, *data)).collect(),
        from,
        data,
        count,
    )?;
    if !to.is_null() {
        count.set(room)?;
    }
    fill(to, count, all.iter().map(|(_, to, _)| *to).collect())
}

/// Adds or removes edges, all or none.
fn change_edges(
    graph: u64,
    from: &In<CUgraphNode>,
    to: &In<CUgraphNode>,
    data: Option<&In<CUgraphEdgeData>>,
    count: usize,
    adds: bool,
) -> Result {
    let graph = find::graph(graph)?;
    let edges: Vec<_> = before(from, data, count)?
        .into_iter()
        .zip(to.list(count)?)
        .collect();
    let mut inner = graph.lock();
    if !adds && count > 0 && inner.has_memory() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut change = |((from, data), to): &(Before, CUgraphNode), adds| match adds {
        true => inner.connect(*from, *to as u64, *data),
        false => inner.disconnect(*from, *to as u64, *data),
    };
    for (at, edge) in edges.iter().enumerate() {
        if let Err(why) = change(edge, adds) {
            for edge in &edges[..at] {
                let _ = change(edge, !adds);
            }
            return Err(why);
        }
    }
    Ok(())
}

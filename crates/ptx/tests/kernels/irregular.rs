//! Breadth-first search: loops whose length differs per lane, scattered access, work lists.

use std::collections::VecDeque;

use crate::random::Random;
use crate::support::{Buffer, Loaded};

/// As optimised, and as compiled for a debugger: everything through memory and calls.
const TEXTS: [&str; 2] = [include_str!("bfs.ptx"), include_str!("bfs_debug.ptx")];

/// A graph in compressed rows: where each vertex's edges begin, and where they lead.
struct Graph {
    first: Vec<u32>,
    edges: Vec<u32>,
}

impl Graph {
    /// Vertices of very different degrees, some out of reach.
    fn random(vertices: u32) -> Graph {
        let mut random = Random::new(u64::from(vertices));
        let (mut first, mut edges) = (vec![0], Vec::new());
        for _ in 0..vertices {
            let degree = if random.below(20) == 0 {
                40
            } else {
                random.below(3)
            };
            edges.extend((0..degree).map(|_| random.below(u64::from(vertices)) as u32));
            first.push(edges.len() as u32);
        }
        Graph { first, edges }
    }

    /// Steps from vertex 0, all ones where there is no path.
    fn distances(&self) -> Vec<u32> {
        let mut distance = vec![u32::MAX; self.first.len() - 1];
        distance[0] = 0;
        let mut queue = VecDeque::from([0usize]);
        while let Some(v) = queue.pop_front() {
            for &to in &self.edges[self.first[v] as usize..self.first[v + 1] as usize] {
                if distance[to as usize] == u32::MAX {
                    distance[to as usize] = distance[v] + 1;
                    queue.push_back(to as usize);
                }
            }
        }
        distance
    }
}

#[test]
fn bfs_level_by_level() {
    for text in TEXTS {
        level_by_level(&Loaded::new(text));
    }
}

fn level_by_level(loaded: &Loaded) {
    let vertices = 3000u32;
    let graph = Graph::random(vertices);
    let mut start = vec![u32::MAX; vertices as usize];
    start[0] = 0;
    let (first, edges) = (Buffer::of_u32(&graph.first), Buffer::of_u32(&graph.edges));
    let distance = Buffer::of_u32(&start);
    for level in 0..vertices {
        let again = Buffer::zeroed(4);
        let run = loaded.kernel("bfs_level").grid(vertices.div_ceil(128)).block(128);
        run.buffer(&first)
            .buffer(&edges)
            .buffer(&distance)
            .u32(vertices)
            .u32(level)
            .buffer(&again)
            .ok();
        if again.u32s() == [0] {
            break;
        }
    }
    assert_eq!(distance.u32s(), graph.distances());
}

#[test]
fn bfs_by_work_list() {
    for text in TEXTS {
        by_work_list(&Loaded::new(text));
    }
}

fn by_work_list(loaded: &Loaded) {
    let vertices = 2000u32;
    let graph = Graph::random(vertices);
    let mut start = vec![u32::MAX; vertices as usize];
    start[0] = 0;
    let (first, edges) = (Buffer::of_u32(&graph.first), Buffer::of_u32(&graph.edges));
    let distance = Buffer::of_u32(&start);
    let (mut frontier, mut next) = (
        Buffer::zeroed(vertices as usize * 4),
        Buffer::zeroed(vertices as usize * 4),
    );
    let (mut size, mut level) = (1u32, 0);
    while size > 0 {
        let cursor = Buffer::zeroed(4);
        let run = loaded
            .kernel("bfs_frontier")
            .grid(size.div_ceil(64))
            .block(64)
            .buffer(&first)
            .buffer(&edges);
        let run = run
            .buffer(&distance)
            .buffer(&frontier)
            .u32(size)
            .buffer(&next)
            .buffer(&cursor);
        run.u32(level).ok();
        size = cursor.u32s()[0];
        level += 1;
        std::mem::swap(&mut frontier, &mut next);
    }
    assert_eq!(distance.u32s(), graph.distances());
}

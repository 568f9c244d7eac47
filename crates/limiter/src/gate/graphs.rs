//! Executable graphs by their contents. A program that captures each step again launches another executable graph each
//! time, and all of them take as long: by this list they have one estimate.

use std::collections::HashMap;
use std::sync::Mutex;

use divvy_charges::locked;

use super::estimates::{Key, Mixed};
use crate::account;

/// Graphs that are remembered. A program with more of them has an estimate by executable graph for the rest.
const MOST: usize = 1 << 16;

/// The contents of the executable graphs, by their handles.
static KEYS: Mutex<Option<HashMap<usize, Key>>> = Mutex::new(None);

/// The contents of a graph, as far as they decide how long it takes: its nodes in the driver's order.
#[derive(Debug)]
pub(crate) struct Contents(Mixed);

impl Contents {
    pub fn new() -> Self {
        Self(Mixed::graph())
    }

    /// A node of another kind than a kernel.
    pub fn node(&mut self, kind: i32) {
        self.0.add(kind as u64);
    }

    /// A kernel node.
    pub fn kernel(&mut self, function: usize, grid: [u32; 3], block: [u32; 3]) {
        self.0.add(Key::kernel(function, grid, block).bits());
    }

    /// Remembers that an executable graph has these contents.
    pub fn of(self, exec: usize) {
        let mut keys = locked(&KEYS);
        let keys = keys.get_or_insert_default();
        if keys.len() < MOST || keys.contains_key(&exec) {
            keys.insert(exec, self.0.key());
        }
    }
}

/// An executable graph has ended: its handle may be another one's soon.
pub(crate) fn ended(exec: usize) {
    // A child of a fork has no other thread that could let go of the lock.
    if !account::keeps_charges() {
        return;
    }
    forget(exec);
}

fn forget(exec: usize) {
    if let Some(keys) = locked(&KEYS).as_mut() {
        keys.remove(&exec);
    }
}

/// What a launch of this executable graph runs.
pub(super) fn key_of(exec: usize) -> Key {
    match account::keeps_charges() {
        true => known(exec),
        false => Key::graph(exec),
    }
}

fn known(exec: usize) -> Key {
    let known = locked(&KEYS).as_ref().and_then(|keys| keys.get(&exec).copied());
    known.unwrap_or_else(|| Key::graph(exec))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(functions: &[usize]) -> Contents {
        let mut contents = Contents::new();
        contents.node(4);
        for &function in functions {
            contents.kernel(function, [8, 1, 1], [32, 1, 1]);
        }
        contents
    }

    #[test]
    fn graphs_with_the_same_nodes_have_one_key_as_long_as_they_live() {
        contents(&[1, 2]).of(0x10);
        contents(&[1, 2]).of(0x20);
        contents(&[2, 1]).of(0x30);
        assert_eq!(known(0x10), known(0x20));
        assert_ne!(known(0x10), known(0x30), "their order counts");
        assert_ne!(known(0x10), Key::graph(0x10));
        forget(0x10);
        assert_eq!(known(0x10), Key::graph(0x10));
        forget(0x77);
    }
}

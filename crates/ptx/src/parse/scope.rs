//! Names inside a function: registers (singly or as `%r<n>` ranges) and variables, by brace scope.

use super::ast::Register;
use crate::types::Ty;
use std::collections::HashMap;

/// Braces within braces: lookups walk outwards.
const MAX_DEPTH: u32 = 200;

#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Reg(u32),
    /// A `.v2`/`.v4` register: its elements.
    Vector(Vec<u32>),
    /// A variable: its place in the function's list, and the bytes of an element.
    Var(u32, u64),
}

#[derive(Default)]
struct Scope<'a> {
    names: HashMap<&'a str, Entry>,
    /// Prefix of a `%r<n>` declaration: type, vector width, count.
    ranges: HashMap<&'a str, (Ty, u32, u64)>,
    parent: usize,
}

#[derive(Default)]
pub(crate) struct Scopes<'a> {
    scopes: Vec<Scope<'a>>,
    current: usize,
    depth: u32,
    pub registers: Vec<Register>,
}

impl<'a> Scopes<'a> {
    /// Forgets everything and opens scope 0.
    pub fn reset(&mut self) {
        *self = Scopes {
            scopes: vec![Scope::default()],
            ..Scopes::default()
        };
    }

    /// No function is open.
    pub fn is_module_level(&self) -> bool {
        self.scopes.is_empty()
    }

    pub fn current(&self) -> u32 {
        self.current as u32
    }

    /// False when the nesting is deeper than any program's.
    #[must_use]
    pub fn open(&mut self) -> bool {
        if self.depth >= MAX_DEPTH {
            return false;
        }
        self.depth += 1;
        self.scopes.push(Scope {
            parent: self.current,
            ..Scope::default()
        });
        self.current = self.scopes.len() - 1;
        true
    }

    /// False when this was the outermost scope.
    pub fn close(&mut self) -> bool {
        if self.current == 0 {
            return false;
        }
        self.current = self.scopes[self.current].parent;
        self.depth -= 1;
        true
    }

    pub fn parents(&self) -> Vec<u32> {
        self.scopes.iter().map(|s| s.parent as u32).collect()
    }

    fn fresh(&mut self, ty: Ty, width: u32) -> Entry {
        let first = self.registers.len() as u32;
        for _ in 0..width {
            self.registers.push(Register { ty });
        }
        if width == 1 {
            Entry::Reg(first)
        } else {
            Entry::Vector((first..first + width).collect())
        }
    }

    /// Declares one register; false if the name is taken in this scope.
    pub fn register(&mut self, name: &'a str, ty: Ty, width: u32) -> bool {
        let entry = self.fresh(ty, width);
        self.scopes[self.current].names.insert(name, entry).is_none()
    }

    /// Declares `prefix0 … prefix(count-1)`, each made when first named.
    pub fn range(&mut self, prefix: &'a str, ty: Ty, width: u32, count: u64) -> bool {
        self.scopes[self.current]
            .ranges
            .insert(prefix, (ty, width, count))
            .is_none()
    }

    pub fn variable(&mut self, name: &'a str, index: u32, element: u64) -> bool {
        self.scopes[self.current]
            .names
            .insert(name, Entry::Var(index, element))
            .is_none()
    }

    pub fn find(&mut self, name: &'a str) -> Option<Entry> {
        if self.scopes.is_empty() {
            return None;
        }
        let mut scope = self.current;
        loop {
            if let Some(entry) = self.scopes[scope].names.get(name) {
                return Some(entry.clone());
            }
            if let Some((ty, width)) = self.in_range(scope, name) {
                let entry = self.fresh(ty, width);
                self.scopes[scope].names.insert(name, entry.clone());
                return Some(entry);
            }
            if scope == 0 {
                return None;
            }
            scope = self.scopes[scope].parent;
        }
    }

    fn in_range(&self, scope: usize, name: &str) -> Option<(Ty, u32)> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count().min(10);
        (1..=digits).find_map(|n| {
            let (prefix, number) = name.split_at(name.len() - n);
            if n > 1 && number.starts_with('0') {
                return None;
            }
            let (ty, width, count) = self.scopes[scope].ranges.get(prefix)?;
            (number.parse::<u64>().ok()? < *count).then_some((*ty, *width))
        })
    }
}

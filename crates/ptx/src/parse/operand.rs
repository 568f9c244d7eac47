//! Instruction operands.

use super::Parser;
use super::ast::Operand;
use super::scope::Entry;
use crate::error::ParseError;
use crate::lex::{Kind, Token};

impl<'a> Parser<'a> {
    /// Operands up to and with `;`.
    pub(super) fn operands(&mut self, call: bool) -> Result<Vec<Operand<'a>>, ParseError> {
        let mut operands = Vec::new();
        if self.accept(b';')? {
            return Ok(operands);
        }
        loop {
            operands.push(self.operand(call)?);
            if self.accept(b';')? {
                return Ok(operands);
            }
            self.expect(b',')?;
        }
    }

    fn operand(&mut self, call: bool) -> Result<Operand<'a>, ParseError> {
        let token = self.next()?;
        match token.kind {
            Kind::Punct(b'[') => {
                let base = self.next()?;
                let base = self.simple(base)?;
                let offset = self.addend()?;
                if self.accept(b',')? {
                    let mut coordinates = Vec::new();
                    if self.accept(b'{')? {
                        coordinates = self.list(b'}')?;
                    }
                    if coordinates.is_empty() || !self.accept(b']')? {
                        // More than an object and its coordinates: decoding refuses it by its opcode.
                        coordinates = self.rest_of_brackets()?;
                    }
                    return Ok(Operand::Coordinates(Box::new(base), coordinates));
                }
                self.expect(b']')?;
                Ok(match base {
                    Operand::Var(v, more) => {
                        Operand::Address(Box::new(Operand::Var(v, 0)), offset.wrapping_add(more))
                    }
                    Operand::Name(n, more) => {
                        Operand::Address(Box::new(Operand::Name(n, 0)), offset.wrapping_add(more))
                    }
                    base => Operand::Address(Box::new(base), offset),
                })
            }
            Kind::Punct(b'{') => Ok(Operand::Vector(self.list(b'}')?)),
            Kind::Punct(b'(') if call => Ok(Operand::List(self.list(b')')?)),
            Kind::Punct(b'!') => {
                let peeked = self.peek()?;
                let Kind::Word(name) = peeked.kind else {
                    return Ok(Operand::Int(self.integer_expression(token)?));
                };
                self.next()?;
                match self.scopes.find(name) {
                    Some(Entry::Reg(register)) => Ok(Operand::Not(register)),
                    _ => Err(peeked.error("expected a predicate after `!`")),
                }
            }
            _ => {
                let first = self.simple(token)?;
                if self.accept(b'|')? {
                    let second = self.next()?;
                    let second = self.simple(second)?;
                    return Ok(Operand::Pair(Box::new(first), Box::new(second)));
                }
                Ok(first)
            }
        }
    }

    /// Passes over what stands before `]`, but for a single register or number.
    fn rest_of_brackets(&mut self) -> Result<Vec<Operand<'a>>, ParseError> {
        let mut found = Vec::new();
        let mut count = 0;
        while !self.accept(b']')? {
            let inner = self.next()?;
            if matches!(inner.kind, Kind::End | Kind::Punct(b';')) {
                return Err(inner.error("expected `]`"));
            }
            count += 1;
            if let Kind::Word(name) = inner.kind
                && let Some(Entry::Reg(register)) = self.scopes.find(name)
            {
                found.push(Operand::Reg(register));
            }
        }
        // `[object, %x]` has one coordinate.
        if count == 1 { Ok(found) } else { Ok(Vec::new()) }
    }

    fn list(&mut self, close: u8) -> Result<Vec<Operand<'a>>, ParseError> {
        let mut list = Vec::new();
        if self.accept(close)? {
            return Ok(list);
        }
        loop {
            let token = self.next()?;
            list.push(self.simple(token)?);
            if list.len() > 1024 {
                return Err(token.error("a list of more than 1024 operands"));
            }
            if self.accept(close)? {
                return Ok(list);
            }
            self.expect(b',')?;
        }
    }

    /// A register, number, name or special register.
    fn simple(&mut self, token: Token<'a>) -> Result<Operand<'a>, ParseError> {
        match token.kind {
            Kind::F32(bits) => Ok(Operand::F32(bits)),
            Kind::F64(bits) => Ok(Operand::F64(bits)),
            Kind::Punct(b'-') if matches!(self.peek()?.kind, Kind::F32(_) | Kind::F64(_)) => {
                match self.next()?.kind {
                    Kind::F32(bits) => Ok(Operand::F32(bits ^ 0x8000_0000)),
                    Kind::F64(bits) => Ok(Operand::F64(bits ^ (1 << 63))),
                    _ => Err(token.error("expected a number after `-`")),
                }
            }
            Kind::Int(_) | Kind::Punct(b'-' | b'+' | b'~' | b'!' | b'(') | Kind::Word("WARP_SZ") => {
                Ok(Operand::Int(self.integer_expression(token)?))
            }
            Kind::Word("_") => Ok(Operand::Sink),
            Kind::Word(name) => {
                let component = match self.peek()?.kind {
                    Kind::Dot(c @ ("x" | "y" | "z" | "w" | "r" | "g" | "b" | "a")) => Some(c),
                    _ => None,
                };
                match self.scopes.find(name) {
                    Some(Entry::Reg(register)) => Ok(Operand::Reg(register)),
                    Some(Entry::Vector(elements)) => {
                        let Some(component) = component else {
                            return Ok(Operand::Vector(elements.into_iter().map(Operand::Reg).collect()));
                        };
                        self.next()?;
                        let index = match component {
                            "x" | "r" => 0,
                            "y" | "g" => 1,
                            "z" | "b" => 2,
                            _ => 3,
                        };
                        match elements.get(index) {
                            Some(register) => Ok(Operand::Reg(*register)),
                            None => Err(token.error(format!("`{name}` has no component `.{component}`"))),
                        }
                    }
                    Some(Entry::Var(index, element)) => {
                        if let Some(found) = self.element_address(Operand::Var(index, 0), element)? {
                            return Ok(found);
                        }
                        let addend = self.addend()?;
                        Ok(Operand::Var(index, addend))
                    }
                    None if name.starts_with('%') => {
                        if component.is_some() {
                            self.next()?;
                        }
                        match special(name, component) {
                            Some(name) => Ok(Operand::Special(name)),
                            None => Err(token.error(format!("register `{name}` is not declared"))),
                        }
                    }
                    None => {
                        if let Some(element) = self.elements.get(name).copied()
                            && let Some(found) = self.element_address(Operand::Name(name, 0), element)?
                        {
                            return Ok(found);
                        }
                        let addend = self.addend()?;
                        Ok(Operand::Name(name, addend))
                    }
                }
            }
            _ => Err(token.error(format!("expected an operand, found {}", token.describe()))),
        }
    }
}

impl<'a> Parser<'a> {
    /// `[n]`, `[%r]` or `[%r+n]` behind an array's name: the address of one of its elements, counted in elements.
    fn element_address(
        &mut self,
        array: Operand<'a>,
        element: u64,
    ) -> Result<Option<Operand<'a>>, ParseError> {
        if !self.accept(b'[')? {
            return Ok(None);
        }
        let first = self.next()?;
        let index = match first.kind {
            Kind::Word(name) if name != "WARP_SZ" => match self.scopes.find(name) {
                Some(Entry::Reg(register)) => Some(register),
                _ => {
                    return Err(first.error(format!(
                        "`{name}` is not a register: an index is a register or a number"
                    )));
                }
            },
            _ => None,
        };
        let count = match index {
            Some(_) => self.addend()?,
            None => self.integer_expression(first)? as i64,
        };
        self.expect(b']')?;
        let offset = count.wrapping_mul(element as i64);
        let array = Box::new(match array {
            Operand::Var(variable, _) => Operand::Var(variable, offset),
            Operand::Name(name, _) => Operand::Name(name, offset),
            other => other,
        });
        Ok(Some(match index {
            Some(register) => Operand::Element(array, register, element),
            None => Operand::ElementAt(array),
        }))
    }
}

/// The canonical name of a special register.
fn special(name: &str, component: Option<&str>) -> Option<&'static str> {
    const PLAIN: [&str; 28] = [
        "%laneid",
        "%warpid",
        "%nwarpid",
        "%smid",
        "%nsmid",
        "%gridid",
        "%lanemask_eq",
        "%lanemask_le",
        "%lanemask_lt",
        "%lanemask_ge",
        "%lanemask_gt",
        "%clock",
        "%clock_hi",
        "%clock64",
        "%globaltimer",
        "%globaltimer_lo",
        "%globaltimer_hi",
        "%dynamic_smem_size",
        "%total_smem_size",
        "%aggr_smem_size",
        "%reserved_smem_offset_begin",
        "%reserved_smem_offset_end",
        "%reserved_smem_offset_cap",
        "%reserved_smem_offset_0",
        "%reserved_smem_offset_1",
        "%is_explicit_cluster",
        "%current_graph_exec",
        "%cluster_ctarank",
    ];
    const VECTOR: [&str; 32] = [
        "%tid.x",
        "%tid.y",
        "%tid.z",
        "%tid.w",
        "%ntid.x",
        "%ntid.y",
        "%ntid.z",
        "%ntid.w",
        "%ctaid.x",
        "%ctaid.y",
        "%ctaid.z",
        "%ctaid.w",
        "%nctaid.x",
        "%nctaid.y",
        "%nctaid.z",
        "%nctaid.w",
        "%clusterid.x",
        "%clusterid.y",
        "%clusterid.z",
        "%clusterid.w",
        "%nclusterid.x",
        "%nclusterid.y",
        "%nclusterid.z",
        "%nclusterid.w",
        "%cluster_ctaid.x",
        "%cluster_ctaid.y",
        "%cluster_ctaid.z",
        "%cluster_ctaid.w",
        "%cluster_nctaid.x",
        "%cluster_nctaid.y",
        "%cluster_nctaid.z",
        "%cluster_nctaid.w",
    ];
    match component {
        None if name.starts_with("%envreg") => {
            let n: u32 = name.strip_prefix("%envreg")?.parse().ok()?;
            match n {
                1 => Some("%envreg1"),
                2 => Some("%envreg2"),
                _ => (n < 32).then_some("%envreg"),
            }
        }
        None if name.starts_with("%pm") => Some("%pm"),
        None if name == "%cluster_nctarank" => Some("%cluster_nctarank"),
        None => PLAIN.iter().find(|n| **n == name).copied(),
        Some(c) => VECTOR
            .iter()
            .find(|n| n.rsplit_once('.') == Some((name, c)))
            .copied(),
    }
}

//! Variable declarations: `.align 4 .b8 name[16] = {…}`.

use super::ast::{Element, VarSpace, Variable};
use super::{Linkage, Parser};
use crate::error::ParseError;
use crate::lex::Kind;
use crate::types::Ty;

/// The largest variable, in bytes: what a 48-bit address can hold.
const MAX_BYTES: u64 = 1 << 46;
/// The largest variable with an initialiser: it is kept in memory whole.
const MAX_INITIALISED: u64 = 256 << 20;

impl<'a> Parser<'a> {
    /// One declaration after its space, up to and with `;`.
    pub(super) fn variables(
        &mut self,
        space: VarSpace,
        linkage: Linkage,
        into: &mut Vec<Variable<'a>>,
    ) -> Result<(), ParseError> {
        let (ty, width, align) = self.variable_type()?;
        loop {
            let mut variable = self.declarator(space, ty, width, align)?;
            variable.external = linkage == Linkage::Extern;
            variable.weak = linkage == Linkage::Weak;
            if self.accept(b'=')? {
                self.initialiser(&mut variable)?;
            }
            if self.peek()?.kind == Kind::Punct(b'<') {
                return Err(self.peek()?.error("only registers may be declared as a range"));
            }
            if self.scopes.is_module_level() {
                self.elements.insert(variable.name, variable.element);
            }
            into.push(variable);
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b';')?;
        Ok(())
    }

    /// `[.align n] [.v2|.v4] .type`, with attributes skipped: type, vector width, declared alignment.
    pub(super) fn variable_type(&mut self) -> Result<(Ty, u32, Option<u64>), ParseError> {
        let mut align = None;
        let mut width = 1;
        loop {
            let token = self.next()?;
            let Kind::Dot(word) = token.kind else {
                return Err(token.error(format!("expected a type, found {}", token.describe())));
            };
            match word {
                "align" => {
                    let value = self.int("an alignment")?;
                    if !value.is_power_of_two() || value > 1 << 20 {
                        return Err(token.error("an alignment is a power of two, at most 1 MiB"));
                    }
                    align = Some(value);
                }
                "v2" => width = 2,
                "v4" => width = 4,
                "v8" => width = 8,
                "surfref" | "samplerref" | "texref" => return Ok((Ty::B64, 1, align)),
                "attribute" => {
                    self.expect(b'(')?;
                    while !self.accept(b')')? {
                        if self.next()?.kind == Kind::End {
                            return Err(token.error("the attribute is not closed"));
                        }
                    }
                }
                _ => match Ty::read(word) {
                    Some(ty) => return Ok((ty, width, align)),
                    None => return Err(token.error(format!("`.{word}` is not a type"))),
                },
            }
        }
    }

    /// `name`, `name[n][m]`, `name[]`.
    pub(super) fn declarator(
        &mut self,
        space: VarSpace,
        ty: Ty,
        width: u32,
        align: Option<u64>,
    ) -> Result<Variable<'a>, ParseError> {
        let (name, token) = self.word("a variable's name")?;
        let element = u64::from(ty.bytes()) * u64::from(width);
        let mut size = element;
        let mut unsized_array = false;
        while self.accept(b'[')? {
            if self.accept(b']')? {
                unsized_array = true;
                size = 0;
                continue;
            }
            let count = self.int("an array length")?;
            self.expect(b']')?;
            size = size
                .checked_mul(count)
                .filter(|s| *s <= MAX_BYTES)
                .ok_or_else(|| token.error(format!("`{name}` is larger than any memory")))?;
        }
        Ok(Variable {
            name,
            space,
            ty,
            size,
            element,
            align: align.unwrap_or(element.next_power_of_two()).max(1),
            unsized_array,
            external: false,
            weak: false,
            init: Vec::new(),
            register: None,
            line: token.line,
        })
    }

    fn initialiser(&mut self, variable: &mut Variable<'a>) -> Result<(), ParseError> {
        let start = self.peek()?;
        if !matches!(variable.space, VarSpace::Global | VarSpace::Const) {
            return Err(start.error("only .global and .const variables have initialisers"));
        }
        let element = u64::from(variable.ty.bytes()).max(1);
        let limit = if variable.unsized_array {
            MAX_INITIALISED / element
        } else {
            variable.size / element
        };
        let mut depth = 0u32;
        // Nested braces follow the array's dimensions, and every row is given in full: flat order is enough.
        loop {
            if self.accept(b'{')? {
                depth += 1;
                if depth > 8 {
                    return Err(start.error("an initialiser has at most 8 dimensions"));
                }
                if !self.accept(b'}')? {
                    continue;
                }
                depth -= 1;
            } else {
                let value = self.element(variable.ty)?;
                if variable.init.len() as u64 >= limit {
                    return Err(start.error(format!("too many values for `{}`", variable.name)));
                }
                variable.init.push(value);
            }
            while depth > 0 && self.accept(b'}')? {
                depth -= 1;
            }
            if depth == 0 {
                break;
            }
            self.expect(b',')?;
        }
        if variable.unsized_array {
            variable.size = variable.init.len() as u64 * element;
            variable.unsized_array = false;
        }
        if variable.size > MAX_INITIALISED {
            return Err(start.error("an initialised variable is larger than 256 MiB"));
        }
        Ok(())
    }

    fn element(&mut self, ty: Ty) -> Result<Element<'a>, ParseError> {
        let token = self.next()?;
        match token.kind {
            Kind::Punct(b'-') => match self.next()?.kind {
                Kind::Int(v) if !ty.float() => Ok(Element::Bits(v.wrapping_neg())),
                Kind::Int(v) => Ok(Element::Bits(float_bits(-(v as f64), ty))),
                Kind::F64(b) => Ok(Element::Bits(float_bits(-f64::from_bits(b), ty))),
                Kind::F32(b) => Ok(Element::Bits(float_bits(-f64::from(f32::from_bits(b)), ty))),
                _ => Err(token.error("expected a number after `-`")),
            },
            Kind::Int(mask) if self.peek()?.kind == Kind::Punct(b'(') => {
                // `0xFF00(sym)`: one byte of an address.
                self.next()?;
                let inner = self.element(ty)?;
                self.expect(b')')?;
                match inner {
                    Element::Address {
                        name,
                        addend,
                        shift: 0,
                    } if mask != 0 => Ok(Element::Address {
                        name,
                        addend,
                        shift: mask.trailing_zeros(),
                    }),
                    _ => Err(token.error("a mask applies to an address")),
                }
            }
            Kind::Int(v) if ty.float() => Ok(Element::Bits(float_bits(v as f64, ty))),
            Kind::Int(v) => Ok(Element::Bits(v)),
            Kind::F32(b) if ty == Ty::F32 => Ok(Element::Bits(u64::from(b))),
            Kind::F32(b) => Ok(Element::Bits(float_bits(f64::from(f32::from_bits(b)), ty))),
            Kind::F64(b) => Ok(Element::Bits(float_bits(f64::from_bits(b), ty))),
            Kind::Word("generic") if self.accept(b'(')? => {
                let (name, _) = self.word("a symbol")?;
                let inside = self.addend()?;
                self.expect(b')')?;
                let addend = inside.wrapping_add(self.addend()?);
                Ok(Element::Address {
                    name,
                    addend,
                    shift: 0,
                })
            }
            Kind::Word(name) => Ok(Element::Address {
                name,
                addend: self.addend()?,
                shift: 0,
            }),
            _ => Err(token.error(format!("expected a value, found {}", token.describe()))),
        }
    }

    /// An optional `+n` or `-n`.
    pub(super) fn addend(&mut self) -> Result<i64, ParseError> {
        let mut sum = 0i64;
        loop {
            let negative = if self.accept(b'+')? {
                self.accept(b'-')?
            } else if self.accept(b'-')? {
                true
            } else {
                return Ok(sum);
            };
            let value = self.int("an offset")? as i64;
            sum = sum.wrapping_add(if negative { value.wrapping_neg() } else { value });
        }
    }
}

/// The bits of `value` in a floating-point type; integers take a float's bits as they are.
fn float_bits(value: f64, ty: Ty) -> u64 {
    match ty {
        Ty::F32 => u64::from((value as f32).to_bits()),
        _ => value.to_bits(),
    }
}

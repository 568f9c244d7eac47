//! Constant expressions over integers: `(1 << 4) + 3`, `a ? b : c`. Arithmetic is of 64 bits and wraps.

use super::Parser;
use crate::error::ParseError;
use crate::lex::{Kind, Token};

/// Nesting that no program has, and that does not fill the stack.
const MAX_DEPTH: u32 = 64;

#[derive(Clone, Copy, PartialEq)]
enum Op {
    LogicalOr,
    LogicalAnd,
    Or,
    Xor,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Left,
    Right,
    Add,
    Sub,
    Mul,
    Div,
    Rem,
}

impl Op {
    fn precedence(self) -> u32 {
        match self {
            Op::LogicalOr => 1,
            Op::LogicalAnd => 2,
            Op::Or => 3,
            Op::Xor => 4,
            Op::And => 5,
            Op::Equal | Op::NotEqual => 6,
            Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual => 7,
            Op::Left | Op::Right => 8,
            Op::Add | Op::Sub => 9,
            Op::Mul | Op::Div | Op::Rem => 10,
        }
    }

    fn apply(self, a: i64, b: i64) -> Option<i64> {
        Some(match self {
            Op::LogicalOr => i64::from(a != 0 || b != 0),
            Op::LogicalAnd => i64::from(a != 0 && b != 0),
            Op::Or => a | b,
            Op::Xor => a ^ b,
            Op::And => a & b,
            Op::Equal => i64::from(a == b),
            Op::NotEqual => i64::from(a != b),
            Op::Less => i64::from(a < b),
            Op::LessEqual => i64::from(a <= b),
            Op::Greater => i64::from(a > b),
            Op::GreaterEqual => i64::from(a >= b),
            Op::Left => a.checked_shl(b.try_into().ok()?).unwrap_or(0),
            Op::Right => a >> b.clamp(0, 63),
            Op::Add => a.wrapping_add(b),
            Op::Sub => a.wrapping_sub(b),
            Op::Mul => a.wrapping_mul(b),
            Op::Div => (b != 0).then(|| a.wrapping_div(b))?,
            Op::Rem => (b != 0).then(|| a.wrapping_rem(b))?,
        })
    }
}

impl<'a> Parser<'a> {
    /// The expression that `first`, already taken, begins.
    pub(super) fn integer_expression(&mut self, first: Token<'a>) -> Result<u64, ParseError> {
        self.conditional(first, 0).map(|v| v as u64)
    }

    fn conditional(&mut self, first: Token<'a>, depth: u32) -> Result<i64, ParseError> {
        let condition = self.binary(first, 0, depth)?;
        if !self.accept(b'?')? {
            return Ok(condition);
        }
        let token = self.next()?;
        let yes = self.conditional(token, depth + 1)?;
        self.expect(b':')?;
        let token = self.next()?;
        let no = self.conditional(token, depth + 1)?;
        Ok(if condition != 0 { yes } else { no })
    }

    fn binary(&mut self, first: Token<'a>, least: u32, depth: u32) -> Result<i64, ParseError> {
        let mut value = self.unary(first, depth)?;
        loop {
            let at = self.peek()?;
            let Some(op) = self.operator(least)? else {
                return Ok(value);
            };
            let token = self.next()?;
            let right = self.binary(token, op.precedence() + 1, depth + 1)?;
            value = op
                .apply(value, right)
                .ok_or_else(|| at.error("the expression divides by zero"))?;
        }
    }

    /// Takes a binary operator of at least this precedence. An operator of two characters is seen as two tokens.
    fn operator(&mut self, least: u32) -> Result<Option<Op>, ParseError> {
        let Kind::Punct(first) = self.peek()?.kind else {
            return Ok(None);
        };
        let op = match first {
            b'*' => Op::Mul,
            b'/' => Op::Div,
            b'%' => Op::Rem,
            b'+' => Op::Add,
            b'-' => Op::Sub,
            b'^' => Op::Xor,
            b'&' if self.lexer_sees(b'&') => Op::LogicalAnd,
            b'&' => Op::And,
            b'|' if self.lexer_sees(b'|') => Op::LogicalOr,
            b'|' => Op::Or,
            b'=' if self.lexer_sees(b'=') => Op::Equal,
            b'!' if self.lexer_sees(b'=') => Op::NotEqual,
            b'<' if self.lexer_sees(b'<') => Op::Left,
            b'<' if self.lexer_sees(b'=') => Op::LessEqual,
            b'<' => Op::Less,
            b'>' if self.lexer_sees(b'>') => Op::Right,
            b'>' if self.lexer_sees(b'=') => Op::GreaterEqual,
            b'>' => Op::Greater,
            _ => return Ok(None),
        };
        if op.precedence() < least {
            return Ok(None);
        }
        self.next()?;
        let double = matches!(
            op,
            Op::LogicalAnd
                | Op::LogicalOr
                | Op::Equal
                | Op::NotEqual
                | Op::Left
                | Op::Right
                | Op::LessEqual
                | Op::GreaterEqual
        );
        if double {
            self.next()?;
        }
        Ok(Some(op))
    }

    /// Whether this byte follows the peeked token at once.
    fn lexer_sees(&self, byte: u8) -> bool {
        self.lexer.at_byte() == byte
    }

    fn unary(&mut self, token: Token<'a>, depth: u32) -> Result<i64, ParseError> {
        if depth > MAX_DEPTH {
            return Err(token.error("the expression is nested too deep"));
        }
        match token.kind {
            Kind::Int(value) => Ok(value as i64),
            Kind::Word("WARP_SZ") => Ok(32),
            Kind::Punct(sign @ (b'-' | b'+' | b'~' | b'!')) => {
                let inner = self.next()?;
                let value = self.unary(inner, depth + 1)?;
                Ok(match sign {
                    b'-' => value.wrapping_neg(),
                    b'~' => !value,
                    b'!' => i64::from(value == 0),
                    _ => value,
                })
            }
            Kind::Punct(b'(') => {
                let inner = self.next()?;
                if let Kind::Dot("s64" | "u64") = inner.kind {
                    self.expect(b')')?;
                    let cast = self.next()?;
                    return self.unary(cast, depth + 1);
                }
                let value = self.conditional(inner, depth + 1)?;
                self.expect(b')')?;
                Ok(value)
            }
            _ => Err(token.error(format!("expected a number, found {}", token.describe()))),
        }
    }
}

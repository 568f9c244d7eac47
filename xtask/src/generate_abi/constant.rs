//! Constant expressions of the headers: array lengths and enumerators.

use anyhow::bail;

use super::lexer::Token;
use super::syntax::{Header, Type};

/// Evaluates the expression at `at`, which moves past it.
pub fn expression(tokens: &[Token], at: &mut usize, header: &Header) -> anyhow::Result<i128> {
    binary(tokens, at, header, 0)
}

const LEVELS: [&[&str]; 4] = [&["|"], &["<<"], &["+", "-"], &["*", "/"]];

fn binary(tokens: &[Token], at: &mut usize, header: &Header, level: usize) -> anyhow::Result<i128> {
    let Some(operators) = LEVELS.get(level) else {
        return unary(tokens, at, header);
    };
    let mut left = binary(tokens, at, header, level + 1)?;
    'next: loop {
        for operator in *operators {
            let matches = operator
                .chars()
                .enumerate()
                .all(|(i, sign)| tokens.get(*at + i) == Some(&Token::Sign(sign)));
            if matches {
                *at += operator.len();
                let right = binary(tokens, at, header, level + 1)?;
                left = match *operator {
                    "|" => left | right,
                    "<<" => left << right,
                    "+" => left + right,
                    "-" => left - right,
                    "*" => left * right,
                    _ => left / right,
                };
                continue 'next;
            }
        }
        return Ok(left);
    }
}

fn unary(tokens: &[Token], at: &mut usize, header: &Header) -> anyhow::Result<i128> {
    let token = tokens.get(*at);
    *at += 1;
    match token {
        Some(Token::Number(value)) => Ok(*value),
        Some(Token::Sign('-')) => Ok(-unary(tokens, at, header)?),
        Some(Token::Sign('~')) => Ok(!unary(tokens, at, header)?),
        Some(Token::Sign('(')) => {
            let value = expression(tokens, at, header)?;
            close(tokens, at)?;
            Ok(value)
        }
        Some(Token::Name(name)) if name == "sizeof" => {
            let Some(end) = tokens[*at..].iter().position(|t| *t == Token::Sign(')')) else {
                bail!("A sizeof that does not end");
            };
            let of = &tokens[*at + 1..*at + end];
            *at += end + 1;
            if of.last() == Some(&Token::Sign('*')) {
                return Ok(8);
            }
            let Some(Token::Name(of)) = of.first() else {
                bail!("Cannot size {of:?}");
            };
            size_of(of, header)
        }
        Some(Token::Name(name)) => match header.constants.get(name) {
            Some(value) => Ok(*value),
            None => bail!("No constant is called {name}"),
        },
        other => bail!("Not a constant expression: {other:?}"),
    }
}

fn close(tokens: &[Token], at: &mut usize) -> anyhow::Result<()> {
    if tokens.get(*at) != Some(&Token::Sign(')')) {
        bail!("Expected a closing parenthesis, found {:?}", tokens.get(*at));
    }
    *at += 1;
    Ok(())
}

/// Sizes of the types that array lengths mention: enumerations and arithmetic ones.
fn size_of(name: &str, header: &Header) -> anyhow::Result<i128> {
    if matches!(name, "unsigned" | "int") {
        return Ok(4);
    }
    let named = Type::Named(name.to_owned());
    Ok(match header.resolve(&named) {
        Type::Number("u8" | "i8" | "c_char") => 1,
        Type::Number("u16" | "i16") => 2,
        Type::Number("u32" | "i32" | "f32") => 4,
        Type::Number(_) | Type::Pointer { .. } => 8,
        Type::Named(name) if header.enumerations.iter().any(|e| &e.name == name) => 4,
        other => bail!("The size of {other:?} is not known"),
    })
}

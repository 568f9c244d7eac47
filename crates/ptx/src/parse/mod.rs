//! Text to syntax: module level. Functions are in `function`, operands in `operand`, variables in `variable`.

pub(crate) mod ast;
mod expression;
mod function;
mod operand;
mod scope;
mod variable;

use crate::error::ParseError;
use crate::lex::{Kind, Lexer, Token};
use ast::{Text, VarSpace};
use scope::Scopes;
use std::collections::HashMap;

/// How a declaration's name is known outside its text, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Linkage {
    /// Defined elsewhere.
    Extern,
    /// Another definition of the name takes its place.
    Weak,
    Other,
}

pub(crate) struct Parser<'a> {
    lexer: Lexer<'a>,
    peeked: Option<Token<'a>>,
    scopes: Scopes<'a>,
    functions: HashMap<&'a str, usize>,
    /// Bytes of an element of each module-level variable.
    elements: HashMap<&'a str, u64>,
}

/// Reads a whole module.
pub(crate) fn parse(text: &[u8]) -> Result<Text<'_>, ParseError> {
    let end = text.iter().position(|c| *c == 0).unwrap_or(text.len());
    // Loaders hand over images padded with NULs; anything else after the first NUL is not PTX.
    if let Some(extra) = text[end..].iter().position(|c| *c != 0) {
        let before = &text[..end + extra];
        let line = before.iter().filter(|c| **c == b'\n').count() as u32 + 1;
        return Err(ParseError::new(line, 1, "text goes on after a NUL byte"));
    }
    let mut parser = Parser {
        lexer: Lexer::new(&text[..end]),
        peeked: None,
        scopes: Scopes::default(),
        functions: HashMap::new(),
        elements: HashMap::new(),
    };
    parser.module()
}

/// The number and the name of `.file 1 "name"`.
fn file(rest: &[u8]) -> Option<(u32, &[u8])> {
    let open = rest.iter().position(|byte| *byte == b'"')?;
    let name = &rest[open + 1..];
    let close = name.iter().position(|byte| *byte == b'"')?;
    let number = std::str::from_utf8(&rest[..open]).ok()?.trim().parse().ok()?;
    Some((number, &name[..close]))
}

/// The file's number and the line of `.loc 1 12 3`.
fn location(rest: &[u8]) -> Option<(u32, u32)> {
    let mut numbers = rest
        .split(|byte| !byte.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .map(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

impl<'a> Parser<'a> {
    fn peek(&mut self) -> Result<Token<'a>, ParseError> {
        if let Some(token) = self.peeked {
            return Ok(token);
        }
        let token = self.lexer.next()?;
        self.peeked = Some(token);
        Ok(token)
    }

    fn next(&mut self) -> Result<Token<'a>, ParseError> {
        match self.peeked.take() {
            Some(token) => Ok(token),
            None => self.lexer.next(),
        }
    }

    fn accept(&mut self, punct: u8) -> Result<bool, ParseError> {
        let found = self.peek()?.kind == Kind::Punct(punct);
        if found {
            self.peeked = None;
        }
        Ok(found)
    }

    fn expect(&mut self, punct: u8) -> Result<Token<'a>, ParseError> {
        let token = self.next()?;
        if token.kind == Kind::Punct(punct) {
            return Ok(token);
        }
        Err(token.error(format!(
            "expected `{}`, found {}",
            punct as char,
            token.describe()
        )))
    }

    fn accept_dot(&mut self, word: &str) -> Result<bool, ParseError> {
        let found = self.peek()?.kind == Kind::Dot(word);
        if found {
            self.peeked = None;
        }
        Ok(found)
    }

    fn word(&mut self, what: &str) -> Result<(&'a str, Token<'a>), ParseError> {
        let token = self.next()?;
        match token.kind {
            Kind::Word(word) => Ok((word, token)),
            _ => Err(token.error(format!("expected {what}, found {}", token.describe()))),
        }
    }

    fn int(&mut self, what: &str) -> Result<u64, ParseError> {
        let token = self.next()?;
        match token.kind {
            Kind::Int(value) => Ok(value),
            _ => Err(token.error(format!("expected {what}, found {}", token.describe()))),
        }
    }

    /// Skips what a directive may drag along up to `;`, braces balanced.
    fn skip_to_semicolon(&mut self) -> Result<(), ParseError> {
        loop {
            let token = self.next()?;
            match token.kind {
                Kind::Punct(b';') => return Ok(()),
                Kind::End => return Err(token.error("expected `;`, found the end of the text")),
                _ => {}
            }
        }
    }

    fn skip_braces(&mut self) -> Result<(), ParseError> {
        self.expect(b'{')?;
        let mut depth = 1u32;
        while depth > 0 {
            let token = self.next()?;
            match token.kind {
                Kind::Punct(b'{') => depth += 1,
                Kind::Punct(b'}') => depth -= 1,
                Kind::End => return Err(token.error("expected `}`, found the end of the text")),
                _ => {}
            }
        }
        Ok(())
    }

    fn module(&mut self) -> Result<Text<'a>, ParseError> {
        let mut text = Text::default();
        let mut versioned = false;
        loop {
            let token = self.next()?;
            let Kind::Dot(directive) = token.kind else {
                match token.kind {
                    Kind::End if !versioned => {
                        return Err(token.error("no `.version` directive: this is not PTX"));
                    }
                    Kind::End => return Ok(text),
                    Kind::Punct(b'@') => {
                        self.lexer.skip_line();
                        continue;
                    }
                    Kind::Punct(b';') => continue,
                    _ => {
                        return Err(token.error(format!("expected a directive, found {}", token.describe())));
                    }
                }
            };
            if !versioned && directive != "version" {
                return Err(token.error("a module begins with `.version`"));
            }
            match directive {
                "version" => {
                    versioned = true;
                    let value = self.next()?;
                    if !matches!(value.kind, Kind::F64(_) | Kind::Int(_)) {
                        return Err(value.error(format!("expected a version, found {}", value.describe())));
                    }
                }
                "target" => loop {
                    let (name, _) = self.word("a target")?;
                    if let Some(number) = name.strip_prefix("sm_") {
                        let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
                        text.target = number[..end].parse().unwrap_or(0);
                    }
                    if !self.accept(b',')? {
                        break;
                    }
                },
                "address_size" => {
                    let size = self.int("32 or 64")?;
                    if size != 64 {
                        return Err(token.error("only 64-bit addresses are supported"));
                    }
                }
                "file" => {
                    if let Some((number, name)) = file(self.lexer.rest_of_line()) {
                        text.files.insert(number, name);
                    }
                }
                "loc" => self.lexer.skip_line(),
                "section" => {
                    self.next()?;
                    self.skip_braces()?;
                }
                "pragma" => self.skip_to_semicolon()?,
                "alias" => {
                    let (alias, _) = self.word("a function's name")?;
                    self.expect(b',')?;
                    let (of, _) = self.word("a function's name")?;
                    self.expect(b';')?;
                    text.aliases.push((alias, of));
                }
                "visible" | "extern" | "weak" | "common" => self.linked(directive, &mut text)?,
                _ => self.declaration(token, Linkage::Other, &mut text)?,
            }
        }
    }

    fn linked(&mut self, linking: &str, text: &mut Text<'a>) -> Result<(), ParseError> {
        let token = self.next()?;
        let linkage = match linking {
            "extern" => Linkage::Extern,
            "weak" | "common" => Linkage::Weak,
            _ => Linkage::Other,
        };
        self.declaration(token, linkage, text)
    }

    fn declaration(
        &mut self,
        token: Token<'a>,
        linkage: Linkage,
        text: &mut Text<'a>,
    ) -> Result<(), ParseError> {
        let Kind::Dot(directive) = token.kind else {
            return Err(token.error(format!("expected a directive, found {}", token.describe())));
        };
        match directive {
            "entry" | "func" => {
                let mut function = self.function(directive == "entry")?;
                function.weak = linkage == Linkage::Weak;
                // A prototype may come before, or after, its definition.
                let known = self.functions.get(function.name).map(|i| &mut text.functions[*i]);
                match known {
                    Some(known) => {
                        let defines = [known.body.is_some(), function.body.is_some()];
                        if defines == [true; 2] && !known.weak && !function.weak {
                            return Err(token.error(format!("`{}` is defined twice", function.name)));
                        }
                        // Of two definitions the first holds, unless only that one is weak.
                        if function.body.is_some() && (!defines[0] || known.weak && !function.weak) {
                            std::mem::swap(known, &mut function);
                        }
                        known.prototypes.append(&mut function.prototypes);
                        known
                            .prototypes
                            .push((function.params.len(), function.returns.len()));
                        known.prototypes.sort_unstable();
                        known.prototypes.dedup();
                    }
                    None => {
                        self.functions.insert(function.name, text.functions.len());
                        text.functions.push(function);
                    }
                }
                Ok(())
            }
            "global" => self.variables(VarSpace::Global, linkage, &mut text.variables),
            "const" => self.variables(VarSpace::Const, linkage, &mut text.variables),
            "shared" => self.variables(VarSpace::Shared, linkage, &mut text.variables),
            "local" => self.variables(VarSpace::Local, linkage, &mut text.variables),
            _ => Err(token.error(format!("directive `.{directive}` is not known here"))),
        }
    }
}

//! Parses the tokens of preprocessed driver headers into a [`Header`].

use anyhow::{Context, bail};

use super::constant;
use super::lexer::Token;
use super::syntax::{Enumeration, Field, Function, Header, Record, Type};

/// Parses every declaration; anything not understood is an error, so that a new header is noticed.
pub fn parse(tokens: &[Token]) -> anyhow::Result<Header> {
    let mut parser = Parser {
        tokens,
        at: 0,
        header: Header::default(),
    };
    while parser.at < tokens.len() {
        let start = parser.at;
        parser.declaration().with_context(|| {
            let end = (start + 24).min(tokens.len());
            format!(
                "Cannot parse the declaration starting with {:?}",
                &tokens[start..end]
            )
        })?;
    }
    Ok(parser.header)
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    header: Header,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn peek_name(&self) -> Option<&str> {
        match self.peek() {
            Some(Token::Name(name)) => Some(name),
            _ => None,
        }
    }

    fn take_sign(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.peek_name() == Some(word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: char) -> anyhow::Result<()> {
        if !self.take_sign(sign) {
            bail!("Expected {sign:?}, found {:?}", self.peek());
        }
        Ok(())
    }

    fn name(&mut self) -> anyhow::Result<String> {
        match self.peek_name().map(str::to_owned) {
            Some(name) => {
                self.at += 1;
                Ok(name)
            }
            None => bail!("Expected a name, found {:?}", self.peek()),
        }
    }

    fn declaration(&mut self) -> anyhow::Result<()> {
        if self.take_sign(';') {
            return Ok(());
        }
        let typedef = self.take_word("typedef");
        let hint = if typedef { self.name_after_body() } else { None };
        let (base, is_const) = self.base_type(hint)?;
        if self.take_sign(';') {
            return Ok(());
        }
        if typedef {
            loop {
                let field = self.declarator(base.clone(), is_const)?;
                // `typedef struct X {…} X` names nothing new.
                if field.of != Type::Named(field.name.clone()) && !self.known(&field.name) {
                    self.header.aliases.push((field.name, field.of));
                }
                if !self.take_sign(',') {
                    return self.expect(';');
                }
            }
        }
        let field = self.declarator(base, is_const)?;
        self.expect(';')?;
        let Type::Function { result, parameters } = field.of else {
            bail!(
                "A declaration that is neither a type nor a function: {}",
                field.name
            );
        };
        let of_the_api =
            matches!(&*result, Type::Named(name) if name == "CUresult" || name == "nvmlReturn_t");
        // nvmlErrorString alone answers a text.
        // The runtime's results are of many types.
        let of_the_runtime = field.name.trim_start_matches('_').starts_with("cuda");
        if !of_the_api && !of_the_runtime && !matches!(*result, Type::Pointer { .. }) {
            bail!("{} returns neither CUresult nor nvmlReturn_t", field.name);
        }
        let symbol = field.name.clone();
        self.header.functions.entry(field.name).or_insert(Function {
            symbol,
            result: *result,
            parameters,
        });
        Ok(())
    }

    fn known(&self, name: &str) -> bool {
        self.header.aliases.iter().any(|(alias, _)| alias == name)
    }

    /// In `typedef struct tag {…} Name;` the name the type will have.
    fn name_after_body(&self) -> Option<String> {
        let mut depth = 0;
        let mut body = false;
        for window in self.tokens[self.at..].windows(2) {
            match &window[0] {
                Token::Sign('{') => depth += 1,
                Token::Sign('}') => {
                    depth -= 1;
                    body = true;
                }
                Token::Sign(';' | '*') if depth == 0 => return None,
                Token::Name(name) if depth == 0 && body && matches!(window[1], Token::Sign(';' | ',')) => {
                    return Some(name.clone());
                }
                _ => {}
            }
        }
        None
    }

    /// The part of a declaration before its declarator, and whether it says `const`.
    fn base_type(&mut self, hint: Option<String>) -> anyhow::Result<(Type, bool)> {
        let mut is_const = false;
        let mut words: Vec<String> = Vec::new();
        let mut named = None;
        while let Some(word) = self.peek_name().map(str::to_owned) {
            match word.as_str() {
                "const" => is_const = true,
                "volatile" | "extern" => {}
                "struct" | "union" | "enum" => {
                    self.at += 1;
                    named = Some(self.tagged(&word, hint.clone())?);
                    continue;
                }
                "unsigned" | "signed" | "char" | "short" | "int" | "long" | "float" | "double" | "void" => {
                    words.push(word);
                }
                _ if named.is_none() && words.is_empty() => named = Some(Type::Named(word)),
                _ => break,
            }
            self.at += 1;
        }
        let base = match named {
            Some(named) => library_type(named),
            None => arithmetic(&words)?,
        };
        Ok((base, is_const))
    }

    /// After `struct`, `union` or `enum`: the tag, and the body where there is one.
    fn tagged(&mut self, kind: &str, hint: Option<String>) -> anyhow::Result<Type> {
        let tag = self.peek_name().map(str::to_owned);
        self.at += usize::from(tag.is_some());
        let name = match (&tag, hint) {
            (Some(tag), _) if self.header.tags.contains_key(tag) => self.header.tags[tag].clone(),
            (_, Some(hint)) => hint,
            (Some(tag), None) => tag.clone(),
            (None, None) => bail!("A {kind} with no name"),
        };
        if let Some(tag) = tag {
            self.header.tags.insert(tag, name.clone());
        }
        if !self.take_sign('{') {
            if self.header.record(&name).is_none() && kind != "enum" {
                self.header.records.push(Record {
                    name: name.clone(),
                    union: kind == "union",
                    align: None,
                    fields: Vec::new(),
                    opaque: true,
                    nested: false,
                });
            }
            return Ok(Type::Named(name));
        }
        if kind == "enum" {
            self.enumeration(name.clone())?;
        } else {
            self.body(name.clone(), kind == "union", false)?;
        }
        Ok(Type::Named(name))
    }

    fn enumeration(&mut self, name: String) -> anyhow::Result<()> {
        let mut values = Vec::new();
        let mut next = 0;
        while !self.take_sign('}') {
            let label = self.name()?;
            if self.take_sign('=') {
                next = constant::expression(self.tokens, &mut self.at, &self.header)?;
            }
            self.header.constants.insert(label.clone(), next);
            values.push((label, next));
            next += 1;
            self.take_sign(',');
        }
        self.header.enumerations.push(Enumeration { name, values });
        Ok(())
    }

    /// Members up to the closing brace; unnamed types inside become records called after their place.
    fn body(&mut self, name: String, union: bool, nested: bool) -> anyhow::Result<()> {
        let mut fields = Vec::new();
        let mut align = None;
        let mut unnamed = 0;
        while !self.take_sign('}') {
            if self.take_word("_Alignas") {
                self.expect('(')?;
                align = Some(u64::try_from(constant::expression(
                    self.tokens,
                    &mut self.at,
                    &self.header,
                )?)?);
                self.expect(')')?;
            }
            let kind = self.peek_name().unwrap_or_default().to_owned();
            let inner = matches!(kind.as_str(), "struct" | "union")
                && self.tokens.get(self.at + 1) == Some(&Token::Sign('{'));
            if inner {
                self.at += 1;
                let member = self.member_after_body();
                let anonymous = member.is_none();
                let member = member.unwrap_or_else(|| {
                    unnamed += 1;
                    format!("anonymous{unnamed}")
                });
                let type_name = format!("{name}_{member}");
                self.expect('{')?;
                self.body(type_name.clone(), kind == "union", true)?;
                let mut field = if anonymous {
                    Field {
                        name: member,
                        of: Type::Named(type_name),
                        anonymous,
                    }
                } else {
                    self.declarator(Type::Named(type_name), false)?
                };
                field.anonymous = anonymous;
                fields.push(field);
                self.expect(';')?;
                continue;
            }
            let (base, is_const) = self.base_type(None)?;
            loop {
                fields.push(self.declarator(base.clone(), is_const)?);
                if !self.take_sign(',') {
                    break;
                }
            }
            self.expect(';')?;
        }
        // A type named before it was laid out takes its definition's place.
        self.header
            .records
            .retain(|record| !(record.opaque && record.name == name));
        self.header.records.push(Record {
            name,
            union,
            align,
            fields,
            opaque: false,
            nested,
        });
        Ok(())
    }

    /// With the opening brace next: the member's name after the matching closing one.
    fn member_after_body(&self) -> Option<String> {
        let mut depth = 0;
        for (index, token) in self.tokens[self.at..].iter().enumerate() {
            match token {
                Token::Sign('{') => depth += 1,
                Token::Sign('}') => {
                    depth -= 1;
                    if depth == 0 {
                        return match self.tokens.get(self.at + index + 1) {
                            Some(Token::Name(name)) => Some(name.clone()),
                            _ => None,
                        };
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Pointers, a name, and what follows the name.
    fn declarator(&mut self, base: Type, is_const: bool) -> anyhow::Result<Field> {
        let mut of = base;
        let mut to_const = is_const;
        while self.take_sign('*') {
            of = Type::Pointer {
                to_const,
                to: Box::new(of),
            };
            to_const = false;
            while self.take_word("const") {
                to_const = true;
            }
        }
        if self.take_sign('(') {
            // A pointer to function: `result (*name)(parameters)`.
            self.expect('*')?;
            let name = self.name()?;
            self.expect(')')?;
            let parameters = self.parameters()?;
            let function = Type::Function {
                result: Box::new(of),
                parameters,
            };
            return Ok(Field {
                name,
                of: Type::Pointer {
                    to_const: false,
                    to: Box::new(function),
                },
                anonymous: false,
            });
        }
        let name = match self.peek_name() {
            Some(_) => self.name()?,
            None => String::new(),
        };
        if self.peek() == Some(&Token::Sign('(')) {
            let parameters = self.parameters()?;
            of = Type::Function {
                result: Box::new(of),
                parameters,
            };
        }
        let mut lengths = Vec::new();
        while self.take_sign('[') {
            lengths.push(u64::try_from(constant::expression(
                self.tokens,
                &mut self.at,
                &self.header,
            )?)?);
            self.expect(']')?;
        }
        for length in lengths.into_iter().rev() {
            of = Type::Array(Box::new(of), length);
        }
        Ok(Field {
            name,
            of,
            anonymous: false,
        })
    }

    fn parameters(&mut self) -> anyhow::Result<Vec<Field>> {
        self.expect('(')?;
        let mut parameters = Vec::new();
        while !self.take_sign(')') {
            let (base, is_const) = self.base_type(None)?;
            let mut field = self.declarator(base, is_const)?;
            if field.of == Type::Void {
                continue;
            }
            if let Type::Array(of, _) = field.of {
                field.of = Type::Pointer {
                    to_const: is_const,
                    to: of,
                };
            }
            if field.name.is_empty() {
                field.name = format!("argument{}", parameters.len());
            }
            parameters.push(field);
            self.take_sign(',');
        }
        Ok(parameters)
    }
}

/// Names that the C library and the graphics headers define, as far as the driver's headers use them.
fn library_type(named: Type) -> Type {
    let Type::Named(name) = &named else { return named };
    Type::Number(match name.as_str() {
        "size_t" => "usize",
        "uint8_t" => "u8",
        "uint16_t" => "u16",
        "uint32_t" | "GLenum" | "GLuint" | "VdpDevice" | "VdpVideoSurface" | "VdpOutputSurface" => "u32",
        "uint64_t" => "u64",
        "int32_t" | "EGLint" => "i32",
        "int64_t" => "i64",
        "EGLImageKHR" | "EGLStreamKHR" | "EGLSyncKHR" => "*mut c_void",
        // A function that none of ours ever calls.
        "VdpGetProcAddress" => "c_void",
        _ => return named,
    })
}

fn arithmetic(words: &[String]) -> anyhow::Result<Type> {
    let has = |word: &str| words.iter().any(|w| w == word);
    let longs = words.iter().filter(|w| *w == "long").count();
    let unsigned = has("unsigned");
    Ok(Type::Number(if has("void") {
        return Ok(Type::Void);
    } else if has("float") {
        "f32"
    } else if has("double") {
        "f64"
    } else if has("char") {
        match (unsigned, has("signed")) {
            (true, _) => "u8",
            (_, true) => "i8",
            _ => "c_char",
        }
    } else if has("short") {
        if unsigned { "u16" } else { "i16" }
    } else if longs > 0 {
        if unsigned { "u64" } else { "i64" }
    } else if has("int") || unsigned || has("signed") {
        if unsigned { "u32" } else { "i32" }
    } else {
        bail!("Not an arithmetic type: {words:?}")
    }))
}

//! Functions: signatures, performance directives, bodies.

use super::ast::{Body, Function, Statement, Table, VarSpace, Variable};
use super::scope::Scopes;
use super::{Linkage, Parser};
use crate::error::ParseError;
use crate::lex::{Kind, Token};

impl<'a> Parser<'a> {
    pub(super) fn function(&mut self, kernel: bool) -> Result<Function<'a>, ParseError> {
        self.scopes.reset();
        let function = self.signature_and_body(kernel);
        self.scopes = Scopes::default();
        function
    }

    fn signature_and_body(&mut self, kernel: bool) -> Result<Function<'a>, ParseError> {
        let mut variables = Vec::new();
        let mut returns = Vec::new();
        if !kernel {
            if let Kind::Dot("attribute") = self.peek()?.kind {
                self.next()?;
                self.expect(b'(')?;
                while !self.accept(b')')? {
                    let token = self.next()?;
                    if token.kind == Kind::End {
                        return Err(token.error("the attribute is not closed"));
                    }
                }
            }
            if self.accept(b'(')? {
                returns = self.formals(&mut variables)?;
            }
        }
        let (name, token) = self.word("a function's name")?;
        let params = if self.accept(b'(')? {
            self.formals(&mut variables)?
        } else {
            Vec::new()
        };
        let mut max_threads: Option<[u32; 3]> = None;
        let mut max_registers = None;
        let body = loop {
            let next = self.next()?;
            match next.kind {
                Kind::Punct(b';') => break None,
                Kind::Punct(b'{') => break Some(self.body(variables).map_err(|e| named(e, name))?),
                Kind::Dot(directive) => {
                    let mut values = [1u32; 3];
                    let mut given = 0;
                    while let Kind::Int(value) = self.peek()?.kind {
                        self.next()?;
                        if let Some(slot) = values.get_mut(given) {
                            *slot = u32::try_from(value).unwrap_or(u32::MAX);
                        }
                        given += 1;
                        if !self.accept(b',')? {
                            break;
                        }
                    }
                    match directive {
                        "maxntid" | "reqntid" => max_threads = Some(values),
                        "maxnreg" => max_registers = Some(values[0]),
                        "pragma" => self.skip_to_semicolon()?,
                        "minnctapersm"
                        | "maxnctapersm"
                        | "noreturn"
                        | "explicitcluster"
                        | "reqnctapercluster"
                        | "maxclusterrank"
                        | "blocksareclusters"
                        | "abi_preserve"
                        | "abi_preserve_control"
                        | "language" => {}
                        "loc" | "file" => {
                            return Err(next.error("`.loc` belongs inside a body"));
                        }
                        _ => return Err(next.error(format!("directive `.{directive}` is not known here"))),
                    }
                }
                _ => return Err(next.error(format!("expected a body or `;`, found {}", next.describe()))),
            }
        };
        Ok(Function {
            name,
            kernel,
            returns,
            params,
            weak: false,
            prototypes: Vec::new(),
            max_threads,
            max_registers,
            body,
            line: token.line,
        })
    }

    /// Formal parameters up to and with `)`. Each becomes a function-level variable in the same order.
    fn formals(&mut self, variables: &mut Vec<Variable<'a>>) -> Result<Vec<Variable<'a>>, ParseError> {
        let mut list: Vec<Variable<'a>> = Vec::new();
        if self.accept(b')')? {
            return Ok(list);
        }
        loop {
            let token = self.next()?;
            let (space_is_reg, token) = match token.kind {
                Kind::Dot("param") => (false, token),
                Kind::Dot("reg") => (true, token),
                _ => {
                    return Err(
                        token.error(format!("expected `.param` or `.reg`, found {}", token.describe()))
                    );
                }
            };
            let (ty, width, align) = self.formal_type()?;
            let mut variable = self.declarator(VarSpace::Param, ty, width, align)?;
            if space_is_reg {
                if width != 1 || !self.scopes.register(variable.name, ty, 1) {
                    return Err(token.error(format!("register `{}` cannot be declared here", variable.name)));
                }
                variable.register = Some(self.scopes.registers.len() as u32 - 1);
            } else if !self
                .scopes
                .variable(variable.name, variables.len() as u32, variable.element)
                && variable.name != "_"
            {
                return Err(token.error(format!("`{}` is declared twice", variable.name)));
            }
            variables.push(variable.clone());
            list.push(variable);
            if list.len() > 4096 {
                return Err(token.error("more than 4096 parameters"));
            }
            if self.accept(b')')? {
                return Ok(list);
            }
            self.expect(b',')?;
        }
    }

    /// `.u64 .ptr .global .align 4`, `.align 8 .b8`.
    fn formal_type(&mut self) -> Result<(crate::types::Ty, u32, Option<u64>), ParseError> {
        let (ty, width, align) = self.variable_type()?;
        // What follows describes the pointee: it changes nothing here.
        if self.accept_dot("ptr")? {
            while let Kind::Dot(_) = self.peek()?.kind {
                if self.accept_dot("align")? {
                    self.int("an alignment")?;
                } else {
                    self.next()?;
                }
            }
        }
        Ok((ty, width, align))
    }

    fn body(&mut self, variables: Vec<Variable<'a>>) -> Result<Body<'a>, ParseError> {
        let mut body = Body {
            variables,
            ..Body::default()
        };
        loop {
            let token = self.next()?;
            match token.kind {
                Kind::Punct(b'}') => {
                    if !self.scopes.close() {
                        break;
                    }
                }
                Kind::Punct(b'{') => {
                    if !self.scopes.open() {
                        return Err(token.error("braces are nested too deep"));
                    }
                }
                Kind::Punct(b';') => {}
                Kind::Punct(b'@') => {
                    let negated = self.accept(b'!')?;
                    if self.peek()?.kind == Kind::Punct(b'@') {
                        self.peeked = None;
                        self.lexer.skip_line();
                        continue;
                    }
                    let (name, at) = self.word("a predicate")?;
                    let Some(super::scope::Entry::Reg(register)) = self.scopes.find(name) else {
                        return Err(at.error(format!("predicate `{name}` is not declared")));
                    };
                    if self.scopes.registers[register as usize].ty != crate::types::Ty::Pred {
                        return Err(at.error(format!("`{name}` is not a predicate")));
                    }
                    let (word, at) = self.word("an instruction")?;
                    self.statement(word, at, Some((register, negated)), &mut body)?;
                }
                Kind::Dot(directive) => self.body_directive(directive, token, &mut body)?,
                Kind::Word(word) => {
                    if self.accept(b':')? {
                        self.label(word, token, &mut body)?;
                    } else {
                        self.statement(word, token, None, &mut body)?;
                    }
                }
                _ => return Err(token.error(format!("expected an instruction, found {}", token.describe()))),
            }
        }
        body.scopes = self.scopes.parents();
        body.registers = std::mem::take(&mut self.scopes.registers);
        Ok(body)
    }

    fn statement(
        &mut self,
        first: &'a str,
        token: Token<'a>,
        guard: Option<(u32, bool)>,
        body: &mut Body<'a>,
    ) -> Result<(), ParseError> {
        let mut op = vec![first];
        while let Kind::Dot(word) = self.peek()?.kind {
            self.next()?;
            op.push(word);
            if op.len() > 24 {
                return Err(token.error("an opcode of more than 24 words"));
            }
        }
        let operands = self.operands(first == "call").map_err(|mut e| {
            e.opcode.get_or_insert_with(|| op.join("."));
            e
        })?;
        let (line, column, scope) = (token.line, token.column, self.scopes.current());
        body.statements.push(Statement {
            guard,
            op,
            operands,
            line,
            column,
            scope,
        });
        Ok(())
    }

    fn label(&mut self, name: &'a str, token: Token<'a>, body: &mut Body<'a>) -> Result<(), ParseError> {
        let key = (self.scopes.current(), name);
        let table = match self.peek()?.kind {
            Kind::Dot("branchtargets") => {
                self.next()?;
                let mut labels = vec![self.word("a label")?.0];
                while self.accept(b',')? {
                    labels.push(self.word("a label")?.0);
                }
                self.expect(b';')?;
                Table::Branches(labels)
            }
            Kind::Dot("calltargets") => {
                self.skip_to_semicolon()?;
                Table::Calls
            }
            Kind::Dot("callprototype") => {
                self.next()?;
                // Formals of a prototype live in a scope of their own: `_` may name all of them.
                if !self.scopes.open() {
                    return Err(token.error("braces are nested too deep"));
                }
                let mut ignored = Vec::new();
                if self.accept(b'(')? {
                    self.formals(&mut ignored)?;
                }
                self.word("`_`")?;
                if self.accept(b'(')? {
                    self.formals(&mut ignored)?;
                }
                self.scopes.close();
                self.skip_to_semicolon()?;
                Table::Prototype
            }
            _ => {
                if body.labels.insert(key, body.statements.len() as u32).is_some() {
                    return Err(token.error(format!("label `{name}` is defined twice")));
                }
                return Ok(());
            }
        };
        body.tables.insert(key, table);
        Ok(())
    }

    fn body_directive(
        &mut self,
        directive: &'a str,
        token: Token<'a>,
        body: &mut Body<'a>,
    ) -> Result<(), ParseError> {
        let space = match directive {
            "reg" => return self.registers(),
            "loc" => {
                if let Some((file, line)) = super::location(self.lexer.rest_of_line()) {
                    body.locations.push((body.statements.len() as u32, file, line));
                }
                return Ok(());
            }
            "file" => {
                self.lexer.skip_line();
                return Ok(());
            }
            "pragma" => return self.skip_to_semicolon(),
            "section" => {
                self.next()?;
                return self.skip_braces();
            }
            "shared" => VarSpace::Shared,
            "local" => VarSpace::Local,
            "param" => VarSpace::Param,
            "global" => VarSpace::Global,
            "const" => VarSpace::Const,
            _ => return Err(token.error(format!("directive `.{directive}` is not known here"))),
        };
        if matches!(space, VarSpace::Global | VarSpace::Const) {
            return Err(token.error("a .global or .const variable belongs at module level"));
        }
        let from = body.variables.len();
        self.variables(space, Linkage::Other, &mut body.variables)?;
        for index in from..body.variables.len() {
            let Variable { name, element, .. } = body.variables[index];
            if !self.scopes.variable(name, index as u32, element) {
                return Err(token.error(format!("`{name}` is declared twice")));
            }
        }
        Ok(())
    }

    /// `.reg .b32 %r<10>, %x;`
    fn registers(&mut self) -> Result<(), ParseError> {
        let (ty, width, _) = self.variable_type()?;
        loop {
            let (name, token) = self.word("a register's name")?;
            let fresh = if self.accept(b'<')? {
                let count = self.int("a register count")?;
                self.expect(b'>')?;
                self.scopes.range(name, ty, width, count)
            } else {
                self.scopes.register(name, ty, width)
            };
            if !fresh {
                return Err(token.error(format!("register `{name}` is declared twice")));
            }
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b';')?;
        Ok(())
    }
}

fn named(mut error: ParseError, function: &str) -> ParseError {
    error.kernel.get_or_insert_with(|| function.to_owned());
    error
}

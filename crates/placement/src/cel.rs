//! The part of CEL that device selectors are written in: comparisons, `&&`, `||`, `!`, `in`, `? :`, fields, indices, `has`, and the
//! methods of quantities, versions and strings. What is not known is an error, and a selector with an error selects nothing:
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/>.

use std::cmp::Ordering;

use crate::cluster::{Attribute, Device};
use crate::quantity;

/// The longest expression, as the API server has it.
const LONGEST: usize = 10 << 10;
/// How deep it may nest.
const DEEPEST: usize = 64;

/// An expression that was understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    text: String,
    root: Term,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Value(Value),
    Name(String),
    Field(Box<Term>, String),
    Index(Box<Term>, Box<Term>),
    Call(Option<Box<Term>>, String, Vec<Term>),
    Not(Box<Term>),
    Two(&'static str, Box<Term>, Box<Term>),
    Choice(Box<Term>, Box<Term>, Box<Term>),
    List(Vec<Term>),
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Flag(bool),
    Number(i64),
    Text(String),
    /// In thousandths.
    Quantity(u128),
    Version([u64; 3]),
    List(Vec<Value>),
    Device,
    /// All attributes, or all capacities.
    Domains(bool),
    /// Those of one domain.
    Domain(bool, String),
}

impl Expression {
    /// Reads one.
    ///
    /// # Errors
    /// What was not understood.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("an expression of {} characters is too long", text.len()));
        }
        let mut reader = Reader {
            tokens: tokens(text)?,
            at: 0,
            depth: 0,
        };
        let root = reader.choice()?;
        match reader.peek() {
            Token::End => Ok(Self {
                text: text.to_owned(),
                root,
            }),
            token => Err(format!("{token:?} is not expected there")),
        }
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the device is selected.
    ///
    /// # Errors
    /// What cannot be said of this device: an attribute that it does not have, a comparison of different types.
    pub fn selects(&self, device: &Device) -> Result<bool, String> {
        match value(&self.root, device)? {
            Value::Flag(flag) => Ok(flag),
            _ => Err("the expression is neither true nor false".into()),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(i64),
    Text(String),
    Name(String),
    Sign(&'static str),
    End,
}

const SIGNS: [&str; 20] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "(", ")", "[", "]", ".", ",", "?", ":", "-", "+", "*",
];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let number = rest[..end]
                .parse()
                .map_err(|_| format!("{} is too large", &rest[..end]))?;
            found.push(Token::Number(number));
            end
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end = rest
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            found.push(Token::Name(rest[..end].to_owned()));
            end
        } else if first == '\'' || first == '"' {
            let (text, end) = quoted(rest, first)?;
            found.push(Token::Text(text));
            end
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            let sign = *sign.ok_or_else(|| format!("`{first}` is not understood"))?;
            found.push(Token::Sign(sign));
            sign.len()
        };
        rest = rest[length..].trim_start();
    }
    Ok(found)
}

fn quoted(rest: &str, quote: char) -> Result<(String, usize), String> {
    let mut text = String::new();
    let mut letters = rest.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            _ if letter == quote => return Ok((text, at + 1)),
            '\\' => match letters.next().map(|(_, letter)| letter) {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some(letter @ ('\\' | '\'' | '"')) => text.push(letter),
                _ => return Err("what follows a backslash is not understood".into()),
            },
            _ => text.push(letter),
        }
    }
    Err("a string does not end".into())
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Reader {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn takes(&mut self, sign: &str) -> bool {
        let is_there = matches!(self.peek(), Token::Sign(found) if *found == sign);
        self.at += usize::from(is_there);
        is_there
    }

    fn needs(&mut self, sign: &str) -> Result<(), String> {
        match self.takes(sign) {
            true => Ok(()),
            false => Err(format!("`{sign}` is missing before {:?}", self.peek())),
        }
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        if self.depth >= DEEPEST {
            return Err("the expression nests too deep".into());
        }
        self.depth += 1;
        let done = read(self);
        self.depth -= 1;
        done
    }

    fn choice(&mut self) -> Result<Term, String> {
        self.deeper(|reader| {
            let condition = reader.either()?;
            if !reader.takes("?") {
                return Ok(condition);
            }
            let then = reader.either()?;
            reader.needs(":")?;
            let otherwise = reader.choice()?;
            Ok(Term::Choice(condition.into(), then.into(), otherwise.into()))
        })
    }

    fn either(&mut self) -> Result<Term, String> {
        self.chain(&["||"], Self::both)
    }

    fn both(&mut self) -> Result<Term, String> {
        self.chain(&["&&"], Self::compared)
    }

    /// Terms between signs, from the left. The chain's length counts as depth: it is walked by recursion.
    fn chain(
        &mut self,
        signs: &[&'static str],
        read: fn(&mut Self) -> Result<Term, String>,
    ) -> Result<Term, String> {
        let mut left = read(self)?;
        let mut links = 0;
        while let Some(sign) = signs.iter().find(|sign| self.takes(sign)) {
            links += 1;
            if links > DEEPEST {
                return Err("the expression has too many parts".into());
            }
            left = Term::Two(sign, left.into(), read(self)?.into());
        }
        Ok(left)
    }

    fn compared(&mut self) -> Result<Term, String> {
        let left = self.unary()?;
        if *self.peek() == Token::Name("in".into()) {
            self.at += 1;
            return Ok(Term::Two("in", left.into(), self.unary()?.into()));
        }
        let signs = ["==", "!=", "<=", ">=", "<", ">"];
        match signs.into_iter().find(|sign| self.takes(sign)) {
            Some(sign) => Ok(Term::Two(sign, left.into(), self.unary()?.into())),
            None => Ok(left),
        }
    }

    fn unary(&mut self) -> Result<Term, String> {
        self.deeper(|reader| {
            if reader.takes("!") {
                return Ok(Term::Not(reader.unary()?.into()));
            }
            if reader.takes("-") {
                return match reader.unary()? {
                    Term::Value(Value::Number(number)) => Ok(Term::Value(Value::Number(-number))),
                    _ => Err("`-` stands before numbers only".into()),
                };
            }
            reader.member()
        })
    }

    fn member(&mut self) -> Result<Term, String> {
        let mut term = self.primary()?;
        let mut links = 0;
        loop {
            links += 1;
            if links > DEEPEST {
                return Err("the expression has too many parts".into());
            }
            if self.takes(".") {
                let Token::Name(name) = self.peek().clone() else {
                    return Err("a name is missing after `.`".into());
                };
                self.at += 1;
                term = match self.takes("(") {
                    true => Term::Call(Some(term.into()), name, self.list(")")?),
                    false => Term::Field(term.into(), name),
                };
            } else if self.takes("[") {
                let index = self.choice()?;
                self.needs("]")?;
                term = Term::Index(term.into(), index.into());
            } else {
                return Ok(term);
            }
        }
    }

    fn primary(&mut self) -> Result<Term, String> {
        let token = self.peek().clone();
        self.at += 1;
        Ok(match token {
            Token::Number(number) => Term::Value(Value::Number(number)),
            Token::Text(text) => Term::Value(Value::Text(text)),
            Token::Name(name) => match name.as_str() {
                "true" => Term::Value(Value::Flag(true)),
                "false" => Term::Value(Value::Flag(false)),
                _ if self.takes("(") => Term::Call(None, name, self.list(")")?),
                _ => Term::Name(name),
            },
            Token::Sign("(") => {
                let inner = self.choice()?;
                self.needs(")")?;
                inner
            }
            Token::Sign("[") => Term::List(self.list("]")?),
            token => return Err(format!("{token:?} is not expected there")),
        })
    }

    fn list(&mut self, end: &str) -> Result<Vec<Term>, String> {
        let mut terms = Vec::new();
        while !self.takes(end) {
            if !terms.is_empty() {
                self.needs(",")?;
            }
            terms.push(self.choice()?);
        }
        Ok(terms)
    }
}

fn flag(term: &Term, device: &Device) -> Result<bool, String> {
    match value(term, device)? {
        Value::Flag(flag) => Ok(flag),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

fn value(term: &Term, device: &Device) -> Result<Value, String> {
    match term {
        Term::Value(value) => Ok(value.clone()),
        Term::Name(name) if name == "device" => Ok(Value::Device),
        Term::Name(name) => Err(format!("`{name}` is not known")),
        Term::Field(of, name) => field(&value(of, device)?, name, device),
        Term::Index(of, index) => match (value(of, device)?, value(index, device)?) {
            (of @ (Value::Domains(_) | Value::Domain(..)), Value::Text(name)) => field(&of, &name, device),
            _ => Err("an index is of a map, by a string".into()),
        },
        Term::Not(term) => Ok(Value::Flag(!flag(term, device)?)),
        Term::Choice(condition, then, otherwise) => match flag(condition, device)? {
            true => value(then, device),
            false => value(otherwise, device),
        },
        Term::List(terms) => {
            let values: Result<_, _> = terms.iter().map(|term| value(term, device)).collect();
            Ok(Value::List(values?))
        }
        Term::Call(of, name, arguments) => call(of.as_deref(), name, arguments, device),
        Term::Two(sign, left, right) => two(sign, left, right, device),
    }
}

/// `&&` and `||` are decided by one side where it is enough, even if the other side is an error.
fn two(sign: &str, left: &Term, right: &Term, device: &Device) -> Result<Value, String> {
    if sign == "&&" || sign == "||" {
        let decides = sign == "||";
        return match (flag(left, device), flag(right, device)) {
            (Ok(one), _) | (_, Ok(one)) if one == decides => Ok(Value::Flag(decides)),
            (Err(error), _) | (_, Err(error)) => Err(error),
            _ => Ok(Value::Flag(!decides)),
        };
    }
    let (left, right) = (value(left, device)?, value(right, device)?);
    Ok(Value::Flag(match sign {
        "==" => same(&left, &right)?,
        "!=" => !same(&left, &right)?,
        "in" => match (&right, &left) {
            (Value::List(values), _) => values.contains(&left),
            (Value::Domains(_), Value::Text(_)) => true,
            (Value::Domain(..), Value::Text(name)) => field(&right, name, device).is_ok(),
            _ => return Err("`in` is of lists and maps".into()),
        },
        sign => {
            let order = ordered(&left, &right)?;
            match sign {
                "<" => order.is_lt(),
                ">" => order.is_gt(),
                "<=" => order.is_le(),
                _ => order.is_ge(),
            }
        }
    }))
}

fn same(left: &Value, right: &Value) -> Result<bool, String> {
    match std::mem::discriminant(left) == std::mem::discriminant(right) {
        true => Ok(left == right),
        false => Err(format!("{left:?} and {right:?} are not of one type")),
    }
}

fn ordered(left: &Value, right: &Value) -> Result<Ordering, String> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => Ok(left.cmp(right)),
        (Value::Text(left), Value::Text(right)) => Ok(left.cmp(right)),
        (Value::Quantity(left), Value::Quantity(right)) => Ok(left.cmp(right)),
        (Value::Version(left), Value::Version(right)) => Ok(left.cmp(right)),
        _ => Err(format!("{left:?} and {right:?} have no order")),
    }
}

fn field(of: &Value, name: &str, device: &Device) -> Result<Value, String> {
    match of {
        Value::Device => match name {
            "driver" => Ok(Value::Text(device.driver.to_string())),
            "allowMultipleAllocations" => Ok(Value::Flag(device.shared)),
            "attributes" => Ok(Value::Domains(false)),
            "capacity" => Ok(Value::Domains(true)),
            _ => Err(format!("a device has no `{name}`")),
        },
        Value::Domains(capacity) => Ok(Value::Domain(*capacity, name.to_owned())),
        Value::Domain(capacity, domain) => {
            let qualified = format!("{domain}/{name}");
            let found = match capacity {
                true => {
                    let mut all = device.capacities.iter();
                    all.find(|one| *one.name == *qualified)
                        .map(|one| Value::Quantity(u128::from(one.value) * 1000))
                }
                false => device.attribute(&qualified).map(|attribute| match attribute {
                    Attribute::Text(text) => Value::Text(text.clone()),
                    Attribute::Number(number) => Value::Number(*number),
                    Attribute::Flag(flag) => Value::Flag(*flag),
                    Attribute::Version(version) => Value::Version(*version),
                }),
            };
            found.ok_or_else(|| format!("device `{}` has no `{qualified}`", device.name))
        }
        other => Err(format!("{other:?} has no `{name}`")),
    }
}

fn call(of: Option<&Term>, name: &str, arguments: &[Term], device: &Device) -> Result<Value, String> {
    // `has(x.y)` asks whether the last field is there.
    if let ("has", None, [Term::Field(of, name)]) = (name, of, arguments) {
        let of = value(of, device)?;
        return Ok(Value::Flag(field(&of, name, device).is_ok()));
    }
    let of = of.map(|of| value(of, device)).transpose()?;
    let values: Result<Vec<Value>, String> = arguments.iter().map(|term| value(term, device)).collect();
    let values = values?;
    let text = |value: &Value| match value {
        Value::Text(text) => Ok(text.clone()),
        other => Err(format!("{other:?} is no string")),
    };
    Ok(match (of, name, values.as_slice()) {
        (None, "quantity", [Value::Text(text)]) => {
            Value::Quantity(quantity::thousandths(text).ok_or_else(|| format!("`{text}` is no quantity"))?)
        }
        (None, "semver", [Value::Text(text), ..]) => {
            Value::Version(version(text).ok_or_else(|| format!("`{text}` is no version"))?)
        }
        (None, "string", [Value::Text(text)]) => Value::Text(text.clone()),
        (Some(of), "compareTo", [other]) => Value::Number(ordered(&of, other)? as i64),
        (Some(of), "isGreaterThan", [other]) => Value::Flag(ordered(&of, other)?.is_gt()),
        (Some(of), "isLessThan", [other]) => Value::Flag(ordered(&of, other)?.is_lt()),
        (Some(Value::Version(version)), "major", []) => Value::Number(number(version[0])),
        (Some(Value::Version(version)), "minor", []) => Value::Number(number(version[1])),
        (Some(Value::Version(version)), "patch", []) => Value::Number(number(version[2])),
        (Some(of), "startsWith", [other]) => Value::Flag(text(&of)?.starts_with(&text(other)?)),
        (Some(of), "endsWith", [other]) => Value::Flag(text(&of)?.ends_with(&text(other)?)),
        (Some(of), "contains", [other]) => Value::Flag(text(&of)?.contains(&text(other)?)),
        (Some(of), "lowerAscii", []) => Value::Text(text(&of)?.to_ascii_lowercase()),
        (Some(of), "upperAscii", []) => Value::Text(text(&of)?.to_ascii_uppercase()),
        _ => return Err(format!("`{name}` with {} arguments is not known", values.len())),
    })
}

fn number(part: u64) -> i64 {
    i64::try_from(part).unwrap_or(i64::MAX)
}

/// The numbers of a version by semver; what comes before a release counts as the release.
#[must_use]
pub fn version(text: &str) -> Option<[u64; 3]> {
    let core = text.split(['-', '+']).next().filter(|core| core.len() < 64)?;
    let mut numbers = core.split('.').map(|part| part.parse().ok());
    let version = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Capacity;

    fn device() -> Device {
        Device {
            name: "gpu-0".into(),
            driver: "gpu.divvy.dev".into(),
            pool: "node".into(),
            attributes: vec![
                ("gpu.divvy.dev/index".into(), Attribute::Number(3)),
                (
                    "gpu.divvy.dev/productName".into(),
                    Attribute::Text("NVIDIA H200".into()),
                ),
                ("gpu.divvy.dev/type".into(), Attribute::Text("gpu".into())),
                ("gpu.divvy.dev/version".into(), Attribute::Version([12, 4, 0])),
            ],
            capacities: vec![Capacity {
                name: "gpu.divvy.dev/memory".into(),
                value: 80 << 30,
                policy: None,
            }],
            shared: true,
            consumes: Vec::new(),
            taints: Vec::new(),
        }
    }

    #[test]
    fn selectors_of_the_documentation_are_understood() {
        for (text, selected) in [
            (
                "device.driver == 'gpu.divvy.dev' && device.allowMultipleAllocations == true",
                true,
            ),
            ("device.driver == \"gpu.nvidia.com\"", false),
            ("device.attributes['gpu.divvy.dev'].type == 'gpu'", true),
            (
                "device.attributes['gpu.divvy.dev'].productName.lowerAscii().contains('h200')",
                true,
            ),
            (
                "device.capacity['gpu.divvy.dev'].memory.compareTo(quantity('40Gi')) >= 0",
                true,
            ),
            (
                "device.capacity['gpu.divvy.dev'].memory.isLessThan(quantity('40Gi'))",
                false,
            ),
            (
                "device.attributes['gpu.divvy.dev'].version.isGreaterThan(semver('12.3.9'))",
                true,
            ),
            (
                "'type' in device.attributes['gpu.divvy.dev'] && !('x' in device.attributes['other'])",
                true,
            ),
            (
                "has(device.attributes['gpu.divvy.dev'].profile) ? false : true",
                true,
            ),
            (
                "device.attributes['gpu.divvy.dev'].type in ['mig', 'gpu'] // either\n",
                true,
            ),
            ("device.attributes['gpu.divvy.dev'].index < -1 || (true)", true),
            // One side is enough.
            ("device.attributes['x'].y == 1 || device.driver != ''", true),
            ("device.attributes['x'].y == 1 && device.driver == ''", false),
        ] {
            let read = Expression::read(text).expect(text);
            assert_eq!(read.selects(&device()), Ok(selected), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for text in [
            "",
            "device.",
            "a b",
            "'",
            "f(",
            "[1",
            "1 ? 2",
            "#",
            "99999999999999999999",
            "-device",
        ] {
            assert!(Expression::read(text).is_err(), "{text}");
        }
        assert!(Expression::read(&"(".repeat(5000)).is_err());
        assert!(Expression::read(&"!".repeat(5000)).is_err());
        assert!(Expression::read(&format!("true{}", " && true".repeat(1000))).is_err());
        for text in [
            "1",
            "device.attributes['gpu.divvy.dev'].profile == 'x'",
            "device.attributes['gpu.divvy.dev'].type == 1",
            "node.name == 'a'",
            "device.driver.matches('a')",
            "quantity('x') == quantity('1')",
        ] {
            assert!(
                Expression::read(text).expect(text).selects(&device()).is_err(),
                "{text}"
            );
        }
    }
}

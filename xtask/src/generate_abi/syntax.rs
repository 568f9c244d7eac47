//! What the headers declare, once parsed: the little of C that a driver's header uses.

use std::collections::BTreeMap;

/// A C type, as far as its layout and its Rust spelling need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    Void,
    /// An arithmetic type, by its Rust name.
    Number(&'static str),
    /// A typedef's name, or a tag.
    Named(String),
    Pointer {
        to_const: bool,
        to: Box<Type>,
    },
    Array(Box<Type>, u64),
    Function {
        result: Box<Type>,
        parameters: Vec<Field>,
    },
}

/// A member of a record, or a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub of: Type,
    /// The member has no name in C: its own members are reached without one.
    pub anonymous: bool,
}

/// A struct or a union.
#[derive(Clone, Debug)]
pub struct Record {
    pub name: String,
    pub union: bool,
    /// Alignment asked for by the header, where it asks.
    pub align: Option<u64>,
    /// Empty for a type that the header only names.
    pub fields: Vec<Field>,
    pub opaque: bool,
    /// Made up by us for an unnamed type inside another.
    pub nested: bool,
}

/// An enumeration, with the values in the header's order.
#[derive(Clone, Debug)]
pub struct Enumeration {
    pub name: String,
    pub values: Vec<(String, i128)>,
}

/// A function of the driver: one exported symbol.
#[derive(Clone, Debug)]
pub struct Function {
    pub symbol: String,
    pub result: Type,
    pub parameters: Vec<Field>,
}

/// Everything that was declared.
#[derive(Debug, Default)]
pub struct Header {
    pub records: Vec<Record>,
    pub enumerations: Vec<Enumeration>,
    /// Typedef name to what it stands for, in order.
    pub aliases: Vec<(String, Type)>,
    pub functions: BTreeMap<String, Function>,
    /// Values of every enumerator, for constant expressions.
    pub constants: BTreeMap<String, i128>,
    /// Tag to the name by which we call the type.
    pub tags: BTreeMap<String, String>,
}

impl Header {
    /// Follows typedefs down to something that is none.
    pub fn resolve<'a>(&'a self, of: &'a Type) -> &'a Type {
        let mut current = of;
        while let Type::Named(name) = current {
            match self.aliases.iter().find(|(alias, _)| alias == name) {
                Some((_, target)) => current = target,
                None => break,
            }
        }
        current
    }

    pub fn record(&self, name: &str) -> Option<&Record> {
        self.records.iter().find(|record| record.name == name)
    }
}

//! Spelling parsed C declarations in Rust.

use std::fmt::Write as _;

use super::syntax::{Enumeration, Field, Header, Record, Type};

/// How a type is reached from where it is written: `$crate::` in macros, nothing in the types' own modules.
#[derive(Clone, Copy)]
pub struct Spelling(pub &'static str);

/// A name that Rust does not reserve.
pub fn name(c: &str) -> String {
    match c {
        "type" | "fn" | "ref" | "in" | "mod" | "match" | "move" | "use" | "self" | "box" | "loop"
        | "where" => {
            format!("{c}_")
        }
        _ => c.to_owned(),
    }
}

impl Spelling {
    pub fn of(self, header: &Header, of: &Type) -> String {
        let prefix = self.0;
        match of {
            Type::Void => format!("{prefix}c_void"),
            Type::Number("*mut c_void") => format!("*mut {prefix}c_void"),
            Type::Number(name @ ("c_char" | "c_void")) => format!("{prefix}{name}"),
            Type::Number(name) => (*name).to_owned(),
            Type::Named(name) => format!("{prefix}{name}"),
            Type::Array(of, length) => format!("[{}; {length}]", self.of(header, of)),
            Type::Pointer { to, to_const } => {
                if let Type::Function { result, parameters } = &**to {
                    return self.function_pointer(header, result, parameters);
                }
                // `const T *` where T is itself a pointer typedef keeps its constness on the outer pointer.
                let kind = if *to_const { "const" } else { "mut" };
                format!("*{kind} {}", self.of(header, to))
            }
            Type::Function { result, parameters } => self.function_pointer(header, result, parameters),
        }
    }

    fn function_pointer(self, header: &Header, result: &Type, parameters: &[Field]) -> String {
        let parameters: Vec<String> = parameters.iter().map(|p| self.of(header, &p.of)).collect();
        let result = match result {
            Type::Void => String::new(),
            other => format!(" -> {}", self.of(header, other)),
        };
        format!(
            "Option<unsafe extern \"C\" fn({}){result}>",
            parameters.join(", ")
        )
    }
}

/// A record's definition.
pub fn record(header: &Header, record: &Record) -> String {
    let mut out = String::new();
    if record.opaque {
        let _ = writeln!(out, "opaque!({});", record.name);
        return out;
    }
    let align = record.align.map(|n| format!(", align({n})")).unwrap_or_default();
    let kind = if record.union { "union" } else { "struct" };
    let debug = if printable(header, record) { "Debug, " } else { "" };
    let _ = writeln!(
        out,
        "#[derive({debug}Clone, Copy)]\n#[repr(C{align})]\npub {kind} {} {{",
        record.name
    );
    for field in &record.fields {
        let of = Spelling("").of(header, &field.of);
        let _ = writeln!(out, "    pub {}: {of},", name(&field.name));
    }
    let _ = writeln!(out, "}}\nzeroable!({});", record.name);
    out
}

/// Whether a record can derive Debug: no union anywhere inside by value.
fn printable(header: &Header, record: &Record) -> bool {
    !record.union
        && record.fields.iter().all(|field| {
            let mut of = header.resolve(&field.of);
            while let Type::Array(inner, _) = of {
                of = header.resolve(inner);
            }
            match of {
                Type::Named(name) => header.record(name).is_none_or(|inner| printable(header, inner)),
                _ => true,
            }
        })
}

/// An enumeration: a transparent number, one constant for each enumerator, and its names for printing.
pub fn enumeration(of: &Enumeration) -> String {
    let signed = of.values.iter().any(|(_, value)| *value < 0);
    let number = if signed { "i32" } else { "u32" };
    let mut out = format!("enumeration! {{\n    {}: {number};\n", of.name);
    for (label, value) in &of.values {
        let _ = writeln!(out, "    {label} = {value},");
    }
    out.push_str("}\n");
    out
}

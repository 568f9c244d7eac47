//! The CUDA runtime's tables: `crates/abi/src/runtime/generated`, from the headers and the shared library of one release
//! of CUDA 12 and one of CUDA 13.
//!
//! The types are those of the newer release. A structure of the older one that has another size, or that the newer one
//! dropped, stands beside them with `_12` behind its name. Which symbols a release exports is read from its library.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use super::compiler::{Compiler, RUNTIME};
use super::syntax::{Field, Function, Header, Type};
use super::{emit, lexer, parser};

/// One release: its declarations, what its library exports, and the compiler that measures its types.
struct Release {
    header: Header,
    symbols: BTreeSet<String>,
    compiler: Compiler,
}

impl Release {
    /// `folder` holds `include` and `lib`, as in the wheels.
    fn new(folder: &Path, crt: &Path, scratch: &Path, number: u32) -> anyhow::Result<Self> {
        let scratch = scratch.join(number.to_string());
        std::fs::create_dir_all(&scratch)?;
        let compiler = Compiler::new(&folder.join("include"), &scratch, RUNTIME)?.also(crt);
        let header = parser::parse(&lexer::tokens(&compiler.preprocessed()?)?)?;
        let symbols = exported(&folder.join(format!("lib/libcudart.so.{number}")))?;
        Ok(Self {
            header,
            symbols,
            compiler,
        })
    }

    /// Sizes of its structures, by name.
    fn sizes(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let records = || self.header.records.iter().filter(|r| !r.opaque && !r.nested);
        let expressions: Vec<String> = records()
            .map(|record| format!("sizeof({})", emit::c_name(&self.header, record)))
            .collect();
        let sizes = self.compiler.sizes(&expressions)?;
        Ok(records().map(|record| record.name.clone()).zip(sizes).collect())
    }

    /// One row for each exported symbol. One that the headers do not declare takes no argument: nothing answers it.
    fn rows(&mut self) {
        self.header
            .functions
            .retain(|name, _| self.symbols.contains(name));
        for symbol in &self.symbols {
            self.header
                .functions
                .entry(symbol.clone())
                .or_insert_with(|| Function {
                    symbol: symbol.clone(),
                    result: Type::Named("cudaError_t".into()),
                    parameters: Vec::new(),
                });
        }
    }
}

/// Writes the generated files.
pub fn generate(older: &Path, newer: &Path, crt: &Path, scratch: &Path) -> anyhow::Result<()> {
    let mut newer = Release::new(newer, crt, scratch, 13)?;
    let mut older = Release::new(older, crt, scratch, 12)?;
    let api = "the runtime API";
    // The driver's own types, and the vectors that a structure needs: written by hand beside the generated files.
    for header in [&mut newer.header, &mut older.header] {
        header
            .records
            .retain(|record| !record.name.starts_with("CU") && record.name != "dim3");
        header
            .aliases
            .retain(|(name, _)| !name.starts_with("CU") && name != "dim3");
    }
    let folder = crate::cargo::workspace_root().join("crates/abi/src/runtime/generated");
    let write = |name: &str, text: String| {
        let imports = text
            .replace(
                "use super::{aliases::*, enumerations::*, opaque, zeroable};",
                "use super::{opaque, zeroable};",
            )
            .replace("use super::{enumerations::*, records::*};\n", "")
            .replace("use crate::{c_char, c_void};", "use crate::runtime::*;");
        super::write(&folder, name, imports)
    };

    let (new_sizes, old_sizes) = (newer.sizes()?, older.sizes()?);
    let differ: BTreeSet<String> = old_sizes
        .iter()
        .filter(|(name, size)| new_sizes.get(*name) != Some(size))
        .map(|(name, _)| name.clone())
        .collect();
    newer.rows();
    older.rows();
    write("records.rs", emit::records(&newer.header, api))?;
    write("aliases.rs", emit::aliases(&newer.header, api))?;
    write(
        "enumerations.rs",
        emit::enumerations(&newer.header.enumerations, api),
    )?;
    write(
        "constants.rs",
        emit::runtime_constants(&newer.header, &newer.compiler.macros()?)?,
    )?;
    write("layouts.rs", emit::layouts(&newer.header, &newer.compiler)?)?;
    write(
        "functions13.rs",
        emit::runtime_functions(&newer.header, "runtime13_functions", "libcudart.so.13"),
    )?;

    let mut only = Header {
        aliases: older.header.aliases.clone(),
        tags: older.header.tags.clone(),
        ..Header::default()
    };
    let kept = |name: &str| {
        differ
            .iter()
            .any(|of| name == of || name.starts_with(&format!("{of}_")))
    };
    only.records = older
        .header
        .records
        .iter()
        .filter(|r| kept(&r.name))
        .cloned()
        .collect();
    let mut layouts = emit::layouts(&only, &older.compiler)?;
    for name in &differ {
        layouts = replace_word(&layouts, name, &format!("{name}_12"));
    }
    let differ: BTreeSet<String> = only.records.iter().map(|r| r.name.clone()).collect();
    rename(&mut older.header, &differ);
    older.header.records.retain(|record| record.name.ends_with("_12"));
    write("records12.rs", emit::records(&older.header, "CUDA 12's runtime"))?;
    write(
        "layouts12.rs",
        layouts.replace("super::records::*", "super::records12::*"),
    )?;
    write(
        "functions12.rs",
        emit::runtime_functions(&older.header, "runtime12_functions", "libcudart.so.12"),
    )?;
    super::summarise(&newer.header);
    println!("other in CUDA 12: {differ:?}");
    Ok(())
}

/// The functions that a shared library exports.
fn exported(library: &Path) -> anyhow::Result<BTreeSet<String>> {
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only"])
        .arg(library)
        .output()
        .context("Cannot start nm")?;
    if !output.status.success() {
        bail!("nm refuses {}", library.display());
    }
    let text = String::from_utf8(output.stdout)?;
    let names = text.lines().filter_map(|line| {
        let (_, name) = line.split_once(" T ")?;
        Some(name.split('@').next().unwrap_or(name).to_owned())
    });
    Ok(names.collect())
}

fn replace_word(text: &str, from: &str, to: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    while let Some(at) = rest.find(from) {
        let (before, after) = (&rest[..at], &rest[at + from.len()..]);
        let whole = !before.ends_with(inside) && !after.starts_with(inside);
        out.push_str(before);
        out.push_str(if whole { to } else { from });
        rest = after;
    }
    out + rest
}

/// Puts `_12` behind the names in `differ`, wherever they stand.
fn rename(header: &mut Header, differ: &BTreeSet<String>) {
    for record in &mut header.records {
        if differ.contains(&record.name) {
            record.name += "_12";
        }
        fields(&mut record.fields, differ);
    }
    for function in header.functions.values_mut() {
        of_type(&mut function.result, differ);
        fields(&mut function.parameters, differ);
    }
}

fn fields(list: &mut [Field], differ: &BTreeSet<String>) {
    for field in list {
        of_type(&mut field.of, differ);
    }
}

fn of_type(of: &mut Type, differ: &BTreeSet<String>) {
    match of {
        Type::Named(name) if differ.contains(name) => *name += "_12",
        Type::Pointer { to, .. } => of_type(to, differ),
        Type::Array(inner, _) => of_type(inner, differ),
        Type::Function { result, parameters } => {
            of_type(result, differ);
            fields(parameters, differ);
        }
        _ => {}
    }
}

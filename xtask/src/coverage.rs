//! `cargo xtask coverage`: writes docs/driver-coverage.md and docs/nvml-coverage.md, every entry point of the driver and
//! of NVML and who answers it; docs/remote-coverage.md, which of them are served in another process; and
//! docs/runtime-coverage.md, the entry points of our CUDA runtimes.
//!
//! Read from the sources as text: the declaration tables, and the tables in which the limiter and the emulated device
//! name their own functions.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, bail};

use crate::cargo::workspace_root;
use crate::generate_abi::roles;

/// Arguments of `cargo xtask coverage`.
#[derive(clap::Args)]
pub struct Args {
    /// Write nothing; fail if the page is not up to date
    #[arg(long)]
    pub check: bool,
}

/// One line of the declaration table.
pub struct Declared {
    pub symbol: String,
    /// CUDA version as cuGetProcAddress counts; 0 where no header tells.
    since: u32,
    per_thread: bool,
}

/// Writes the pages, or compares them.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let driver = page(
        &declared()?,
        &named(&read("crates/limiter/src/hooks/mod.rs")?)?,
        &named(&read("crates/emulator/src/api/table.rs")?)?,
    );
    let nvml = nvml_page(
        &declared_by_nvml()?,
        &named(&read("crates/limiter/src/nvml/mod.rs")?)?,
        &named(&read("crates/device/src/nvml/table.rs")?)?,
    );
    for (name, page) in [
        ("docs/driver-coverage.md", driver),
        ("docs/nvml-coverage.md", nvml),
        ("docs/remote-coverage.md", roles::coverage()?),
        ("docs/runtime-coverage.md", runtime_page()?),
    ] {
        let path = workspace_root().join(name);
        if !args.check {
            std::fs::write(&path, page).with_context(|| format!("Cannot write {name}"))?;
        } else if std::fs::read_to_string(&path).ok().as_deref() != Some(&page) {
            bail!("{name} is not up to date: run `cargo xtask coverage`");
        }
    }
    // The roles stand on the same table, and the page says what they say.
    if args.check { roles::run(true) } else { Ok(()) }
}

fn read(path: &str) -> anyhow::Result<String> {
    let path: PathBuf = workspace_root().join(path);
    std::fs::read_to_string(&path).with_context(|| format!("Cannot read {}", path.display()))
}

/// The declaration table, in its order.
pub fn declared() -> anyhow::Result<Vec<Declared>> {
    let text = read("crates/abi/src/generated/functions.rs")?;
    let all: Vec<Declared> = text.lines().filter_map(declaration).collect();
    if all.len() < 500 {
        bail!("Found only {} symbols in the declaration table", all.len());
    }
    Ok(all)
}

/// The symbols of NVML's declaration table, in its order.
pub fn declared_by_nvml() -> anyhow::Result<Vec<String>> {
    let text = read("crates/abi/src/nvml/generated/functions.rs")?;
    let all: Vec<String> = text.lines().filter_map(nvml_declaration).collect();
    if all.len() < 300 {
        bail!("Found only {} symbols in NVML's declaration table", all.len());
    }
    Ok(all)
}

/// `nvmlDeviceGetName (device: …) -> nvmlReturn_t;`
fn nvml_declaration(line: &str) -> Option<String> {
    let (symbol, _) = line.trim_start().split_once(" (")?;
    (symbol.starts_with("nvml") && line.ends_with(';')).then(|| symbol.to_owned())
}

/// `cuMemAlloc_v2 ("cuMemAlloc", 3020, Legacy) (…);`
fn declaration(line: &str) -> Option<Declared> {
    let (symbol, rest) = line.trim_start().split_once(" (\"")?;
    let mut facts = rest.split_once(')')?.0.split(", ").skip(1);
    Some(Declared {
        symbol: symbol.to_owned(),
        since: facts.next()?.parse().ok()?,
        per_thread: facts.next()? == "PerThread",
    })
}

/// The symbols that a `const TABLE: Table = …;` names, written out or by `divvy_abi::implemented!`.
fn named(source: &str) -> anyhow::Result<BTreeSet<&str>> {
    let (_, table) = source
        .split_once("TABLE: Table = ")
        .context("No table in this file")?;
    let (table, _) = table.split_once("};").context("The table does not end")?;
    let is_symbol = |word: &&str| {
        let cuda = word.strip_prefix("cu");
        cuda.is_some_and(|rest| rest.starts_with(char::is_uppercase)) || word.starts_with("nvml")
    };
    let words = table.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    Ok(words.filter(is_symbol).collect())
}

/// The symbols of a runtime's declaration table, in its order.
fn declared_by_runtime(release: u32) -> anyhow::Result<Vec<String>> {
    let text = read(&format!("crates/abi/src/runtime/generated/functions{release}.rs"))?;
    let symbol = |line: &str| {
        let (symbol, _) = line.trim_start().split_once(" (")?;
        let is_one = symbol.trim_start_matches('_').starts_with("cuda") && line.ends_with(';');
        is_one.then(|| symbol.to_owned())
    };
    let all: Vec<String> = text.lines().filter_map(symbol).collect();
    if all.len() < 300 {
        bail!(
            "Found only {} symbols in the runtime's declaration table",
            all.len()
        );
    }
    Ok(all)
}

/// The symbols that the runtimes name: those of both releases, of CUDA 12's alone, of CUDA 13's alone.
fn named_by_runtime(source: &str) -> anyhow::Result<[BTreeSet<&str>; 3]> {
    let part = |name: &str| -> anyhow::Result<BTreeSet<&str>> {
        let (_, part) = source
            .split_once(&format!("macro_rules! {name} {{"))
            .with_context(|| format!("No list {name} of the runtimes"))?;
        let (part, _) = part.split_once("\n}\n").context("The list does not end")?;
        let words = part.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        Ok(words
            .filter(|word| word.trim_start_matches('_').starts_with("cuda"))
            .collect())
    };
    Ok([part("areas")?, part("table_12")?, part("table_13")?])
}

fn runtime_page() -> anyhow::Result<String> {
    let source = read("crates/cudart/src/api/table.rs")?;
    let [both, twelve, thirteen] = named_by_runtime(&source)?;
    let (in_12, in_13) = (declared_by_runtime(12)?, declared_by_runtime(13)?);
    let count = |declared: &[String], own: &BTreeSet<&str>| {
        let has = |symbol: &&String| both.contains(symbol.as_str()) || own.contains(symbol.as_str());
        declared.iter().filter(has).count()
    };
    let mut out = format!(
        "# Coverage of the CUDA runtime API\n\n\
         Generated by `cargo xtask coverage`: do not edit.\n\n\
         Our libcudart.so.12 exports the {} symbols of CUDA 12.9's, and implements {}. Our libcudart.so.13 exports the {} of \
         CUDA 13.5's, and implements {}. Every other symbol answers `cudaErrorNotSupported`. What the driver below does not \
         have, the runtime has not either: see [the driver's page](driver-coverage.md).\n\n\
         | symbol | libcudart.so.12 | libcudart.so.13 |\n|---|---|---|\n",
        in_12.len(),
        count(&in_12, &twelve),
        in_13.len(),
        count(&in_13, &thirteen),
    );
    let all: BTreeSet<&str> = in_12.iter().chain(&in_13).map(String::as_str).collect();
    for symbol in all {
        let cell = |declared: &[String], own: &BTreeSet<&str>| {
            if !declared.iter().any(|name| name == symbol) {
                "not in it"
            } else if both.contains(symbol) || own.contains(symbol) {
                "yes"
            } else {
                ""
            }
        };
        let _ = writeln!(
            out,
            "| {symbol} | {} | {} |",
            cell(&in_12, &twelve),
            cell(&in_13, &thirteen)
        );
    }
    Ok(out)
}

fn page(declared: &[Declared], limited: &BTreeSet<&str>, emulated: &BTreeSet<&str>) -> String {
    let count = |set: &BTreeSet<&str>| {
        declared
            .iter()
            .filter(|d| set.contains(d.symbol.as_str()))
            .count()
    };
    let mut out = format!(
        "# Coverage of the CUDA driver API\n\n\
         Generated by `cargo xtask coverage`: do not edit.\n\n\
         {} symbols, {} of them per-thread-stream variants. The limiter exports them all: {} it charges or answers for \
         the slice (*limited*), every other passes to the driver below (*forwarded*). The emulated device exports them \
         all: {} it implements, every other answers `CUDA_ERROR_NOT_SUPPORTED` and says its name in the log.\n\n\
         | symbol | since CUDA | limiter | emulated device |\n|---|---|---|---|\n",
        declared.len(),
        declared.iter().filter(|d| d.per_thread).count(),
        count(limited),
        count(emulated),
    );
    for entry in declared {
        let since = match entry.since {
            0 => String::new(),
            since => format!("{}.{}", since / 1000, since % 1000 / 10),
        };
        let symbol = entry.symbol.as_str();
        let limiter = if limited.contains(symbol) {
            "limited"
        } else {
            "forwarded"
        };
        let device = if emulated.contains(symbol) { "yes" } else { "" };
        let _ = writeln!(out, "| {symbol} | {since} | {limiter} | {device} |");
    }
    out
}

fn nvml_page(declared: &[String], limited: &BTreeSet<&str>, emulated: &BTreeSet<&str>) -> String {
    let mut out = format!(
        "# Coverage of NVML\n\n\
         Generated by `cargo xtask coverage`: do not edit.\n\n\
         {} symbols. The limiter's NVML exports them all: {} it answers for the slice (*slice*), every other passes to the \
         NVML below. The emulated device's exports them all: {} it implements, every other answers \
         `NVML_ERROR_NOT_SUPPORTED` and says its name in the log. Named here are those that either implements.\n\n\
         | symbol | limiter | emulated device |\n|---|---|---|\n",
        declared.len(),
        limited.len(),
        emulated.len(),
    );
    for symbol in declared.iter().map(String::as_str) {
        let (limited, emulated) = (limited.contains(symbol), emulated.contains(symbol));
        if limited || emulated {
            let limiter = if limited { "slice" } else { "forwarded" };
            let device = if emulated { "yes" } else { "" };
            let _ = writeln!(out, "| {symbol} | {limiter} | {device} |");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvmls_page_names_what_is_implemented() {
        let declared: Vec<String> = [
            "        nvmlInit () -> $crate::nvml::nvmlReturn_t;",
            "        nvmlShutdown () -> $crate::nvml::nvmlReturn_t;",
            "/// `symbol (parameter: type, …) -> type;`",
        ]
        .into_iter()
        .filter_map(nvml_declaration)
        .collect();
        let page = nvml_page(&declared, &["nvmlInit"].into(), &BTreeSet::new());
        assert!(
            page.contains("2 symbols.") && page.contains("| nvmlInit | slice |  |"),
            "{page}"
        );
        assert!(!page.contains("nvmlShutdown"), "{page}");
    }

    #[test]
    fn the_page_tells_who_answers() {
        let declared: Vec<Declared> = [
            "        cuInit (\"cuInit\", 2000, Legacy) (Flags: u32);",
            "        cuMemAlloc_v2 (\"cuMemAlloc\", 3020, Legacy) (dptr: *mut X, bytesize: usize);",
            "        cuLaunchKernel_ptsz (\"cuLaunchKernel\", 7000, PerThread) (f: X);",
        ]
        .into_iter()
        .filter_map(declaration)
        .collect();
        let limiter = "pub const TABLE: Table = Table {\n    cuInit: init,\n\n    cuMemAlloc_v2: a::b,\n    ..FORWARD\n};\n";
        let page = page(&declared, &named(limiter).expect("a table"), &["cuInit"].into());
        assert!(page.contains("3 symbols, 1 of them"));
        assert!(page.contains("| cuInit | 2.0 | limited | yes |"));
        assert!(page.contains("| cuMemAlloc_v2 | 3.2 | limited |  |"));
        assert!(page.contains("| cuLaunchKernel_ptsz | 7.0 | forwarded |  |"));
    }
}

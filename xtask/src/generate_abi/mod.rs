//! `cargo xtask generate-abi --headers DIR`: writes crates/abi/src/generated from NVIDIA's driver headers.
//!
//! The headers come in the wheel `nvidia-cuda-runtime` (`pip download --no-deps nvidia-cuda-runtime`, unzip; the folder
//! with cuda.h is DIR). Names, signatures and layouts are taken as facts; the headers themselves are never committed.
//! A C compiler does the preprocessing and measures every structure.

mod compiler;
mod constant;
mod emit;
mod lexer;
mod parser;
mod rust;
mod syntax;
mod versions;

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::cargo::workspace_root;

/// Arguments of `cargo xtask generate-abi`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder that holds cuda.h and cudaTypedefs.h
    #[arg(long)]
    headers: PathBuf,
}

/// Reads the headers and writes the generated files.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let scratch = std::env::temp_dir().join(format!("divvy-generate-abi-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let result = generate(&args.headers, &scratch);
    std::fs::remove_dir_all(&scratch)?;
    result
}

fn generate(headers: &Path, scratch: &Path) -> anyhow::Result<()> {
    let compiler = compiler::Compiler::new(headers, scratch)?;
    let header = parser::parse(&lexer::tokens(&compiler.preprocessed()?)?)?;
    let mut typedefs = String::new();
    for name in ["cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler"] {
        let path = headers.join(format!("{name}Typedefs.h"));
        typedefs +=
            &std::fs::read_to_string(&path).with_context(|| format!("Cannot read {}", path.display()))?;
    }
    let symbols = header.functions.keys().map(String::as_str);
    let (versions, odd) = versions::versions(symbols, &typedefs);

    let folder = workspace_root().join("crates/abi/src/generated");
    std::fs::create_dir_all(&folder)?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("Cannot write {}", path.display()))
    };
    write("records.rs", emit::records(&header))?;
    write("aliases.rs", emit::aliases(&header))?;
    write("enumerations.rs", emit::enumerations(&header.enumerations))?;
    write("constants.rs", emit::constants(&header, &compiler.macros()?)?)?;
    write("layouts.rs", emit::layouts(&header, &compiler)?)?;
    write("functions.rs", emit::functions(&header, &versions))?;
    println!(
        "{} functions, {} records, {} enumerations, {} aliases",
        header.functions.len(),
        header.records.len(),
        header.enumerations.len(),
        header.aliases.len()
    );
    for line in odd {
        println!("look at: {line}");
    }
    Ok(())
}

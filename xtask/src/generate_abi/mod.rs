//! `cargo xtask generate-abi --headers DIR`: writes crates/abi/src/generated from NVIDIA's driver headers; with
//! `--nvml DIR` also, or alone, crates/abi/src/nvml/generated from NVML's. With `--roles`, also or alone, it writes the
//! roles of the driver's arguments.
//!
//! With `--runtime12 DIR --runtime13 DIR --crt DIR` it writes crates/abi/src/runtime/generated, from the wheels
//! `nvidia-cuda-runtime-cu12` (nvidia/cuda_runtime), `nvidia-cuda-runtime` (nvidia/cu13) and `nvidia-cuda-crt`
//! (nvidia/cu13/include).
//!
//! The headers come in the wheels `nvidia-cuda-runtime` and `nvidia-nvml-dev` (`pip download --no-deps WHEEL`, unzip;
//! the folder with cuda.h, with nvml.h, is DIR). Names, signatures and layouts are taken as facts; the headers
//! themselves are never committed. A C compiler does the preprocessing and measures every structure.

mod compiler;
mod constant;
mod emit;
mod lexer;
mod parser;
pub mod roles;
mod runtime;
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
    #[arg(long, required_unless_present_any = ["nvml", "roles", "runtime12"])]
    headers: Option<PathBuf>,
    /// Folder that holds nvml.h
    #[arg(long)]
    nvml: Option<PathBuf>,
    /// Folder of CUDA 12's runtime, with its include and lib
    #[arg(long, requires_all = ["runtime13", "crt"])]
    runtime12: Option<PathBuf>,
    /// Folder of CUDA 13's runtime, with its include and lib
    #[arg(long, requires = "runtime12")]
    runtime13: Option<PathBuf>,
    /// Folder that holds crt/host_defines.h
    #[arg(long, requires = "runtime12")]
    crt: Option<PathBuf>,
    /// Write the roles of the arguments again, from crates/abi/roles.txt: needs no header
    #[arg(long)]
    roles: bool,
}

/// Reads the headers and writes the generated files.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let scratch = std::env::temp_dir().join(format!("divvy-generate-abi-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let cuda = args
        .headers
        .as_deref()
        .map_or(Ok(()), |headers| cuda(headers, &scratch));
    let result = cuda.and_then(|()| {
        args.nvml
            .as_deref()
            .map_or(Ok(()), |headers| nvml(headers, &scratch))
    });
    let result = result.and_then(|()| match (&args.runtime12, &args.runtime13, &args.crt) {
        (Some(older), Some(newer), Some(crt)) => runtime::generate(older, newer, crt, &scratch),
        _ => Ok(()),
    });
    std::fs::remove_dir_all(&scratch)?;
    result?;
    // They stand on the driver's table, so they follow it.
    if args.roles || args.headers.is_some() {
        roles::run(false)?;
    }
    Ok(())
}

fn cuda(headers: &Path, scratch: &Path) -> anyhow::Result<()> {
    let compiler = compiler::Compiler::new(headers, scratch, compiler::CUDA)?;
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
    write(&folder, "records.rs", emit::records(&header, emit::CUDA))?;
    write(&folder, "aliases.rs", emit::aliases(&header, emit::CUDA))?;
    write(
        &folder,
        "enumerations.rs",
        emit::enumerations(&header.enumerations, emit::CUDA),
    )?;
    write(
        &folder,
        "constants.rs",
        emit::constants(&header, &compiler.macros()?)?,
    )?;
    write(&folder, "layouts.rs", emit::layouts(&header, &compiler)?)?;
    write(&folder, "functions.rs", emit::functions(&header, &versions))?;
    summarise(&header);
    for line in odd {
        println!("look at: {line}");
    }
    Ok(())
}

fn nvml(headers: &Path, scratch: &Path) -> anyhow::Result<()> {
    let compiler = compiler::Compiler::new(headers, scratch, compiler::NVML)?;
    let header = parser::parse(&lexer::tokens(&compiler.preprocessed()?)?)?;
    let folder = workspace_root().join("crates/abi/src/nvml/generated");
    write(&folder, "records.rs", emit::records(&header, emit::NVML))?;
    write(&folder, "aliases.rs", emit::aliases(&header, emit::NVML))?;
    write(
        &folder,
        "enumerations.rs",
        emit::enumerations(&header.enumerations, emit::NVML),
    )?;
    write(
        &folder,
        "constants.rs",
        emit::measured_constants(&header, &compiler)?,
    )?;
    write(&folder, "layouts.rs", emit::layouts(&header, &compiler)?)?;
    write(&folder, "functions.rs", emit::nvml_functions(&header))?;
    summarise(&header);
    Ok(())
}

fn write(folder: &Path, name: &str, text: String) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(name);
    std::fs::write(&path, text).with_context(|| format!("Cannot write {}", path.display()))
}

fn summarise(header: &syntax::Header) {
    println!(
        "{} functions, {} records, {} enumerations, {} aliases",
        header.functions.len(),
        header.records.len(),
        header.enumerations.len(),
        header.aliases.len()
    );
}

//! `cargo xtask gpu-kit`: one archive for a machine with a GPU, on which nothing can be fetched and nothing has to be
//! installed. `crates/kit` has what it does there.

mod bare;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::cargo::{cargo, finish, workspace_root};
use crate::debian;
use crate::dist::archive::{self, Effort, Entry};
use crate::dist::{SHIPPED, build_packages, natively};

/// The archive is at most so large, in bytes: it has to go over slow lines.
const MOST: u64 = 40 << 20;

/// Arguments of `cargo xtask gpu-kit`.
#[derive(clap::Args)]
pub struct Args {
    /// Cargo profile to build with
    #[arg(long, default_value = "release")]
    profile: String,
    /// Build for this machine's own C library: quicker, for a try on this machine
    #[arg(long)]
    native: bool,
    /// Take what is built already, as `cargo xtask test` has it
    #[arg(long, requires = "native")]
    built: bool,
    /// Run all parts of what was packed over the emulated device, in a bare Debian root or in the root of this archive
    #[arg(long = "try", value_name = "ROOT.tar", require_equals = true)]
    tries: Option<Option<PathBuf>>,
    /// Try it without /dev/shm only, in half the time
    #[arg(long, requires = "tries")]
    without_shm: bool,
}

/// What the kit has beside what is released: the package, the folder, the file.
const OWN: [(&str, &str, &str); 2] = [
    ("divvy-kit", "bin", "divvy-kit"),
    ("kit-record", "lib/divvy", "libdivvy_kit_record.so"),
];

/// What the archive's `run` is.
const RUN: &str = "#!/bin/sh\n\
    # Runs all parts that have not run; `./run --help` says more. The results go to ./results.\n\
    here=$(CDPATH= cd -- \"$(dirname -- \"$0\")\" && pwd) || exit 2\n\
    exec \"$here/bin/divvy-kit\" run --out \"${KIT_RESULTS:-$here/results}\" \"$@\"\n";

/// Builds and packs.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = workspace_root();
    let out = root.join("target/gpu-kit");
    fs::create_dir_all(&out).with_context(|| format!("Cannot make {}", out.display()))?;
    let cases = record_cases(&out)?;
    let built = build(args)?;
    let launcher = out.join("run");
    fs::write(&launcher, RUN)?;
    let mut entries = programs(&built);
    entries.push(Entry::program("run".to_owned(), launcher));
    entries.push(Entry::text("cases/isa.jsonl".to_owned(), cases));
    entries.extend(texts(root)?);
    let name = format!(
        "divvy-gpu-kit-{}-{}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH
    );
    let packed = archive::pack(&out, &name, &entries, Effort::of(args.native))?;
    let bytes = fs::metadata(&packed)?.len();
    println!("gpu-kit: {} ({} KiB)", packed.display(), bytes / 1024);
    // A native build keeps its debug information.
    if bytes > MOST && !args.native {
        bail!("It has more than {} MiB", MOST >> 20);
    }
    let Some(root) = &args.tries else { return Ok(()) };
    let root = match root {
        Some(root) => root.clone(),
        None => debian::root(debian::Release::Own, debian::Bare::Essential)
            .context("Cannot make a bare Debian root")?,
    };
    bare::run(&packed, &root, args.without_shm)
}

/// What was built.
fn programs(built: &Path) -> Vec<Entry> {
    let shipped = SHIPPED.map(|(package, file)| match package {
        "divvy" => ("bin", file),
        _ => ("lib/divvy", file),
    });
    let own = OWN.map(|(_, place, file)| (place, file));
    let all = shipped.into_iter().chain(own);
    all.map(|(place, file)| Entry::program(format!("{place}/{file}"), built.join(file)))
        .collect()
}

/// What comes as it lies in the repository.
fn texts(root: &Path) -> anyhow::Result<Vec<Entry>> {
    let mut texts = vec![
        Entry::text("LICENSE".to_owned(), root.join("LICENSE")),
        Entry::text("README.md".to_owned(), root.join("docs/gpu-kit.md")),
    ];
    texts.extend(Entry::all_below("python", &root.join("crates/kit/python"))?);
    let kernels = Entry::all_below("kernels", &root.join("crates/ptx/tests/kernels"))?;
    let is_ptx = |entry: &Entry| entry.from().extension().is_some_and(|kind| kind == "ptx");
    texts.extend(kernels.into_iter().filter(is_ptx));
    Ok(texts)
}

/// Has the ISA's suite write down what the engine answers, in one file.
fn record_cases(out: &Path) -> anyhow::Result<PathBuf> {
    let folder = out.join("cases");
    // Cases of instructions that are gone must not stay.
    let _absent = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    finish(
        cargo()
            .args(["test", "--quiet", "--workspace", "--test", "isa"])
            .env("KIT_RECORD", &folder),
    )?;
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    if files.is_empty() {
        bail!("The ISA's suite has written no case");
    }
    let all = out.join("isa.jsonl");
    let mut file = BufWriter::new(File::create(&all)?);
    for case in &files {
        file.write_all(&fs::read(case)?)?;
        file.write_all(b"\n")?;
    }
    file.flush()?;
    println!("gpu-kit: {} cases of the ISA", files.len());
    Ok(all)
}

fn build(args: &Args) -> anyhow::Result<PathBuf> {
    let packages: Vec<&str> = SHIPPED
        .iter()
        .map(|(package, _)| *package)
        .chain(OWN.iter().map(|(package, ..)| *package))
        .collect();
    match args.native {
        true => natively(&args.profile, args.built),
        false => build_packages(&args.profile, &packages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside what is built and recorded here, it has committed files only: nothing that was fetched.
    #[test]
    fn every_text_of_the_archive_is_a_committed_one() {
        let root = workspace_root();
        let texts = texts(root).expect("they are there");
        assert!(texts.len() > 5);
        for entry in &texts {
            let listed = std::process::Command::new("git")
                .current_dir(root)
                .args(["ls-files", "--error-unmatch", "--"])
                .arg(entry.from())
                .output()
                .expect("git");
            assert!(
                listed.status.success(),
                "{} is not committed",
                entry.from().display()
            );
        }
    }
}

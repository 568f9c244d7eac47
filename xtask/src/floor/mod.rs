//! `cargo xtask floor`: builds the drop-ins against glibc 2.17, the oldest that Rust supports and older than any system
//! that CUDA still runs on. It checks the result: symbol versions, name, hardening, exports, dependencies.
//!
//! A drop-in is loaded into programs that we know nothing of; its needs of their system are a promise.

mod elf;

use std::collections::BTreeSet;

use anyhow::{Context, bail};

use crate::cargo::{cargo, workspace_root};
use crate::coverage::{declared, declared_by_nvml};
use crate::zig::{self, FLOOR};

/// A drop-in and what it promises.
struct DropIn {
    package: &'static str,
    /// Its file, as cargo names it.
    file: &'static str,
    /// The vendor's name that it bears, where it stands in front of a library.
    soname: Option<&'static str>,
    /// The symbols that it exports.
    table: fn() -> anyhow::Result<BTreeSet<String>>,
    /// Whether it stands in front of a vendor's library in any program, and may carry only what is [`PERMITTED`].
    in_front: bool,
}

const DROP_INS: [DropIn; 7] = [
    DropIn {
        package: "limit-cuda",
        file: "libdivvy_limit_cuda.so",
        soname: Some("libcuda.so.1"),
        table: driver_symbols,
        in_front: true,
    },
    DropIn {
        package: "limit-nvml",
        file: "libdivvy_limit_nvml.so",
        soname: Some("libnvidia-ml.so.1"),
        table: nvml_symbols,
        in_front: true,
    },
    DropIn {
        package: "limit-opencl",
        file: "libdivvy_limit_opencl.so",
        soname: Some("libdivvy-opencl.so.1"),
        table: || Ok(["clGetLayerInfo", "clInitLayer"].map(str::to_owned).into()),
        in_front: true,
    },
    DropIn {
        package: "remote-cuda",
        file: "libdivvy_remote_cuda.so",
        soname: Some("libcuda.so.1"),
        table: driver_symbols,
        in_front: true,
    },
    DropIn {
        package: "remote-nvml",
        file: "libdivvy_remote_nvml.so",
        soname: Some("libnvidia-ml.so.1"),
        table: nvml_symbols,
        in_front: true,
    },
    DropIn {
        package: "emulated-nvml",
        file: "libdivvy_emulated_nvml.so",
        soname: Some("libnvidia-ml.so.1"),
        table: nvml_symbols,
        in_front: false,
    },
    DropIn {
        package: "slurm-options",
        file: "libdivvy_slurm_options.so",
        soname: None,
        table: spank_symbols,
        in_front: false,
    },
];

/// Packages that may end up in a drop-in which is loaded into any program: system calls, plain-data layouts, our own.
const PERMITTED: &[&str] = &[
    "bitflags",
    "divvy-abi",
    "divvy-charges",
    "divvy-ledger",
    "divvy-limiter",
    "divvy-opencl",
    "divvy-remote",
    "divvy-ring",
    "libc",
    "limit-cuda",
    "limit-nvml",
    "limit-opencl",
    "linux-raw-sys",
    "remote-cuda",
    "remote-nvml",
    "rustix",
    "zerocopy",
];

/// Arguments of `cargo xtask floor`.
#[derive(clap::Args)]
pub struct Args {
    /// Cargo profile to build with
    #[arg(long, default_value = "release")]
    profile: String,
}

/// Builds and checks.
pub fn run(args: &Args) -> anyhow::Result<()> {
    for drop_in in DROP_INS.iter().filter(|drop_in| drop_in.in_front) {
        check_dependencies(drop_in.package)?;
    }
    let folder = zig::Build {
        profile: &args.profile,
        packages: &DROP_INS.map(|drop_in| drop_in.package),
        folder: &workspace_root().join("target"),
        variables: &[],
    }
    .run()?;
    for drop_in in &DROP_INS {
        let library = folder.join(drop_in.file);
        let bytes = std::fs::read(&library).with_context(|| format!("Cannot read {}", library.display()))?;
        let facts =
            elf::Facts::read(&bytes).with_context(|| format!("{} is no ELF library", library.display()))?;
        let broken = broken(&facts, drop_in.soname, &(drop_in.table)()?);
        if !broken.is_empty() {
            bail!(
                "{} breaks its promises:\n  {}",
                drop_in.package,
                broken.join("\n  ")
            );
        }
        let newest = facts
            .newest_glibc()
            .map_or("none".to_owned(), |(major, minor)| format!("{major}.{minor}"));
        println!(
            "floor: {}: {} exports, newest glibc symbol version {newest}, {} KiB, {}",
            drop_in.package,
            facts.exports.len(),
            bytes.len() / 1024,
            library.display()
        );
    }
    Ok(())
}

/// Everything a drop-in promises of its file and does not keep.
fn broken(facts: &elf::Facts, soname: Option<&str>, table: &BTreeSet<String>) -> Vec<String> {
    let mut broken = Vec::new();
    if let Some(newest) = facts.newest_glibc().filter(|newest| *newest > FLOOR) {
        let needing: Vec<_> = facts
            .versions
            .iter()
            .filter(|v| v.ends_with(&format!("{}.{}", newest.0, newest.1)))
            .collect();
        broken.push(format!(
            "it needs {needing:?}, above glibc {}.{}",
            FLOOR.0, FLOOR.1
        ));
    }
    if facts.soname.as_deref() != soname {
        broken.push(format!("its SONAME is {:?}, not {soname:?}", facts.soname));
    }
    for library in &facts.needed {
        let of_libc = [
            "libc.so.",
            "libgcc_s.so.",
            "libdl.so.",
            "libpthread.so.",
            "libm.so.",
            "librt.so.",
            "ld-linux",
        ];
        if !of_libc.iter().any(|known| library.starts_with(known)) {
            broken.push(format!("it needs {library}"));
        }
    }
    for (holds, promise) in [
        (facts.relro && facts.bind_now, "full RELRO"),
        (facts.stack_not_executable, "a stack that is not executable"),
        (facts.symbolic, "-Bsymbolic"),
    ] {
        if !holds {
            broken.push(format!("it lacks {promise}"));
        }
    }
    let missing: Vec<_> = table.difference(&facts.exports).collect();
    let extra: Vec<_> = facts.exports.difference(table).collect();
    if !missing.is_empty() || !extra.is_empty() {
        broken.push(format!(
            "its exports are not the table: missing {missing:?}, extra {extra:?}"
        ));
    }
    broken
}

/// The symbols of the declaration table, from its text: xtask writes that file, so it does not depend on it.
fn driver_symbols() -> anyhow::Result<BTreeSet<String>> {
    Ok(declared()?.into_iter().map(|entry| entry.symbol).collect())
}

/// The symbols of NVML's, likewise.
fn nvml_symbols() -> anyhow::Result<BTreeSet<String>> {
    Ok(declared_by_nvml()?.into_iter().collect())
}

/// What Slurm's loader looks for in a SPANK plugin, of what Divvy's has.
fn spank_symbols() -> anyhow::Result<BTreeSet<String>> {
    let names = [
        "plugin_name",
        "plugin_type",
        "plugin_version",
        "slurm_spank_init",
        "slurm_spank_user_init",
        "spank_plugin_version",
    ];
    Ok(names.map(str::to_owned).into())
}

fn check_dependencies(package: &str) -> anyhow::Result<()> {
    let output = cargo()
        .args(["tree", "--package", package, "--edges", "normal,no-proc-macro"])
        .args(["--prefix", "none", "--format", "{p}"])
        .output()
        .context("Cannot start cargo")?;
    if !output.status.success() {
        bail!("cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    }
    let tree = String::from_utf8(output.stdout)?;
    let not_permitted = not_permitted(&tree);
    if !not_permitted.is_empty() {
        bail!("{package} depends on {not_permitted:?}, which no drop-in in front of another may");
    }
    Ok(())
}

fn not_permitted(tree: &str) -> BTreeSet<&str> {
    tree.lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| !PERMITTED.contains(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> elf::Facts {
        elf::Facts {
            soname: Some("libcuda.so.1".to_owned()),
            needed: vec!["libc.so.6".to_owned()],
            versions: ["GLIBC_2.2.5".to_owned(), "GLIBC_2.17".to_owned()].into(),
            exports: ["cuInit".to_owned()].into(),
            relro: true,
            bind_now: true,
            symbolic: true,
            stack_not_executable: true,
        }
    }

    #[test]
    fn each_broken_promise_is_found() {
        let table = ["cuInit".to_owned()].into();
        assert!(broken(&sound(), Some("libcuda.so.1"), &table).is_empty());
        let breaks: [fn(&mut elf::Facts); 8] = [
            |f| f.versions.extend(["GLIBC_2.18".to_owned()]),
            |f| f.soname = None,
            |f| f.needed.push("libssl.so.3".to_owned()),
            |f| f.relro = false,
            |f| f.bind_now = false,
            |f| f.symbolic = false,
            |f| f.stack_not_executable = false,
            |f| f.exports.extend(["rust_eh_personality".to_owned()]),
        ];
        for one in breaks {
            let mut facts = sound();
            one(&mut facts);
            assert_eq!(broken(&facts, Some("libcuda.so.1"), &table).len(), 1);
        }
    }

    #[test]
    fn a_dependency_that_is_not_permitted_is_named() {
        assert!(not_permitted("libc v0.2.1\nrustix v1.1.6 (*)\n").is_empty());
        assert_eq!(not_permitted("libc v0.2.1\ntracing v0.1.4\n"), ["tracing"].into());
    }

    #[test]
    fn the_table_is_read_from_its_text() {
        let symbols = driver_symbols().expect("the table is committed");
        assert!(symbols.contains("cuMemcpyHtoD_v2_ptds") && symbols.contains("cuInit"));
        let symbols = nvml_symbols().expect("the table is committed");
        assert!(symbols.contains("nvmlInit_v2") && symbols.contains("nvmlErrorString"));
    }
}

//! `cargo xtask dist`: what a user installs, as one archive in target/dist, with a bill of materials and checksums beside.
//!
//! Everything is built against the oldest glibc that the drop-ins promise. The same sources, compiler and tools give the
//! same archive: no time and no path of this machine gets into it.

pub(crate) mod archive;
mod sbom;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::cargo::{cargo, finish, workspace_root};
use crate::zig;
use archive::Entry;

/// The packages whose binaries are shipped, and the files that cargo makes of them.
pub(crate) const SHIPPED: [(&str, &str); 8] = [
    ("divvy", "divvy"),
    ("divvy-guest", "divvy-guest"),
    ("divvy-worker", "divvy-worker"),
    ("emulated-cuda", "libdivvy_emulated_cuda.so"),
    ("emulated-nvml", "libdivvy_emulated_nvml.so"),
    ("limit-cuda", "libdivvy_limit_cuda.so"),
    ("limit-nvml", "libdivvy_limit_nvml.so"),
    ("remote-cuda", "libdivvy_remote_cuda.so"),
];

/// Texts that come along, as they lie in the repository.
const TEXTS: [&str; 5] = ["CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md", "docs"];

/// Arguments of `cargo xtask dist`.
#[derive(clap::Args)]
pub struct Args {
    /// Cargo profile to build with
    #[arg(long, default_value = "release")]
    profile: String,
    /// Write the bill of materials only; build nothing
    #[arg(long)]
    sbom_only: bool,
}

/// Builds and packs.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = workspace_root();
    let version = env!("CARGO_PKG_VERSION");
    let out = root.join("target/dist");
    fs::create_dir_all(&out).with_context(|| format!("Cannot make {}", out.display()))?;
    let bill = out.join(format!("divvy-{version}.cdx.json"));
    fs::write(&bill, bill_of_materials()?)?;
    println!("dist: {}", bill.display());
    if args.sbom_only {
        return Ok(());
    }

    let built = build(&args.profile)?;
    let mut entries = Vec::new();
    for (package, file) in SHIPPED {
        let place = if package == "divvy" { "bin" } else { "lib/divvy" };
        entries.push(Entry::program(format!("{place}/{file}"), built.join(file)));
    }
    let pages = out.join("man");
    // Pages of verbs that are gone must not stay.
    let _absent = fs::remove_dir_all(&pages);
    finish(Command::new(built.join("divvy")).arg("man").arg(&pages))?;
    entries.extend(Entry::all_below("share/man/man1", &pages)?);
    for text in TEXTS {
        entries.extend(Entry::all_below(
            &format!("share/doc/divvy/{text}"),
            &root.join(text),
        )?);
    }
    entries.push(Entry::text(
        "share/doc/divvy/sbom.cdx.json".to_owned(),
        bill.clone(),
    ));

    let name = format!("divvy-{version}-{}-linux", std::env::consts::ARCH);
    let packed = archive::pack(&out, &name, &entries)?;
    archive::write_sums(&out, &[packed.clone(), bill])?;
    println!(
        "dist: {} ({} KiB)",
        packed.display(),
        fs::metadata(&packed)?.len() / 1024
    );
    Ok(())
}

/// The bill of materials of what is shipped, for this machine's architecture.
fn bill_of_materials() -> anyhow::Result<String> {
    let triple = zig::triple();
    let shipped = SHIPPED.map(|(package, _)| package);
    let lock = fs::read_to_string(workspace_root().join("Cargo.lock")).context("Cannot read Cargo.lock")?;
    sbom::write(&sbom::Sources {
        version: env!("CARGO_PKG_VERSION"),
        shipped: &shipped,
        linked: &tree(&shipped, &triple, "normal,no-proc-macro")?,
        built_with: &tree(&shipped, &triple, "normal,build")?,
        metadata: &output(cargo().args([
            "metadata",
            "--locked",
            "--format-version",
            "1",
            "--filter-platform",
            &triple,
        ]))?,
        lock: &lock,
        compiler: &output(Command::new("rustc").arg("--version"))?,
    })
}

/// The packages below the shipped ones by these edges, as `cargo tree` prints them: `name v1.2.3 (…)`.
///
/// From there and not from the metadata, which has the features of tests too.
fn tree(shipped: &[&str], triple: &str, edges: &str) -> anyhow::Result<String> {
    output(
        cargo()
            .args(["tree", "--locked", "--prefix", "none", "--format", "{p}"])
            .args(["--target", triple, "--edges", edges])
            .args(shipped.iter().flat_map(|package| ["--package", package])),
    )
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("Cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).with_context(|| format!("{name} prints something else than text"))
}

/// Builds what is shipped; the folder with the files.
fn build(profile: &str) -> anyhow::Result<std::path::PathBuf> {
    build_packages(profile, &SHIPPED.map(|(package, _)| package))
}

/// Builds packages for the oldest glibc that we promise, without paths of this machine; the folder with the files.
pub(crate) fn build_packages(profile: &str, packages: &[&str]) -> anyhow::Result<std::path::PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map_or_else(
        || std::env::home_dir().unwrap_or_default().join(".cargo"),
        std::path::PathBuf::from,
    );
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let flags = [remap(workspace_root(), "/divvy"), remap(&home, "/cargo")];
    zig::Build {
        profile,
        packages,
        // A folder of its own: other flags would have everything built twice.
        folder: &workspace_root().join("target/dist/build"),
        variables: &[
            // Its separator cannot be in a path.
            ("CARGO_ENCODED_RUSTFLAGS".to_owned(), flags.join("\u{1f}")),
            (
                format!("CARGO_PROFILE_{}_STRIP", profile.to_uppercase().replace('-', "_")),
                "debuginfo".to_owned(),
            ),
        ],
    }
    .run()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bill of this tree, which needs cargo and no build.
    #[test]
    fn the_bill_names_what_is_locked_and_no_more() {
        let text = bill_of_materials().expect("cargo answers");
        assert_eq!(
            text,
            bill_of_materials().expect("cargo answers"),
            "it is the same each time"
        );
        let bill: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (&bill["bomFormat"], &bill["specVersion"]),
            (&"CycloneDX".into(), &"1.5".into())
        );

        let lock = fs::read_to_string(workspace_root().join("Cargo.lock")).expect("it is committed");
        let components = bill["components"].as_array().expect("a list");
        let (mut ours, mut registry) = (Vec::new(), Vec::new());
        for component in components {
            let word = |key: &str| component[key].as_str().unwrap_or_default();
            if word("name") == "std" {
                continue;
            }
            let head = format!("name = \"{}\"\nversion = \"{}\"\n", word("name"), word("version"));
            let (_, rest) = lock
                .split_once(&head)
                .unwrap_or_else(|| panic!("{head} is locked"));
            let entry = rest.split("\n\n").next().unwrap_or_default();
            if word("purl").is_empty() {
                assert!(!entry.contains("source = "), "{head}");
                ours.push(word("name"));
            } else {
                let checksum = component["hashes"][0]["content"].as_str().expect("a checksum");
                assert!(entry.contains(&format!("checksum = \"{checksum}\"")), "{head}");
                assert_eq!(
                    word("purl"),
                    format!(
                        "pkg:cargo/{}@{}",
                        word("name"),
                        word("version").replace('+', "%2B")
                    )
                );
                assert!(
                    !component["licenses"][0]["expression"]
                        .as_str()
                        .unwrap_or_default()
                        .is_empty()
                );
                registry.push((word("name"), word("scope")));
            }
        }
        for package in ["divvy", "divvy-agent", "divvy-ptx", "limit-cuda", "emulated-nvml"] {
            assert!(ours.contains(&package), "{package} is shipped");
        }
        for linked in ["serde", "libc", "rustix", "axum", "serde-saphyr", "zerocopy"] {
            assert!(registry.contains(&(linked, "required")), "{linked} is linked");
        }
        for built_with in ["serde_derive", "syn", "zerocopy-derive"] {
            assert!(
                registry.contains(&(built_with, "excluded")),
                "{built_with} is built with"
            );
        }
        for dependency in ["proptest", "insta", "loom", "assert_cmd", "cudarc"] {
            assert!(
                registry.iter().all(|(name, _)| *name != dependency),
                "{dependency} is of tests"
            );
        }
        assert!(!ours.contains(&"xtask") && !ours.contains(&"divvy-tests"));
        // Each arrow leads from one of them to another.
        let refs: Vec<_> = components.iter().map(|component| &component["bom-ref"]).collect();
        for arrow in bill["dependencies"].as_array().expect("a list") {
            for to in arrow["dependsOn"].as_array().expect("a list") {
                assert!(refs.contains(&to), "{to}");
            }
        }
    }
}

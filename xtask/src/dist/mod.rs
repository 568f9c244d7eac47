//! `cargo xtask dist`: what a user installs, in target/dist: an archive, packages for Debian, for RPM and for pip, an image, a
//! bill of materials and checksums. divvy_jobs is a package for pip by itself.
//!
//! Everything is built against the oldest glibc that the drop-ins promise. The same sources, compiler and tools give the
//! same archive: no time and no path of this machine gets into it.

pub(crate) mod archive;
mod deb;
mod image;
mod jobs;
mod layout;
mod rpm;
mod sbom;
mod trial;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::cargo::{cargo, finish, workspace_root};
use crate::zig;
use layout::Layout;

/// The packages whose binaries are shipped, and the files that cargo makes of them.
pub(crate) const SHIPPED: [(&str, &str); 13] = [
    ("cudart-12", "libdivvy_cudart_12.so"),
    ("cudart-13", "libdivvy_cudart_13.so"),
    ("divvy", "divvy"),
    ("divvy-guest", "divvy-guest"),
    ("divvy-worker", "divvy-worker"),
    ("emulated-cuda", "libdivvy_emulated_cuda.so"),
    ("emulated-nvml", "libdivvy_emulated_nvml.so"),
    ("limit-cuda", "libdivvy_limit_cuda.so"),
    ("limit-nvml", "libdivvy_limit_nvml.so"),
    ("limit-opencl", "libdivvy_limit_opencl.so"),
    ("remote-cuda", "libdivvy_remote_cuda.so"),
    ("remote-nvml", "libdivvy_remote_nvml.so"),
    ("slurm-options", "libdivvy_slurm_options.so"),
];

/// A kind of package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// An archive that is unpacked anywhere
    Tar,
    /// For Debian and Ubuntu
    Deb,
    /// For Fedora, Rocky, SUSE
    Rpm,
    /// For pip, pipx and uv
    Wheel,
    /// For container engines and Kubernetes
    Image,
    /// Ray, JupyterHub and pytest-xdist, for pip: divvy_jobs
    Jobs,
}

/// Arguments of `cargo xtask dist`.
#[derive(clap::Args)]
pub struct Args {
    /// Cargo profile to build with
    #[arg(long, default_value = "release")]
    profile: String,
    /// Write the bill of materials only; build nothing
    #[arg(long)]
    sbom_only: bool,
    /// Build for this machine's own C library, without debug information: quicker, for a try on this machine
    #[arg(long)]
    native: bool,
    /// Take what is built already, as `cargo xtask test` has it
    #[arg(long, requires = "native")]
    built: bool,
    /// Make these only
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "tar,deb,rpm,wheel,image,jobs"
    )]
    only: Vec<Kind>,
    /// Install each, use it and remove it in a bare root of Debian, and see that nothing is left; as root
    #[arg(long = "try")]
    tries: bool,
    /// Also in a bare root of Debian 13
    #[arg(long, requires = "tries")]
    trixie: bool,
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

    // What is only packed goes when this returns.
    let stage = tempfile::tempdir_in(&out).context("Cannot make a folder to pack in")?;
    let built = match args.native {
        true => layout::stripped(&natively(&args.profile, args.built)?, stage.path())?,
        false => build_packages(&args.profile, &SHIPPED.map(|(package, _)| package))?,
    };
    let layout = Layout::collect(&built, stage.path(), &bill)?;
    let mut packed = Vec::new();
    for kind in &args.only {
        let file = pack(*kind, &out, version, &layout, args.native)?;
        println!(
            "dist: {} ({} KiB)",
            file.display(),
            fs::metadata(&file)?.len() / 1024
        );
        packed.push((*kind, file));
    }
    let mut all: Vec<PathBuf> = packed.iter().map(|(_, file)| file.clone()).collect();
    all.push(bill);
    archive::write_sums(&out, &all)?;
    if !args.tries {
        return Ok(());
    }
    // A later version of the same files, for what an upgrade does.
    let later = match args.only.contains(&Kind::Deb) {
        true => Some(pack(
            Kind::Deb,
            stage.path(),
            &format!("{version}+later"),
            &layout,
            true,
        )?),
        false => None,
    };
    trial::run(&packed, later.as_deref(), args.trixie)
}

/// Makes one package. A native one is for a try: it is packed quickly.
fn pack(kind: Kind, out: &Path, version: &str, layout: &Layout, native: bool) -> anyhow::Result<PathBuf> {
    match kind {
        Kind::Tar => {
            let name = format!("divvy-{version}-{}-linux", std::env::consts::ARCH);
            archive::pack(out, &name, layout.portable(), archive::Effort::of(native))
        }
        Kind::Deb => {
            let compression = if native { "-Znone" } else { "-Zxz" };
            deb::pack(out, version, layout, compression)
        }
        Kind::Rpm => rpm::pack(out, version, layout),
        Kind::Wheel => wheel::pack(out, version, layout, native),
        Kind::Image => image::pack(out, version, layout, archive::Effort::of(native)),
        Kind::Jobs => jobs::pack(out, version),
    }
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
        python: &jobs::Project::read(env!("CARGO_PKG_VERSION"))?,
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

/// Builds for this machine, unless it is `built`; the folder with the files.
pub(crate) fn natively(profile: &str, built: bool) -> anyhow::Result<PathBuf> {
    if !built {
        finish(cargo().args([
            "build",
            "--quiet",
            "--workspace",
            "--lib",
            "--bins",
            "--profile",
            profile,
        ]))?;
    }
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(workspace_root().join("target").join(folder))
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
        let (mut ours, mut registry, mut python) = (Vec::new(), Vec::new(), Vec::new());
        for component in components {
            let word = |key: &str| component[key].as_str().unwrap_or_default();
            if word("name") == "std" {
                continue;
            }
            if word("name") == "divvy_jobs" {
                python.push((word("version"), word("scope")));
                assert_eq!(component["licenses"][0]["expression"], "Apache-2.0");
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
        // It is in no lock of cargo's, and needs no package.
        assert_eq!(python, [(env!("CARGO_PKG_VERSION"), "required")]);
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

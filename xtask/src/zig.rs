//! Building against an old glibc: cargo-zigbuild, with the symbol versions of every glibc that Zig carries.

use std::path::{Path, PathBuf};

use crate::cargo::{cargo, finish, workspace_root};
use crate::python;

/// The oldest glibc that what we ship runs with: the oldest that Rust supports.
pub const FLOOR: (u32, u32) = (2, 17);

/// This machine's target.
pub fn triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// What to build.
pub struct Build<'a> {
    pub profile: &'a str,
    pub packages: &'a [&'a str],
    /// Cargo's target folder.
    pub folder: &'a Path,
    /// Variables for cargo.
    pub variables: &'a [(String, String)],
}

impl Build<'_> {
    /// Builds, and answers the folder with the files.
    pub fn run(&self) -> anyhow::Result<PathBuf> {
        let root = workspace_root();
        let tools = root.join("target/zig");
        python::environment(&tools, &root.join("xtask/src/floor/requirements.txt"))?;
        // Found by the linker wrapper as `python3 -m ziglang`, and by cargo as a subcommand.
        let path = std::env::join_paths([tools.join("bin")].into_iter().chain(std::env::split_paths(
            &std::env::var_os("PATH").unwrap_or_default(),
        )))?;
        finish(
            cargo()
                .env("PATH", path)
                .envs(self.variables.iter().map(|(name, value)| (name, value)))
                .args(["zigbuild", "--quiet", "--locked", "--profile", self.profile])
                .args(self.packages.iter().flat_map(|package| ["--package", package]))
                .arg("--target-dir")
                .arg(self.folder)
                .arg("--target")
                .arg(format!("{}.{}.{}", triple(), FLOOR.0, FLOOR.1)),
        )?;
        let profile = if self.profile == "dev" {
            "debug"
        } else {
            self.profile
        };
        Ok(self.folder.join(triple()).join(profile))
    }
}

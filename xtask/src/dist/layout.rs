//! Which file goes where. Each kind of package has the same files, below `/usr` or wherever it is unpacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::SHIPPED;
use super::archive::Entry;
use crate::cargo::{finish, workspace_root};

/// Texts that come along, as they lie in the repository.
const TEXTS: [&str; 5] = ["CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md", "docs"];

/// The shells with completions: the name, and where its completions lie.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/divvy"),
    ("zsh", "share/zsh/site-functions/_divvy"),
    ("fish", "share/fish/vendor_completions.d/divvy.fish"),
];

/// The units, which a package puts where systemd looks and does not turn on.
const UNITS: [&str; 6] = [
    "divvy-agent.service",
    "divvy-helper.service",
    "divvy-helper.socket",
    "divvy-nri.service",
    "divvy-slice@.service",
    "divvy-vm-restore.service",
];

/// Everything that is built or written for a release.
pub struct Layout {
    /// The programs and libraries.
    pub programs: Vec<Entry>,
    /// Manual pages and completions.
    pub pages: Vec<Entry>,
    /// Documentation.
    pub texts: Vec<Entry>,
    /// What the distributions' packages have beside: units, and the steps of their scripts.
    pub system: Vec<Entry>,
}

impl Layout {
    /// Collects it, and has the built program write its pages and completions into `out`.
    ///
    /// # Errors
    /// The program cannot write them, or a file is missing.
    pub fn collect(built: &Path, out: &Path, bill: &Path) -> anyhow::Result<Self> {
        let root = workspace_root();
        let programs = SHIPPED.map(|(package, file)| {
            let place = if package == "divvy" { "bin" } else { "lib/divvy" };
            Entry::program(format!("{place}/{file}"), built.join(file))
        });
        let mut texts = Vec::new();
        for text in TEXTS {
            texts.extend(Entry::all_below(
                &format!("share/doc/divvy/{text}"),
                &root.join(text),
            )?);
        }
        texts.push(Entry::text(
            "share/doc/divvy/sbom.cdx.json".to_owned(),
            bill.to_owned(),
        ));
        let deploy = root.join("deploy");
        let mut system: Vec<Entry> = UNITS
            .iter()
            .map(|unit| {
                Entry::text(
                    format!("lib/systemd/system/{unit}"),
                    deploy.join("systemd").join(unit),
                )
            })
            .collect();
        system.push(Entry::text(
            "lib/sysusers.d/divvy.conf".to_owned(),
            deploy.join("systemd/sysusers.d/divvy.conf"),
        ));
        system.push(Entry::program(
            "lib/divvy/package-steps".to_owned(),
            deploy.join("packages/steps"),
        ));
        Ok(Self {
            programs: programs.into(),
            pages: pages(&built.join("divvy"), out)?,
            texts,
            system,
        })
    }

    /// The files of the archive that is unpacked anywhere.
    pub fn portable(&self) -> impl Iterator<Item = &Entry> {
        self.programs.iter().chain(&self.pages).chain(&self.texts)
    }

    /// The files of a distribution's package, below `/usr`.
    pub fn installed(&self) -> impl Iterator<Item = &Entry> {
        self.portable().chain(&self.system)
    }
}

fn pages(divvy: &Path, out: &Path) -> anyhow::Result<Vec<Entry>> {
    let man = out.join("man");
    finish(Command::new(divvy).arg("man").arg(&man))?;
    let mut pages = Entry::all_below("share/man/man1", &man)?;
    let folder = out.join("completions");
    fs::create_dir_all(&folder).with_context(|| format!("Cannot make {}", folder.display()))?;
    for (shell, place) in SHELLS {
        let output = Command::new(divvy)
            .args(["completions", shell])
            .output()
            .context("Cannot start divvy")?;
        anyhow::ensure!(output.status.success(), "divvy has no completions for {shell}");
        let file = folder.join(shell);
        fs::write(&file, output.stdout)?;
        pages.push(Entry::text(place.to_owned(), file));
    }
    Ok(pages)
}

/// Copies of programs without what debuggers read: a native build has ten times as much of it as code.
///
/// # Errors
/// A program is missing, or `strip` fails.
pub fn stripped(built: &Path, out: &Path) -> anyhow::Result<PathBuf> {
    let folder = out.join("stripped");
    fs::create_dir_all(&folder).with_context(|| format!("Cannot make {}", folder.display()))?;
    for (_, file) in SHIPPED {
        finish(
            Command::new("strip")
                .args(["--strip-debug", "-o"])
                .arg(folder.join(file))
                .arg(built.join(file)),
        )
        .with_context(|| format!("{file} is to be built first"))?;
    }
    Ok(folder)
}

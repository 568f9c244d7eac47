//! The wheel of divvy_jobs: Ray, JupyterHub, notebooks and pytest-xdist. Pure Python, for every Linux; what it needs of others stands
//! in its extras. `python/pyproject.toml` says all that the wheel says.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use toml::{Table, Value};

use super::wheel;
use crate::cargo::workspace_root;
use crate::python;

/// What pyproject.toml says of the package.
pub struct Project {
    /// As PyPI would name it: `divvy-jobs`.
    pub name: String,
    /// Its version, which is Divvy's.
    pub version: String,
    /// Its licence, in SPDX's words.
    pub license: String,
    metadata: String,
    entry_points: String,
}

impl Project {
    /// Reads it.
    ///
    /// # Errors
    /// A file that is not there, lacks a field, or has a version other than Divvy's.
    pub fn read(version: &str) -> anyhow::Result<Self> {
        let path = workspace_root().join("python/pyproject.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("Cannot read {}", path.display()))?;
        Self::of(&text, version)
    }

    fn of(text: &str, expected: &str) -> anyhow::Result<Self> {
        let all: Table = text.parse().context("pyproject.toml cannot be read")?;
        let project = all
            .get("project")
            .and_then(Value::as_table)
            .context("it has no [project]")?;
        let word = |key: &str| {
            let value = project.get(key).and_then(Value::as_str);
            value
                .with_context(|| format!("pyproject.toml has no {key}"))
                .map(str::to_owned)
        };
        let (name, version) = (word("name")?, word("version")?);
        ensure!(
            version == expected,
            "python/pyproject.toml has version {version}, and Divvy is {expected}"
        );
        // A package that everybody installs needs no other.
        ensure!(
            !project.contains_key("dependencies"),
            "divvy_jobs needs no package but by its extras"
        );
        let license = project.get("license").and_then(|license| license.get("text"));
        let license = license
            .and_then(Value::as_str)
            .context("it has no license")?
            .to_owned();
        let mut metadata = format!(
            "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {}\nLicense: {license}\nRequires-Python: {}\n",
            word("description")?,
            word("requires-python")?
        );
        for (extra, needs) in table(project, "optional-dependencies") {
            metadata.push_str(&format!("Provides-Extra: {extra}\n"));
            for need in needs.as_array().into_iter().flatten().filter_map(Value::as_str) {
                metadata.push_str(&format!("Requires-Dist: {need}; extra == \"{extra}\"\n"));
            }
        }
        let mut entry_points = String::new();
        for (group, entries) in table(project, "entry-points") {
            entry_points.push_str(&format!("[{group}]\n"));
            for (name, place) in entries.as_table().into_iter().flatten() {
                entry_points.push_str(&format!("{name} = {}\n", place.as_str().unwrap_or_default()));
            }
            entry_points.push('\n');
        }
        Ok(Self {
            name,
            version,
            license,
            metadata,
            entry_points,
        })
    }
}

fn table<'a>(project: &'a Table, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    project.get(key).and_then(Value::as_table).into_iter().flatten()
}

/// Writes `out/divvy_jobs-VERSION-py3-none-any.whl`.
///
/// # Errors
/// The packer cannot be installed, or refuses something.
pub fn pack(out: &Path, version: &str) -> anyhow::Result<PathBuf> {
    let root = workspace_root();
    let project = Project::read(version)?;
    let tools = root.join("target/wheel");
    python::environment(&tools, &root.join("xtask/src/dist/requirements.txt"))?;
    let stage = tempfile::tempdir_in(out).context("Cannot make a folder to pack in")?;
    let top = stage.path().join(format!("divvy_jobs-{version}"));
    let about = top.join(format!("divvy_jobs-{version}.dist-info"));
    fs::create_dir_all(&about)?;
    copy(&root.join("python/divvy_jobs"), &top.join("divvy_jobs"))?;
    fs::write(about.join("METADATA"), &project.metadata)?;
    fs::write(about.join("entry_points.txt"), &project.entry_points)?;
    fs::copy(root.join("LICENSE"), about.join("LICENSE"))?;
    fs::write(
        about.join("WHEEL"),
        "Wheel-Version: 1.0\nGenerator: cargo xtask dist\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    )?;
    wheel::zipped(
        &tools,
        &top,
        out,
        &format!("divvy_jobs-{version}-py3-none-any.whl"),
    )
}

/// The modules, without what Python left beside them.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("Cannot read {}", from.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "__pycache__" {
            copy(&path, &to.join(name))?;
        } else if path.extension().is_some_and(|ending| ending == "py") || name == "py.typed" {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wheel_says_what_the_project_says() {
        let project = Project::read(env!("CARGO_PKG_VERSION")).expect("it is read");
        for line in [
            "Name: divvy-jobs\n",
            "Requires-Dist: ray>=2.38; extra == \"ray\"\n",
            "Provides-Extra: jupyterhub\n",
        ] {
            assert!(project.metadata.contains(line), "{}", project.metadata);
        }
        assert!(
            project
                .entry_points
                .contains("[pytest11]\ndivvy = divvy_jobs.pytest_plugin\n"),
            "{}",
            project.entry_points
        );
        let text = "[project]\nname = \"a\"\nversion = \"1\"\ndescription = \"b\"\nrequires-python = \">=3.9\"\nlicense = { text = \"MIT\" }\n";
        Project::of(text, "1").expect("sound");
        assert!(
            Project::of(text, "2")
                .err()
                .expect("another version")
                .to_string()
                .contains("Divvy is 2")
        );
        let needs = format!("{text}dependencies = [\"requests\"]\n");
        assert!(Project::of(&needs, "1").is_err(), "it needs a package");
    }

    #[test]
    fn every_module_is_copied_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let from = folder.path().join("from");
        for name in ["a.py", "py.typed", "ray/b.py", "__pycache__/a.pyc", "notes.txt"] {
            let path = from.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, "").expect("written");
        }
        let to = folder.path().join("to");
        copy(&from, &to).expect("copied");
        let there = |name: &str| to.join(name).exists();
        assert!(there("a.py") && there("py.typed") && there("ray/b.py"));
        assert!(!there("__pycache__") && !there("notes.txt"));
    }
}

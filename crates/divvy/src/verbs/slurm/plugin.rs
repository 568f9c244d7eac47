//! The SPANK plugin of a node, which makes `srun --divvy-memory` and `--divvy-compute` known: its file with the version of
//! the node's Slurm in it, and the line that has Slurm load it.

use std::path::{Path, PathBuf};

use divvy_agent::DropIns;
use divvy_jobs::configuration::Finding;
use divvy_jobs::{has_whole_blocks, plugin, undo, with_plugin};
use divvy_model::{Code, Fault, spank};

use super::{controller, files};

/// Where it lies.
pub struct Plugin {
    file: PathBuf,
    list: PathBuf,
    slurm: PathBuf,
}

impl Plugin {
    /// `slurm` is slurm.conf, `text` what it says, and `programs` the folder of Divvy's programs.
    pub fn new(slurm: &Path, text: &str, programs: &Path) -> Self {
        let list = plugin::list_of(text).map(PathBuf::from);
        Self {
            file: programs.join("options.so"),
            list: list.unwrap_or_else(|| slurm.with_file_name("plugstack.conf")),
            slurm: slurm.into(),
        }
    }

    fn path(&self) -> String {
        self.file.display().to_string()
    }

    /// What keeps the options from being known.
    ///
    /// # Errors
    /// A list of plugins that cannot be read.
    pub fn check(&self) -> Result<Vec<Finding>, Fault> {
        let list = files::text(&self.list, false)?;
        let file = std::fs::read(&self.file).unwrap_or_default();
        let slurm = controller::version(&self.slurm);
        Ok(plugin::check(
            &list,
            &self.path(),
            plugin::version_in(&file),
            slurm,
        ))
    }

    /// What is put in place, for people.
    pub fn show(&self) -> String {
        format!("# {}\n{}\n", self.list.display(), plugin::line(&self.path()))
    }

    /// Writes the file for this node's Slurm, and the line.
    ///
    /// # Errors
    /// A plugin that is not installed, a Slurm that does not tell its version, and files that cannot be written.
    pub fn put(&self) -> Result<(), Fault> {
        let from = DropIns::library(spank::FILE)?;
        let cannot = |words: &str| Fault::new(Code::DropIn, format!("`{}` {words}", from.display()));
        let bytes = std::fs::read(&from).map_err(|error| cannot("cannot be read").because(&error))?;
        let version = controller::version(&self.slurm).ok_or_else(|| {
            Fault::new(Code::Config, "Slurm does not tell its version here")
                .hint("`slurmd -V` or `sinfo -V` has to print it; install one of them")
        })?;
        let own =
            plugin::with_version(&bytes, version).ok_or_else(|| cannot("is not Divvy's SPANK plugin"))?;
        files::write(&self.file, &own, 0o755)?;
        let list = files::text(&self.list, false)?;
        let with = with_plugin(&list, &self.path());
        match with == list {
            true => Ok(()),
            false => files::rewrite(&self.list, &with),
        }
    }

    /// Removes both.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn take_away(&self) -> Result<(), Fault> {
        let list = files::text(&self.list, false)?;
        let without = undo(&list);
        if without.is_empty() && !list.is_empty() {
            files::remove(&self.list)?;
        } else if without != list {
            files::rewrite(&self.list, &without)?;
        }
        files::remove(&self.file)
    }

    /// The list, where its lines of Divvy's can be taken out.
    ///
    /// # Errors
    /// Another user's link, and a file that cannot be read.
    pub fn list(&self) -> Result<(&Path, bool), Fault> {
        files::place(&self.list)?;
        Ok((&self.list, has_whole_blocks(&files::text(&self.list, false)?)))
    }
}

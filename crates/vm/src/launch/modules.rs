//! The kernel's modules that a machine needs, in the order in which they are loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};

use super::plain;
use crate::driver::fits;
use crate::function::Function;

/// What a machine needs to see its disk.
pub const DISK: [&str; 2] = ["virtio_pci", "virtio_blk"];
/// The file systems that a disk may have, as far as the kernel has them, and the sums that they compute.
pub const FILE_SYSTEMS: [&str; 6] = ["crc32c_generic", "ext4", "xfs", "btrfs", "squashfs", "erofs"];

/// No list of modules is longer.
const LONGEST: u64 = 1 << 24;

/// A kernel's modules: the folder `/lib/modules/RELEASE`.
#[derive(Debug)]
pub struct Modules {
    folder: PathBuf,
    /// For each name, the file and the files that it needs.
    known: BTreeMap<String, (String, Vec<String>)>,
    /// Names that are part of the kernel itself.
    built_in: BTreeSet<String>,
}

/// `kernel/drivers/vfio/vfio-pci.ko.xz` is `vfio_pci`.
fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
}

/// Whether a file is compressed: then the kernel is told so.
#[must_use]
pub fn is_compressed(path: &Path) -> bool {
    path.extension().is_none_or(|extension| extension != "ko")
}

impl Modules {
    /// Reads a folder's list.
    ///
    /// # Errors
    /// [`Code::VmHost`] where there is none.
    pub fn read(folder: &Path) -> Result<Self, Fault> {
        let text = |file: &str| -> std::io::Result<String> {
            let bytes = plain(&folder.join(file), LONGEST)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let list = text("modules.dep").map_err(|error| {
            Fault::new(
                Code::VmHost,
                format!("`{}` has no list of modules", folder.display()),
            )
            .because(&error)
            .hint("--modules names the folder of the kernel's modules, as /lib/modules/6.1.0-50-amd64")
        })?;
        let mut known = BTreeMap::new();
        for (file, needs) in list.lines().filter_map(|line| line.split_once(':')) {
            let needs = needs.split_whitespace().map(str::to_owned).collect();
            known.insert(name(file), (file.to_owned(), needs));
        }
        let built_in = text("modules.builtin").unwrap_or_default();
        Ok(Self {
            folder: folder.to_path_buf(),
            known,
            built_in: built_in.lines().map(name).collect(),
        })
    }

    /// Whether the kernel has a module of this name, or has it built in.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.known.contains_key(name) || self.built_in.contains(name)
    }

    /// The modules whose drivers want a function. Where NVIDIA's own is there, nouveau is left out.
    #[must_use]
    pub fn of(&self, function: &Function) -> Vec<String> {
        let Some(alias) = function.modalias.as_deref() else {
            return Vec::new();
        };
        let bytes = plain(&self.folder.join("modules.alias"), LONGEST).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let mut found: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("alias ")?.split_once(' '))
            .filter(|(pattern, _)| pattern.starts_with("pci:") && fits(pattern, alias))
            .map(|(_, module)| module.trim().replace('-', "_"))
            .collect();
        found.sort();
        found.dedup();
        if found.iter().any(|module| module == "nvidia") {
            found.retain(|module| module != "nouveau" && module != "nvidiafb");
            found.push("nvidia_uvm".to_owned());
        }
        found.retain(|module| self.known.contains_key(module));
        found
    }

    /// The files of these modules and of all that they need, each after what it needs.
    ///
    /// # Errors
    /// [`Code::VmHost`] for a name that is no module of this kernel.
    pub fn files(&self, names: &[String]) -> Result<Vec<PathBuf>, Fault> {
        let mut files: Vec<String> = Vec::new();
        for wanted in names {
            let wanted = wanted.replace('-', "_");
            if self.built_in.contains(&wanted) {
                continue;
            }
            let Some((file, needs)) = self.known.get(&wanted) else {
                return Err(Fault::new(
                    Code::VmHost,
                    format!("the kernel has no module `{}`", wanted.escape_debug()),
                )
                .hint(format!("`ls -R {}` lists them", self.folder.display())));
            };
            // The kernel's list has them in the order of need, the last one first.
            for file in needs.iter().rev().chain([file]) {
                if !files.contains(file) {
                    files.push(file.clone());
                }
            }
        }
        // A name of the list leads nowhere but into the folder.
        files.retain(|file| !file.split('/').any(|part| part == ".."));
        Ok(files
            .iter()
            .map(|file| self.folder.join(file.trim_start_matches('/')))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_a_module_needs_comes_before_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).expect("written");
        assert!(Modules::read(folder.path()).is_err(), "there is no list yet");
        write(
            "modules.dep",
            "kernel/a.ko.xz: kernel/b-x.ko kernel/c.ko\nkernel/b-x.ko: kernel/c.ko\nkernel/c.ko:\n\
             updates/dkms/nvidia.ko:\nupdates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko\nkernel/nouveau.ko:\n",
        );
        write("modules.builtin", "kernel/fs/ext4/ext4.ko\n");
        write(
            "modules.alias",
            "alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia\nalias pci:v000010DEd*sv*sd*bc03sc*i* nouveau\nalias pci:v* none\n",
        );
        let modules = Modules::read(folder.path()).expect("a list");
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let files = modules.files(&names)?;
            let name = |file: &PathBuf| file.file_name().expect("a name").to_string_lossy().into_owned();
            Ok::<Vec<String>, Fault>(files.iter().map(name).collect())
        };
        assert_eq!(
            names(&["b_x", "a", "ext4"]).expect("known"),
            ["c.ko", "b-x.ko", "a.ko.xz"]
        );
        names(&["d"]).expect_err("there is none");
        assert!(modules.has("b_x") && modules.has("ext4") && !modules.has("d"));
        let gpu = Function {
            modalias: Some("pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00".into()),
            ..Function::default()
        };
        assert_eq!(modules.of(&gpu), ["nvidia", "nvidia_uvm"]);
        assert!(is_compressed(Path::new("a.ko.zst")) && !is_compressed(Path::new("a.ko")));
    }
}

//! Which files would be written, and which commands follow.

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};
use serde::Serialize;

use super::edit;
use crate::distribution::Family;
use crate::function::{Function, Kind};

/// A file that would be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Its path below the root, without the first slash.
    pub path: String,
    /// What is in it now; None where there is none.
    pub before: Option<String>,
    /// What would be in it.
    pub after: String,
}

/// A command that follows, and the one that undoes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Command {
    /// Its words, the program first.
    pub words: Vec<String>,
    /// The words that undo it.
    pub undo: Vec<String>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// How the machine is configured to start.
    pub family: Family,
    /// The files, in order.
    pub changes: Vec<Change>,
    /// The commands behind them, in order.
    pub commands: Vec<Command>,
}

/// The name of files of our own.
const OWN: &str = "divvy-passthrough";
/// The drivers that may take a GPU or its sound before VFIO is there.
const DRIVERS: [&str; 4] = ["nvidia", "nouveau", "amdgpu", "snd_hda_intel"];

impl Plan {
    /// Plans for a machine. `blacklist` keeps the drivers of its GPUs from being loaded at all.
    ///
    /// # Errors
    /// [`Code::VmHost`] for a distribution that is not known, or a file that a person has to change.
    pub fn make(root: &Sysroot, blacklist: bool) -> Result<Self, Fault> {
        let family = Family::of(root);
        let arguments = arguments(root);
        let mut plan = Self {
            family,
            changes: Vec::new(),
            commands: Vec::new(),
        };
        match family {
            Family::Debian => {
                // A file of our own: /etc/default/grub may have been edited.
                let text = format!(
                    "# Written by `divvy vm prepare`.\nGRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT {}\"\n",
                    arguments.join(" ")
                );
                plan.file(root, &format!("etc/default/grub.d/{OWN}.cfg"), |_| Some(text))?;
                plan.file(root, "etc/initramfs-tools/modules", |old| {
                    Some(edit::list(old, "vfio-pci"))
                })?;
            }
            Family::Suse | Family::Arch => {
                plan.file(root, "etc/default/grub", |old| {
                    edit::grub(old, "GRUB_CMDLINE_LINUX_DEFAULT", &arguments)
                })?;
            }
            Family::SystemdBoot => plan.systemd_boot(root, &arguments)?,
            Family::RedHat | Family::Ostree => {}
            Family::Unknown => {
                return Err(Fault::new(Code::VmHost, "this distribution is not known").hint(format!(
                    "add `{}` to the kernel's command line, vfio-pci to the modules that are loaded at the start, and start \
                     again",
                    arguments.join(" ")
                )));
            }
        }
        match family {
            Family::RedHat | Family::Suse => {
                let text = "add_drivers+=\" vfio vfio_iommu_type1 vfio_pci \"\n".to_owned();
                plan.file(root, &format!("etc/dracut.conf.d/{OWN}.conf"), |_| Some(text))?;
            }
            Family::Arch => {
                let text = "MODULES+=(vfio_pci vfio vfio_iommu_type1)\n".to_owned();
                plan.file(root, &format!("etc/mkinitcpio.conf.d/{OWN}.conf"), |_| Some(text))?;
            }
            _ => {}
        }
        plan.file(root, &format!("etc/modules-load.d/{OWN}.conf"), |_| {
            Some("vfio-pci\n".into())
        })?;
        let options = module_options(root, blacklist);
        plan.file(root, &format!("etc/modprobe.d/{OWN}.conf"), |_| Some(options))?;
        plan.follow(root, &arguments);
        Ok(plan)
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.commands.is_empty()
    }

    pub(super) fn file(
        &mut self,
        root: &Sysroot,
        path: &str,
        change: impl FnOnce(&str) -> Option<String>,
    ) -> Result<(), Fault> {
        let before = root
            .whole(path)
            .map_err(|error| Fault::new(Code::VmHost, format!("/{path} cannot be read")).because(&error))?;
        let after = change(before.as_deref().unwrap_or_default()).ok_or_else(|| {
            Fault::new(
                Code::VmHost,
                format!("/{path} was edited in a way that only a person should change"),
            )
            .hint("add the kernel's arguments there by hand; `divvy vm doctor` says which are lacking")
        })?;
        if before.as_deref() != Some(after.as_str()) {
            self.changes.push(Change {
                path: path.to_owned(),
                before,
                after,
            });
        }
        Ok(())
    }

    fn systemd_boot(&mut self, root: &Sysroot, arguments: &[String]) -> Result<(), Fault> {
        if root.has("etc/kernel/cmdline") {
            return self.file(root, "etc/kernel/cmdline", |old| Some(edit::line(old, arguments)));
        }
        for folder in ["boot/loader/entries", "efi/loader/entries"] {
            for name in root.names(folder) {
                if name.ends_with(".conf") {
                    self.file(root, &format!("{folder}/{name}"), |old| {
                        Some(edit::entry(old, arguments))
                    })?;
                }
            }
        }
        Ok(())
    }

    fn follow(&mut self, root: &Sysroot, arguments: &[String]) {
        let changed = !self.changes.is_empty();
        let same = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            Command {
                undo: words.clone(),
                words,
            }
        };
        let asked = |given: &str| edit::lacking(given, arguments);
        let commands = match self.family {
            Family::Debian => vec![same("update-grub"), same("update-initramfs -u")],
            Family::Suse => vec![same("grub2-mkconfig -o /boot/grub2/grub.cfg"), same("dracut -f")],
            Family::Arch => vec![
                same("grub-mkconfig -o /boot/grub/grub.cfg"),
                same("mkinitcpio -P"),
            ],
            Family::SystemdBoot if root.has("etc/kernel/cmdline") => vec![same("kernel-install add-all")],
            Family::SystemdBoot | Family::Unknown => Vec::new(),
            Family::RedHat => {
                let mut commands = Vec::new();
                let lacking = asked(&entries(root));
                if !lacking.is_empty() {
                    let list = lacking.join(" ");
                    commands.push(Command {
                        words: vec![
                            "grubby".into(),
                            "--update-kernel=ALL".into(),
                            format!("--args={list}"),
                        ],
                        undo: vec![
                            "grubby".into(),
                            "--update-kernel=ALL".into(),
                            format!("--remove-args={list}"),
                        ],
                    });
                }
                if changed {
                    commands.push(same("dracut -f"));
                }
                self.commands.extend(commands);
                return;
            }
            Family::Ostree => {
                let lacking = asked(&entries(root));
                let each = |flag: &str| {
                    let mut words = vec!["rpm-ostree".to_owned(), "kargs".to_owned()];
                    words.extend(lacking.iter().map(|word| format!("--{flag}={word}")));
                    words
                };
                if !lacking.is_empty() {
                    self.commands.push(Command {
                        words: each("append-if-missing"),
                        undo: each("delete-if-present"),
                    });
                }
                return;
            }
        };
        if changed {
            self.commands.extend(commands);
        }
    }

    /// For people: each file's new lines, and the commands.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("# {}\n", self.family.name());
        for change in &self.changes {
            let verb = if change.before.is_some() {
                "change"
            } else {
                "write"
            };
            text.push_str(&format!("{verb} /{}\n", change.path));
            let old: Vec<&str> = change.before.as_deref().unwrap_or_default().lines().collect();
            let new: Vec<&str> = change.after.lines().collect();
            for line in old.iter().filter(|line| !new.contains(line)) {
                text.push_str(&format!("  - {line}\n"));
            }
            for line in new.iter().filter(|line| !old.contains(line)) {
                text.push_str(&format!("  + {line}\n"));
            }
        }
        for command in &self.commands {
            text.push_str(&format!(
                "run {}\n",
                crate::output::qemu::line(&command.words)
                    .replace(" \\\n  ", " ")
                    .trim_end()
            ));
        }
        match self.is_empty() {
            true => text.push_str("nothing to change\n"),
            false => text.push_str("then start the machine again\n"),
        }
        text
    }
}

/// The kernel's arguments that this machine needs.
fn arguments(root: &Sysroot) -> Vec<String> {
    let intel = root
        .text("proc/cpuinfo")
        .is_some_and(|text| text.contains("GenuineIntel"));
    let mut arguments = Vec::new();
    if intel {
        arguments.push("intel_iommu=on".to_owned());
    }
    arguments.push("iommu=pt".to_owned());
    arguments
}

/// What the loader's entries, or else the running kernel, were given.
fn entries(root: &Sysroot) -> String {
    let folder = "boot/loader/entries";
    let names = root.names(folder);
    let options: Vec<String> = names
        .iter()
        .filter_map(|name| root.text(&format!("{folder}/{name}")))
        .filter_map(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("options").map(str::to_owned))
        })
        .collect();
    // All entries have to have them: the words that each has.
    match options.split_first() {
        None => root.text("proc/cmdline").unwrap_or_default(),
        Some((first, rest)) => {
            let in_all = |word: &&str| {
                rest.iter()
                    .all(|line| line.split_whitespace().any(|known| known == *word))
            };
            first
                .split_whitespace()
                .filter(in_all)
                .collect::<Vec<_>>()
                .join(" ")
        }
    }
}

fn module_options(root: &Sysroot, blacklist: bool) -> String {
    let mut text = String::from("# Written by `divvy vm prepare`.\n");
    for driver in DRIVERS {
        text.push_str(&format!("softdep {driver} pre: vfio-pci\n"));
    }
    if blacklist {
        let vendors: Vec<u16> = Function::all(root)
            .iter()
            .filter(|function| function.kind() == Kind::Gpu)
            .map(|function| function.vendor)
            .collect();
        for (driver, vendor) in [
            ("nouveau", 0x10de),
            ("nvidia", 0x10de),
            ("amdgpu", 0x1002),
            ("radeon", 0x1002),
        ] {
            if vendors.contains(&vendor) {
                text.push_str(&format!("blacklist {driver}\n"));
            }
        }
    }
    text
}

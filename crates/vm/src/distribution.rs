//! Which distribution a machine runs, as far as boot configuration differs.

use divvy_host::machine::Sysroot;
use serde::Serialize;

/// How a machine's kernel gets its arguments, and its initramfs its modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Debian, Ubuntu: /etc/default/grub, update-grub, update-initramfs.
    Debian,
    /// RHEL, Fedora, Anolis, Loongnix, openEuler: grubby, dracut.
    RedHat,
    /// SUSE: /etc/default/grub, grub2-mkconfig, dracut.
    Suse,
    /// Arch: /etc/default/grub, grub-mkconfig, mkinitcpio.
    Arch,
    /// systemd-boot: /etc/kernel/cmdline or the loader's entries.
    SystemdBoot,
    /// Fedora CoreOS, Silverblue: rpm-ostree.
    Ostree,
    /// None of these.
    Unknown,
}

impl Family {
    /// Looks at a machine.
    #[must_use]
    pub fn of(root: &Sysroot) -> Self {
        if root.has("run/ostree-booted") || root.has("ostree/repo") {
            return Self::Ostree;
        }
        let release = root
            .text("etc/os-release")
            .or_else(|| root.text("usr/lib/os-release"))
            .unwrap_or_default();
        let value = |key: &str| {
            let mut lines = release.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
            Some(value.trim_matches(['"', '\'']).to_ascii_lowercase())
        };
        let has_grub = root.has("etc/default/grub");
        let has_entries = root.has("boot/loader/entries") || root.has("efi/loader/entries");
        let mut names: Vec<String> = value("ID").into_iter().collect();
        names.extend(
            value("ID_LIKE")
                .unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned),
        );
        let family = names.iter().find_map(|name| match name.as_str() {
            "debian" | "ubuntu" => Some(Self::Debian),
            "rhel" | "fedora" | "centos" | "anolis" | "loongnix" | "openeuler" | "kylin" | "rocky"
            | "almalinux" => Some(Self::RedHat),
            name if name.contains("suse") => Some(Self::Suse),
            "arch" | "archlinux" => Some(Self::Arch),
            _ => None,
        });
        // grubby writes loader entries too, so those alone say little.
        match family {
            Some(Self::RedHat) => Self::RedHat,
            _ if has_entries && !has_grub => Self::SystemdBoot,
            Some(family) => family,
            None => Self::Unknown,
        }
    }

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Debian => "Debian or Ubuntu",
            Self::RedHat => "RHEL or Fedora",
            Self::Suse => "SUSE",
            Self::Arch => "Arch",
            Self::SystemdBoot => "systemd-boot",
            Self::Ostree => "ostree",
            Self::Unknown => "an unknown distribution",
        }
    }

    /// The commands that add arguments to the kernel's command line, for a line of a shell.
    #[must_use]
    pub fn add_arguments(self, arguments: &str) -> String {
        let by_grub = |command: &str| {
            format!(
                "add `{arguments}` to GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, then `{command}`, and start again"
            )
        };
        match self {
            Self::Debian => by_grub("update-grub"),
            Self::Suse => by_grub("grub2-mkconfig -o /boot/grub2/grub.cfg"),
            Self::Arch => by_grub("grub-mkconfig -o /boot/grub/grub.cfg"),
            Self::RedHat => {
                format!("grubby --update-kernel=ALL --args=\"{arguments}\", and start again")
            }
            Self::SystemdBoot => format!(
                "add `{arguments}` to /etc/kernel/cmdline, then `kernel-install add-all` (or to the options of the loader's \
                 entry), and start again"
            ),
            Self::Ostree => {
                let each: Vec<String> = arguments
                    .split(' ')
                    .map(|argument| format!("--append-if-missing={argument}"))
                    .collect();
                format!("rpm-ostree kargs {}, and start again", each.join(" "))
            }
            Self::Unknown => format!("add `{arguments}` to the kernel's command line, and start again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_host::built::Built;

    #[test]
    fn each_kind_is_told_from_the_others() {
        for (release, files, family) in [
            ("ID=debian\n", &["etc/default/grub"][..], Family::Debian),
            (
                "ID=ubuntu\nID_LIKE=debian\n",
                &["etc/default/grub"],
                Family::Debian,
            ),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
                &["boot/loader/entries/a.conf"],
                Family::RedHat,
            ),
            (
                "ID=\"anolis\"\nID_LIKE=\"rhel fedora centos\"\n",
                &["etc/default/grub"],
                Family::RedHat,
            ),
            (
                "ID=loongnix-server\nID_LIKE=\"rhel fedora\"\n",
                &["etc/default/grub"],
                Family::RedHat,
            ),
            ("ID=arch\n", &["etc/default/grub"], Family::Arch),
            (
                "ID=arch\n",
                &["boot/loader/entries/arch.conf"],
                Family::SystemdBoot,
            ),
            (
                "ID=opensuse-leap\nID_LIKE=\"suse opensuse\"\n",
                &["etc/default/grub"],
                Family::Suse,
            ),
            ("ID=fedora\n", &["run/ostree-booted"], Family::Ostree),
            ("ID=nixos\n", &[], Family::Unknown),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let built = Built::at(folder.path());
            built.file("etc/os-release", release);
            for file in files {
                built.file(file, "");
            }
            assert_eq!(Family::of(&Sysroot::at(folder.path())), family, "{release}");
        }
    }
}

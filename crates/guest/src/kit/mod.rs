//! What a guest needs: the drop-in, the broker, its unit, and where the loader finds the drop-in. As a tarball and as a
//! package for Debian and its kin. The same files give the same bytes.

pub mod deb;
pub mod gzip;
pub mod sha256;
pub mod tar;

use tar::{Entry, Kind};

/// The folder of the libraries and the broker in a guest.
const HOME: &str = "usr/lib/divvy";

/// The broker's unit.
pub const UNIT: &str = "\
[Unit]
Description=Divvy: devices of this machine's host for its programs
Documentation=https://github.com/divvy-gpu/divvy

[Service]
ExecStart=/usr/lib/divvy/divvy-guest
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
";

/// What cloud-init does with the package of this name and this SHA-256, which lies where the guest can fetch it. dpkg is
/// Debian's: a machine of another family takes the tarball.
#[must_use]
pub fn cloud_init(package: &str, sum: &str) -> String {
    format!(
        "\
#cloud-config
# For Debian, Ubuntu and their kin: dpkg is theirs. The README has the commands for other systems.
# Put {package} where the machine can fetch it, and its address in the place of the one below.
# A package with another sum is not installed.
runcmd:
  - >-
    curl --fail --silent --show-error --output /var/tmp/{package} http://host.example/{package}
    && echo '{sum}  /var/tmp/{package}' | sha256sum --check
    && dpkg --install /var/tmp/{package}
"
    )
}

/// How the tarball of this name is installed. The folders that a machine has keep their owner and their mode.
fn readme(name: &str) -> String {
    format!(
        "\
Divvy's kit for a virtual machine: its programs use a device of the host's.

Debian, Ubuntu and their kin: dpkg --install the package beside this tarball.
Elsewhere, as root, where the tarball lies:

    tar -C / --no-same-owner --no-overwrite-dir --strip-components=1 -xzf {name}.tar.gz {name}/usr {name}/etc
    ldconfig
    systemctl enable --now divvy-guest.service

The machine needs the arguments that `divvy guest run` on its host prints, and glibc of the version that Divvy's
drop-ins need. cloud-init.yaml installs the package at a machine's first start, where dpkg is.
"
    )
}

/// Run when the package has been unpacked.
const AFTER: &str = "\
#!/bin/sh
set -e
ldconfig
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl enable divvy-guest.service
    systemctl restart divvy-guest.service
fi
";

/// Run before the package is removed.
const BEFORE_REMOVAL: &str = "\
#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now divvy-guest.service
fi
";

/// The two programs of the kit, as they were built.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The libcuda.so.1 of programs without a device.
    pub library: &'a [u8],
    /// The broker.
    pub broker: &'a [u8],
    /// Divvy's version.
    pub version: &'a str,
    /// Debian's name of the processors: `amd64`.
    pub architecture: &'a str,
}

impl Parts<'_> {
    /// The files of a guest.
    fn files(&self) -> Vec<Entry<'_>> {
        let file = |path: String, bytes, mode| Entry {
            path,
            kind: Kind::File { bytes, mode },
        };
        vec![
            file(
                "etc/ld.so.conf.d/00-divvy-guest.conf".to_owned(),
                b"/usr/lib/divvy\n",
                0o644,
            ),
            file(format!("{HOME}/divvy-guest"), self.broker, 0o755),
            file(format!("{HOME}/libcuda.so.1"), self.library, 0o644),
            Entry {
                path: format!("{HOME}/libcuda.so"),
                kind: Kind::Link("libcuda.so.1"),
            },
            file(
                "usr/lib/systemd/system/divvy-guest.service".to_owned(),
                UNIT.as_bytes(),
                0o644,
            ),
        ]
    }

    /// The name of the tarball, without its ending, which is that of its one folder.
    #[must_use]
    pub fn name(&self) -> String {
        format!("divvy-guest-{}-{}", self.version, self.architecture)
    }

    /// The name of the package's file.
    #[must_use]
    pub fn package(&self) -> String {
        format!("divvy-guest_{}_{}.deb", self.version, self.architecture)
    }

    /// The tarball.
    #[must_use]
    pub fn tarball(&self) -> Vec<u8> {
        let cloud_init = cloud_init(&self.package(), &sha256::sum(&self.deb()));
        let readme = readme(&self.name());
        let mut entries = self.files();
        for (name, text) in [("README", &readme), ("cloud-init.yaml", &cloud_init)] {
            entries.push(Entry {
                path: name.to_owned(),
                kind: Kind::File {
                    bytes: text.as_bytes(),
                    mode: 0o644,
                },
            });
        }
        gzip::pack(&tar::pack(&format!("{}/", self.name()), &entries))
    }

    /// The package.
    #[must_use]
    pub fn deb(&self) -> Vec<u8> {
        let bytes = (self.library.len() + self.broker.len()).div_ceil(1024);
        let control = format!(
            "Package: divvy-guest\nVersion: {}\nArchitecture: {}\nMaintainer: Divvy <divvy@localhost>\n\
             Installed-Size: {bytes}\nDepends: libc6\nSection: admin\nPriority: optional\n\
             Description: devices of a virtual machine's host for its programs\n \
             A libcuda.so.1 for programs of a machine without a device, and the service\n \
             that connects them with workers on the host.\n",
            self.version, self.architecture
        );
        deb::pack(
            &[
                ("control", control.as_bytes(), 0o644),
                ("postinst", AFTER.as_bytes(), 0o755),
                ("prerm", BEFORE_REMOVAL.as_bytes(), 0o755),
            ],
            &self.files(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn printed(command: &mut Command) -> Option<String> {
        let output = command.output().ok()?;
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Some(String::from_utf8(output.stdout).expect("text"))
    }

    /// tar and dpkg-deb read what is packed here without them.
    #[test]
    fn the_tools_of_others_unpack_it() {
        let library = vec![7; 200_001];
        let parts = Parts {
            library: &library,
            broker: b"broker",
            version: "1.2.3",
            architecture: "amd64",
        };
        let folder = tempfile::tempdir().expect("a folder");
        let tarball = folder.path().join("kit.tar.gz");
        std::fs::write(&tarball, parts.tarball()).expect("written");
        printed(Command::new("tar").current_dir(&folder).arg("-xzf").arg(&tarball)).expect("tar");
        let top = folder.path().join("divvy-guest-1.2.3-amd64");
        assert_eq!(
            std::fs::read(top.join("usr/lib/divvy/libcuda.so")).expect("by the link"),
            library
        );
        let mode = std::os::unix::fs::MetadataExt::mode(
            &std::fs::metadata(top.join("usr/lib/divvy/divvy-guest")).expect("the broker"),
        );
        assert_eq!(mode & 0o7777, 0o755);
        let package = folder.path().join(parts.package());
        std::fs::write(&package, parts.deb()).expect("written");
        // A machine of another family has no dpkg.
        let Some(shown) = printed(Command::new("dpkg-deb").arg("--contents").arg(&package)) else {
            return;
        };
        for line in [
            "./usr/lib/divvy/libcuda.so.1",
            "./usr/lib/divvy/libcuda.so -> libcuda.so.1",
            "./usr/lib/systemd/system/divvy-guest.service",
        ] {
            assert!(
                shown.lines().any(|shown| shown.ends_with(line)),
                "{line}: {shown}"
            );
        }
        let field = printed(
            Command::new("dpkg-deb")
                .arg("--field")
                .arg(&package)
                .arg("Version"),
        );
        assert_eq!(field.as_deref(), Some("1.2.3\n"));
        let scripts = printed(Command::new("dpkg-deb").arg("--info").arg(&package)).expect("dpkg-deb");
        assert!(
            scripts.contains("postinst") && scripts.contains("prerm"),
            "{scripts}"
        );
    }
    /// As the README says, but below another root. A folder that is there stays as it is, though the tarball has another
    /// mode for it.
    #[test]
    fn the_readmes_command_leaves_the_machines_folders_as_they_are() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let parts = Parts {
            library: b"library",
            broker: b"broker",
            version: "1.2.3",
            architecture: "amd64",
        };
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        for (place, mode) in [("usr/lib", 0o751), ("etc/ld.so.conf.d", 0o711)] {
            std::fs::create_dir_all(root.join(place)).expect("made");
            std::fs::set_permissions(root.join(place), PermissionsExt::from_mode(mode)).expect("a mode");
        }
        std::fs::write(
            folder.path().join(format!("{}.tar.gz", parts.name())),
            parts.tarball(),
        )
        .expect("written");
        let readme = readme(&parts.name());
        let command = readme
            .lines()
            .find_map(|line| line.trim().strip_prefix("tar -C / "));
        printed(
            Command::new("tar")
                .current_dir(&folder)
                .args(["-C", "root"])
                .args(command.expect("the command").split(' ')),
        )
        .expect("tar");
        let mode = |place: &str| std::fs::metadata(root.join(place)).expect("it is there").mode() & 0o7777;
        assert_eq!(mode("usr/lib"), 0o751);
        assert_eq!(mode("etc/ld.so.conf.d"), 0o711);
        assert_eq!(mode("usr/lib/divvy/divvy-guest"), 0o755);
        assert_eq!(
            std::fs::read(root.join("usr/lib/divvy/libcuda.so")).expect("by the link"),
            b"library"
        );
        assert!(!root.join("README").exists());
    }
}

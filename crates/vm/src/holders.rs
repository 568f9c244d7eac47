//! Who uses the functions of a group: processes, mounted disks, network links that are up, virtual functions.
//!
//! A driver is not taken off a device in use: NVIDIA's waits until the last program has ended, the kernel's sound drivers
//! too, and a disk's file system is lost. Only root sees the open files of other users.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use divvy_host::machine::Sysroot;
use serde::Serialize;

use crate::function::{DEVICES, Function, Kind};

/// What uses a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Holder {
    /// A process that has a file of the function open.
    Process {
        /// Its number.
        pid: u32,
        /// Its name.
        name: String,
        /// The file, `/dev/nvidia0`.
        file: String,
    },
    /// A mounted file system, or swap space.
    Disk {
        /// The block device, `nvme0n1p1`.
        disk: String,
        /// Where it is mounted, or what else holds it.
        place: String,
    },
    /// Virtual functions of a card, which go when its driver goes.
    Virtual {
        /// The card's PCI address.
        address: String,
        /// How many there are.
        count: u32,
    },
    /// A network link that is up.
    Link {
        /// Its name, `eth0`.
        link: String,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name, file } => write!(f, "process {pid} ({name}) has {file} open"),
            Self::Disk { disk, place } => write!(f, "{disk} is in use ({place})"),
            Self::Virtual { address, count } => write!(f, "{address} has {count} virtual functions"),
            Self::Link { link } => write!(f, "the network link {link} is up"),
        }
    }
}

impl Holder {
    /// What ends the use.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Process { name, file, .. } => match name.as_str() {
                "nvidia-persiste" | "nvidia-persistenced" => "systemctl stop nvidia-persistenced".into(),
                "nv-hostengine" => "systemctl stop nvidia-dcgm".into(),
                "nv-fabricmanage" => "systemctl stop nvidia-fabricmanager".into(),
                "nvidia-cuda-mps" => "divvy gpu mps stop".into(),
                "Xorg" | "X" | "Xwayland" | "gnome-shell" | "kwin_wayland" | "sddm" | "gdm" => {
                    "systemctl isolate multi-user.target ends the desktop, or let it use another GPU".into()
                }
                _ if file.starts_with("/dev/vfio") => "shut the virtual machine down".into(),
                _ => "end the process".into(),
            },
            Self::Disk { .. } => "unmount it; the disk that the host runs from cannot be given away".into(),
            Self::Virtual { address, .. } => format!(
                "end the machines on them, then `echo 0 > /sys/bus/pci/devices/{address}/sriov_numvfs`"
            ),
            Self::Link { link } => format!("ip link set {link} down"),
        }
    }
}

/// Everything that uses these functions.
#[must_use]
pub fn holders(root: &Sysroot, functions: &[Function]) -> Vec<Holder> {
    let mut files = BTreeSet::new();
    for function in functions {
        files.extend(device_files(root, function));
    }
    let numbers: BTreeSet<u64> = match root.is_own() {
        true => files.iter().filter_map(|file| number_of(file)).collect(),
        false => BTreeSet::new(),
    };
    let mut found = processes(root, |file| files.contains(file), &numbers);
    for function in functions {
        let count = root
            .number::<u32>(&format!("{DEVICES}/{}/sriov_numvfs", function.address))
            .unwrap_or(0);
        if count > 0 {
            found.push(Holder::Virtual {
                address: function.address.clone(),
                count,
            });
        }
        match function.kind() {
            Kind::Storage => found.extend(disks(root, function)),
            Kind::Network => found.extend(links(root, function)),
            _ => {}
        }
    }
    found
}

/// The files of `/dev` by which programs use a function.
fn device_files(root: &Sysroot, function: &Function) -> Vec<String> {
    let folder = format!("{DEVICES}/{}", function.address);
    let mut files: Vec<String> = Vec::new();
    let drm = root.names(&format!("{folder}/drm")).into_iter();
    files.extend(drm.map(|name| format!("/dev/dri/{name}")));
    if let Some(group) = function.group {
        files.push(format!("/dev/vfio/{group}"));
    }
    let cdevs = root.names(&format!("{folder}/vfio-dev")).into_iter();
    files.extend(cdevs.map(|name| format!("/dev/vfio/devices/{name}")));
    let information = root.text(&format!(
        "proc/driver/nvidia/gpus/{}/information",
        function.address
    ));
    let minor = information.as_deref().and_then(|text| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix("Device Minor:"))
    });
    files.extend(minor.map(|minor| format!("/dev/nvidia{}", minor.trim())));
    // Any program that uses one of AMD's accelerators has all of them open by this one.
    if function.driver.as_deref() == Some("amdgpu") && function.kind() == Kind::Gpu {
        files.push("/dev/kfd".to_owned());
    }
    for card in root.names(&format!("{folder}/sound")) {
        let Some(number) = card.strip_prefix("card") else {
            continue;
        };
        files.push(format!("/dev/snd/controlC{number}"));
        let sounds = root.names(&format!("{folder}/sound/{card}")).into_iter();
        let of_card = sounds.filter(|name| name.starts_with("pcm") || name.starts_with("hw"));
        files.extend(of_card.map(|name| format!("/dev/snd/{name}")));
    }
    files
}

/// The number of a device file, major and minor: a container may have the device under another name.
fn number_of(path: &str) -> Option<u64> {
    let facts = rustix::fs::stat(path).ok()?;
    let is_device =
        rustix::fs::FileType::from_raw_mode(facts.st_mode) == rustix::fs::FileType::CharacterDevice;
    is_device.then_some(facts.st_rdev)
}

/// The processes that have such files open.
fn processes(root: &Sysroot, is_wanted: impl Fn(&str) -> bool, numbers: &BTreeSet<u64>) -> Vec<Holder> {
    let mut found = Vec::new();
    let pids = root.names("proc").into_iter();
    for pid in pids.filter_map(|name| name.parse::<u32>().ok()) {
        let folder = format!("proc/{pid}/fd");
        let mut files = BTreeSet::new();
        for descriptor in root.names(&folder) {
            let descriptor = format!("{folder}/{descriptor}");
            // What is not below /dev is no device as a rule, and to look at it may wait for a server that is gone.
            let same = |target: &str| {
                !numbers.is_empty()
                    && target.starts_with("/dev/")
                    && number_of(&format!("/{descriptor}")).is_some_and(|number| numbers.contains(&number))
            };
            let target = root.target(&descriptor);
            files.extend(target.filter(|target| is_wanted(target) || same(target)));
        }
        let Some(file) = files.pop_first() else { continue };
        let name = root.text(&format!("proc/{pid}/comm")).unwrap_or_default();
        found.push(Holder::Process {
            pid,
            name: name.replace(char::is_control, "?"),
            file,
        });
    }
    found
}

/// Disks behind a controller that something uses.
fn disks(root: &Sysroot, function: &Function) -> Vec<Holder> {
    let mounts = root.text("proc/self/mountinfo").unwrap_or_default();
    let mut places: BTreeMap<&str, &str> = BTreeMap::new();
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let (Some(number), Some(place)) = (words.get(2), words.get(4)) {
            places.entry(number).or_insert(place);
            // btrfs has a number of its own, and names its disk behind the dash.
            let source = words
                .iter()
                .position(|word| *word == "-")
                .and_then(|at| words.get(at + 2));
            if let Some(source) = source {
                places.entry(source).or_insert(place);
            }
        }
    }
    let swaps = root.text("proc/swaps").unwrap_or_default();
    let below = |name: &String| is_below(root, &format!("sys/class/block/{name}"), &function.address);
    let disks = root.names("sys/class/block").into_iter().filter(below);
    let used = disks.filter_map(|disk| {
        let number = root.text(&format!("sys/class/block/{disk}/dev"));
        let by_name = format!("/dev/{disk}");
        let mounted = number
            .and_then(|number| places.get(number.as_str()).copied())
            .or_else(|| places.get(by_name.as_str()).copied());
        let is_swap = swaps
            .lines()
            .any(|line| line.split_whitespace().next() == Some(&format!("/dev/{disk}")));
        let above = root.names(&format!("sys/class/block/{disk}/holders"));
        let place = match (mounted, is_swap, above.first()) {
            (Some(place), ..) => format!("mounted at {}", place.replace(char::is_control, "?")),
            (None, true, _) => "swap".to_owned(),
            (None, false, Some(above)) => format!("a part of {above}"),
            // ZFS and a second disk of btrfs are in neither list: the kernel knows.
            (None, false, None) if root.is_own() && is_claimed(&by_name) => {
                "claimed by a file system".to_owned()
            }
            (None, false, None) => return None,
        };
        Some(Holder::Disk { disk, place })
    });
    used.collect()
}

/// Whether the kernel has claimed a block device for a file system or the like.
fn is_claimed(path: &str) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).is_err_and(|errno| errno == rustix::io::Errno::BUSY)
}

/// Links of a network card that are up.
fn links(root: &Sysroot, function: &Function) -> Vec<Holder> {
    let below = |name: &String| is_below(root, &format!("sys/class/net/{name}"), &function.address);
    let links = root.names("sys/class/net").into_iter().filter(below);
    let is_up = |name: &String| {
        let flags: Option<u32> = root.number(&format!("sys/class/net/{name}/flags"));
        flags.is_some_and(|flags| flags & 1 != 0)
    };
    links.filter(is_up).map(|link| Holder::Link { link }).collect()
}

/// Whether a device of a class hangs below a function.
fn is_below(root: &Sysroot, device: &str, address: &str) -> bool {
    let target = root.target(device);
    target.is_some_and(|target| target.split('/').any(|part| part == address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_host::built::{Built, Function as Place};

    #[test]
    fn files_disks_and_links_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let built = Built::at(folder.path());
        let place = |address, class, driver| Place {
            address,
            id: "10de:2330",
            class,
            driver,
            port: "0000:00:01.0",
            numa: 0,
            group: 7,
        };
        built.function(place("0000:01:00.0", "0x030000", "nvidia"));
        built.function(place("0000:01:00.1", "0x040300", "snd_hda_intel"));
        built.function(place("0000:02:00.0", "0x010802", "nvme"));
        built.function(place("0000:03:00.0", "0x020000", "e1000e"));
        built.function_file("0000:01:00.1", "sound/card1/pcmC1D3p/dev", "1:1");
        built.file(
            "proc/driver/nvidia/gpus/0000:01:00.0/information",
            "Model: \t x\nDevice Minor: \t 2\n",
        );
        built.file("proc/50/comm", "python\n");
        built.link("proc/50/fd/4", "/dev/nvidia2");
        built.link("proc/50/fd/5", "/dev/nvidia0");
        built.link("proc/60/fd/9", "/dev/snd/pcmC1D3p");
        built.link("proc/70/fd/9", "/dev/vfio/7");
        built.link(
            "sys/class/block/nvme0n1p2",
            "../../devices/pci0000:00/0000:00:01.0/0000:02:00.0/nvme/nvme0/nvme0n1/nvme0n1p2",
        );
        built.file(
            "sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0/nvme/nvme0/nvme0n1/nvme0n1p2/dev",
            "259:2\n",
        );
        built.file("proc/self/mountinfo", "22 1 259:2 / / rw - ext4 /dev/root rw\n");
        built.link(
            "sys/class/net/eth0",
            "../../devices/pci0000:00/0000:00:01.0/0000:03:00.0/net/eth0",
        );
        let net = "sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/net/eth0";
        built.file(&format!("{net}/flags"), "0x1003\n");
        built.file(
            "proc/self/mountinfo",
            "22 1 259:2 / / rw - ext4 /dev/root rw\n30 1 0:25 / /data rw - btrfs /dev/sda1 rw\n",
        );
        built.link(
            "sys/class/block/sda1",
            "../../devices/pci0000:00/0000:00:01.0/0000:02:00.0/ata1/block/sda/sda1",
        );
        built.function_file("0000:01:00.0", "sriov_numvfs", "4\n");
        let root = Sysroot::at(folder.path());
        let all = Function::all(&root);
        let said: Vec<String> = holders(&root, &all).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "process 50 (python) has /dev/nvidia2 open",
                "process 60 () has /dev/snd/pcmC1D3p open",
                "process 70 () has /dev/vfio/7 open",
                "0000:01:00.0 has 4 virtual functions",
                "nvme0n1p2 is in use (mounted at /)",
                "sda1 is in use (mounted at /data)",
                "the network link eth0 is up",
            ]
        );
        built.file(&format!("{net}/flags"), "0x1002\n");
        let card = Function::read(&root, "0000:03:00.0").expect("it is there");
        assert!(
            !holders(&root, &[card])
                .iter()
                .any(|holder| matches!(holder, Holder::Link { .. })),
            "a link that is down is free"
        );
    }
}

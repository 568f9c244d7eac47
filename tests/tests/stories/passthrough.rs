//! A GPU goes to a virtual machine and comes back: on a kernel with an IOMMU, which QEMU's own processor runs.

use std::path::Path;

use divvy_tests::clients::required_file;
use divvy_tests::machine::Machines;
use divvy_tests::passthrough::{self, More};

const STORY: &str = r#"
part() { echo "== $*"; }
state() {
    for at in 01:00.0 01:00.1 02:00.0 02:00.1; do
        file=/sys/bus/pci/devices/0000:$at
        echo "$at $(basename $(readlink $file/driver)) $(cat $file/driver_override)"
    done
}
group=$(basename $(readlink /sys/bus/pci/devices/0000:01:00.0/iommu_group))
part doctor; divvy vm doctor 01:00.0; echo "ended $?"
part bind; divvy vm bind 01:00.0; echo "ended $?"; divvy vm status
part machine; vfio-probe $group 0000:01:00.0 0000:01:00.1; echo "ended $?"
part nested; divvy vm args 01:00.0 --vcpus 1 --memory 64MiB --pages 4KiB >/words
sed -i 's/accel=kvm/accel=tcg/; s/host,host-phys-bits=on[^ ]*/max/' /words
echo "$(tr -d '\\' </words | tr '\n' ' ') -nodefaults -display none -S -monitor stdio" >/machine
printf 'info qtree\nquit\n' | sh /machine >/said; echo "ended $?"; grep 'host = "0000' /said
part huge; echo 40 >/proc/sys/vm/nr_hugepages; grep HugePages_Total /proc/meminfo
divvy vm args 01:00.0 --vcpus 1 --memory 64MiB --pages 2MiB >/words
sed -i 's/accel=kvm/accel=tcg/; s/host,host-phys-bits=on[^ ]*/max/' /words
echo "$(tr -d '\\' </words | tr '\n' ' ') -nodefaults -display none -S -monitor stdio" >/machine
(until grep -q "HugePages_Free: *8$" /proc/meminfo || [ -e /over ]; do sleep 0.2; done; grep HugePages_Free /proc/meminfo >/free; echo quit) |
    (sh /machine >/dev/null; echo "ended $?"; touch /over)
cat /free
part held; (exec 7<>/dev/vfio/$group; sleep 60) & holder=$!
until divvy vm status | grep -q "in use"; do sleep 0.1; done
divvy vm unbind 01:00.0; echo "ended $?"; kill $holder; killall sleep
while divvy vm status | grep -q "in use"; do sleep 0.1; done
part peer
echo 0000:01:00.1 >/sys/bus/pci/devices/0000:01:00.1/driver/unbind
echo >/sys/bus/pci/devices/0000:01:00.1/driver_override
echo 0000:01:00.1 >/sys/bus/pci/drivers_probe
vfio-probe $group 0000:01:00.0; divvy vm status; divvy vm bind 01:00.0; echo "ended $?"
part unbind; divvy vm unbind 01:00.0; echo "ended $?"; state
part run
dd if=/dev/zero of=/disk bs=510 count=1 2>/dev/null; printf '\125\252' >>/disk; mkdir /stand-in; printf '#!/bin/sh\nexec 7<>/dev/vfio/%s && echo the machine has its group\n[ ! -e /stay ] || sleep 1000\n' $group >/stand-in/qemu-system-x86_64
chmod 755 /stand-in/qemu-system-x86_64; run() { PATH=/stand-in:$PATH divvy vm run 01:00.0 --disk /disk --memory 64MiB --no-kvm; }
run; echo "ended $?"; state; ls /var/lib/divvy/vm
part killed; touch /stay
PATH=/stand-in:$PATH divvy vm run 01:00.0 --disk /disk --memory 64MiB --no-kvm & runner=$!
until divvy vm status | grep -q "in use"; do sleep 0.2; done
kill -9 $runner; killall sleep; while divvy vm status | grep -q "in use"; do sleep 0.1; done
divvy vm restore; echo "ended $?"; state
part lent; divvy vm bind 01:00.0
PATH=/stand-in:$PATH divvy vm run 01:00.0 --disk /disk --memory 64MiB --no-kvm & runner=$!
until divvy vm status | grep -q "in use"; do sleep 0.2; done
kill -9 $runner; killall sleep; while divvy vm status | grep -q "in use"; do sleep 0.1; done
ls -ln /dev/vfio/$group; divvy vm status 2>&1 | grep killed; divvy vm restore; ls -ln /dev/vfio/$group
divvy vm unbind 01:00.0; echo "ended $?"; state
part network; divvy vm bind 02:00.0; echo "ended $?"; state
part crash
strace -o /dev/null -P /sys/bus/pci/drivers_probe -e trace=write -e inject=write:signal=KILL:when=2 divvy vm bind 01:00.0
echo "ended $?"; divvy vm status; divvy vm bind 01:00.0; echo "ended $?"
part restore; divvy vm restore; echo "ended $?"; state
part two
held() { strace -o /dev/null -P /sys/bus/pci/drivers_probe -e trace=write -e inject=write:signal=STOP:when=1 divvy vm bind "$@"; echo "first ended $?"; }
# Both functions are off their drivers: it stops before the second one is on VFIO, and has its lock.
stopped() { for at in $1.0 $1.1; do while readlink /sys/bus/pci/devices/0000:$at/driver | grep -qv vfio; do sleep 0.1; done; done; }
goes_on() { while kill -0 $1; do killall -CONT divvy; sleep 0.2; done 2>/dev/null; wait $1; }
held 01:00.0 & first=$!
stopped 01:00; divvy vm bind 01:00.0; echo "ended $?"; divvy vm restore; echo "ended $?"
goes_on $first; divvy vm status
part held and pulled
sleep 1000 | sh /machine >/dev/null & until divvy vm status | grep -q "in use"; do sleep 0.2; done
echo "unplug gpu"; until dmesg | grep -q "Relaying device request to user"; do sleep 0.2; done
divvy vm status; divvy vm unbind 01:00.0; echo "ended $?"; killall qemu-system-x86_64 sleep
part pulled
while [ -e /sys/bus/pci/devices/0000:01:00.0 ]; do sleep 0.1; done
divvy vm unbind 01:00.0; echo "ended $?"; divvy vm bind 01:00.0; echo "ended $?"
divvy vm restore; echo "ended $?"; ls /var/lib/divvy/vm
part between
held 02:00.0 --with 02:00.1 & first=$!
stopped 02:00; echo "unplug gpu2"; while [ -e /sys/bus/pci/devices/0000:02:00.0 ]; do sleep 0.1; done
goes_on $first; ls /var/lib/divvy/vm
part end
"#;

/// What a part of the story printed.
fn part<'a>(said: &'a str, name: &str) -> &'a str {
    let begin = format!("== {name}\n");
    let from = said
        .find(&begin)
        .unwrap_or_else(|| panic!("no part {name}: {said}"));
    let rest = &said[from + begin.len()..];
    rest.split("== ").next().unwrap_or_default()
}

const FIRST: &str = "01:00.0 uio_pci_generic (null)\n01:00.1 uio_pci_generic (null)\n02:00.0 uio_pci_generic (null)\n\
                     02:00.1 virtio-pci (null)\n";

#[test]
fn a_gpu_goes_to_a_machine_and_comes_back() {
    let Some(machines) = Machines::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let Some(said) = passthrough::run(&machines, folder.path(), STORY, &More::default()) else {
        return;
    };
    let said = said.replace('\r', "");
    let has = |name: &str, wanted: &[&str]| {
        let text = part(&said, name);
        for wanted in wanted {
            assert!(text.contains(wanted), "{name}: no `{wanted}` in {text}");
        }
    };
    has(
        "doctor",
        &["the GPU with 0000:01:00.1 (audio)", "reaches `vm`", "ended 0"],
    );
    has(
        "bind",
        &["is on VFIO: 0000:01:00.0, 0000:01:00.1", "ended 0", "vfio-pci"],
    );
    has(
        "machine",
        &[
            "viable true",
            "iommu type1v2",
            "bar mapped 16777216 bytes",
            "dma answer 0x",
            "dma stopped",
            "ended 0",
        ],
    );
    // QEMU itself takes the group by the words that were printed for it.
    has(
        "nested",
        &["ended 0", "host = \"0000:01:00.0\"", "host = \"0000:01:00.1\""],
    );
    // Pages of 2 MiB: QEMU has 32 of the 40 that there are.
    has(
        "huge",
        &["HugePages_Total:      40", "ended 0", "HugePages_Free:        8"],
    );
    has(
        "held",
        &["error[D0058]: a virtual machine has the device", "ended 1"],
    );
    // The peer is on a driver of the host's: VFIO gives nothing away, until the group is whole again.
    has(
        "peer",
        &[
            "viable false",
            "container refused 1",
            "half bound",
            "is on VFIO: 0000:01:00.1",
            "ended 0",
        ],
    );
    has(
        "unbind",
        &["0000:01:00.0 is on uio_pci_generic", "ended 0", FIRST],
    );
    // A machine that is started here, by a stand-in for QEMU: the group goes before it and comes back after it.
    has("run", &["the machine has its group", "ended 0", FIRST]);
    assert!(!part(&said, "run").contains(".json"), "{}", part(&said, "run"));
    // Killed, it leaves a record that names its process.
    has(
        "killed",
        &[
            "0000:01:00.0 its functions are on their first drivers",
            "ended 0",
            FIRST,
        ],
    );
    // Where the group was on VFIO before, its file stays: it has its owner again, not the number of a machine that is gone.
    has(
        "lent",
        &[
            "a killed `divvy vm run` left /dev/vfio/",
            "has its first owner",
            "ended 0",
            FIRST,
        ],
    );
    let files = part(&said, "lent").lines().filter(|line| line.starts_with("crw"));
    let owners: Vec<&str> = files.filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert!(
        owners.len() == 2 && owners[0].len() == 5 && owners[0].starts_with('8') && owners[1] == "0",
        "{owners:?}"
    );
    has(
        "network",
        &[
            "error[D0057]",
            "0000:02:00.1 (network card",
            "--with 0000:02:00.1",
            "ended 1",
            FIRST,
        ],
    );
    has("crash", &["unfinished", "divvy vm restore", "ended 1"]);
    has(
        "restore",
        &[
            "0000:01:00.0 its functions are on their first drivers",
            "ended 0",
            FIRST,
        ],
    );
    // Two administrators at once: the second one is told, and changes nothing.
    let two = part(&said, "two");
    let told = "error[D0058]: another `divvy vm` is changing devices just now";
    assert_eq!(two.matches(told).count(), 2, "{two}");
    has("two", &["ended 1", "first ended 0", "bound"]);
    // The card is to be pulled out while a machine has it: the kernel waits for that, and no list of ours does.
    has(
        "held and pulled",
        &[
            "in use: process",
            "error[D0058]: a virtual machine has the device",
            "ended 1",
        ],
    );
    // It is pulled out while it is on VFIO, and the other one in the middle of a bind.
    has(
        "pulled",
        &[
            "error[D0011]: the PCI function 0000:01:00.0 is not there",
            "`divvy vm restore` forgets it",
            "0000:01:00.0 is no longer in this machine: forgotten",
            "ended 0",
        ],
    );
    has(
        "between",
        &["0000:02:00.0 was taken out of the machine", "first ended 1"],
    );
    for name in ["pulled", "between"] {
        assert!(!part(&said, name).contains(".json"), "{}", part(&said, name));
    }
    part(&said, "end");
}

/// What a machine in the machine starts from, as `cargo xtask setup` has it here.
fn inner(machines: &Machines) -> More {
    let read =
        |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let release = machines
        .modules
        .file_name()
        .expect("a release")
        .to_string_lossy()
        .into_owned();
    let loader = "#!/bin/sh\nexec /lib64/ld-linux-x86-64.so.2 --list \"$1\"\n";
    let busybox = read(&machines.busybox);
    More {
        files: vec![
            (format!("boot/vmlinuz-{release}"), read(&machines.kernel)),
            (
                "usr/share/qemu/linuxboot_dma.bin".into(),
                read(Path::new("/usr/share/qemu/linuxboot_dma.bin")),
            ),
            // The C library's own is a script of another shell.
            ("bin/ldd".into(), loader.into()),
            (format!("lib/modules/{release}/modules.alias"), Vec::new()),
            ("inner/bin/busybox".into(), busybox.clone()),
            ("inner/bin/sh".into(), busybox),
        ],
        programs: vec![divvy_tests::build::binaries().join("divvy-guest")],
        memory: Some(2048),
    }
}

const NESTED: &str = r#"
divvy run --isolation vm --root /inner --device 01:00.0 -- /bin/sh -c '
    cd /sys/bus/pci/devices; for at in 0000:01:00.*; do echo "inside: $at $(busybox cat $at/vendor $at/device | busybox tr "
" " ")"; done; exit 7'
echo "ended $?"
for at in 01:00.0 01:00.1; do echo "after: $(basename $(readlink /sys/bus/pci/devices/0000:$at/driver))"; done
ls -A /var/lib/divvy/vm
"#;

/// A machine in the machine has the card, and its program's exit status comes back through both. It takes minutes.
#[test]
fn a_program_runs_in_a_nested_machine_with_the_device() {
    if std::env::var_os("DIVVY_TEST_NESTED").is_none() {
        return;
    }
    let Some(machines) = Machines::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let Some(said) = passthrough::run(&machines, folder.path(), NESTED, &inner(&machines)) else {
        return;
    };
    let said = said.replace('\r', "");
    for wanted in [
        "inside: 0000:01:00.0 0x1234 0x1111",
        "inside: 0000:01:00.1 0x8086 0x2668",
        "ended 7\nafter: uio_pci_generic\nafter: uio_pci_generic\nlock\n",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}

/// libvirt's own driver, in one process, starts the domain that is written: it attaches the group to QEMU.
const LIBVIRT: &str = r#"
echo libvirt-qemu:x:64055:64055::/:/bin/sh >>/etc/passwd; printf 'root:x:0:\nkvm:x:104:\nlibvirt-qemu:x:64055:\n' >/etc/group
mkdir -p /dev/pts /embed/etc; mount -t devpts none /dev/pts
printf 'user = "root"\ngroup = "root"\nnamespaces = []\nremember_owner = 0\nseccomp_sandbox = 0\nstdio_handler = "file"\n' >/embed/etc/qemu.conf
group=$(basename $(readlink /sys/bus/pci/devices/0000:01:00.0/iommu_group))
divvy vm bind 01:00.0
divvy vm args 01:00.0 --vcpus 1 --memory 64MiB --pages 4KiB --for libvirt >/domain
# There is no KVM in this machine.
sed -i 's/type="kvm"/type="qemu"/; s/mode="host-passthrough"/mode="maximum"/' /domain
virt-qemu-run --verbose --root=/embed /domain >/said 2>&1 & runner=$!
until divvy vm status | grep -q "in use" || ! kill -0 $runner 2>/dev/null; do sleep 1; done
divvy vm status; cat /said
divvy vm unbind 01:00.0; echo "held: ended $?"
kill $runner; wait $runner
while divvy vm status | grep -q "in use"; do sleep 1; done
divvy vm unbind 01:00.0; echo "free: ended $?"
"#;

/// It takes half a minute.
#[test]
fn libvirt_gives_the_group_to_its_machine() {
    if std::env::var_os("DIVVY_TEST_NESTED").is_none() {
        return;
    }
    let Some(machines) = Machines::new() else { return };
    let package = "libvirt's driver (cargo xtask setup)";
    let Some(runner) = required_file("/usr/bin/virt-qemu-run", package) else {
        return;
    };
    let place = "usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so";
    let Some(driver) = required_file(&format!("/{place}"), package) else {
        return;
    };
    let read =
        |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let models = std::fs::read_dir("/usr/share/libvirt/cpu_map")
        .expect("libvirt's processors")
        .flatten();
    let mut files: Vec<(String, Vec<u8>)> = models
        .map(|entry| entry.path())
        .map(|path| {
            (
                path.display().to_string().trim_start_matches('/').to_owned(),
                read(&path),
            )
        })
        .collect();
    files.push((place.to_owned(), read(&driver)));
    let more = More {
        files,
        // The driver is here for the libraries that it needs.
        programs: vec![runner, driver],
        memory: Some(2048),
    };
    let folder = tempfile::tempdir().expect("a folder");
    let Some(said) = passthrough::run(&machines, folder.path(), LIBVIRT, &more) else {
        return;
    };
    let said = said.replace('\r', "");
    for wanted in [
        "in use: process",
        "(qemu-system-x86",
        "held: ended 1",
        "free: ended 0",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}

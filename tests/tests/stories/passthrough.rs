//! A GPU goes to a virtual machine and comes back: on a kernel with an IOMMU, which QEMU's own processor runs.

use divvy_tests::machine::Machines;
use divvy_tests::passthrough;

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
mkdir /stand-in; printf '#!/bin/sh\nexec 7<>/dev/vfio/%s && echo the machine has its group\n[ ! -e /stay ] || sleep 1000\n' $group >/stand-in/qemu-system-x86_64
chmod 755 /stand-in/qemu-system-x86_64; run() { PATH=/stand-in:$PATH divvy vm run 01:00.0 --disk /disk --memory 64MiB --no-kvm; }
run; echo "ended $?"; state; ls /var/lib/divvy/vm
part killed; touch /stay
PATH=/stand-in:$PATH divvy vm run 01:00.0 --disk /disk --memory 64MiB --no-kvm & runner=$!
until divvy vm status | grep -q "in use"; do sleep 0.2; done
kill -9 $runner; killall sleep; while divvy vm status | grep -q "in use"; do sleep 0.1; done
divvy vm restore; echo "ended $?"; state
part network; divvy vm bind 02:00.0; echo "ended $?"; state
part crash
strace -o /dev/null -P /sys/bus/pci/drivers_probe -e trace=write -e inject=write:signal=KILL:when=2 divvy vm bind 01:00.0
echo "ended $?"; divvy vm status; divvy vm bind 01:00.0; echo "ended $?"
part restore; divvy vm restore; echo "ended $?"; state
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
    let Some(said) = passthrough::run(&machines, folder.path(), STORY) else {
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
    part(&said, "end");
}

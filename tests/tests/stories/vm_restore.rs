//! A start of the machine after `divvy vm bind`: the unit that `divvy vm prepare` installs looks at the records, before the agent.

use divvy_tests::booted::Booted;

/// A group that was on VFIO before a restart, of a card that is gone since.
const RECORD: &str = r#"{"version": 1, "asked": "0000:ff:1f.7", "boot": "earlier", "phase": "bound", "functions": [
    {"address": "0000:ff:1f.7", "id": "10de:2330", "driver": "nvidia", "driver_override": null, "target": "vfio-pci"}]}"#;

#[test]
fn what_was_bound_is_looked_at_when_systemd_starts_the_machine() {
    let Some(machine) = Booted::new() else { return };
    // What a start of Debian's is made of, and is not to be changed here.
    machine.root(
        "for program in update-grub update-initramfs; do printf '#!/bin/sh\\n' >/opt/divvy/$program; chmod 755 /opt/divvy/$program; done
         printf 'ID=debian\\n' >/etc/os-release.new && mv /etc/os-release.new /etc/os-release",
    );
    let said = machine.root("divvy vm prepare --apply");
    assert!(
        said.contains("+ systemctl enable divvy-vm-restore.service"),
        "{said}"
    );
    let again = machine.root("divvy vm prepare");
    assert!(again.contains("nothing to change"), "{again}");
    machine.root("systemctl daemon-reload");
    let show = |unit: &str, property: &str| {
        machine.root(&format!("systemctl show --property {property} --value {unit}"))
    };
    let wanted = show("multi-user.target", "Wants");
    assert!(wanted.contains("divvy-vm-restore.service"), "{wanted}");
    let before = show("divvy-vm-restore.service", "Before");
    assert!(before.contains("divvy-agent.service"), "{before}");

    // Without a record there is nothing to do.
    machine.root("systemctl start divvy-vm-restore.service");
    assert_eq!(show("divvy-vm-restore.service", "ConditionResult").trim(), "no");
    machine.root("install -d -m 755 /var/lib && install -d -m 700 /var/lib/divvy/vm");
    let folder = machine.file("/var/lib/divvy/vm");
    let record = folder.join("0000:ff:1f.7.json");
    std::fs::write(&record, RECORD).expect("written");
    machine.root("systemctl start divvy-vm-restore.service");
    assert_eq!(show("divvy-vm-restore.service", "ActiveState").trim(), "active");
    assert!(!record.exists(), "the card is gone, and its record too");

    // What cannot be put right is a unit that failed, which people see.
    std::fs::write(&record, "{").expect("written");
    machine.root("systemctl stop divvy-vm-restore.service; ! systemctl start divvy-vm-restore.service");
    assert_eq!(show("divvy-vm-restore.service", "ActiveState").trim(), "failed");
    assert!(record.exists());

    std::fs::remove_file(&record).expect("removed");
    machine.root("divvy vm prepare --undo");
    let left = machine.root("ls /etc/systemd/system /etc/systemd/system/multi-user.target.wants");
    assert!(!left.contains("divvy-vm-restore"), "{left}");
}

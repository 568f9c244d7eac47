//! A machine as the programs that run machines are told of it.

pub mod cloud_hypervisor;
pub mod kubevirt;
pub mod libvirt;
pub mod qemu;
pub mod vmware;
pub mod xen;

/// The format of a disk's file, by the end of its name: the bytes in it are the guest's.
pub(crate) fn disk_format(file: &str) -> &'static str {
    match file.ends_with(".qcow2") {
        true => "qcow2",
        false => "raw",
    }
}

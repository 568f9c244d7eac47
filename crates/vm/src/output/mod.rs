//! A machine as the programs that run machines are told of it.

pub mod cloud_hypervisor;
pub mod kubevirt;
pub mod libvirt;
pub mod qemu;
pub mod vmware;

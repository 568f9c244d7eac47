//! What Divvy writes for container engines, against golden files (`tests/golden`).

mod cdi;
mod configure;
mod engines;
mod hosts;
mod libvirtd;
mod oci;
mod pinning;
mod vgpus;
mod virtual_machines;

//! Whole GPUs for virtual machines.
//!
//! - [`function`]: a PCI function of any class; [`group`]: an IOMMU group, which goes to a machine as a whole.
//! - [`holders`]: who uses the functions of a group.
//! - [`doctor`]: what keeps a GPU of this machine from a virtual one, in the order in which it is to be fixed.
//! - [`bind`]: gives a group to vfio-pci, and takes it back. [`kernel`] is what is written, behind a trait; [`record`] is
//!   what is remembered on disk.
//! - [`lent`]: the files by which programs have a group, for a machine's user.
//! - [`vgpu`]: virtual GPUs that are there.
//! - [`machine`]: a machine to be, on the processors that [`cpus`] finds near its GPUs; [`output`] writes it for QEMU,
//!   libvirt and others, [`openstack`] writes and checks what Nova is told.
//! - [`launch`]: a small machine that is started here, for a test or for one program.
//! - [`prepare`]: what the start of a host is told, by the distribution, with a way back.
//!
//! docs/passthrough.md says how it is used, docs/adr/0060 why it is so.
#![forbid(unsafe_code)]

pub mod bind;
pub mod cpus;
pub mod distribution;
pub mod doctor;
pub mod driver;
pub mod function;
pub mod group;
pub mod holders;
pub mod kernel;
pub mod launch;
pub mod lent;
pub mod machine;
pub mod openstack;
pub mod output;
pub mod prepare;
pub mod record;
pub mod restore;
pub mod status;
pub mod vgpu;
pub mod xml;

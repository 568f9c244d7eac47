//! A slice as a CDI device.

use divvy_agent::container::{Below, Parts};
use divvy_host::machine::Sysroot;
use divvy_model::{Code, DeviceRecord, Fault, SliceRecord, Vendor};

use super::libraries::Capabilities;
use super::spec::{Device, DeviceNode, Edits, Spec};
use super::{amd, is_device_name, nvidia};
use crate::inject::mounts;

/// The kind of slices.
pub const SLICE_KIND: &str = "divvy.dev/slice";

/// The nodes and driver files of a slice's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceNodes {
    edits: Edits,
}

/// What a container of a slice on these devices needs of the host besides the limiter.
///
/// # Errors
/// [`Code::UnknownDevice`] for a device whose nodes are not known, or that is gone.
pub fn nodes_of(
    root: &Sysroot,
    devices: &[DeviceRecord],
    capabilities: &Capabilities,
) -> Result<SliceNodes, Fault> {
    let mut edits = Edits::default();
    for device in devices {
        let vendor = device.hardware.as_ref().map(|facts| facts.vendor);
        let (nodes, common) = match vendor {
            Some(Vendor::Emulated) => continue,
            Some(Vendor::Amd) => (amd::nodes(root, device), amd::common(root)),
            _ => {
                let minor = nvidia::minor(root, &device.pci_address).ok_or_else(|| {
                    Fault::new(
                        Code::UnknownDevice,
                        format!("{} ({}) is not there", device.name, device.uuid),
                    )
                    .cause("NVIDIA's kernel module does not list it")
                    .hint("`divvy devices` lists those there are")
                })?;
                (
                    nvidia::nodes(root, device, minor)?,
                    nvidia::common(root, capabilities),
                )
            }
        };
        add(&mut edits, nodes, common);
    }
    Ok(SliceNodes { edits })
}

fn add(edits: &mut Edits, nodes: Vec<DeviceNode>, common: Edits) {
    for node in nodes.into_iter().chain(common.device_nodes) {
        if !edits.device_nodes.contains(&node) {
            edits.device_nodes.push(node);
        }
    }
    if edits.mounts.is_empty() {
        edits.mounts = common.mounts;
        edits.env = common.env;
    }
}

/// The device's name: the slice's own, or its id where CDI's grammar has no such name.
#[must_use]
pub fn slice_name(slice: &SliceRecord) -> &str {
    match is_device_name(&slice.name) {
        true => &slice.name,
        false => &slice.id,
    }
}

/// The file's name.
#[must_use]
pub fn slice_file(slice: &SliceRecord) -> String {
    format!("divvy-slice-{}.json", slice.id)
}

/// The file of a slice.
#[must_use]
pub fn slice_spec(slice: &SliceRecord, nodes: &SliceNodes, parts: &Parts) -> Spec {
    let ours = mounts(parts);
    let mut edits = match parts.below {
        // Programs there have no device: its nodes would be a way past the workers. Where NVIDIA's own hook is installed, an
        // image that asks it for all GPUs is to get none.
        Below::Worker => Edits {
            env: vec!["NVIDIA_VISIBLE_DEVICES=void".into()],
            ..Edits::default()
        },
        _ => nodes.edits.clone(),
    };
    // The limiter is where the driver's own libraries would be.
    edits
        .mounts
        .retain(|mount| ours.iter().all(|our| our.container_path != mount.container_path));
    edits.mounts.extend(ours);
    let device = Device {
        name: slice_name(slice).into(),
        container_edits: edits,
        ..Device::default()
    };
    Spec::new(SLICE_KIND, vec![device], Edits::default())
}

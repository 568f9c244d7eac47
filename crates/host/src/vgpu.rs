//! Virtual GPUs for virtual machines: mediated devices, and NVIDIA's newer virtual functions with a type of their own.

use divvy_model::{Code, Fault};
use serde::Serialize;

use crate::machine::Sysroot;

/// How a virtual GPU is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VgpuWay {
    /// `mdev_supported_types`, on kernels up to 6.x with NVIDIA's older host drivers.
    Mediated,
    /// `nvidia/current_vgpu_type` of a virtual function.
    VendorVfio,
}

/// A type that a function offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VgpuType {
    /// PCI address of the GPU or virtual function.
    pub function: String,
    /// `nvidia-558`, or its number.
    pub id: String,
    /// `NVIDIA A40-4Q`.
    pub name: String,
    /// `num_heads=4, frl_config=60, framebuffer=4096M, …`
    pub description: String,
    /// How many more can be made.
    pub available: u32,
    /// How it is made.
    pub way: VgpuWay,
}

/// A virtual GPU that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vgpu {
    /// UUID of a mediated device, PCI address of a virtual function.
    pub id: String,
    /// Its type.
    pub kind: String,
    /// How it was made.
    pub way: VgpuWay,
    /// The process that holds it open, a virtual machine.
    pub holder: Option<u32>,
}

const MDEV_BUS: &str = "sys/class/mdev_bus";
const MDEVS: &str = "sys/bus/mdev/devices";
const PCI: &str = "sys/bus/pci/devices";

/// Every type that every function offers.
#[must_use]
pub fn types(root: &Sysroot) -> Vec<VgpuType> {
    let mut types = Vec::new();
    for function in root.names(MDEV_BUS) {
        let folder = format!("{MDEV_BUS}/{function}/mdev_supported_types");
        for id in root.names(&folder) {
            let text = |file: &str| root.text(&format!("{folder}/{id}/{file}")).unwrap_or_default();
            types.push(VgpuType {
                name: text("name"),
                description: text("description"),
                available: text("available_instances").parse().unwrap_or(0),
                way: VgpuWay::Mediated,
                function: function.clone(),
                id,
            });
        }
    }
    for function in root.names(PCI) {
        let Some(text) = root.text(&format!("{PCI}/{function}/nvidia/creatable_vgpu_types")) else {
            continue;
        };
        // A heading, then `558 : NVIDIA L40S-4Q`.
        for line in text.lines() {
            let Some((id, name)) = line.split_once(':') else {
                continue;
            };
            let id = id.trim();
            if id.parse::<u32>().is_ok() {
                types.push(VgpuType {
                    function: function.clone(),
                    id: id.to_owned(),
                    name: name.trim().to_owned(),
                    description: String::new(),
                    available: 1,
                    way: VgpuWay::VendorVfio,
                });
            }
        }
    }
    types
}

/// Every virtual GPU there is.
#[must_use]
pub fn list(root: &Sysroot) -> Vec<Vgpu> {
    let mut list = Vec::new();
    for id in root.names(MDEVS) {
        let kind = root.link(&format!("{MDEVS}/{id}/mdev_type")).unwrap_or_default();
        list.push(Vgpu {
            holder: holder(root, &format!("{MDEVS}/{id}")),
            way: VgpuWay::Mediated,
            kind,
            id,
        });
    }
    for function in root.names(PCI) {
        let kind = root.text(&format!("{PCI}/{function}/nvidia/current_vgpu_type"));
        let Some(kind) = kind.filter(|kind| kind != "0") else {
            continue;
        };
        list.push(Vgpu {
            holder: holder(root, &format!("{PCI}/{function}")),
            id: function,
            kind,
            way: VgpuWay::VendorVfio,
        });
    }
    list
}

/// Who has the VFIO group of a device open: `/dev/vfio/<group>` among a process's descriptors.
fn holder(root: &Sysroot, device: &str) -> Option<u32> {
    let group = format!("/dev/vfio/{}", root.link(&format!("{device}/iommu_group"))?);
    let processes = root
        .names("proc")
        .into_iter()
        .filter_map(|name| name.parse::<u32>().ok());
    processes.into_iter().find(|pid| {
        let folder = format!("proc/{pid}/fd");
        let mut open = root.names(&folder).into_iter();
        open.any(|descriptor| root.target(&format!("{folder}/{descriptor}")).as_deref() == Some(&group))
    })
}

/// Makes a virtual GPU of a type on a function; `uuid` names a mediated one. A dry run only says whether it could.
///
/// # Errors
/// [`Code::Vgpu`] where there is no such type or none is left; [`Code::Privilege`].
pub fn create(root: &Sysroot, function: &str, kind: &str, uuid: &str, dry_run: bool) -> Result<(), Fault> {
    let known = types(root);
    let fits =
        |offered: &&VgpuType| offered.function == function && (offered.id == kind || offered.name == kind);
    let offered = known.iter().find(fits).ok_or_else(|| {
        Fault::new(Code::Vgpu, format!("{function} offers no type `{kind}`"))
            .hint("`divvy gpu vgpu list` shows the types")
    })?;
    if offered.available == 0 {
        return Err(
            Fault::new(Code::Vgpu, format!("no {} is left on {function}", offered.name))
                .hint("free one with `divvy gpu vgpu free`, or choose another type"),
        );
    }
    let (file, text) = match offered.way {
        VgpuWay::Mediated => (
            format!("{MDEV_BUS}/{function}/mdev_supported_types/{}/create", offered.id),
            uuid,
        ),
        VgpuWay::VendorVfio => {
            // Paths of virtual functions are reused: one that has a type belongs to a user.
            let file = format!("{PCI}/{function}/nvidia/current_vgpu_type");
            if root.text(&file).is_some_and(|now| now != "0") {
                return Err(
                    Fault::new(Code::Vgpu, format!("{function} is a virtual GPU already"))
                        .hint("free it first, or choose another function"),
                );
            }
            (file, offered.id.as_str())
        }
    };
    match dry_run {
        true => Ok(()),
        false => put(root, &file, text),
    }
}

/// Frees a virtual GPU, unless a virtual machine holds it. `kind` guards against freeing one that was made again under
/// the same name since it was looked at.
///
/// # Errors
/// [`Code::Vgpu`] where there is none, it is another by now, or it is in use; [`Code::Privilege`].
pub fn free(root: &Sysroot, id: &str, kind: Option<&str>) -> Result<(), Fault> {
    let there = list(root);
    let vgpu = there.iter().find(|vgpu| vgpu.id == id).ok_or_else(|| {
        Fault::new(Code::Vgpu, format!("there is no virtual GPU `{id}`"))
            .hint("`divvy gpu vgpu list` shows them")
    })?;
    if let Some(kind) = kind.filter(|kind| *kind != vgpu.kind) {
        return Err(Fault::new(
            Code::Vgpu,
            format!("`{id}` is of type {}, not {kind}: it was made again", vgpu.kind),
        ));
    }
    if let Some(pid) = vgpu.holder {
        return Err(Fault::new(
            Code::Vgpu,
            format!("process {pid} holds `{id}`: a virtual machine runs on it"),
        )
        .hint("shut the virtual machine down first"));
    }
    match vgpu.way {
        VgpuWay::Mediated => put(root, &format!("{MDEVS}/{id}/remove"), "1"),
        VgpuWay::VendorVfio => put(root, &format!("{PCI}/{id}/nvidia/current_vgpu_type"), "0"),
    }
}

fn put(root: &Sysroot, file: &str, text: &str) -> Result<(), Fault> {
    root.write(file, text).map_err(|error| {
        let code = match error.kind() {
            // EACCES is the file's mode. EPERM, which reads the same, is the driver's word for a device in use.
            std::io::ErrorKind::PermissionDenied if error.raw_os_error() == Some(13) => Code::Privilege,
            _ => Code::Vgpu,
        };
        Fault::new(code, format!("the kernel refuses `{text}` in /{file}")).because(&error)
    })
}

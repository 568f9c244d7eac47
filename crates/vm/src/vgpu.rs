//! Virtual GPUs that are there, for machines: mediated devices, and virtual functions with a type of their own.

use divvy_host::machine::Sysroot;
use divvy_host::vgpu::{VgpuWay, list, types};
use divvy_model::{Code, Fault};

use crate::function::{DEVICES, address};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualGpu {
    /// UUID of a mediated one, PCI address of a virtual function.
    pub id: String,
    /// How it was made.
    pub way: VgpuWay,
    /// The name of its type: `NVIDIA A40-4Q`; the type's id where the host does not say it.
    pub name: String,
    /// The host's node that it is on.
    pub numa: Option<u32>,
    /// Which of the machine's nodes it is near.
    pub node: usize,
}

impl VirtualGpu {
    /// One that is there, and that no machine has.
    ///
    /// # Errors
    /// [`Code::Usage`] for what is neither a UUID nor an address; [`Code::Vgpu`] where there is none, or it is in use.
    pub fn find(root: &Sysroot, id: &str) -> Result<Self, Fault> {
        let id = id.to_ascii_lowercase();
        let id = match (is_uuid(&id), address(&id)) {
            (true, _) => id,
            (false, Ok(address)) => address,
            (false, Err(_)) => {
                return Err(Fault::new(
                    Code::Usage,
                    format!("`{}` is neither a UUID nor a PCI address", id.escape_debug()),
                )
                .hint("`divvy gpu vgpu list` shows the virtual GPUs of this host"));
            }
        };
        let vgpu = list(root).into_iter().find(|vgpu| vgpu.id == id).ok_or_else(|| {
            Fault::new(Code::Vgpu, format!("there is no virtual GPU `{id}`"))
                .hint("`divvy gpu vgpu list` shows those there are, `divvy gpu vgpu create` makes one")
        })?;
        if let Some(pid) = vgpu.holder {
            return Err(Fault::new(Code::Vgpu, format!("process {pid} holds `{id}`"))
                .hint("shut its virtual machine down first, or make another one"));
        }
        let function = match vgpu.way {
            VgpuWay::VendorVfio => Some(id.clone()),
            VgpuWay::Mediated => parent(root, &id),
        };
        let offered = types(root).into_iter().find(|offered| offered.id == vgpu.kind);
        Ok(Self {
            numa: function.and_then(|function| root.number(&format!("{DEVICES}/{function}/numa_node"))),
            name: shown(&offered.map_or(vgpu.kind, |offered| offered.name)),
            way: vgpu.way,
            node: 0,
            id,
        })
    }

    /// Its folder, by which VFIO's users open it.
    #[must_use]
    pub fn folder(&self) -> String {
        match self.way {
            VgpuWay::Mediated => format!("/sys/bus/mdev/devices/{}", self.id),
            VgpuWay::VendorVfio => format!("/{DEVICES}/{}", self.id),
        }
    }

    /// See [`profile`].
    #[must_use]
    pub fn profile(&self) -> String {
        profile(&self.name)
    }
}

/// A type's name without the vendor's: `A40-4Q`. Letters, digits and dashes, for texts that names are put into.
#[must_use]
pub fn profile(name: &str) -> String {
    let last = name.rsplit(' ').next().unwrap_or_default();
    let plain = |letter: char| match letter.is_ascii_alphanumeric() {
        true => letter,
        false => '-',
    };
    last.chars().map(plain).collect()
}

/// A name as it is put into texts for other programs: letters, digits and what types have between them.
fn shown(name: &str) -> String {
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || " -_.".contains(*letter);
    name.chars().filter(is_plain).collect()
}

fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12]) && parts.iter().all(hex)
}

/// The function that a mediated one is on: the last address on the way to its type.
fn parent(root: &Sysroot, uuid: &str) -> Option<String> {
    let target = |link: &str| root.target(&format!("sys/bus/mdev/devices/{uuid}{link}"));
    let path = [target(""), target("/mdev_type")]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("/");
    let mut parts = path.split('/').rev();
    parts.find_map(|part| address(part).ok().filter(|address| address == part))
}

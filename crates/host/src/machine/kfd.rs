//! KFD's topology: AMD's accelerators as ROCr numbers them, with no ROCm installed.

use std::collections::HashMap;

use super::Sysroot;

const NODES: &str = "sys/class/kfd/kfd/topology/nodes";

/// A node with compute cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KfdNode {
    /// Its number, whose order is ROCr's.
    pub number: u32,
    /// KFD's id of the accelerator or partition, which names its processes.
    pub gpu_id: u32,
    /// `gfx942`.
    pub target: String,
    /// `0000:05:00.0`.
    pub address: String,
    /// 0 where the product has none.
    pub unique_id: u64,
    /// Compute units.
    pub compute_units: u32,
    /// Memory of its own, in bytes; 0 where KFD does not tell.
    pub memory_bytes: u64,
    /// `renderD` and this number.
    pub render_minor: Option<u32>,
    /// Nodes that it reaches: number, and whether by XGMI.
    pub links: Vec<(u32, bool)>,
}

/// The nodes with compute cores, in order.
pub fn nodes(root: &Sysroot, notes: &mut Vec<String>) -> Vec<KfdNode> {
    let mut nodes = Vec::new();
    for name in root.names(NODES) {
        let Ok(number) = name.parse() else { continue };
        let gpu_id = match root.read(&format!("{NODES}/{name}/gpu_id")) {
            Ok(Some(text)) => text.parse().unwrap_or(0),
            // KFD shows an accelerator whose device cgroup forbids it, and refuses to name it.
            Err(error) => {
                notes.push(format!("KFD node {name} is not permitted here: {error}"));
                continue;
            }
            Ok(None) => {
                notes.push(format!("KFD node {name} has no gpu_id: it is going away"));
                continue;
            }
        };
        // A CPU.
        if gpu_id == 0 {
            continue;
        }
        match root.read(&format!("{NODES}/{name}/properties")) {
            Ok(Some(text)) => {
                let properties = properties(&text);
                if properties.get("simd_count").is_some_and(|count| *count > 0) {
                    nodes.push(node(root, &name, number, gpu_id, &properties));
                }
            }
            Ok(None) => notes.push(format!("KFD node {name} has no properties: it is going away")),
            Err(error) => notes.push(format!("KFD node {name} cannot be read: {error}")),
        }
    }
    nodes
}

/// Lines of `key value`.
fn properties(text: &str) -> HashMap<&str, u64> {
    text.lines()
        .filter_map(|line| {
            let (key, value) = line.split_once(' ')?;
            Some((key, value.trim().parse().ok()?))
        })
        .collect()
}

fn node(root: &Sysroot, name: &str, number: u32, gpu_id: u32, properties: &HashMap<&str, u64>) -> KfdNode {
    let value = |key: &str| properties.get(key).copied().unwrap_or(0);
    let small = |key: &str| u32::try_from(value(key)).unwrap_or(u32::MAX);
    let location = value("location_id");
    let version = small("gfx_target_version");
    let simds_per_unit = value("simd_per_cu").max(1);
    KfdNode {
        number,
        gpu_id,
        target: format!(
            "gfx{}{:x}{:x}",
            version / 10_000,
            version / 100 % 100,
            version % 100
        ),
        address: format!(
            "{:04x}:{:02x}:{:02x}.{:x}",
            value("domain"),
            location >> 8 & 0xff,
            location >> 3 & 0x1f,
            location & 7
        ),
        unique_id: value("unique_id"),
        compute_units: u32::try_from(value("simd_count") / simds_per_unit).unwrap_or(u32::MAX),
        memory_bytes: memory(root, name),
        render_minor: Some(small("drm_render_minor")).filter(|minor| *minor > 0),
        links: links(root, name),
    }
}

/// Banks of heap types 1 and 2 are the accelerator's own, hidden from the CPU or not.
fn memory(root: &Sysroot, node: &str) -> u64 {
    let banks = format!("{NODES}/{node}/mem_banks");
    let sizes = root.names(&banks).into_iter().filter_map(|bank| {
        let text = root.text(&format!("{banks}/{bank}/properties"))?;
        let properties = properties(&text);
        matches!(properties.get("heap_type"), Some(1 | 2)).then_some(())?;
        properties.get("size_in_bytes").copied()
    });
    sizes.fold(0, u64::saturating_add)
}

/// A link of type 11 is XGMI, AMD's own fabric.
fn links(root: &Sysroot, node: &str) -> Vec<(u32, bool)> {
    let links = format!("{NODES}/{node}/io_links");
    let ends = root.names(&links).into_iter().filter_map(|link| {
        let text = root.text(&format!("{links}/{link}/properties"))?;
        let properties = properties(&text);
        let to = u32::try_from(*properties.get("node_to")?).ok()?;
        Some((to, properties.get("type") == Some(&11)))
    });
    ends.collect()
}

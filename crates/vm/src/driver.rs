//! Which of VFIO's drivers fits a function best.
//!
//! Some devices have a driver of their own for this, which keeps more than the plain one does: `nvgrace_gpu_vfio_pci`,
//! `mlx5_vfio_pci`. The kernel names them by lines `alias vfio_pci:…` in `modules.alias`, as it names other drivers by `pci:…`.

use divvy_host::machine::Sysroot;

use crate::function::Function;

/// The driver for every device.
pub const PLAIN: &str = "vfio-pci";

/// The module whose alias fits a function best, `vfio_pci` where none says more.
#[must_use]
pub fn best_module(root: &Sysroot, function: &Function) -> String {
    let plain = || PLAIN.replace('-', "_");
    let Some(release) = root.text("proc/sys/kernel/osrelease") else {
        return plain();
    };
    if release.contains('/') {
        return plain();
    }
    let Some(device) = function
        .modalias
        .as_deref()
        .and_then(|alias| alias.strip_prefix("pci:"))
    else {
        return plain();
    };
    let aliases = root.long_text(&format!("lib/modules/{release}/modules.alias"));
    let mut best: Option<(usize, &str)> = None;
    for line in aliases.as_deref().unwrap_or_default().lines() {
        let Some(line) = line.strip_prefix("alias vfio_pci:") else {
            continue;
        };
        let Some((pattern, module)) = line.split_once(' ') else {
            continue;
        };
        let letters = pattern.chars().filter(|letter| *letter != '*').count();
        if fits(pattern, device) && best.is_none_or(|(most, _)| letters > most) {
            best = Some((letters, module.trim()));
        }
    }
    best.map_or_else(plain, |(_, module)| module.to_owned())
}

/// The name under which a module's driver is registered. Modules have `_` where drivers may have `-`.
#[must_use]
pub fn registered(root: &Sysroot, module: &str) -> Option<String> {
    let same = |name: &String| name.replace('-', "_") == module.replace('-', "_");
    root.names("sys/bus/pci/drivers").into_iter().find(same)
}

/// Whether a text fits a pattern in which `*` stands for any letters.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_host::built::Built;

    #[test]
    fn the_alias_that_says_most_wins() {
        let folder = tempfile::tempdir().expect("a folder");
        let built = Built::at(folder.path());
        built.file("proc/sys/kernel/osrelease", "6.8.0\n");
        built.file(
            "lib/modules/6.8.0/modules.alias",
            "alias pci:v000010DEd* nouveau\n\
             alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n\
             alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci\n",
        );
        let root = Sysroot::at(folder.path());
        let with = |modalias: &str| Function {
            modalias: Some(modalias.to_owned()),
            ..Function::default()
        };
        let grace = with("pci:v000010DEd00002342sv000010DEsd000016EBbc03sc02i00");
        assert_eq!(best_module(&root, &grace), "nvgrace_gpu_vfio_pci");
        let other = with("pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00");
        assert_eq!(best_module(&root, &other), "vfio_pci");
        built.file("sys/bus/pci/drivers/vfio-pci/bind", "");
        assert_eq!(registered(&root, "vfio_pci").as_deref(), Some("vfio-pci"));
        assert_eq!(registered(&root, "nvgrace_gpu_vfio_pci"), None);
        assert!(!fits("v1d2", "v1d23") && fits("v*d2*", "v1d23"));
    }
}

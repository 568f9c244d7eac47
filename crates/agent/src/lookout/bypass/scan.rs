//! The libraries that a running process has mapped and that take device memory past the limiter, seen from outside. The
//! limiter sees the same from inside, in a process that allocates through it.

use std::path::Path;

use divvy_ledger::Bypass;

use crate::system::privilege;

/// The ways past the limiter that a process of a slice of user `uid` has mapped, each once. `drivers` are drivers below
/// under other names than libcuda.
#[must_use]
pub fn of_process(pid: u32, uid: u32, drivers: &[&Path]) -> Vec<Bypass> {
    // A process that has ended, or that this agent may not look at, has nothing mapped.
    let maps = privilege::maps(pid, uid).unwrap_or_default();
    of_maps(&String::from_utf8_lossy(&maps), drivers)
}

fn of_maps(maps: &str, drivers: &[&Path]) -> Vec<Bypass> {
    let mut found = Vec::new();
    let (mut limited, mut driver, mut layered) = (false, false, false);
    let mut last = "";
    for path in maps.lines().filter_map(path_of) {
        // The mappings of one file follow one another.
        if path == last {
            continue;
        }
        last = path;
        let file = Path::new(path);
        let Some(name) = file.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let libcuda = name == "libcuda.so" || name.starts_with("libcuda.so.");
        if path.contains(STAGES) || path.starts_with(IN_CONTAINER) {
            // This is a file of Divvy: a drop-in, or a stand-in for one of NVIDIA's.
            limited |= libcuda;
            layered |= name == LAYER;
        } else if let Some(bypass) = Bypass::by_library(name) {
            if !found.contains(&bypass) {
                found.push(bypass);
            }
        } else {
            driver |= libcuda || drivers.contains(&file);
        }
    }
    // OpenCL's loader has put the layer in front of every driver.
    if layered {
        found.retain(|bypass| *bypass != Bypass::OpenCl);
    }
    // The limiter, where it is loaded, judges by itself whether a libcuda is the driver below.
    if driver && !limited {
        found.push(Bypass::ForeignLibcuda);
    }
    found
}

/// In the path of every staged drop-in.
const STAGES: &str = "/stages/";

/// The limiter in front of OpenCL's drivers, in a stage.
const LAYER: &str = "libdivvy-opencl.so.1";

/// The limiter's folder as containers of a slice see it: a process's maps hold the paths in its own view.
pub(super) const IN_CONTAINER: &str = "/run/divvy/lib/";

/// The path at the end of a line of /proc/PID/maps, where there is one.
fn path_of(line: &str) -> Option<&str> {
    let at = line.find('/')?;
    let path = &line[at..];
    Some(path.strip_suffix(" (deleted)").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(path: &str) -> String {
        format!("7f1d3c000000-7f1d3c021000 r-xp 00000000 08:01 1234                       {path}\n")
    }

    #[test]
    fn other_drivers_are_recognised_by_name_and_path() {
        let emulated = Path::new("/usr/lib/divvy/libdivvy_emulated_cuda.so");
        let of = |paths: &[&str]| {
            let maps: String = paths.iter().map(|path| line(path)).collect();
            of_maps(&maps, &[emulated])
        };
        let ours = "/run/divvy/stages/0a/lib/libcuda.so.1";
        let below = "/usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03";
        assert_eq!(of(&["/usr/lib/libc.so.6", ours, below, below]), []);
        assert_eq!(of(&[ours, "/usr/lib/divvy/libdivvy_emulated_cuda.so"]), []);
        let in_container = "/run/divvy/lib/lib64/libcuda.so.1";
        assert_eq!(of(&[in_container, "/run/divvy/below/libcuda.so.1"]), []);
        assert_eq!(of(&["/run/divvy/below/libcuda.so.1"]), [Bypass::ForeignLibcuda]);
        assert_eq!(of(&["/usr/lib/libnvidia-ml.so.1"]), []);
        assert_eq!(of(&[below]), [Bypass::ForeignLibcuda]);
        assert_eq!(of(&["/opt/libcuda.so.1 (deleted)"]), [Bypass::ForeignLibcuda]);
        assert_eq!(
            of(&["/usr/lib/divvy/libdivvy_emulated_cuda.so"]),
            [Bypass::ForeignLibcuda]
        );
        assert_eq!(
            of(&[
                ours,
                "/usr/lib/libnvidia-opencl.so.535.261.03",
                "/usr/lib/libnvcuvid.so.1",
                "/usr/lib/libnvidia-glcore.so.535.261.03",
                "/usr/lib/libEGL_nvidia.so.0",
            ]),
            [Bypass::OpenCl, Bypass::Codec, Bypass::Graphics]
        );
        assert_eq!(of(&["/run/divvy/stages/0a/refusals/libnvcuvid.so.1"]), []);
        let opencl = "/usr/lib/libnvidia-opencl.so.535.261.03";
        let layer = "libdivvy-opencl.so.1";
        assert_eq!(of(&[opencl]), [Bypass::OpenCl]);
        assert_eq!(of(&[opencl, &format!("/run/divvy/stages/0a/lib/{layer}")]), []);
        assert_eq!(of(&[opencl, &format!("/home/me/{layer}")]), [Bypass::OpenCl]);
        assert_eq!(of_maps("", &[]), []);
        assert_eq!(of_maps("7f-7f r-xp 0 0 0\n[heap]\n", &[]), []);
        assert_eq!(of_process(u32::MAX, 0, &[]), []);
    }
}

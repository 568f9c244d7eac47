//! What a running process has mapped: libraries that take device memory past the limiter, seen from outside. The limiter
//! sees the same from inside, in a process that allocates through it.

use std::fs;
use std::path::Path;

use divvy_ledger::Bypass;

/// The ways past the limiter that a process has mapped, each once. `stages` is the folder below which the drop-ins
/// lie; `driver` the driver below them.
#[must_use]
pub fn of_process(pid: u32, stages: &Path, driver: Option<&Path>) -> Vec<Bypass> {
    // A process that has ended, or that is not ours to look at, has nothing mapped.
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    of_maps(&String::from_utf8_lossy(&maps), stages, driver)
}

fn of_maps(maps: &str, stages: &Path, driver: Option<&Path>) -> Vec<Bypass> {
    let mut found = Vec::new();
    let mut limited = false;
    let mut note = |bypass| {
        if !found.contains(&bypass) {
            found.push(bypass);
        }
    };
    let mut last = "";
    let mut foreign = false;
    let mut below = false;
    for path in maps.lines().filter_map(path_of) {
        if path == last {
            continue;
        }
        last = path;
        let file = Path::new(path);
        let Some(name) = file.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let libcuda = name == "libcuda.so" || name.starts_with("libcuda.so.");
        if file.starts_with(stages) {
            // Ours: a drop-in, or a stand-in for one of NVIDIA's.
            limited |= libcuda || name.contains("divvy");
        } else if let Some(bypass) = Bypass::by_library(name) {
            note(bypass);
        } else if driver.is_some_and(|driver| driver == file) {
            below = true;
        } else if libcuda && !path.starts_with("/usr/lib/wsl/") {
            foreign = true;
        }
    }
    // A process may have the driver below it only through a limiter.
    if foreign || (below && !limited) {
        note(Bypass::ForeignLibcuda);
    }
    found
}

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
    fn strangers_are_told_by_their_names_and_places() {
        let stages = Path::new("/run/divvy/stages");
        let driver = Some(Path::new("/usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03"));
        let of = |paths: &[&str]| {
            let maps: String = paths.iter().map(|path| line(path)).collect();
            of_maps(&maps, stages, driver)
        };
        let ours = "/run/divvy/stages/0a/lib/libcuda.so.1";
        let below = "/usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03";
        assert_eq!(of(&["/usr/lib/libc.so.6", ours, below, below]), []);
        assert_eq!(of(&[below]), [Bypass::ForeignLibcuda]);
        assert_eq!(
            of(&[ours, below, "/opt/other/libcuda.so.1"]),
            [Bypass::ForeignLibcuda]
        );
        assert_eq!(
            of(&[ours, "/opt/other/libcuda.so.1 (deleted)"]),
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
        assert_eq!(of_maps("", stages, driver), []);
        assert_eq!(of_maps("7f-7f r-xp 0 0 0\n[heap]\n", stages, None), []);
        assert_eq!(of_process(u32::MAX, stages, None), []);
    }
}

//! Which of NVIDIA's files a container gets: by the capabilities asked for, found where distributions put them.

use std::path::PathBuf;
use std::str::FromStr;

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};

/// A part of NVIDIA's driver, as NVIDIA_DRIVER_CAPABILITIES names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capability {
    /// CUDA and OpenCL.
    Compute,
    /// NVML and nvidia-smi.
    Utility,
    /// The codecs.
    Video,
    /// OpenGL, Vulkan and EGL.
    Graphics,
    /// X11.
    Display,
    /// NVIDIA's NGX.
    Ngx,
}

/// A set of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities(Vec<Capability>);

impl Default for Capabilities {
    /// NVIDIA's own default.
    fn default() -> Self {
        Self(vec![Capability::Utility, Capability::Compute])
    }
}

const WORDS: [(&str, Capability); 6] = [
    ("compute", Capability::Compute),
    ("utility", Capability::Utility),
    ("video", Capability::Video),
    ("graphics", Capability::Graphics),
    ("display", Capability::Display),
    ("ngx", Capability::Ngx),
];

impl Capabilities {
    /// Whether a capability is among them.
    #[must_use]
    pub fn has(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }
}

impl FromStr for Capabilities {
    type Err = Fault;

    /// Words with commas between them; `all`, and nothing for the default.
    fn from_str(text: &str) -> Result<Self, Fault> {
        let mut found = Vec::new();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            if word == "all" {
                return Ok(Self(WORDS.map(|(_, capability)| capability).to_vec()));
            }
            // 32-bit libraries, which CUDA has had none of for years.
            if word == "compat32" {
                continue;
            }
            let Some((_, capability)) = WORDS.iter().find(|(known, _)| *known == word) else {
                let known: Vec<&str> = WORDS.iter().map(|(known, _)| *known).collect();
                return Err(
                    Fault::new(Code::Usage, format!("`{word}` is no driver capability"))
                        .hint(format!("choose among {} and all", known.join(", "))),
                );
            };
            found.push(*capability);
        }
        if found.is_empty() {
            return Ok(Self::default());
        }
        found.sort_unstable();
        found.dedup();
        Ok(Self(found))
    }
}

/// A library: its name without version, and the name by which programs and its siblings load it; none where that is the
/// driver's full version.
type Library = (&'static str, Option<&'static str>);

const COMPUTE: [Library; 10] = [
    ("libcuda.so", Some("1")),
    ("libcudadebugger.so", Some("1")),
    ("libnvidia-allocator.so", Some("1")),
    ("libnvidia-compiler.so", None),
    ("libnvidia-gpucomp.so", None),
    ("libnvidia-nvvm.so", Some("4")),
    ("libnvidia-opencl.so", Some("1")),
    ("libnvidia-pkcs11-openssl3.so", None),
    ("libnvidia-pkcs11.so", None),
    ("libnvidia-ptxjitcompiler.so", Some("1")),
];
const UTILITY: [Library; 2] = [("libnvidia-cfg.so", Some("1")), ("libnvidia-ml.so", Some("1"))];
const VIDEO: [Library; 3] = [
    ("libnvcuvid.so", Some("1")),
    ("libnvidia-encode.so", Some("1")),
    ("libnvidia-opticalflow.so", Some("1")),
];
const GRAPHICS: [Library; 14] = [
    ("libEGL_nvidia.so", Some("0")),
    ("libGLESv1_CM_nvidia.so", Some("1")),
    ("libGLESv2_nvidia.so", Some("2")),
    ("libGLX_nvidia.so", Some("0")),
    ("libnvidia-cbl.so", None),
    ("libnvidia-eglcore.so", None),
    ("libnvidia-fbc.so", Some("1")),
    ("libnvidia-glcore.so", None),
    ("libnvidia-glsi.so", None),
    ("libnvidia-glvkspirv.so", None),
    ("libnvidia-gpucomp.so", None),
    ("libnvidia-rtcore.so", None),
    ("libnvidia-tls.so", None),
    ("libnvoptix.so", Some("1")),
];
const NGX: [Library; 1] = [("libnvidia-ngx.so", Some("1"))];

const UTILITY_PROGRAMS: [&str; 3] = ["nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"];
const COMPUTE_PROGRAMS: [&str; 2] = ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

/// Where distributions put NVIDIA's libraries, without the first slash.
const FOLDERS: [&str; 9] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "home/kubernetes/bin/nvidia/lib64",
    "run/opengl-driver/lib",
];

/// A file that was found: where it lies, and what it is to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Absolute, on the host.
    pub path: PathBuf,
    /// `libcuda.so.1`.
    pub name: String,
}

/// The libraries of these capabilities that are there.
#[must_use]
pub fn libraries(root: &Sysroot, capabilities: &Capabilities) -> Vec<File> {
    let sets: [(Capability, &[Library]); 6] = [
        (Capability::Compute, &COMPUTE),
        (Capability::Utility, &UTILITY),
        (Capability::Video, &VIDEO),
        (Capability::Graphics, &GRAPHICS),
        (Capability::Display, &GRAPHICS),
        (Capability::Ngx, &NGX),
    ];
    let mut files: Vec<File> = sets
        .iter()
        .filter(|(capability, _)| capabilities.has(*capability))
        .flat_map(|(_, set)| set.iter())
        .filter_map(|library| find(root, *library))
        .collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files.dedup_by(|a, b| a.name == b.name);
    files
}

/// The programs of these capabilities that are there; a container has them in /usr/bin.
#[must_use]
pub fn programs(root: &Sysroot, capabilities: &Capabilities) -> Vec<File> {
    let sets: [(Capability, &[&str]); 2] = [
        (Capability::Compute, &COMPUTE_PROGRAMS),
        (Capability::Utility, &UTILITY_PROGRAMS),
    ];
    let wanted = sets
        .iter()
        .filter(|(capability, _)| capabilities.has(*capability));
    let names = wanted.flat_map(|(_, set)| set.iter());
    names
        .filter_map(|name| {
            let file = format!("usr/bin/{name}");
            root.real(&file).map(|path| File {
                path,
                name: (*name).into(),
            })
        })
        .collect()
}

/// The file itself, not a link to it: the container does not have what a link leads to.
fn find(root: &Sysroot, (name, version): Library) -> Option<File> {
    for folder in FOLDERS {
        match version {
            Some(version) => {
                let short = format!("{name}.{version}");
                if let Some(path) = root.real(&format!("{folder}/{short}")) {
                    return Some(File { path, name: short });
                }
            }
            None => {
                // `libnvidia-compiler.so.550.54.15`
                let versioned = |file: &String| {
                    let rest = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
                    rest.is_some_and(|rest| {
                        rest.contains('.') && rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
                    })
                };
                if let Some(file) = root.names(folder).into_iter().find(versioned) {
                    let path = root.real(&format!("{folder}/{file}"))?;
                    return Some(File { path, name: file });
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_words() {
        let read = |text: &str| text.parse::<Capabilities>();
        assert_eq!(read(""), Ok(Capabilities::default()));
        let video = read("video, compute").expect("understood");
        assert!(video.has(Capability::Video) && !video.has(Capability::Utility));
        assert!(read("all").expect("understood").has(Capability::Ngx));
        assert_eq!(read("compute,cuda").expect_err("no").code, Code::Usage);
    }
}

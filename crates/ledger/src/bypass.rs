//! Bypasses: ways to use a device past the limiter, and how often a slice's processes used each.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::layout::{BYPASS_KINDS, LedgerPage};

/// A way to use a device that the limiter does not see, or sees only in part. Its number is its index in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bypass {
    /// A statically linked program: no drop-in is loaded into it.
    StaticProgram = 0,
    /// A program that runs with another user's rights: the loader ignores the drop-ins' folder.
    PrivilegedProgram = 1,
    /// A libcuda that was opened in another way than through the drop-in, for example by its path.
    ForeignLibcuda = 2,
    /// NVIDIA's OpenCL library.
    OpenCl = 3,
    /// NVIDIA's Vulkan or OpenGL library.
    Graphics = 4,
    /// NVIDIA's video encoder or decoder library.
    Codec = 5,
    /// An entry point that is newer than the drop-in, handed out unchanged.
    UnknownEntryPoint = 6,
    /// Device memory that the driver charges to the slice and that no call showed, beyond what a driver takes itself.
    UnexplainedMemory = 7,
    /// A context on a device of which the slice has no share.
    ForeignDevice = 8,
}

impl Bypass {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::StaticProgram,
        Self::PrivilegedProgram,
        Self::ForeignLibcuda,
        Self::OpenCl,
        Self::Graphics,
        Self::Codec,
        Self::UnknownEntryPoint,
        Self::UnexplainedMemory,
        Self::ForeignDevice,
    ];

    /// Its name in metrics and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::StaticProgram => "static-program",
            Self::PrivilegedProgram => "privileged-program",
            Self::ForeignLibcuda => "foreign-libcuda",
            Self::OpenCl => "opencl",
            Self::Graphics => "graphics",
            Self::Codec => "codec",
            Self::UnknownEntryPoint => "unknown-entry-point",
            Self::UnexplainedMemory => "unexplained-memory",
            Self::ForeignDevice => "foreign-device",
        }
    }
}

/// NVIDIA's libraries that take device memory past libcuda, by the start of their file names. Source: the driver's
/// README, "Installed Components". Each is opened by the first of its names that programs and their loaders ask for.
const LIBRARIES: [(&str, Bypass); 10] = [
    ("libnvidia-opencl.so", Bypass::OpenCl),
    ("libGLX_nvidia.so", Bypass::Graphics),
    ("libEGL_nvidia.so", Bypass::Graphics),
    ("libGLESv1_CM_nvidia.so", Bypass::Graphics),
    ("libGLESv2_nvidia.so", Bypass::Graphics),
    ("libnvidia-glcore.so", Bypass::Graphics),
    ("libnvidia-eglcore.so", Bypass::Graphics),
    ("libnvcuvid.so", Bypass::Codec),
    ("libnvidia-encode.so", Bypass::Codec),
    ("libnvidia-opticalflow.so", Bypass::Codec),
];

impl Bypass {
    /// The bypass that loading the library of this file name makes possible, if any. The caller judges `libcuda`
    /// itself.
    #[must_use]
    pub fn by_library(file_name: &str) -> Option<Self> {
        let starts = |name: &str| {
            file_name
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let found = LIBRARIES.iter().find(|(name, _)| starts(name))?;
        Some(found.1)
    }

    /// The names by which programs and their loaders open those libraries.
    pub fn library_names() -> impl Iterator<Item = String> {
        LIBRARIES.iter().map(|(name, _)| {
            let version = if name.contains("_nvidia") {
                // GLVND's vendor libraries have version 0, except for the GLES ones.
                match name.contains("GLES") {
                    true if name.contains("v1") => "1",
                    true => "2",
                    false => "0",
                }
            } else {
                "1"
            };
            format!("{name}.{version}")
        })
    }
}

impl fmt::Display for Bypass {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

const _: () = assert!(Bypass::ALL.len() <= BYPASS_KINDS);

impl LedgerPage {
    pub(crate) fn count(&self, bypass: Bypass) {
        self.bypasses[bypass as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn bypasses(&self, bypass: Bypass) -> u64 {
        self.bypasses[bypass as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_known_by_any_of_their_versions() {
        for (name, kind) in [
            ("libnvidia-opencl.so.1", Some(Bypass::OpenCl)),
            ("libnvidia-glcore.so.535.261.03", Some(Bypass::Graphics)),
            ("libGLX_nvidia.so.0", Some(Bypass::Graphics)),
            ("libnvcuvid.so", Some(Bypass::Codec)),
            ("libnvidia-encode.so.1", Some(Bypass::Codec)),
            ("libnvidia-ml.so.1", None),
            ("libcuda.so.1", None),
            ("libnvidia-opencl.sox", None),
            ("libGLX_mesa.so.0", None),
        ] {
            assert_eq!(Bypass::by_library(name), kind, "{name}");
        }
        for name in Bypass::library_names() {
            assert!(Bypass::by_library(&name).is_some(), "{name}");
        }
    }
}

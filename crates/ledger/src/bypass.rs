//! Ways to use a device past the limiter, and how often a slice's processes took each.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::layout::{BYPASS_KINDS, LedgerPage};

/// A way to use a device that the limiter does not see, or does not see all of. Its number is its place in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bypass {
    /// A program that is linked statically: no drop-in is loaded into it.
    StaticProgram = 0,
    /// A program that runs with another user's rights: the loader ignores the drop-ins' place.
    PrivilegedProgram = 1,
    /// A libcuda that was not opened through the drop-in, by its path for instance.
    ForeignLibcuda = 2,
    /// NVIDIA's OpenCL library.
    OpenCl = 3,
    /// NVIDIA's Vulkan or OpenGL library.
    Graphics = 4,
    /// NVIDIA's video encoder or decoder library.
    Codec = 5,
    /// An entry point that is newer than the drop-in, handed out as it is.
    UnknownEntryPoint = 6,
    /// Device memory that the driver accounts to the slice and that no call showed, beyond what a driver takes itself.
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

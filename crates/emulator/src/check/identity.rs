//! A launch as findings name it: its kernel, its geometry, and where its instructions come from.

use super::findings::Site;
use super::race::Who;
use super::strands::Submitted;
use crate::launch::Geometry;
use crate::module::Instance;
use divvy_ptx::Module;
use std::sync::Arc;

/// A launch whose accesses are remembered.
pub struct Identity {
    pub kernel: String,
    pub submitted: Submitted,
    instance: Arc<Instance>,
    grid: [u32; 3],
    block: [u32; 3],
}

impl Identity {
    pub fn new(
        instance: &Arc<Instance>,
        kernel: &str,
        geometry: &Geometry,
        submitted: Submitted,
    ) -> Identity {
        Identity {
            kernel: kernel.to_owned(),
            submitted,
            instance: Arc::clone(instance),
            grid: geometry.grid,
            block: geometry.block,
        }
    }

    pub fn module(&self) -> &Module {
        self.instance.program.module()
    }

    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// A thread at an instruction.
    pub fn site(&self, who: Who, instruction: u32) -> Site {
        let along = |n: u64, [x, y, _]: [u32; 3]| {
            let (x, y) = (u64::from(x.max(1)), u64::from(y.max(1)));
            [(n % x) as u32, (n / x % y) as u32, (n / x / y) as u32]
        };
        let place = self.module().place(instruction);
        Site {
            block: along(who.block, self.grid),
            thread: along(u64::from(who.thread), self.block),
            source: place
                .as_ref()
                .and_then(|place| place.source.as_ref())
                .map(|(file, line)| format!("{file}:{line}")),
            ptx_line: place.as_ref().map_or(0, |place| place.line),
            instruction: place.map_or_else(String::new, |place| place.text),
        }
    }
}

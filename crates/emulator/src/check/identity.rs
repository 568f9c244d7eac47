//! A launch as findings name it: its kernel, its geometry, and where its instructions come from.

use super::findings::Site;
use super::race::Who;
use super::strands::Submitted;
use divvy_ptx::{Launch, Module, Program};

/// A launch whose accesses are remembered.
pub struct Identity {
    pub kernel: String,
    pub submitted: Submitted,
    program: Program,
    grid: [u32; 3],
    block: [u32; 3],
}

impl Identity {
    pub fn new(program: &Program, launch: &Launch<'_>, submitted: Submitted) -> Identity {
        Identity {
            kernel: launch.kernel.to_owned(),
            submitted,
            program: program.clone(),
            grid: launch.grid,
            block: launch.block,
        }
    }

    pub fn module(&self) -> &Module {
        self.program.module()
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

//! The unit that brings groups back to VFIO at each start of the machine: the kernel forgets which driver a device was given.

use std::path::Path;

use divvy_host::machine::Sysroot;
use divvy_model::Fault;

use super::plan::{Command, Plan};

/// The unit's name.
pub const UNIT: &str = "divvy-vm-restore.service";
/// What packages install, with the program at [`PROGRAM`].
const TEXT: &str = include_str!("../../../../deploy/systemd/divvy-vm-restore.service");
/// Where the unit says that the program is.
const PROGRAM: &str = "/usr/bin/divvy";
/// Where systemd keeps units of packages.
const PACKAGED: [&str; 2] = ["usr/lib/systemd/system", "lib/systemd/system"];
/// Where those of the administrator are.
const OWN: &str = "etc/systemd/system";

/// The link that enables it.
fn enabled() -> String {
    format!("{OWN}/multi-user.target.wants/{UNIT}")
}

/// Whether the machine has systemd, and does not run the unit when it starts.
#[must_use]
pub fn is_lacking(root: &Sysroot) -> bool {
    PACKAGED.iter().any(|folder| root.has(folder)) && root.target(&enabled()).is_none()
}

impl Plan {
    /// The plan, with the unit and what enables it. A machine without systemd has none.
    ///
    /// # Errors
    /// As [`Plan::make`].
    pub fn with_restore(mut self, root: &Sysroot, program: &Path) -> Result<Self, Fault> {
        if !PACKAGED.iter().any(|folder| root.has(folder)) {
            return Ok(self);
        }
        let is_packaged = PACKAGED
            .iter()
            .any(|folder| root.has(&format!("{folder}/{UNIT}")));
        if !is_packaged {
            let text = TEXT.replace(PROGRAM, &program.to_string_lossy());
            self.file(root, &format!("{OWN}/{UNIT}"), |_| Some(text))?;
        }
        if is_lacking(root) {
            let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
            self.commands.push(Command {
                words: words(&["systemctl", "enable", UNIT]),
                // The unit's file may be gone by then, without which `systemctl disable` finds nothing.
                undo: words(&["rm", "-f", &format!("/{}", enabled())]),
            });
        }
        Ok(self)
    }
}

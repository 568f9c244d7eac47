//! What is asked of the kernel, behind a trait: everything that changes a device goes through here. The tests play a kernel
//! on a tree of files, and let each write fail in turn.

use std::io;

use divvy_host::machine::Sysroot;
use divvy_host::tool::{HostTools, Tools};
use divvy_model::Fault;

use crate::function::DEVICES;

/// The kernel, as far as it is changed.
pub trait Kernel {
    /// Writes to a file of `sys`.
    ///
    /// # Errors
    /// What the kernel answers.
    fn write(&mut self, path: &str, text: &str) -> io::Result<()>;

    /// Loads a module.
    ///
    /// # Errors
    /// [`divvy_model::Code::Tool`].
    fn load(&mut self, module: &str) -> Result<(), Fault>;
}

/// This machine's.
#[derive(Debug)]
pub struct Running {
    root: Sysroot,
}

impl Running {
    /// This machine's kernel.
    #[must_use]
    pub fn new() -> Self {
        Self {
            root: Sysroot::at("/"),
        }
    }
}

impl Default for Running {
    fn default() -> Self {
        Self::new()
    }
}

impl Kernel for Running {
    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        self.root.write(path, text)
    }

    fn load(&mut self, module: &str) -> Result<(), Fault> {
        let said = HostTools::default().run("modprobe", &["--", module], &[], "");
        said.map(|_| ())
    }
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The file, below the root.
    pub path: String,
    /// What is written. A line's end alone clears an override.
    pub text: String,
}

impl Step {
    /// Lets no other driver than this one bind a function, or any where there is none.
    #[must_use]
    pub fn only(address: &str, driver: Option<&str>) -> Self {
        Self {
            path: format!("{DEVICES}/{address}/driver_override"),
            text: driver.unwrap_or("\n").to_owned(),
        }
    }

    /// Takes the driver off a function.
    #[must_use]
    pub fn unbind(address: &str) -> Self {
        Self {
            path: format!("{DEVICES}/{address}/driver/unbind"),
            text: address.to_owned(),
        }
    }

    /// Lets the kernel look for a function's driver.
    #[must_use]
    pub fn probe(address: &str) -> Self {
        Self {
            path: "sys/bus/pci/drivers_probe".to_owned(),
            text: address.to_owned(),
        }
    }

    /// As a shell would do it.
    #[must_use]
    pub fn as_shell(&self) -> String {
        match self.text.trim() {
            "" => format!("echo > /{}", self.path),
            text => format!("echo {text} > /{}", self.path),
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn take(&self, kernel: &mut dyn Kernel) -> io::Result<()> {
        kernel.write(&self.path, &self.text)
    }
}

//! IOMMU groups. The functions of one group can reach each other's memory, so they go to a virtual machine together.

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};

use crate::function::{DEVICES, Function, Kind, addresses};

/// Where groups are, below the root.
pub const GROUPS: &str = "sys/kernel/iommu_groups";

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number. The kernel gives numbers out again at each start.
    pub number: u32,
    /// Its functions by address, without bridges, which stay with the host.
    pub functions: Vec<Function>,
}

/// How a function of a group stands to the GPU that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is that GPU.
    Asked,
    /// It is a part of the same card: its sound, its USB-C port.
    Companion,
    /// It is something else, and goes along only where the caller names it.
    Foreign,
}

impl Group {
    /// The group of this number.
    #[must_use]
    pub fn read(root: &Sysroot, number: u32) -> Self {
        let names = addresses(root, &format!("{GROUPS}/{number}/devices"));
        let functions = names.iter().filter_map(|name| Function::read(root, name));
        Self {
            number,
            functions: functions
                .filter(|function| function.kind() != Kind::Bridge)
                .collect(),
        }
    }

    /// The group of a function.
    ///
    /// # Errors
    /// [`Code::UnknownDevice`] where there is no such function, [`Code::VmHost`] where the IOMMU is off, and
    /// [`Code::VmGroup`] for a bridge.
    pub fn of(root: &Sysroot, address: &str) -> Result<Self, Fault> {
        let Some(function) = Function::read(root, address) else {
            let shown = root.has(&format!("{DEVICES}/{address}"));
            let why = if shown { "is going away" } else { "is not there" };
            return Err(
                Fault::new(Code::UnknownDevice, format!("the PCI function {address} {why}"))
                    .hint("`divvy vm status` lists the GPUs of this machine"),
            );
        };
        if function.kind() == Kind::Bridge {
            return Err(Fault::new(
                Code::VmGroup,
                format!("{address} is a bridge, which stays with the host"),
            )
            .hint("name a GPU; `divvy vm status` lists them"));
        }
        let Some(number) = function.group else {
            return Err(Fault::new(
                Code::VmHost,
                format!("{address} is in no IOMMU group: the IOMMU is off"),
            )
            .hint("`divvy vm doctor` says how to turn it on"));
        };
        Ok(Self::read(root, number))
    }

    /// How one of its functions stands to the one that was asked for.
    #[must_use]
    pub fn role(function: &Function, asked: &str) -> Role {
        let slot = asked.split('.').next().unwrap_or_default();
        match function.kind() {
            _ if function.address == asked => Role::Asked,
            Kind::Audio | Kind::Usb | Kind::Serial if function.slot() == slot => Role::Companion,
            _ => Role::Foreign,
        }
    }

    /// Its functions that are no part of the card that was asked for.
    #[must_use]
    pub fn foreign(&self, asked: &str) -> Vec<&Function> {
        let functions = self.functions.iter();
        functions
            .filter(|function| Self::role(function, asked) == Role::Foreign)
            .collect()
    }

    /// The functions that keep VFIO from giving the group away: those with a driver of the host's.
    #[must_use]
    pub fn on_host_drivers(&self) -> Vec<&Function> {
        let functions = self.functions.iter();
        functions
            .filter(|function| function.driver.is_some() && !function.is_on_vfio())
            .collect()
    }
}

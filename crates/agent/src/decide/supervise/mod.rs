//! What is done about a supervised slice whose processes take more than it has, by the figures of the device's driver.
//! docs/adr/0042-supervised.md has the reasons. Nothing here asks a clock or the system: the caller passes what it saw.

pub(crate) mod dead;
mod lateness;
pub(crate) mod memory;
mod outlasting;
pub(crate) mod time;

#[cfg(test)]
mod tests;

/// A process for ever: its number, and when it began in the kernel's ticks since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it began.
    pub start_ticks: u64,
}

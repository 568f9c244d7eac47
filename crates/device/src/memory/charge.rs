//! What memory costs the device: the units it is given in, and bytes that are taken and given back.

use std::sync::Arc;

/// Device memory is handed out in units of this many bytes.
pub const GRANULE: u64 = 512;
/// Bytes of a device page.
pub const PAGE: u64 = 2 << 20;

/// Where device memory is accounted: the device's hardware page, which all processes share.
pub trait Charge: Send + Sync {
    /// Takes bytes from the device, or says that there are not enough.
    ///
    /// # Errors
    /// [`OutOfMemory`]: the device has not so many bytes.
    fn take(&self, bytes: u64) -> Result<(), OutOfMemory>;
    /// Takes bytes that are counted already, because another process had them, whether or not there are enough.
    ///
    /// # Errors
    /// [`OutOfMemory`]: the account cannot be reached.
    fn take_over(&self, bytes: u64) -> Result<(), OutOfMemory>;
    /// Gives bytes back.
    fn give(&self, bytes: u64);
}

/// The device has not as many bytes left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

/// Bytes taken from a device; given back on drop.
pub struct Charged {
    charge: Arc<dyn Charge>,
    bytes: u64,
}

impl Charged {
    /// How many bytes it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes bytes, or says that there are not enough.
    ///
    /// # Errors
    /// [`OutOfMemory`]: the device has not so many bytes.
    pub fn take(charge: &Arc<dyn Charge>, bytes: u64) -> Result<Charged, OutOfMemory> {
        charge.take(bytes)?;
        Ok(Charged {
            charge: Arc::clone(charge),
            bytes,
        })
    }

    /// Takes bytes over from a process that let them go.
    ///
    /// # Errors
    /// [`OutOfMemory`]: the account cannot be reached.
    pub fn take_over(charge: &Arc<dyn Charge>, bytes: u64) -> Result<Charged, OutOfMemory> {
        charge.take_over(bytes)?;
        Ok(Charged {
            charge: Arc::clone(charge),
            bytes,
        })
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.charge.give(self.bytes);
    }
}

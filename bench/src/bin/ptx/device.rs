//! Device memory for the benches: plain vectors, lent for the length of one launch.

use std::ops::Range;

use divvy_ptx::AddressSpace;

/// The buffers a launch may touch.
#[derive(Default)]
pub struct Lent(Vec<Range<u64>>);

impl Lent {
    /// Lends `values` and gives their device address.
    pub fn lend<T>(&mut self, values: &mut [T]) -> u64 {
        let address = values.as_mut_ptr() as u64;
        self.0.push(address..address + size_of_val(values) as u64);
        address
    }
}

impl AddressSpace for Lent {
    fn range(&self, address: u64) -> Option<Range<u64>> {
        self.0.iter().find(|range| range.contains(&address)).cloned()
    }
}

/// A float vector on a 16-byte boundary, as kernels that load four at once need it.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Four(pub [f32; 4]);

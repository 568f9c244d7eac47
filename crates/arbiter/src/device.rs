//! A device as the arbiter keeps it.

use std::collections::BTreeSet;

use crate::Nanos;
use crate::admission::Promises;
use crate::change::Change;
use crate::longest::OfDevice;
use crate::settings::Settings;
use crate::tenant::ClaimKey;
use crate::virtual_time::VirtualTime;

#[derive(Debug, Default)]
pub(crate) struct Device {
    pub promises: Promises,
    pub members: u32,
    /// Latency-critical ones among them.
    pub latency: u32,
    /// The tenant that has the lease.
    pub holder: Option<usize>,
    /// The tenant whose last kernel still runs, though the lease is already that of another one, which could not wait.
    pub draining: Option<usize>,
    /// Best-effort tenants of this device alone that wait, least virtual time first.
    pub ready: BTreeSet<(VirtualTime, usize)>,
    /// The same of gangs.
    pub gangs: BTreeSet<(VirtualTime, usize)>,
    /// Latency-critical tenants that wait and have budget, earliest deadline first.
    pub urgent: BTreeSet<(Nanos, usize)>,
    /// Gangs that claim the device, in their order.
    pub claims: BTreeSet<(ClaimKey, usize)>,
    /// Virtual time of the device: the least that the tenants that run or wait have reached. Never goes back.
    pub floor: VirtualTime,
    /// How far leases were outlasted of late.
    pub overrun: OfDevice,
    /// What a change of holder costs while memory is paged.
    pub refill: Nanos,
    /// What one costs otherwise: threads have to wake.
    pub change: Change,
    /// Tenants whose lease here has expired with work in flight.
    pub stuck: u32,
    /// It is on the list of devices to look at.
    pub dirty: bool,
}

impl Device {
    /// Best-effort tenants that wait.
    pub fn waiting(&mut self, gang: bool) -> &mut BTreeSet<(VirtualTime, usize)> {
        if gang { &mut self.gangs } else { &mut self.ready }
    }

    /// The quantum here at `now`: the settings', or more while a change of holder costs much or launches are long.
    pub fn quantum(&self, settings: &Settings, now: Nanos) -> Nanos {
        settings.stretched(self.change.cost(), self.overrun.at(now)).max(
            self.refill
                .saturating_mul(10)
                .min(settings.longest_quantum.max(settings.quantum)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECOND;

    #[test]
    fn a_costly_change_of_holder_makes_the_quantum_longer_within_bounds() {
        let (mut device, settings) = (Device::default(), Settings::default());
        assert_eq!(device.quantum(&settings, 0), settings.quantum);
        device.refill = settings.quantum;
        assert_eq!(device.quantum(&settings, 0), 10 * settings.quantum);
        device.refill = SECOND;
        assert_eq!(device.quantum(&settings, 0), settings.longest_quantum);
    }
}

//! Space for one more instance on a device as it is: no existing instance is touched.

use super::apply::occupancy;
use super::driver::MigDevice;
use super::geometry::{Layout, Profile, Shapes};

/// What an instance must have at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Least {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Its part of the device's multiprocessors, in parts of 10,000.
    pub compute: u64,
}

/// The smallest instance that has as much and fits: its profile and its first memory slice. Of its places it gets the
/// one that leaves others the most space.
#[must_use]
pub fn room_for(device: &MigDevice, least: Least) -> Option<(Profile, u8)> {
    let shapes = Shapes::new(device.geometry.clone());
    let now = occupancy(&shapes, device).current;
    let profiles = &shapes.geometry.profiles;
    let whole = profiles.iter().map(|profile| profile.sm_count).max()?.max(1);
    let has = |profile: &Profile| {
        let part = u64::from(profile.sm_count) * 10_000 / u64::from(whole);
        // Those with media engines of their own (`+me`, `+gfx`) are for requests by name.
        !profile.name.contains('+') && profile.memory_bytes >= least.memory_bytes && part >= least.compute
    };
    let mut large_enough: Vec<usize> = (0..profiles.len()).filter(|at| has(&profiles[*at])).collect();
    large_enough.sort_by_key(|at| (profiles[*at].memory_bytes, profiles[*at].compute_slices));
    large_enough.into_iter().find_map(|at| {
        let places = (0..shapes.places.len())
            .filter(|place| shapes.places[*place].profile == at && shapes.fits(now, *place));
        let place = places.max_by_key(|place| left(&shapes, now | 1 << place))?;
        Some((profiles[at].clone(), shapes.places[place].start))
    })
}

/// How many places are still free.
fn left(shapes: &Shapes, layout: Layout) -> usize {
    (0..shapes.places.len())
        .filter(|place| shapes.fits(layout, *place))
        .count()
}

#[cfg(test)]
mod tests {
    use super::super::driver::GpuInstance;
    use super::super::geometry::Geometry;
    use super::*;
    use divvy_model::MigProduct;

    const GIB: u64 = 1 << 30;

    fn h100(held: &[(&str, u8)]) -> MigDevice {
        let product = MigProduct::of_key("h100").expect("a product");
        let geometry = Geometry::from(product);
        let instance = |(id, (name, start)): (usize, &(&str, u8))| GpuInstance {
            id: id as u32,
            profile_id: geometry.profiles[geometry.profile(name).expect("a profile")].id,
            start: *start,
            compute: Vec::new(),
        };
        let instances = held.iter().enumerate().map(instance).collect();
        MigDevice {
            index: 0,
            uuid: String::new(),
            name: String::new(),
            pci_device: product.pci_devices[0],
            mode: Some(true),
            geometry,
            instances,
            tenants: Vec::new(),
        }
    }

    fn of(held: &[(&str, u8)], gib: u64, compute: u64) -> Option<(String, u8)> {
        let least = Least {
            memory_bytes: gib * GIB,
            compute,
        };
        room_for(&h100(held), least).map(|(profile, start)| (profile.name, start))
    }

    #[test]
    fn the_smallest_that_has_as_much_is_made_where_it_is_least_in_the_way() {
        let (name, start) = of(&[], 5, 0).expect("room");
        assert_eq!(name, "1g.10gb");
        // The free places still hold a 4g or a 3g.
        assert!(of(&[("1g.10gb", start)], 35, 4000).is_some());
        assert_eq!(of(&[], 15, 0).expect("room").0, "1g.20gb");
        assert_eq!(of(&[], 5, 4000).expect("room").0, "3g.40gb");
        assert_eq!(of(&[("3g.40gb", 4)], 30, 0).expect("room").1, 0);
        assert_eq!(of(&[("3g.40gb", 4), ("3g.40gb", 0)], 5, 0), None);
        assert_eq!(of(&[("7g.80gb", 0)], 1, 0), None);
        assert_eq!(of(&[], 90, 0), None);
    }
}

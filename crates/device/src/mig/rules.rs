//! What may be made and removed: the product's table, and the order that NVIDIA's library wants.

use super::state::{ComputeInstance, GpuInstance, State};
use divvy_model::{MigProduct, MigProfile, compute_parts, compute_starts};

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// MIG mode is off.
    Off,
    /// No such profile, or no place of it begins there.
    Invalid,
    /// There is no space for it.
    Full,
    /// Something is inside, or a program runs there.
    InUse,
    /// No such instance.
    Unknown,
}

/// A kind of compute instance that a GPU instance can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeKind {
    /// Its id, which is also NVML's number of it: `NVML_COMPUTE_INSTANCE_PROFILE_*`.
    pub id: u32,
    /// Compute slices.
    pub slices: u8,
    /// The most that the GPU instance holds.
    pub most: u8,
    /// Compute slices of the GPU instance.
    pub whole: u8,
    /// Streaming multiprocessors.
    pub sm_count: u32,
}

impl ComputeKind {
    /// Where one may begin, in compute slices.
    pub fn starts(self) -> impl Iterator<Item = u8> {
        compute_starts(self.slices, self.whole)
    }
}

/// The kinds of compute instances in a GPU instance of `profile`, as `nvidia-smi mig -lcip` prints them. A part has as
/// many times a slice's multiprocessors as it has slices (14 of 98 for `1c.7g.80gb` on an A100). The remainder belongs
/// to the whole.
pub fn compute_kinds(product: &MigProduct, profile: &MigProfile) -> Vec<ComputeKind> {
    let whole = profile.compute_slices;
    let slice = product.profiles.first().map_or(0, |smallest| smallest.sm_count);
    let kind = |slices: u8| ComputeKind {
        id: match slices {
            1..=4 => u32::from(slices) - 1,
            _ => 4,
        },
        slices,
        most: whole / slices,
        whole,
        sm_count: match slices == whole {
            true => profile.sm_count,
            false => slice * u32::from(slices),
        },
    };
    compute_parts(whole).into_iter().map(kind).collect()
}

/// The profile of this id.
pub fn profile(product: &'static MigProduct, id: u32) -> Option<&'static MigProfile> {
    product.profiles.iter().find(|profile| profile.id == id)
}

fn overlap(start: u8, size: u8, other: u8, others: u8) -> bool {
    u16::from(start) < u16::from(other) + u16::from(others)
        && u16::from(other) < u16::from(start) + u16::from(size)
}

impl State {
    /// Where an instance of a profile could be made now.
    pub fn room(&self, product: &'static MigProduct, kind: &MigProfile) -> Vec<u8> {
        let held = || {
            self.instances
                .iter()
                .filter_map(|held| Some((held, profile(product, held.profile)?)))
        };
        let compute: u32 = held().map(|(_, kind)| u32::from(kind.compute_slices)).sum();
        let same = held().filter(|(_, other)| other.id == kind.id).count();
        if compute + u32::from(kind.compute_slices) > u32::from(product.compute_slices)
            || same >= usize::from(kind.max)
        {
            return Vec::new();
        }
        let free =
            |start: &u8| !held().any(|(held, other)| overlap(*start, kind.size, held.start, other.size));
        kind.starts.iter().copied().filter(free).collect()
    }

    /// How many more instances of a profile could be made.
    pub fn remaining(&self, product: &'static MigProduct, kind: &MigProfile) -> u32 {
        let mut filled = self.clone();
        let mut count = 0;
        while filled.create(product, kind.id, None).is_ok() {
            count += 1;
        }
        count
    }

    /// Makes a GPU instance and returns its id. Without a given place it is put as far back as it goes. So the order of
    /// requests matters, as it does on hardware: after two small ones there may be no space for a large one.
    ///
    /// # Errors
    /// `Refusal`: MIG mode is off, the profile or place does not exist, or there is no space.
    pub fn create(
        &mut self,
        product: &'static MigProduct,
        profile_id: u32,
        place: Option<u8>,
    ) -> Result<u32, Refusal> {
        if !self.on {
            return Err(Refusal::Off);
        }
        let kind = profile(product, profile_id).ok_or(Refusal::Invalid)?;
        if place.is_some_and(|start| !kind.starts.contains(&start)) {
            return Err(Refusal::Invalid);
        }
        let room = self.room(product, kind);
        let start = match place {
            Some(start) => room.contains(&start).then_some(start),
            None => room.last().copied(),
        }
        .ok_or(Refusal::Full)?;
        // Numbered as halves, quarters and eighths of the device: 0, from 1, from 3, from 7.
        let first = u32::from(product.memory_slices.div_ceil(kind.size)) - 1;
        let id = (first..)
            .find(|id| self.instance(*id).is_none())
            .ok_or(Refusal::Full)?;
        self.instances.push(GpuInstance {
            id,
            profile: profile_id,
            start,
            compute: Vec::new(),
        });
        self.instances.sort_by_key(|instance| instance.id);
        Ok(id)
    }

    /// Removes a GPU instance, which must be empty.
    ///
    /// # Errors
    /// `Refusal`: there is no such instance, or it is not empty.
    pub fn destroy(&mut self, id: u32) -> Result<(), Refusal> {
        let instance = self.instance(id).ok_or(Refusal::Unknown)?;
        if !instance.compute.is_empty() {
            return Err(Refusal::InUse);
        }
        self.instances.retain(|instance| instance.id != id);
        Ok(())
    }

    /// Where a compute instance could be made in a GPU instance now.
    pub fn compute_room(instance: &GpuInstance, kind: ComputeKind) -> Vec<u8> {
        let taken = |start: &u8| {
            let mut held = instance.compute.iter();
            held.any(|held| overlap(*start, kind.slices, held.start, held.slices))
        };
        kind.starts().filter(|start| !taken(start)).collect()
    }

    /// Makes a compute instance; its id.
    ///
    /// # Errors
    /// `Refusal`: there is no such GPU instance or profile, or no space in it.
    pub fn create_compute(
        &mut self,
        product: &'static MigProduct,
        gpu_instance: u32,
        compute_profile: u32,
        place: Option<u8>,
    ) -> Result<u32, Refusal> {
        let instance = self.instance_mut(gpu_instance).ok_or(Refusal::Unknown)?;
        let outer = profile(product, instance.profile).ok_or(Refusal::Unknown)?;
        let kinds = compute_kinds(product, outer);
        let kind = kinds.into_iter().find(|kind| kind.id == compute_profile);
        let kind = kind.ok_or(Refusal::Invalid)?;
        if place.is_some_and(|start| !kind.starts().any(|known| known == start)) {
            return Err(Refusal::Invalid);
        }
        let room = Self::compute_room(instance, kind);
        let start = match place {
            Some(start) => room.contains(&start).then_some(start),
            None => room.first().copied(),
        }
        .ok_or(Refusal::Full)?;
        let id = (0..)
            .find(|id| instance.compute.iter().all(|held| held.id != *id))
            .ok_or(Refusal::Full)?;
        instance.compute.push(ComputeInstance {
            id,
            slices: kind.slices,
            start,
        });
        instance.compute.sort_by_key(|compute| compute.id);
        Ok(id)
    }

    /// Removes a compute instance, in which no process runs.
    ///
    /// # Errors
    /// `Refusal`: there is no such instance, or it is in use.
    pub fn destroy_compute(&mut self, gpu_instance: u32, id: u32) -> Result<(), Refusal> {
        let instance = self.instance_mut(gpu_instance).ok_or(Refusal::Unknown)?;
        let before = instance.compute.len();
        instance.compute.retain(|compute| compute.id != id);
        match instance.compute.len() == before {
            true => Err(Refusal::Unknown),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn product(key: &str) -> &'static MigProduct {
        MigProduct::of_key(key).expect("a product")
    }

    fn on() -> State {
        State {
            on: true,
            pending: true,
            instances: Vec::new(),
        }
    }

    #[test]
    fn four_times_14_fit_an_a30_and_three_an_a100() {
        for (key, fit) in [("a30", 4), ("a100-40gb", 3)] {
            let mut state = on();
            let made = (0..4).filter(|_| state.create(product(key), 14, None).is_ok());
            assert_eq!(made.count(), fit, "{key}");
        }
    }

    #[test]
    fn small_ones_first_leave_no_room_for_a_large_one() {
        let a100 = product("a100-40gb");
        let all = |ids: [u32; 4]| {
            let mut state = on();
            ids.map(|id| state.create(a100, id, None).err())
        };
        assert_eq!(all([19, 19, 14, 9]), [None, None, None, Some(Refusal::Full)]);
        assert_eq!(all([9, 14, 19, 19]), [None; 4]);
    }

    #[test]
    fn wrong_requests_and_orders_are_refused() {
        let h100 = product("h100");
        let mut state = State::default();
        assert_eq!(state.create(h100, 19, None), Err(Refusal::Off));
        state.on = true;
        assert_eq!(state.create(h100, 77, None), Err(Refusal::Invalid));
        assert_eq!(state.create(h100, 9, Some(2)), Err(Refusal::Invalid));
        assert_eq!(state.create(h100, 9, Some(4)), Ok(1));
        assert_eq!(state.create(h100, 19, Some(5)), Err(Refusal::Full));
        assert_eq!(state.create(h100, 0, None), Err(Refusal::Full));
        assert_eq!(state.create_compute(h100, 7, 0, None), Err(Refusal::Unknown));
        assert_eq!(state.create_compute(h100, 1, 4, None), Err(Refusal::Invalid));
        assert_eq!(state.create_compute(h100, 1, 0, Some(1)), Ok(0));
        assert_eq!(state.create_compute(h100, 1, 2, None), Err(Refusal::Full));
        assert_eq!(state.create_compute(h100, 1, 0, Some(1)), Err(Refusal::Full));
        assert_eq!(state.destroy(1), Err(Refusal::InUse));
        assert_eq!(state.destroy_compute(1, 3), Err(Refusal::Unknown));
        assert_eq!(state.destroy_compute(1, 0), Ok(()));
        assert_eq!(state.destroy(1), Ok(()));
        assert_eq!(state.destroy(1), Err(Refusal::Unknown));
    }

    #[test]
    fn compute_kinds_are_those_that_nvidia_smi_prints() {
        let a100 = product("a100-80gb");
        let kinds = |id: u32| -> Vec<(u32, u8, u32)> {
            let kinds = compute_kinds(a100, profile(a100, id).expect("a profile"));
            kinds
                .iter()
                .map(|kind| (kind.id, kind.most, kind.sm_count))
                .collect()
        };
        assert_eq!(kinds(19), [(0, 1, 14)]);
        assert_eq!(kinds(9), [(0, 3, 14), (1, 1, 28), (2, 1, 42)]);
        assert_eq!(kinds(5), [(0, 4, 14), (1, 2, 28), (3, 1, 56)]);
        assert_eq!(
            kinds(0),
            [(0, 7, 14), (1, 3, 28), (2, 2, 42), (3, 1, 56), (4, 1, 98)]
        );
    }

    proptest! {
        #[test]
        fn whatever_is_made_lies_on_the_device_and_apart(
            product in prop::sample::select(divvy_model::MIG_PRODUCTS.iter().collect::<Vec<_>>()),
            requests in prop::collection::vec((any::<prop::sample::Index>(), prop::option::of(0_u8..8), any::<bool>()), 0..40),
        ) {
            let mut state = on();
            for (which, place, remove) in requests {
                let kind = &product.profiles[which.index(product.profiles.len())];
                if remove {
                    let id = state.instances.first().map(|instance| instance.id);
                    prop_assert!(id.is_none_or(|id| state.destroy(id).is_ok()));
                } else {
                    let could = state.remaining(product, kind);
                    let made = state.create(product, kind.id, place);
                    prop_assert!(made.is_err() || could > 0);
                    prop_assert!(place.is_some() || made.is_ok() == (could > 0));
                }
                let mut slices = 0_u16;
                let mut compute = 0;
                for held in &state.instances {
                    let kind = profile(product, held.profile).expect("made of a profile");
                    let mask = ((1_u16 << kind.size) - 1) << held.start;
                    prop_assert_eq!(slices & mask, 0, "{:?}", state);
                    slices |= mask;
                    compute += kind.compute_slices;
                }
                prop_assert!(slices >> product.memory_slices == 0 && compute <= product.compute_slices);
            }
        }
    }
}

//! The instances a device can hold, and every way to fill it.

use divvy_model::MigProduct;

/// A set of places: bit `n` is place `n` of [`Shapes::places`].
pub type Layout = u64;

/// One kind of instance, as a product's table or NVML tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Profile {
    /// `1g.10gb`.
    pub name: String,
    /// The id that `nvidia-smi mig -lgip` prints.
    pub id: u32,
    /// Compute slices.
    pub compute_slices: u8,
    /// The most that a device holds of it.
    pub max: u8,
    /// Where it may begin, in memory slices.
    pub starts: Vec<u8>,
    /// Memory slices it covers.
    pub size: u8,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

/// The shape of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Memory slices.
    pub memory_slices: u8,
    /// Compute slices.
    pub compute_slices: u8,
    /// Smallest first.
    pub profiles: Vec<Profile>,
}

impl From<&MigProduct> for Geometry {
    fn from(product: &MigProduct) -> Self {
        let profiles = product.profiles.iter().map(|profile| Profile {
            name: profile.name.into(),
            id: profile.id,
            compute_slices: profile.compute_slices,
            max: profile.max,
            starts: profile.starts.to_vec(),
            size: profile.size,
            sm_count: profile.sm_count,
            memory_bytes: profile.memory_mib << 20,
        });
        Self {
            memory_slices: product.memory_slices,
            compute_slices: product.compute_slices,
            profiles: profiles.collect(),
        }
    }
}

impl Geometry {
    /// The profile of this name or id.
    #[must_use]
    pub fn profile(&self, word: &str) -> Option<usize> {
        let id = word.parse::<u32>().ok();
        self.profiles
            .iter()
            .position(|profile| profile.name == word || Some(profile.id) == id)
    }

    /// The profiles to choose from, for a request that names something else.
    #[must_use]
    pub fn offers(&self) -> String {
        let named = self.profiles.iter();
        let names: Vec<String> = named
            .map(|profile| format!("{} ({})", profile.name, profile.id))
            .collect();
        format!("it offers {}", names.join(", "))
    }
}

/// An instance at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which of the geometry's profiles.
    pub profile: usize,
    /// First memory slice.
    pub start: u8,
    /// Memory slices covered, as bits.
    pub mask: u16,
}

/// A geometry with every place and every maximal layout worked out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shapes {
    /// The geometry.
    pub geometry: Geometry,
    /// Every place of every profile.
    pub places: Vec<Place>,
    /// The layouts to which nothing can be added. Every legal layout is a part of one of them.
    pub maximal: Vec<Layout>,
    /// For each profile its places.
    of_profile: Vec<Layout>,
}

impl Shapes {
    /// Works them out: some hundred layouts for the largest products.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let mut places = Vec::new();
        let mut of_profile = vec![0; geometry.profiles.len()];
        for (profile, kind) in geometry.profiles.iter().enumerate() {
            for start in &kind.starts {
                // More places than bits, or slices than a mask has: no such product.
                if places.len() == 64 || start + kind.size > 16 {
                    continue;
                }
                of_profile[profile] |= 1 << places.len();
                places.push(Place {
                    profile,
                    start: *start,
                    mask: (((1_u32 << kind.size) - 1) << start) as u16,
                });
            }
        }
        let mut shapes = Self {
            geometry,
            places,
            maximal: Vec::new(),
            of_profile,
        };
        let mut maximal = Vec::new();
        shapes.fill(0, 0, &mut maximal);
        // Few large instances before many small ones: of equals the first is chosen, and leaves the most space.
        maximal.sort_by_key(|layout: &Layout| (layout.count_ones(), *layout));
        shapes.maximal = maximal;
        shapes
    }

    fn fill(&self, layout: Layout, next: usize, into: &mut Vec<Layout>) {
        let mut grew = false;
        for place in next..self.places.len() {
            if self.fits(layout, place) {
                grew = true;
                self.fill(layout | 1 << place, place + 1, into);
            }
        }
        let closed = !grew && (0..next).all(|place| layout >> place & 1 == 1 || !self.fits(layout, place));
        if closed {
            into.push(layout);
        }
    }

    /// Whether an instance at `place` can be added to a layout.
    #[must_use]
    pub fn fits(&self, layout: Layout, place: usize) -> bool {
        let added = self.places[place];
        let kind = &self.geometry.profiles[added.profile];
        let mut compute = u32::from(kind.compute_slices);
        for held in self.held(layout) {
            if held.mask & added.mask != 0 {
                return false;
            }
            compute += u32::from(self.geometry.profiles[held.profile].compute_slices);
        }
        let same = (layout & self.of_profile[added.profile]).count_ones();
        compute <= u32::from(self.geometry.compute_slices) && same < u32::from(kind.max)
    }

    /// The places of a layout.
    pub fn held(&self, layout: Layout) -> impl Iterator<Item = &Place> {
        let places = self.places.iter().enumerate();
        places
            .filter(move |(at, _)| layout >> at & 1 == 1)
            .map(|(_, place)| place)
    }

    /// The place of a profile that begins at this memory slice.
    #[must_use]
    pub fn place(&self, profile: usize, start: u8) -> Option<usize> {
        self.places
            .iter()
            .position(|place| place.profile == profile && place.start == start)
    }

    /// Every place of a profile.
    #[must_use]
    pub fn of_profile(&self, profile: usize) -> Layout {
        self.of_profile[profile]
    }

    /// A layout as a map, a mark for each memory slice: `[3g.40gb        ][1g.10gb ]. .`
    #[must_use]
    pub fn map(&self, layout: Layout) -> String {
        const CELL: usize = 11;
        let mut held: Vec<&Place> = self.held(layout).collect();
        held.sort_by_key(|place| place.start);
        let mut text = String::new();
        let mut slice = 0;
        for place in held {
            for _ in slice..place.start {
                text.push_str(&format!("{:<CELL$}", "."));
            }
            let kind = &self.geometry.profiles[place.profile];
            let width = CELL * usize::from(kind.size) - 2;
            text.push_str(&format!("[{:<width$}]", kind.name));
            slice = place.start + kind.size;
        }
        for _ in slice..self.geometry.memory_slices {
            text.push_str(&format!("{:<CELL$}", "."));
        }
        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(key: &str, kinds: &[&str]) -> Shapes {
        let mut geometry = Geometry::from(MigProduct::of_key(key).expect("a product"));
        if !kinds.is_empty() {
            geometry.profiles.retain(|profile| {
                let family = profile.name.split('.').next().unwrap_or_default();
                // The plain kind only: neither media engines nor double memory.
                let plain = !profile.name.contains('+') && (profile.compute_slices > 1 || profile.size == 1);
                plain && kinds.contains(&family)
            });
        }
        Shapes::new(geometry)
    }

    #[test]
    fn there_are_19_maximal_layouts_of_the_plain_kinds() {
        for key in ["a100-40gb", "a100-80gb", "h100", "h200"] {
            assert_eq!(
                shapes(key, &["1g", "2g", "3g", "4g", "7g"]).maximal.len(),
                19,
                "{key}"
            );
        }
    }

    #[test]
    fn a_map_shows_where_each_lies() {
        let shapes = shapes("h100", &[]);
        let three = shapes.geometry.profile("3g.40gb").expect("a profile");
        let one = shapes.geometry.profile("19").expect("by id");
        let layout =
            1 << shapes.place(three, 4).expect("a place") | 1 << shapes.place(one, 1).expect("a place");
        let map = shapes.map(layout);
        assert!(
            map.starts_with(".          [1g.10gb  ].          .          [3g.40gb"),
            "{map}"
        );
        assert!(!shapes.fits(layout, shapes.place(three, 0).expect("a place")));
    }
}

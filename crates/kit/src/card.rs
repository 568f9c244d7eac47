//! The one card that a run asks: all parts, slices and programs without one see it by its UUID.

use divvy_abi::nvml::client::Client;

/// A device by its UUID, where it is a card that NVML knows. Without a device, the first that the user's programs see. Indexes
/// are NVML's: CUDA numbers cards otherwise, and the two would be told of as one.
pub(crate) fn one(device: Option<&str>) -> Option<String> {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let first = visible.as_deref().and_then(|list| list.split(',').next());
    let named = device.or(first.filter(|name| !name.trim().is_empty()));
    let found = match Which::of(named.map(str::trim)) {
        Which::Index(index) => uuid(index),
        Which::Itself => named.map(|name| whole(name).unwrap_or_else(|| name.to_owned())),
    };
    found.or(device.map(str::to_owned))
}

/// How a device is named.
#[derive(Debug, PartialEq, Eq)]
enum Which {
    Index(u32),
    /// By a UUID, or as an emulated one.
    Itself,
}

impl Which {
    fn of(name: Option<&str>) -> Self {
        match name.map(str::parse) {
            None => Self::Index(0),
            Some(Ok(index)) => Self::Index(index),
            Some(Err(_)) => Self::Itself,
        }
    }
}

fn uuid(index: u32) -> Option<String> {
    let nvml = Client::open(c"libnvidia-ml.so.1").ok()?;
    nvml.device(index).ok().map(|facts| facts.uuid)
}

/// The UUID that begins so: CUDA takes the first characters of one for all of it.
fn whole(name: &str) -> Option<String> {
    if !name.starts_with("GPU-") {
        return None;
    }
    let nvml = Client::open(c"libnvidia-ml.so.1").ok()?;
    let uuids = (0..nvml.device_count().ok()?).filter_map(|index| Some(nvml.device(index).ok()?.uuid));
    only(uuids.filter(|uuid| uuid.starts_with(name)))
}

/// The one of these, if there is no other.
fn only(mut all: impl Iterator<Item = String>) -> Option<String> {
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_of_several_names_none() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(only(names(&["GPU-1"]).into_iter()).as_deref(), Some("GPU-1"));
        assert_eq!(only(names(&["GPU-1", "GPU-12"]).into_iter()), None);
        assert_eq!(only(names(&[]).into_iter()), None);
    }

    #[test]
    fn an_index_is_looked_up_and_a_name_stays() {
        assert_eq!(Which::of(None), Which::Index(0));
        assert_eq!(Which::of(Some("3")), Which::Index(3));
        for name in ["GPU-0fec4fc2-f8e9-8543-a7ea-642ceb982d2f", "emulated:h100"] {
            assert_eq!(Which::of(Some(name)), Which::Itself);
            assert_eq!(one(Some(name)).as_deref(), Some(name));
        }
    }
}

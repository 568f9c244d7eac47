//! When each symbol appeared, and by which public name it is asked for.
//!
//! The typedef headers name every version of a function by the release that brought it (`PFN_cuMemAlloc_v3020`); the
//! exported symbols name the same versions in order (`cuMemAlloc`, `cuMemAlloc_v2`). Sorted, the two lists pair up.

use std::collections::{BTreeMap, BTreeSet};

/// Whose default stream a symbol uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    Legacy,
    PerThread,
}

/// What cuGetProcAddress knows of a symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub public: String,
    /// CUDA version that brought it, as cuGetProcAddress counts (11.3 is 11030); 0 where no header tells.
    pub since: u32,
    pub stream: Stream,
}

/// Splits `cuMemcpyHtoD_v2_ptds` into its public name, version number and stream.
pub fn split(symbol: &str) -> (&str, u32, Stream) {
    let (rest, stream) = match symbol.strip_suffix("_ptsz").or(symbol.strip_suffix("_ptds")) {
        Some(rest) => (rest, Stream::PerThread),
        None => (symbol, Stream::Legacy),
    };
    if let Some((public, digits)) = rest.rsplit_once("_v")
        && let Ok(number) = digits.parse()
    {
        return (public, number, stream);
    }
    (rest, 1, stream)
}

/// Pairs `symbols` with the releases in `typedefs` (the text of the typedef headers).
///
/// The second result lists what did not pair, for the person who regenerates to look at.
pub fn versions<'a>(
    symbols: impl Iterator<Item = &'a str>,
    typedefs: &str,
) -> (BTreeMap<String, Version>, Vec<String>) {
    let mut groups: BTreeMap<(&str, Stream), BTreeMap<u32, &str>> = BTreeMap::new();
    for symbol in symbols {
        let (public, number, stream) = split(symbol);
        groups.entry((public, stream)).or_default().insert(number, symbol);
    }
    let releases = releases(typedefs);
    let mut known = BTreeMap::new();
    let mut odd = Vec::new();
    for ((public, stream), members) in &groups {
        let empty = BTreeSet::new();
        let found = releases.get(&((*public).to_owned(), *stream)).unwrap_or(&empty);
        if found.len() != members.len() {
            odd.push(format!(
                "{public} {stream:?}: releases {found:?} for {:?}",
                members.values()
            ));
        }
        // Where the oldest versions have no typedef, the newest ones pair.
        let skipped = members.len().saturating_sub(found.len());
        for (index, symbol) in members.values().enumerate() {
            let since = index
                .checked_sub(skipped)
                .and_then(|i| found.iter().nth(i))
                .copied();
            known.insert(
                (*symbol).to_owned(),
                Version {
                    public: (*public).to_owned(),
                    since: since.unwrap_or(0),
                    stream: *stream,
                },
            );
        }
    }
    (known, odd)
}

fn releases(typedefs: &str) -> BTreeMap<(String, Stream), BTreeSet<u32>> {
    let mut releases: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
    for part in typedefs.split("*PFN_").skip(1) {
        let Some((name, _)) = part.split_once(')') else {
            continue;
        };
        let (public, release, stream) = split(name);
        releases
            .entry((public.to_owned(), stream))
            .or_default()
            .insert(release);
    }
    releases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_and_releases_pair_in_order() {
        let symbols = [
            "cuMemAlloc",
            "cuMemAlloc_v2",
            "cuMemcpyHtoD_v2_ptds",
            "cuMemcpyHtoD_v2",
            "cuMemcpyHtoD",
        ];
        let typedefs = "typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v3020)(x);(CUDAAPI *PFN_cuMemAlloc_v2000)(x); \
            (*PFN_cuMemcpyHtoD_v3020)(y);(*PFN_cuMemcpyHtoD_v7000_ptds)(y);";
        let (known, odd) = versions(symbols.into_iter(), typedefs);
        assert_eq!(known["cuMemAlloc"].since, 2000);
        assert_eq!(known["cuMemAlloc_v2"].since, 3020);
        assert_eq!(known["cuMemcpyHtoD_v2"].since, 3020);
        assert_eq!(known["cuMemcpyHtoD"].since, 0);
        assert_eq!(known["cuMemcpyHtoD_v2_ptds"].stream, Stream::PerThread);
        assert_eq!(known["cuMemcpyHtoD_v2_ptds"].since, 7000);
        assert_eq!(odd.len(), 1, "{odd:?}");
    }
}

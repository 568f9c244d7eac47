//! What cuGetProcAddress answers: from a public name, a CUDA version and flags to the exact symbol.

use crate::symbol::FACTS;
use crate::{
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CU_GET_PROC_ADDRESS_SUCCESS,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
    CUdriverProcAddressQueryResult, Symbol,
};

/// The answer to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// The symbol whose address to hand out.
    Found(Symbol),
    /// The name exists, but only since a newer version than the caller asks for.
    TooNew,
    /// No such name.
    Unknown,
}

impl From<Query> for CUdriverProcAddressQueryResult {
    fn from(query: Query) -> Self {
        match query {
            Query::Found(_) => CU_GET_PROC_ADDRESS_SUCCESS,
            Query::TooNew => CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
            Query::Unknown => CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        }
    }
}

/// The symbol for `name` as of `cuda_version` (11.3 is 11030), or nothing where there is none: [`query`] says why.
pub fn lookup(name: &str, cuda_version: i32, flags: u64) -> Option<Symbol> {
    match query(name, cuda_version, flags) {
        Query::Found(symbol) => Some(symbol),
        Query::TooNew | Query::Unknown => None,
    }
}

/// The newest variant of `name` brought at or before `cuda_version`, of the stream kind that `flags` ask for.
///
/// `flags` are `CU_GET_PROC_ADDRESS_*`. Default and legacy give the legacy variant. Per-thread gives `_ptsz`/`_ptds`
/// where the function has one, and never the legacy one instead. A function without a stream has one variant for both.
/// Versions compare as unsigned numbers, so a negative one is newer than all. Only public names are known, not those of
/// exports (`cuMemAlloc_v2`). All of this is as NVIDIA's driver 535 answers, name by name.
///
/// ```
/// use divvy_abi::{Query, query};
///
/// let Query::Found(symbol) = query("cuMemAlloc", 12_000, 0) else { panic!("there since CUDA 2.0") };
/// assert_eq!(symbol.name(), "cuMemAlloc_v2");
/// assert_eq!(query("cuMemAlloc_v2", 12_000, 0), Query::Unknown);
/// ```
pub fn query(name: &str, cuda_version: i32, flags: u64) -> Query {
    let version = cuda_version as u32;
    let want_per_thread = flags & u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.0) != 0;
    // Variants of a name sort together, but other names may lie between (`cuMemcpy`, `cuMemcpy2D`, `cuMemcpy_ptds`).
    let start = FACTS.partition_point(|facts| facts.name() < name);
    let variants = || {
        FACTS[start..]
            .iter()
            .zip(start..)
            .take_while(|(facts, _)| facts.name().starts_with(name))
            .filter(|(facts, _)| facts.public() == name)
    };
    let per_thread = want_per_thread && variants().any(|(facts, _)| facts.per_thread);
    let newest = variants()
        .filter(|(facts, _)| facts.per_thread == per_thread && facts.since <= version)
        .max_by_key(|(facts, index)| (facts.since, *index));
    match newest {
        Some((_, index)) => Query::Found(Symbol::ALL[index]),
        None if variants().next().is_some() => Query::TooNew,
        None => Query::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: u64 = 0;
    const LEGACY: u64 = 1;
    const PER_THREAD: u64 = 2;

    #[test]
    fn the_newest_variant_at_or_below_the_version_is_found() {
        assert_eq!(lookup("cuMemAlloc", 3010, DEFAULT), Some(Symbol::cuMemAlloc));
        assert_eq!(lookup("cuMemAlloc", 3020, DEFAULT), Some(Symbol::cuMemAlloc_v2));
        assert_eq!(lookup("cuMemAlloc", 13000, LEGACY), Some(Symbol::cuMemAlloc_v2));
        assert_eq!(
            lookup("cuCtxCreate", 11000, DEFAULT),
            Some(Symbol::cuCtxCreate_v2)
        );
        assert_eq!(
            lookup("cuCtxCreate", 11040, DEFAULT),
            Some(Symbol::cuCtxCreate_v3)
        );
        assert_eq!(
            lookup("cuCtxCreate", 13050, DEFAULT),
            Some(Symbol::cuCtxCreate_v4)
        );
    }

    #[test]
    fn names_that_changed_meaning_follow_the_version() {
        for (name, change, old, new) in [
            (
                "cuCtxGetDevice",
                13000,
                Symbol::cuCtxGetDevice,
                Symbol::cuCtxGetDevice_v2,
            ),
            (
                "cuCtxSynchronize",
                13000,
                Symbol::cuCtxSynchronize,
                Symbol::cuCtxSynchronize_v2,
            ),
            (
                "cuMemPrefetchAsync",
                12020,
                Symbol::cuMemPrefetchAsync,
                Symbol::cuMemPrefetchAsync_v2,
            ),
            ("cuMemAdvise", 12020, Symbol::cuMemAdvise, Symbol::cuMemAdvise_v2),
        ] {
            assert_eq!(lookup(name, change - 10, DEFAULT), Some(old));
            assert_eq!(lookup(name, change, DEFAULT), Some(new));
        }
    }

    #[test]
    fn per_thread_streams_get_their_own_variant() {
        assert_eq!(
            lookup("cuMemcpyHtoD", 12000, PER_THREAD),
            Some(Symbol::cuMemcpyHtoD_v2_ptds)
        );
        assert_eq!(
            lookup("cuLaunchKernel", 12000, PER_THREAD),
            Some(Symbol::cuLaunchKernel_ptsz)
        );
        assert_eq!(
            lookup("cuLaunchKernel", 12000, LEGACY),
            Some(Symbol::cuLaunchKernel)
        );
        assert_eq!(lookup("cuMemcpy", 12000, PER_THREAD), Some(Symbol::cuMemcpy_ptds));
        // A function without a stream has one variant for both.
        assert_eq!(
            lookup("cuMemAlloc", 12000, PER_THREAD),
            Some(Symbol::cuMemAlloc_v2)
        );
    }

    #[test]
    fn what_is_not_there_is_told_apart() {
        assert_eq!(query("", 13000, DEFAULT), Query::Unknown);
        assert_eq!(query("cuNoSuchThing", 13000, DEFAULT), Query::Unknown);
        assert_eq!(query("cuMem", 13000, DEFAULT), Query::Unknown);
        assert_eq!(query("cuGetProcAddress", 11020, DEFAULT), Query::TooNew);
        assert_eq!(query("cuMemAlloc_v2", 13000, DEFAULT), Query::Unknown);
        assert_eq!(query("cuMemcpyHtoD", 6050, PER_THREAD), Query::TooNew);
        assert_eq!(
            query("cuMemAlloc", -1, DEFAULT),
            Query::Found(Symbol::cuMemAlloc_v2)
        );
    }

    #[test]
    fn every_symbol_is_reachable_by_some_query() {
        for symbol in Symbol::ALL {
            let flags = if symbol.is_per_thread() {
                PER_THREAD
            } else {
                DEFAULT
            };
            let version = i32::try_from(symbol.since()).expect("versions are small");
            let found = lookup(symbol.public_name(), version, flags);
            assert_eq!(found, Some(*symbol));
        }
    }
}

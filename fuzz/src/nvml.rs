//! Queries of NVML to the process that answers for a slice.

/// Sends the queries that these bytes stand for. The library below touches all that it is given.
///
/// # Panics
/// That library was given a handle that it never gave, or a structure of another size than its own.
pub fn queries(bytes: &[u8]) -> divvy_remote::fuzzing::Done {
    divvy_remote::fuzzing::queries(bytes)
}

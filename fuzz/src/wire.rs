//! Messages of a program to the server of its device.

/// Sends the messages that these bytes stand for. The driver below touches all that it is given.
///
/// # Panics
/// That driver was given a handle or an address that it never gave, or the connection has more than its quota.
pub fn messages(bytes: &[u8]) -> divvy_remote::fuzzing::Done {
    divvy_remote::fuzzing::messages(bytes)
}

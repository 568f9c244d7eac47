//! Which devices are emulated and what each is: product profiles and identities.

pub mod attributes;
pub mod identity;
pub mod processors;
pub mod profile;
pub mod spec;

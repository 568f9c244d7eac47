//! Which devices are emulated and what each is: product profiles, identities, visibility.

pub mod attributes;
pub mod identity;
pub mod profile;
pub mod spec;
pub mod visible;

//! Device memory that several processes hold: which one is charged for it, how it is found, and that it ends with the
//! last of them.

pub mod event;
pub mod key;
pub mod lock;
pub mod ownership;
pub mod trailer;

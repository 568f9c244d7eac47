//! What each call is charged, to the byte: one process or two, two devices, and a driver that does as it is told.

mod allocations;
mod deferred;
mod driver;
mod images;
mod imports;
mod objects;
mod physical;
mod pools;
mod spilled;

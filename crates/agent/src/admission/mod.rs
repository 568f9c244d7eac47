//! A request on its way to a slice: what is really wanted, which devices it lands on, and who waits.

pub(crate) mod create;
pub(crate) mod owner;
pub(crate) mod queue;

#[cfg(test)]
mod tests;

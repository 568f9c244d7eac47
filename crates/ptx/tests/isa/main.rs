//! Every arithmetic, logical, comparing and converting instruction against a model of it on the host.
//!
//! Each instruction runs over every combination of special values, then over random ones: plainly, guarded lane by
//! lane, with the result in an operand's register, and with literals. The same inputs every time, unless
//! `PROPTEST_CASES` or `PROPTEST_RNG_SEED` say otherwise.

#[path = "../support/mod.rs"]
mod support;

mod approximate;
mod bits;
mod carry;
mod compare;
mod convert;
mod float;
mod half;
mod instruction;
mod integer;
mod integer_model;
mod minmax;
mod moves;
mod record;
mod small_float;
mod soft;
mod types;
mod want;

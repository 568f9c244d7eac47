//! The threads.

//! Ordered, asynchronous execution: tasks, and the threads that run them.

pub mod pool;
pub mod task;

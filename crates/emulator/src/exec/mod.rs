//! Ordered, asynchronous execution: tasks, the streams that order them, the threads that run them.

pub mod order;
pub mod pool;
pub mod task;

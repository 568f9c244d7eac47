//! Suites that say nothing of time, run once more under the timing model, which changes no result.
#![allow(
    clippy::duplicate_mod,
    reason = "each suite brings what it shares with others"
)]

#[path = "faults.rs"]
mod faults;
#[path = "graph_capture.rs"]
mod graph_capture;
#[path = "graph_exec.rs"]
mod graph_exec;
#[path = "graph_random.rs"]
mod graph_random;
#[path = "graphs.rs"]
mod graphs;
#[path = "ipc_events.rs"]
mod ipc_events;
#[path = "memops.rs"]
mod memops;
#[path = "modules.rs"]
mod modules;
#[path = "streams.rs"]
mod streams;

mod itself {
    use super::streams::common::alone;

    #[test]
    fn the_model_is_on() {
        alone("the_model_is_on", &[], || {
            let devices = divvy_device::devices_from_env().unwrap();
            assert_ne!(devices[0].timing, divvy_device::Timing::Free);
        });
    }
}

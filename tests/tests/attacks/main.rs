//! The attacks of the security review, one module for each finding or for a few that belong together. Each scenario is
//! an attacker's attempt and a look at the victim: a step that is refused is no failure, harm is. Each failed on
//! the tree that the review was made on; what was seen there stands above it.
//!
//! `cargo test -p divvy-tests attacks` runs them. Those by containers' images are among the scenarios.
//!
//! They are by real users, made for each scenario and removed after ([`divvy_tests::users`]), or in podman's
//! containers. After each scenario of several users a walker looks for paths that another user may write to.

// All of them bear the name that calls them.
#[path = "."]
mod attacks {
    pub mod class;
    mod containers;
    mod enforced;
    mod f01_page_servers_folder;
    mod f02_emulated_mps;
    mod f03_containers_root;
    mod f04_forged_processes;
    mod f05_anothers_limit;
    mod f06_what_is_mounted;
    mod f07_connections;
    mod f08_faults;
    mod f09_stuck_page_servers;
    mod f10_queue;
    mod f11_dead_caller;
    mod f12_names;
    mod f13_emulated_devices;
    mod f14_squatted_devices;
    mod f15_forged_crowds;
    mod f17_foreign_settings;
    mod f18_set_id_programs;
    mod f19_images;
    mod f20_hidden_namespaces;
    mod f21_log;
    mod f22_what_others_see;
    mod f23_default_folder;
    mod races;
    mod rounds;
    mod strace;
    mod students;
    mod table;
    mod units;
}

//! The developer's front door: `cargo xtask <task>`, one file per task.
//!
//! To add a task: a module with a clap `Args` struct and a `run(&Args) -> anyhow::Result<()>`, one variant of [`Task`],
//! one arm in [`main`].
#![forbid(unsafe_code)]

mod bench;
mod cargo;
mod coverage;
mod debian;
mod demo;
mod deny;
mod dist;
mod docs;
mod enforced;
mod examples;
mod floor;
mod generate_abi;
mod gpu_kit;
mod numba;
mod oracle;
mod pin;
mod python;
mod record;
mod schemas;
mod setup;
mod test;
mod words;
mod zig;

use clap::{Parser, Subcommand};

/// Developer tasks of the Divvy repository.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Front {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure a published figure: build one program of bench/ and run it
    Bench(bench::Args),
    /// Write docs/driver-coverage.md: every entry point and who answers it
    Coverage(coverage::Args),
    /// Show Divvy's main job: two tenants at once on one device
    Demo(demo::Args),
    /// Check licences, bans and sources of all dependencies with cargo-deny
    Deny(deny::Args),
    /// Pack what a user installs, with a bill of materials and checksums
    Dist(dist::Args),
    /// Make pages for a browser of README.md and docs
    Docs(docs::Args),
    /// Run the scenarios on the isolation level `enforced`; tests/enforced.md lists those that differ
    Enforced(enforced::Args),
    /// Compile the CUDA sources of examples/cuda to PTX again
    Examples(examples::Args),
    /// Build the drop-ins against an old glibc and check what they need and export
    Floor(floor::Args),
    /// Pack what shows on a machine with a GPU which promises hold there
    GpuKit(gpu_kit::Args),
    /// Run numba-cuda's own tests under `cooperative` and `enforced`, and compare how each ended
    Numba(numba::Args),
    /// Have the crate container-device-interface inject our CDI files, and compare what comes of it with ours
    Oracle(oracle::Args),
    /// Write the lists of Python packages with their hashes
    Pin(pin::Args),
    /// Record `divvy top` as a moving picture, from a real run
    Record(record::Args),
    /// Write docs/schema: what each kind of JSON document has
    Schemas(schemas::Args),
    /// Install what the demo and the tests need: Python packages, a few from Debian
    Setup(setup::Args),
    /// Write the CUDA driver's types and declaration table from NVIDIA's headers
    GenerateAbi(generate_abi::Args),
    /// Run every check and every suite; CI runs this
    Test(test::Args),
    /// Hold code and docs to the glossary's list of words that are not used
    Words(words::Args),
}

fn main() -> anyhow::Result<()> {
    match Front::parse().task {
        Task::Bench(args) => bench::run(&args),
        Task::Coverage(args) => coverage::run(&args),
        Task::Demo(args) => demo::run(&args),
        Task::Deny(args) => deny::run(&args),
        Task::Dist(args) => dist::run(&args),
        Task::Docs(args) => docs::run(&args),
        Task::Enforced(args) => enforced::run(&args),
        Task::GpuKit(args) => gpu_kit::run(&args),
        Task::Examples(args) => examples::run(&args),
        Task::Floor(args) => floor::run(&args),
        Task::Numba(args) => numba::run(&args),
        Task::Oracle(args) => oracle::run(&args),
        Task::Pin(args) => pin::run(&args),
        Task::Record(args) => record::run(&args),
        Task::Schemas(args) => schemas::run(&args),
        Task::Setup(args) => setup::run(&args),
        Task::GenerateAbi(args) => generate_abi::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Words(args) => words::run(&args),
    }
}

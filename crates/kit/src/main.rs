//! `divvy-kit`: see the library.

use std::process::ExitCode;

use clap::Parser;

/// Shows which of Divvy's promises hold on this machine's GPU, with figures.
#[derive(Parser)]
#[command(name = "divvy-kit", version)]
struct Program {
    #[command(subcommand)]
    words: divvy_kit::Words,
}

fn main() -> ExitCode {
    divvy_kit::main(Program::parse().words)
}

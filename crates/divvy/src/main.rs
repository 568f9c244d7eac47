//! The command `divvy`: grammar and output, nothing else.
#![forbid(unsafe_code)]

mod cli;
mod complete;
mod config;
mod context;
mod empty;
mod env;
mod flags;
mod folder;
mod habits;
mod output;
mod report;
mod schemas;
mod share_words;
mod table;
mod verbs;

use std::process::ExitCode;

use crate::cli::Cli;
use crate::context::Context;

fn main() -> ExitCode {
    // A runtime's words are not ours to parse: engines ask it for its `--version`.
    if let Some(words) = verbs::container::oci_runtime::words() {
        return verbs::container::oci_runtime::main(&words);
    }
    if complete::answer(cli::grammar) {
        return ExitCode::SUCCESS;
    }
    divvy_agent::hold_back_file_size();
    let words = verbs::container::nri::words()
        .or_else(verbs::k8s::words)
        .or_else(verbs::nvcc::words)
        .unwrap_or_else(|| std::env::args_os().collect());
    let cli = match Cli::read(words) {
        Ok(cli) => cli,
        Err(error) => {
            if error.use_stderr() {
                report::stand_in();
            }
            return report::usage(&error);
        }
    };
    let is_run = cli.verb.is_run();
    let is_task_prolog = cli.verb.is_task_prolog();
    let mut json = cli.output == Some(output::Format::Json);
    let outcome = Context::new(&cli.options()).and_then(|context| {
        json = context.format == output::Format::Json;
        cli.verb.run(&context)
    });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(fault) => {
            report::stand_in();
            if is_task_prolog {
                report::in_the_jobs_output(&fault);
            }
            report::fault(&fault, json);
            ExitCode::from(report::exit_status(fault.code, is_run))
        }
    }
}

//! The grammar: every verb and its flags.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use divvy_model::Fault;

use crate::context::{Context, Options};
use crate::env;
use crate::output::Format;
use crate::verbs::{
    advise, agent, completions, config, container, devices, doctor, emulate, enter, environment, events,
    explain, gpu, guest, history, inspect, k8s, keep, kill, man, nvcc, ps, remote, resize, run, selftest,
    slice, slurm, top, vm,
};

/// Divvy divides a GPU among programs and keeps each inside its slice
#[derive(Debug, Parser)]
#[command(
    name = "divvy",
    version,
    disable_help_subcommand = false,
    arg_required_else_help = true,
    max_term_width = 100,
    propagate_version = true
)]
pub struct Cli {
    /// How lists are printed: table, wide, json, yaml, name
    #[arg(
        short = 'o',
        long,
        global = true,
        value_enum,
        value_name = "FORMAT",
        hide_possible_values = true
    )]
    pub output: Option<Format>,
    /// The run directory of the agent to talk to
    #[arg(long, global = true, value_name = "DIR")]
    pub run_dir: Option<std::path::PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a program in a slice of a device
    Run(run::Args),
    /// List the slices
    #[command(aliases = ["ls", "list"])]
    Ps(ps::Args),
    /// Show who uses the devices, against what each was promised, again and again
    #[command(alias = "stats")]
    Top(top::Args),
    /// List the devices of this machine
    Devices(devices::Args),
    /// Make, list and delete slices that stay while nothing runs in them
    Slice(slice::Args),
    /// Change the memory or the compute of a running slice
    Resize(resize::Args),
    /// End slices and the programs in them
    #[command(alias = "stop")]
    Kill(kill::Args),
    /// Check that this machine can run programs in slices
    Doctor(doctor::Args),
    /// Look at devices and divide them: topology, mig, mps, partition, vgpu
    Gpu(gpu::Args),
    /// Give containers slices: run, podman, docker, cdi, runtime, oci-runtime, nri
    Container(container::Args),
    /// Use devices of other hosts, and serve this host's: serve, invite, forget, join, list
    Remote(remote::Args),
    /// Give programs of a virtual machine a slice of a device: run, kit
    Guest(guest::Args),
    /// Give virtual machines whole GPUs: doctor, prepare, bind, args
    Vm(vm::Args),
    /// Give pods of a Kubernetes cluster slices: dra-plugin, device-plugin, extender, webhook, plan
    K8s(k8s::Args),
    /// Give jobs of a Slurm cluster slices: setup, prolog, epilog, sweep
    Slurm(slurm::Args),
    /// Look after the agent
    Agent(agent::Args),
    /// Show everything about slices
    Inspect(inspect::Args),
    /// Tell what happens to slices and devices
    Events(events::Args),
    /// Show what slices used that have ended
    History(history::Args),
    /// Say what programs should ask for, by what they used before
    Advise(advise::Args),
    /// Choose the devices that programs are shown, and explain what they see
    Env(environment::Args),
    /// Show the settings and where each comes from; its --help lists the variables
    Config(config::Args),
    /// Explain an error's code
    Explain(explain::Args),
    /// Show which of Divvy's promises hold on this machine, in two minutes
    Selftest(selftest::Args),
    /// Print a shell's completions
    Completions(completions::Args),
    /// Delete lasting slices, as `slice delete` does
    #[command(hide = true)]
    Rm(slice::Delete),
    /// Become a program inside a slice
    #[command(hide = true)]
    Enter(enter::Args),
    /// Keep a lasting slice
    #[command(hide = true)]
    Keep(keep::Args),
    /// End a container's slice when the container has ended
    #[command(hide = true)]
    Attend(container::attend::Args),
    /// Write the manual pages
    #[command(hide = true)]
    Man(man::Args),
    /// Develop CUDA programs without a GPU: check, profile, trace
    Emulate(emulate::Args),
    /// Compile CUDA programs that run on emulated devices too, with NVIDIA's nvcc
    Nvcc(nvcc::Args),
    /// The verbs of devices as they were written before they had a group.
    #[command(flatten)]
    OfGpu(gpu::Verb),
    /// Those of containers.
    #[command(flatten)]
    OfContainer(container::Verb),
}

impl Verb {
    /// Whether the exit status follows the rules of `run`.
    pub fn is_run(&self) -> bool {
        match self {
            Self::Run(_) | Self::Enter(_) | Self::Emulate(_) => true,
            Self::Container(args) => args.verb.is_run(),
            Self::Guest(args) => args.is_run(),
            Self::Vm(args) => args.is_run(),
            Self::OfContainer(verb) => verb.is_run(),
            _ => false,
        }
    }

    /// Whether slurmd or slurmstepd runs it around a job.
    fn is_of_slurms_programs(&self) -> bool {
        matches!(self, Self::Slurm(args) if args.is_around_a_job())
    }

    /// Whether slurmstepd reads what it prints.
    pub fn is_task_prolog(&self) -> bool {
        matches!(self, Self::Slurm(args) if args.is_task_prolog())
    }

    /// Does it; the exit status.
    ///
    /// # Errors
    /// Whatever stopped it.
    pub fn run(&self, context: &Context) -> Result<u8, Fault> {
        match self {
            Self::Run(args) => run::run(args, context),
            Self::Ps(args) => ps::run(args, context),
            Self::Top(args) => top::run(args, context),
            Self::Devices(args) => devices::run(args, context),
            Self::Slice(args) => slice::run(args, context),
            Self::Rm(args) => slice::remove(args, context),
            Self::Resize(args) => resize::run(args, context),
            Self::Kill(args) => kill::run(args, context),
            Self::Doctor(args) => doctor::run(args, context),
            Self::Gpu(args) => gpu::run(&args.verb, context),
            Self::Container(args) => container::run_grouped(&args.verb, context),
            Self::Remote(args) => remote::run(args, context),
            Self::K8s(args) => k8s::run(args, context),
            Self::Vm(args) => vm::run(args, context),
            Self::Slurm(args) => slurm::run(args, context),
            Self::Agent(args) => agent::run(args, context),
            Self::Inspect(args) => inspect::run(args, context),
            Self::Events(args) => events::run(args, context),
            Self::History(args) => history::run(args, context),
            Self::Advise(args) => advise::run(args, context),
            Self::Env(args) => environment::run(args, context),
            Self::Config(args) => config::run(args, context),
            Self::Explain(args) => explain::run(args, context),
            Self::Selftest(args) => selftest::run(args),
            Self::Completions(args) => completions::run(args, grammar()),
            Self::Guest(args) => guest::run(args, context),
            Self::Enter(args) => enter::run(args),
            Self::Keep(args) => keep::run(args, context),
            Self::Attend(args) => container::attend::run(args, context),
            Self::Nvcc(args) => nvcc::run(args, context),
            Self::Emulate(args) => emulate::run(args, context),
            Self::Man(args) => man::run(args, grammar().after_long_help(env::help())),
            Self::OfGpu(verb) => gpu::run(verb, context),
            Self::OfContainer(verb) => container::run(verb, context),
        }
    }
}

impl Cli {
    /// Reads a command line.
    ///
    /// # Errors
    /// What clap says of it: help and version too.
    pub fn read(words: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Self, clap::Error> {
        Self::from_arg_matches(&grammar().try_get_matches_from(words)?)
    }

    /// What it says beside its verb.
    pub fn options(&self) -> Options {
        Options {
            output: self.output,
            run_dir: self.run_dir.clone(),
            runs_program: self.verb.is_run(),
            without_settings: self.verb.is_of_slurms_programs(),
        }
    }
}

/// The first screen's lists of verbs: what people use every day, the groups, the rest.
const LISTS: [(&str, &[&str]); 3] = [
    (
        "Every day",
        &["run", "ps", "top", "devices", "slice", "resize", "kill", "doctor"],
    ),
    (
        "Groups",
        &[
            "gpu",
            "container",
            "remote",
            "guest",
            "vm",
            "k8s",
            "slurm",
            "agent",
        ],
    ),
    (
        "More",
        &[
            "inspect",
            "events",
            "history",
            "advise",
            "env",
            "config",
            "explain",
            "selftest",
            "nvcc",
            "emulate",
            "completions",
        ],
    ),
];

const EXAMPLES: &str = "\
Examples:
  divvy run --memory 4GiB --compute 30% -- python train.py
  divvy container run --memory 4GiB image python train.py";

/// The whole grammar, with a first screen of help that fits one.
pub fn grammar() -> clap::Command {
    let mut grammar = Cli::command();
    let old = [
        gpu::Verb::augment_subcommands,
        container::Verb::augment_subcommands,
    ];
    for augment in old {
        for verb in augment(clap::Command::new("old")).get_subcommands() {
            grammar = grammar.mut_subcommand(verb.get_name(), |verb| verb.hide(true));
        }
    }
    // Not for containers: there `-d` is an engine's.
    let device = |verb: clap::Command| verb.mut_arg("device", |flag| flag.short('d'));
    grammar = grammar
        .mut_subcommand("run", device)
        .mut_subcommand("slice", |slice| slice.mut_subcommand("create", device));
    let lists = lists(&grammar);
    grammar.help_template(format!(
        "{{about}}\n{{usage-heading}} {{usage}}\n\n{EXAMPLES}\n{lists}\nOptions:\n{{options}}{{after-help}}"
    ))
}

fn lists(grammar: &clap::Command) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for (heading, verbs) in LISTS {
        let _ = writeln!(text, "\n{heading}:");
        for name in verbs {
            let about = grammar
                .find_subcommand(name)
                .and_then(clap::Command::get_about)
                .map(ToString::to_string);
            let _ = writeln!(text, "  {name:<13}{}", about.unwrap_or_default());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        grammar().debug_assert();
    }

    #[test]
    fn the_first_screen_names_every_verb_that_is_not_hidden_once() {
        let mut listed: Vec<&str> = LISTS
            .iter()
            .flat_map(|(_, verbs)| verbs.iter().copied())
            .collect();
        listed.sort_unstable();
        let grammar = grammar();
        let mut visible: Vec<&str> = grammar
            .get_subcommands()
            .filter(|verb| !verb.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        visible.sort_unstable();
        assert_eq!(listed, visible);
    }

    #[test]
    fn verbs_of_a_group_can_be_given_without_it() {
        for words in ["mig list", "cdi list", "podman run image", "topology"] {
            for group in ["", "gpu ", "container "] {
                let line = format!("divvy {group}{words}");
                let is_container = ["cdi", "podman"].iter().any(|verb| words.starts_with(verb));
                let read = Cli::read(line.split(' ').map(Into::into));
                let wanted = group.is_empty() || is_container == group.starts_with("container");
                assert_eq!(read.is_ok(), wanted, "{line}");
            }
        }
        let run = Cli::read("divvy container run image".split(' ').map(Into::into)).expect("it is one");
        assert!(run.verb.is_run());
    }
    /// The commands in console blocks of the pages, as a shell would split them. What a shell would put in their place
    /// is `0`.
    fn commands(page: &str) -> Vec<Vec<String>> {
        let lines = page.lines().filter_map(|line| line.strip_prefix("$ "));
        let lines = lines.map(|line| line.strip_prefix("sudo ").unwrap_or(line));
        let ours = lines.filter(|line| line.starts_with("divvy ") && !line.starts_with("divvy  "));
        let split = |line: &str| {
            let (mut words, mut word, mut inside) = (Vec::new(), String::new(), 0_usize);
            let (mut quoted, mut before) = (false, ' ');
            let mut named = false;
            for c in line.chars() {
                named = named && c.is_ascii_alphanumeric();
                match c {
                    _ if named => {}
                    '(' if before == '$' => inside += 1,
                    ')' if inside > 0 => inside -= 1,
                    '"' if inside == 0 => quoted = !quoted,
                    '#' | '>' | '|' if inside == 0 && !quoted && before == ' ' => break,
                    ' ' if inside == 0 && !quoted => {
                        words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
                    }
                    '$' if inside == 0 => {
                        named = true;
                        word.push('0');
                    }
                    c if inside == 0 => word.push(c),
                    _ => {}
                }
                before = c;
            }
            words.extend(Some(word).filter(|word| !word.is_empty()));
            words
        };
        ours.map(split).collect()
    }

    #[test]
    fn each_command_of_the_pages_is_understood() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let docs = std::fs::read_dir(root.join("docs")).expect("a folder").flatten();
        let pages = docs.map(|entry| entry.path()).chain([root.join("README.md")]);
        let mut count = 0;
        for page in pages.filter(|page| page.extension().is_some_and(|end| end == "md")) {
            let text = std::fs::read_to_string(&page).expect("a page");
            for words in commands(&text) {
                count += 1;
                let read = Cli::read(words.iter().map(Into::into));
                assert!(read.is_ok(), "{}: {words:?}: {read:?}", page.display());
            }
        }
        assert!(count > 90, "only {count} commands were found");
    }
}

//! What people watch GPUs with, unmodified: in a slice it shows the slice alone, outside it shows the card and all programs.

use std::process::Command;
use std::time::Duration;

use super::Card;
use super::python::python;
use crate::conversation::Conversation;
use crate::ended::within;
use crate::finding::{Failure, Finding};
use crate::kit::{Kit, ROOM, last_words};
use crate::scrub::foreign;

/// The memory of the slice that a tool looks from, in MiB: a number that no other figure on a screen is likely to be.
const INSIDE_MIB: u64 = 4057;
/// What a tenant of another slice holds meanwhile, in bytes.
const HELD: u64 = 256 << 20;

/// How long a look may take.
const LOOK: Duration = Duration::from_secs(20);

/// One of them.
struct Tool {
    name: &'static str,
    /// Ends well where the tool is installed.
    present: fn() -> Command,
    /// Prints the memory of each device and the processes on it.
    look: fn() -> Vec<String>,
}

fn module(words: &[&str]) -> Command {
    let mut command = Command::new(python());
    command.args(words);
    command
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The interpreter's name as a word of a command line.
fn of_python(more: &[&str]) -> Vec<String> {
    let mut all = vec![python().to_string_lossy().into_owned()];
    all.extend(words(more));
    all
}

const TOOLS: [Tool; 3] = [
    Tool {
        name: "nvidia-smi",
        present: || {
            let mut command = Command::new("nvidia-smi");
            // Older ones have no --version.
            command.arg("-L");
            command
        },
        look: || words(&["nvidia-smi"]),
    },
    Tool {
        name: "gpustat",
        present: || module(&["-c", "import gpustat"]),
        look: || of_python(&["-m", "gpustat", "--no-color", "--show-pid"]),
    },
    Tool {
        name: "nvitop",
        present: || module(&["-c", "import nvitop"]),
        look: || of_python(&["-m", "nvitop", "--once", "--ascii"]),
    },
];

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    let command = kit.tenant(&["--memory", ROOM], "memory");
    let (mut tenant, hello) = Conversation::start(command, kit.left())?;
    tenant.ask(&format!("fill plain {HELD} {HELD}"))?;
    let other = hello["pid"].as_u64().unwrap_or(0);
    // In a container NVML tells other numbers of processes than the container's own, or none.
    let card = Card::of(kit).ok();
    let is_told = u32::try_from(other)
        .ok()
        .zip(card)
        .is_some_and(|(pid, card)| card.held_by(&[pid]).is_some());
    for tool in &TOOLS {
        let check = format!("tools.{}", tool.name);
        match within(&mut (tool.present)(), LOOK) {
            Ok(ended) if ended.is_well() => {}
            _ => {
                kit.found(&Finding::skipped(check, "it is not installed"))?;
                continue;
            }
        }
        inside(kit, tool, &check, other)?;
        outside(kit, tool, &check, is_told.then_some(other))?;
    }
    Ok(())
}

/// What a tool prints.
fn shown(command: &mut Command) -> Result<String, Failure> {
    let ended = within(wide(command), LOOK)?;
    match ended.is_well() {
        true => Ok(String::from_utf8_lossy(&ended.stdout).into_owned()),
        false => Err(ended.why()),
    }
}

/// Tools fit their tables to a terminal, and here there is none.
fn wide(command: &mut Command) -> &mut Command {
    command
        .env("COLUMNS", "120")
        .env("LINES", "40")
        .env("TERM", "xterm")
}

fn inside(kit: &mut Kit, tool: &Tool, check: &str, other: u64) -> Result<(), Failure> {
    let limit = format!("{INSIDE_MIB}MiB");
    let mut command = kit.slice(&["--memory", &limit]);
    let shown = match shown(command.args((tool.look)())) {
        Ok(shown) => shown,
        Err(why) => return kit.found(&Finding::promise(format!("{check}.inside"), false, why)),
    };
    let holds = has(&shown, INSIDE_MIB) && !has(&shown, other);
    let says = match holds {
        true => format!("in a slice of {INSIDE_MIB} MiB it shows that much, and no program of another slice"),
        false => format!(
            "in a slice of {INSIDE_MIB} MiB it shows: {}",
            foreign(&last_words(shown.as_bytes()))
        ),
    };
    kit.found(&Finding::promise(format!("{check}.inside"), holds, says))
}

fn outside(kit: &mut Kit, tool: &Tool, check: &str, other: Option<u64>) -> Result<(), Failure> {
    let check = format!("{check}.outside");
    let look = (tool.look)();
    let mut command = Command::new(&look[0]);
    let shown = match shown(command.args(&look[1..])) {
        Ok(shown) => shown,
        Err(why) => return kit.found(&Finding::promise(check, false, why)),
    };
    let Some(other) = other else {
        let why = "it runs; NVML does not tell of the kit's own programs here";
        return kit.found(&Finding::skipped(check, why));
    };
    let holds = has(&shown, other);
    let says = match holds {
        true => "outside it shows a slice's program".to_owned(),
        false => format!("outside it shows: {}", foreign(&last_words(shown.as_bytes()))),
    };
    kit.found(&Finding::promise(check, holds, says))
}

/// Whether a screen has a number, by itself or before a unit.
fn has(shown: &str, number: u64) -> bool {
    let number = number.to_string();
    shown
        .split(|letter: char| !letter.is_ascii_digit())
        .any(|word| word == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_whole() {
        let shown = "| 123MiB / 4057MiB | pid:812,";
        assert!(has(shown, 4057) && has(shown, 123) && has(shown, 812));
        assert!(!has(shown, 405) && !has(shown, 81));
    }
}

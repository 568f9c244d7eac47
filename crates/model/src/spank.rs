//! What Divvy's SPANK plugin, which Slurm's programs load, and `divvy slurm` have to agree on.

use std::ffi::CStr;

/// The plugin's file, as cargo and the packages name it.
pub const FILE: &str = "libdivvy_slurm_options.so";
/// What stands right behind the version of Slurm in that file: `divvy slurm setup` finds the version's place by it.
pub const MARK: [u8; 28] = *b"divvy: the version of Slurm\0";
/// The options, without their dashes.
pub const MEMORY: &CStr = c"divvy-memory";
/// The same for time.
pub const COMPUTE: &CStr = c"divvy-compute";
/// The variables by which the plugin tells a step's task prolog what the step asked for.
pub const STEP_MEMORY: &CStr = c"DIVVY_ASKED_MEMORY";
/// The same for time.
pub const STEP_COMPUTE: &CStr = c"DIVVY_ASKED_COMPUTE";
/// The variables by which Slurm tells a prolog what a job asked for: the option of the plugin `divvy`, with underscores.
pub const JOB_MEMORY: &str = "SPANK__SLURM_SPANK_OPTION_divvy_divvy_memory";
/// The same for time.
pub const JOB_COMPUTE: &str = "SPANK__SLURM_SPANK_OPTION_divvy_divvy_compute";

/// A sentence with a user's text in it, as one line of a log that root writes: without line ends and other control
/// characters, and not longer than a few lines of a screen.
#[must_use]
pub fn line(sentence: &str) -> String {
    const LONGEST: usize = 300;
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    let mut text: String = sentence.chars().take(LONGEST).map(plain).collect();
    if sentence.chars().nth(LONGEST).is_some() {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_users_text_makes_a_line_of_its_own_in_a_log() {
        assert_eq!(line("12 GiB: größer"), "12 GiB: größer");
        let forged = line("1\n[2026-01-01] error: \u{1b}[2Jroot");
        assert_eq!(forged, "1 [2026-01-01] error:  [2Jroot");
        assert_eq!(line(&"9".repeat(100_000)).len(), 300 + 3);
    }
}

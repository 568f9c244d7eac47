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

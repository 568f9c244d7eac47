//! The processes that hold a job's steps on this host: Slurm's `slurmstepd`.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// Whether root's `slurmstepd` runs a step of this job here. A user's process that gives itself such a name is none.
pub fn has_any(job: &str) -> bool {
    let title = format!("slurmstepd: [{job}.");
    let mut processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.any(|entry| {
        let path = entry.path();
        fs::read(path.join("cmdline")).is_ok_and(|line| line.starts_with(title.as_bytes()))
            && fs::metadata(&path).is_ok_and(|meta| meta.uid() == 0)
            && fs::read_link(path.join("exe")).is_ok_and(|program| {
                let name = program.file_name().unwrap_or_default().to_string_lossy();
                // A package that was upgraded meanwhile has unlinked it.
                name.trim_end_matches(" (deleted)") == "slurmstepd"
            })
    })
}

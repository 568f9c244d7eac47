//! The processes that hold a job's steps on this host: Slurm's `slurmstepd`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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

/// The number of the job whose step this process is below: that of the nearest `slurmstepd` of root's. The variable SLURM_JOB_ID is
/// the first part's number in each part of a heterogeneous job. None outside of jobs.
///
/// A user can name a process so, and is led to slices of the user's own by that.
pub fn own_job() -> Option<String> {
    job_above(Path::new("/proc"), std::os::unix::process::parent_id())
}

fn job_above(proc: &Path, mut pid: u32) -> Option<String> {
    /// Deeper than any program that a task prolog is.
    const MOST: usize = 64;
    for _ in 0..MOST {
        let folder = proc.join(pid.to_string());
        let line = fs::read(folder.join("cmdline")).ok()?;
        if fs::metadata(&folder).ok()?.uid() == 0
            && let Some(job) = job_of_title(&String::from_utf8_lossy(&line))
        {
            return Some(job);
        }
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        // The name before it may have blanks and brackets.
        pid = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    }
    None
}

/// `slurmstepd: [7.batch]` is of job 7.
fn job_of_title(title: &str) -> Option<String> {
    let (job, _) = title.strip_prefix("slurmstepd: [")?.split_once('.')?;
    let is_number = !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| job.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_step_above_is_of_the_job() {
        let folder = tempfile::tempdir().expect("a folder");
        let process = |pid: u32, parent: u32, line: &str| {
            let folder = folder.path().join(pid.to_string());
            fs::create_dir(&folder).expect("a folder");
            fs::write(folder.join("cmdline"), line).expect("written");
            fs::write(folder.join("stat"), format!("{pid} (a) b) S {parent} 1")).expect("written");
        };
        process(9, 8, "/bin/sh\0task-prolog\0");
        process(8, 7, "slurmstepd: [12.0]");
        process(7, 1, "slurmstepd: [11.0]");
        process(5, 6, "slurmstepd: [x.0]");
        process(6, 5, "sh\0");
        let is_root = rustix::process::geteuid().is_root();
        let job = |pid| job_above(folder.path(), pid);
        assert_eq!(job(9).as_deref(), is_root.then_some("12"));
        // None, a circle, and one that has ended.
        assert_eq!((job(6), job(4)), (None, None));
    }
}

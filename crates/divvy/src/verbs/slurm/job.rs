//! The job, as slurmd tells in the environment of a prolog and an epilog. Nothing in it is the user's: slurmd makes this
//! environment by itself.

use divvy_model::{Code, Fault, JobRecord, SliceRecord};

/// What the records of slices call this manager.
pub const SLURM: &str = "slurm";

/// A job on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// Its user.
    pub uid: u32,
    /// This node's name in slurm.conf.
    pub node: String,
    /// How often it was requeued.
    pub restarts: u32,
    /// Whether it has any device.
    pub has_devices: bool,
}

impl Job {
    /// Reads it from this process's environment.
    ///
    /// # Errors
    /// [`Code::Usage`] where slurmd did not start this process.
    pub fn of_environment() -> Result<Self, Fault> {
        Self::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Fault> {
        let number = |name: &str| {
            variable(name)
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| of_slurmd(name))
        };
        let node = variable("SLURMD_NODENAME").filter(|node| !node.is_empty());
        Ok(Self {
            id: number("SLURM_JOB_ID")?,
            uid: variable("SLURM_JOB_UID")
                .and_then(|uid| uid.parse().ok())
                .ok_or_else(|| of_slurmd("SLURM_JOB_UID"))?,
            node: node.ok_or_else(|| of_slurmd("SLURMD_NODENAME"))?,
            restarts: variable("SLURM_JOB_RESTART_COUNT")
                .and_then(|count| count.parse().ok())
                .unwrap_or_default(),
            has_devices: variable("SLURM_JOB_GPUS").is_some_and(|list| !list.is_empty()),
        })
    }

    /// The job that a slice was made for.
    pub fn of_slice(slice: &SliceRecord) -> Option<Self> {
        let job = slice.job.as_ref()?;
        Some(Self {
            id: job.id.parse().ok()?,
            uid: slice.uid,
            node: job.node.clone(),
            restarts: job.restarts,
            has_devices: true,
        })
    }

    /// As its slice's record has it.
    pub fn record(&self) -> JobRecord {
        JobRecord {
            manager: SLURM.into(),
            id: self.id.to_string(),
            node: self.node.clone(),
            restarts: self.restarts,
        }
    }

    /// Whether the slice was made for a job with this number on this node: this one, or an earlier one of any user.
    pub fn has_number_of(&self, slice: &SliceRecord) -> bool {
        slice
            .job
            .as_ref()
            .is_some_and(|job| job.manager == SLURM && job.id == self.id.to_string() && job.node == self.node)
    }

    /// Whether the slice was made for this job on this node, now or before it was requeued.
    pub fn owns(&self, slice: &SliceRecord) -> bool {
        slice.uid == self.uid && self.has_number_of(slice)
    }
}

/// The refusal of a start by hand.
pub fn of_slurmd(name: &str) -> Fault {
    Fault::new(Code::Usage, format!("{name} is not set as slurmd sets it")).hint(
        "slurmd and slurmstepd run this: `divvy slurm setup` prints the lines of slurm.conf that say so",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_what_slurmd_tells() {
        let told = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JOB_UID", "1001"),
            ("SLURMD_NODENAME", "n1"),
            ("SLURM_JOB_GPUS", "0"),
            ("SLURM_JOB_RESTART_COUNT", "2"),
        ];
        let without = |missing: &str| {
            Job::read(|name| {
                let found = told.iter().find(|(other, _)| *other == name && name != missing);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let job = without("").expect("a job");
        assert_eq!(
            (job.id, job.uid, job.restarts, job.has_devices),
            (7, 1001, 2, true)
        );
        assert!(!without("SLURM_JOB_GPUS").expect("a job").has_devices);
        for name in ["SLURM_JOB_ID", "SLURM_JOB_UID", "SLURMD_NODENAME"] {
            assert_eq!(without(name).expect_err(name).code, Code::Usage);
        }
        let mut slice = SliceRecord {
            uid: 1001,
            job: Some(job.record()),
            ..SliceRecord::default()
        };
        assert!(job.owns(&slice));
        assert_eq!(Job::of_slice(&slice), Some(job.clone()));
        // Another user's slice of that name, or of another node's job.
        slice.uid = 1002;
        assert!(!job.owns(&slice));
        slice.uid = 1001;
        slice.job = None;
        slice.name = "slurm-7".into();
        assert!(!job.owns(&slice));
    }
}

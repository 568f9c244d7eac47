//! What a job or a step asked for by the options of the SPANK plugin. A job's user can put any text there, so what is read
//! here only ever makes a slice smaller.

use divvy_model::{Bytes, Compute, MemoryAmount, QuantityError, spank};

use crate::refusal::{Refusal, Remedy};

/// The options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// `--divvy-memory`: of each of its devices.
    pub memory: Option<MemoryAmount>,
    /// `--divvy-compute`.
    pub compute: Option<Compute>,
}

impl Asked {
    /// A job's, from a prolog's environment.
    ///
    /// # Errors
    /// Text that is no amount: the job has to be changed.
    pub fn of_job(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Refusal> {
        Self::read(variable(spank::JOB_MEMORY), variable(spank::JOB_COMPUTE))
    }

    /// A step's, from a task prolog's environment.
    ///
    /// # Errors
    /// As [`Self::of_job`].
    pub fn of_step(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Refusal> {
        let named = |name: &std::ffi::CStr| variable(&name.to_string_lossy());
        Self::read(named(spank::STEP_MEMORY), named(spank::STEP_COMPUTE))
    }

    fn read(memory: Option<String>, compute: Option<String>) -> Result<Self, Refusal> {
        let odd = |option: &str, text: &str, error: &QuantityError| {
            Refusal::new(Remedy::Change, format!("--{option}={text}: {error}")).hint(error.hint())
        };
        let memory = memory.map(|text| {
            let amount = text.parse::<MemoryAmount>();
            amount.map_err(|error| odd("divvy-memory", &text, &error))
        });
        let compute = compute.map(|text| {
            let share = text.parse::<Compute>();
            share.map_err(|error| odd("divvy-compute", &text, &error))
        });
        Ok(Self {
            memory: memory.transpose()?,
            compute: compute.transpose()?,
        })
    }

    /// Whether no option was given.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The refusal of a job that asks for a part of a device, and has none.
    #[must_use]
    pub fn of_no_device(&self) -> Refusal {
        Refusal::new(
            Remedy::Change,
            "--divvy-memory and --divvy-compute divide a device, and the job has none",
        )
        .hint("ask for a device too: --gres=shard:N or --gres=gpu:N")
    }

    /// How much memory that is on devices of these sizes, where it was asked for: a part of a device is the same on all, and
    /// in whole MiB.
    #[must_use]
    pub fn memory_on(&self, sizes: impl Iterator<Item = Bytes>) -> Option<Bytes> {
        const MIB: u64 = 1 << 20;
        match self.memory? {
            MemoryAmount::Bytes(bytes) => Some(bytes),
            share => sizes
                .map(|size| Bytes(share.on_device_of(size).0 / MIB * MIB))
                .min(),
        }
    }

    /// Judges a step of a job that runs: its slice is the job's, so that it can have neither more nor less.
    ///
    /// # Errors
    /// The step asks for something else than the job's slice has.
    pub fn judge_step(
        &self,
        memory: Bytes,
        compute: Compute,
        sizes: impl Iterator<Item = Bytes>,
    ) -> Result<(), Refusal> {
        let other = |option: &str, asked: String, has: String| {
            Err(Refusal::new(
                Remedy::Change,
                format!("the step asks for --{option}={asked}, and its job's slice here has {has}"),
            )
            .hint("the steps of a job share one slice: give the option to the sbatch, salloc or srun that starts the job"))
        };
        if let Some(asked) = self.memory_on(sizes).filter(|asked| *asked != memory) {
            return other("divvy-memory", asked.to_string(), memory.to_string());
        }
        match self.compute.filter(|asked| *asked != compute) {
            Some(asked) => other("divvy-compute", asked.to_string(), compute.to_string()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_options_are_amounts_or_are_refused() {
        let read = |memory: &str, compute: &str| {
            let (memory, compute) = (memory.to_owned(), compute.to_owned());
            Asked::of_job(|name| match name {
                spank::JOB_MEMORY => (!memory.is_empty()).then(|| memory.clone()),
                spank::JOB_COMPUTE => (!compute.is_empty()).then(|| compute.clone()),
                _ => None,
            })
        };
        assert!(read("", "").expect("nothing").is_nothing());
        let asked = read("4GiB", "12.5%").expect("understood");
        assert_eq!(asked.memory, Some(MemoryAmount::Bytes(Bytes(4 << 30))));
        assert_eq!(asked.compute, Some(Compute(1250)));
        assert!(!asked.is_nothing());
        let part = read("25%", "").expect("understood");
        let sizes = [Bytes(8 << 30), Bytes((4 << 30) + 5)];
        assert_eq!(part.memory_on(sizes.into_iter()), Some(Bytes(1 << 30)));
        for (memory, compute) in [("much", ""), ("", "30"), ("0", ""), ("", "101%"), ("4GiB\n", "x")] {
            let refusal = read(memory, compute).expect_err("odd");
            assert_eq!(refusal.remedy, Remedy::Change);
            assert!(refusal.fault.hint.is_some() && refusal.fault.message.contains("--divvy-"));
        }
    }

    #[test]
    fn a_step_has_its_jobs_slice_and_no_other() {
        let step = |memory: Option<&str>, compute: Option<&str>| {
            let asked = Asked::of_step(|name| {
                let value = if name == "DIVVY_ASKED_MEMORY" {
                    memory
                } else {
                    compute
                };
                value.map(str::to_owned)
            });
            let sizes = std::iter::once(Bytes(16 << 30));
            asked
                .expect("understood")
                .judge_step(Bytes(4 << 30), Compute(3000), sizes)
        };
        for (memory, compute) in [(None, None), (Some("4GiB"), Some("30%")), (Some("25%"), None)] {
            assert_eq!(step(memory, compute), Ok(()));
        }
        for (memory, compute) in [
            (Some("5GiB"), None),
            (Some("1GiB"), None),
            (Some("4GiB"), Some("31%")),
            (None, Some("1%")),
        ] {
            let refusal = step(memory, compute).expect_err("another");
            assert!(
                refusal.fault.message.contains("its job's slice here has"),
                "{refusal:?}"
            );
        }
    }
}

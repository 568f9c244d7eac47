//! Why a job does not start here, and what helps.

use divvy_model::{Code, Fault};

/// What helps a job that does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The node has to be repaired: the prolog fails, and Slurm drains the node.
    Repair,
    /// The job may start later, here or on another node: it is put back into the queue.
    Requeue,
    /// The job itself has to be changed: it is held, or ended where it cannot be held.
    Change,
    /// The job is no longer on this node: nothing has to be done.
    Left,
}

/// A job that does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What helps.
    pub remedy: Remedy,
    /// The reason.
    pub fault: Fault,
}

impl Refusal {
    /// A refusal with a sentence.
    #[must_use]
    pub fn new(remedy: Remedy, message: impl Into<String>) -> Self {
        let fault = Fault::new(Code::Job, message);
        Self { remedy, fault }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.fault = self.fault.hint(hint);
        self
    }

    /// What the agent's refusal of a job's slice means for the job.
    #[must_use]
    pub fn of(fault: Fault) -> Self {
        let remedy = match fault.code {
            // Room comes back: a slice of the job before this one may be on its way out.
            Code::DeviceFull
            | Code::TooManySlices
            | Code::QuotaFull
            | Code::BadCompute
            | Code::ComputeFull
            | Code::Busy
            | Code::SliceBusy => Remedy::Requeue,
            // No job can change these. Whatever else is refused is for what this job asks, and drains no node.
            Code::NoDevice
            | Code::UnknownDevice
            | Code::DeviceTaken
            | Code::Driver
            | Code::DropIn
            | Code::RunDir
            | Code::Config
            | Code::AgentUnreachable
            | Code::AgentVersion
            | Code::NotAllowed
            | Code::Privilege => Remedy::Repair,
            _ => Remedy::Change,
        };
        Self { remedy, fault }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_waited_for() {
        for code in [Code::DeviceFull, Code::ComputeFull, Code::QuotaFull] {
            assert_eq!(
                Refusal::of(Fault::new(code, "full")).remedy,
                Remedy::Requeue,
                "{code:?}"
            );
        }
        assert_eq!(
            Refusal::of(Fault::new(Code::Driver, "gone")).remedy,
            Remedy::Repair
        );
        assert_eq!(
            Refusal::of(Fault::new(Code::Usage, "wrong")).remedy,
            Remedy::Change
        );
    }
}

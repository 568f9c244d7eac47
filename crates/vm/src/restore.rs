//! What a crash or a restart of the machine left, put right by the records.

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};
use serde::Serialize;

use crate::bind::{Consent, bind, put_back, put_back_run, unused};
use crate::function::Function;
use crate::kernel::Kernel;
use crate::record::{Phase, Record, Store, boot};

/// What was done for a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The GPU.
    pub address: String,
    /// What was done.
    pub outcome: Outcome,
    /// Why it could not be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// See [`Restored`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A change had not ended: its functions are on their first drivers.
    PutBack,
    /// The machine was started again since: the group is on VFIO as it was.
    BoundAgain,
    /// It is as it should be.
    Unchanged,
    /// The device is no longer there: its record was removed.
    Forgotten,
    /// It could not be done.
    Failed,
}

/// Puts every record right.
///
/// # Errors
/// As [`Store::records`]. What fails for one record is in its outcome, and the others are put right.
pub fn restore(root: &Sysroot, kernel: &mut dyn Kernel, store: &Store) -> Result<Vec<Restored>, Fault> {
    let now = boot(root);
    let mut all = Vec::new();
    for record in store.records()? {
        let done = one(root, kernel, store, &record, &now);
        let (outcome, trouble) = match done {
            Ok(outcome) => (outcome, None),
            Err(fault) => {
                let causes = fault.causes.join(": ");
                let trouble = match causes.is_empty() {
                    true => fault.message,
                    false => format!("{}: {causes}", fault.message),
                };
                (Outcome::Failed, Some(trouble))
            }
        };
        all.push(Restored {
            address: record.asked,
            outcome,
            trouble,
        });
    }
    Ok(all)
}

fn one(
    root: &Sysroot,
    kernel: &mut dyn Kernel,
    store: &Store,
    record: &Record,
    now: &str,
) -> Result<Outcome, Fault> {
    let is_there = record
        .functions
        .iter()
        .any(|saved| Function::read(root, &saved.address).is_some_and(|function| function.id() == saved.id));
    if !is_there {
        store.remove(record)?;
        return Ok(Outcome::Forgotten);
    }
    match (record.boot == now, record.phase) {
        (_, Phase::Bound)
            if record
                .runner
                .is_some_and(|runner| record.boot != now || !runner.is_alive(root)) =>
        {
            // It was for the time of a process that was killed. After a restart there is nothing to take back.
            if record.boot == now {
                put_back_run(root, kernel, store, &record.asked)?;
            }
            store.remove(record)?;
            Ok(Outcome::PutBack)
        }
        (true, Phase::Bound) => Ok(Outcome::Unchanged),
        (true, Phase::Binding | Phase::Unbinding) => {
            // The change got as far as VFIO, and a machine was started on it since.
            let saved = record.functions.iter();
            let there = saved.filter_map(|saved| Function::read(root, &saved.address));
            let on_vfio: Vec<Function> = there.filter(Function::is_on_vfio).collect();
            unused(root, &on_vfio)?;
            let left = put_back(root, kernel, &record.functions);
            if left.is_empty() {
                store.remove(record)?;
                return Ok(Outcome::PutBack);
            }
            Err(Fault::new(Code::VmBind, "not all of it could be put back").cause(left.join("; ")))
        }
        // Another card is where the GPU was: there is no consent to give that one away.
        (false, Phase::Bound) if is_another(root, record, &record.asked) => {
            store.remove(record)?;
            Ok(Outcome::Forgotten)
        }
        // The kernel has forgotten every override.
        (false, Phase::Bound) => {
            let with = record.with.iter();
            let consent = Consent {
                // The same for what goes along: consent is for a device, and not for what is at its address later.
                with: with
                    .filter(|address| !is_another(root, record, address))
                    .cloned()
                    .collect(),
                boot_display: record.boot_display,
            };
            let plan = bind(root, kernel, store, &record.asked, &consent)?;
            if plan.changes.is_empty() {
                // The boot configuration gives it to VFIO: there is nothing to give back later.
                store.remove(record)?;
                return Ok(Outcome::Unchanged);
            }
            Ok(Outcome::BoundAgain)
        }
        (false, Phase::Binding | Phase::Unbinding) => {
            store.remove(record)?;
            Ok(Outcome::PutBack)
        }
    }
}

/// Whether a function of the record is another device by now, or none.
fn is_another(root: &Sysroot, record: &Record, address: &str) -> bool {
    let saved = record.functions.iter().find(|saved| saved.address == address);
    saved.is_some_and(|saved| Function::read(root, address).is_none_or(|now| now.id() != saved.id))
}

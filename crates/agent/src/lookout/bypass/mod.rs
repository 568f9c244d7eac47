//! Ways to use a device past the limiter: checks of a program before it runs, stand-ins for NVIDIA's other libraries,
//! and looks at it while it runs. docs/adr/0010 says what is done about each.

pub(crate) mod audit;
pub mod containers;
mod evidence;
pub mod program;
pub(crate) mod reported;
pub mod scan;

use divvy_ledger::attach::Pages;
use divvy_ledger::{Bypass, CopyPath};
use divvy_model::{Bytes, Code, Condition, CopiedRecord, Fault, Isolation, Policy, SliceRecord};

/// Adds to a record what its pages report beside use: ways past the limiter with their counts, what workers copied, and
/// whether its processes wait for space or thrash.
pub fn tell(record: &mut SliceRecord, pages: &[Pages]) {
    let ledgers = || pages.iter().map(|pages| &pages.ledger);
    for bypass in Bypass::ALL {
        match ledgers().fold(0, |sum, ledger| ledger.bypasses(bypass).saturating_add(sum)) {
            0 => {}
            count => record.bypasses.push(format!("{bypass}: {count}")),
        }
    }
    let copied = |path| Bytes(ledgers().fold(0, |sum, ledger| ledger.copied(path).saturating_add(sum)));
    record.copied = CopiedRecord {
        message_bytes: copied(CopyPath::Message),
        staged_bytes: copied(CopyPath::Staged),
        shared_bytes: copied(CopyPath::Shared),
        pinned_bytes: copied(CopyPath::Pinned),
    };
    if ledgers().any(|ledger| ledger.waiting() != 0) {
        record.conditions.push(Condition::Waiting);
    }
    if ledgers().any(|ledger| ledger.thrash().lasting.is_some()) {
        record.conditions.push(Condition::Thrashing);
    }
}

/// Refuses a program into which no drop-in will be loaded. Where the slice's policy allows the program, returns how it
/// will use the device.
///
/// # Errors
/// [`Code::NotEnforceable`] under a strict policy.
pub fn judge(program: &std::ffi::OsStr, slice: &SliceRecord) -> Result<Option<Bypass>, Fault> {
    // Under `enforced` a program without the drop-in has no device.
    if matches!(slice.terms.isolation, Isolation::Env | Isolation::Enforced) {
        return Ok(None);
    }
    let Some(file) = program::find(program) else {
        return Ok(None);
    };
    match (program::bypass(&file), slice.terms.policy) {
        (Some(bypass), Policy::Strict) => Err(refusal(&file, bypass)),
        (way, _) => Ok(way),
    }
}

/// Counts a way past the limiter in the ledger of the slice whose page server listens on `socket`. A failure to count
/// stops nothing.
pub fn count(socket: &std::path::Path, bypass: Bypass) {
    match divvy_ledger::attach::connect(socket, 0) {
        Ok(place) => place.slot().count(bypass),
        Err(error) => tracing::warn!(%bypass, %error, "a bypass cannot be counted"),
    }
}

/// The refusal of a program under a strict policy.
fn refusal(program: &std::path::Path, bypass: Bypass) -> Fault {
    let why = match bypass {
        Bypass::StaticProgram => "it is linked statically: no drop-in is loaded into it",
        Bypass::PrivilegedProgram => "it runs with another user's rights: the loader leaves the drop-ins out",
        _ => "it uses the device past the limiter",
    };
    Fault::new(
        Code::NotEnforceable,
        format!("`{}` cannot be kept to a share", program.display()),
    )
    .cause(why)
    .hint("`--policy best-effort` runs it and counts the bypass")
}

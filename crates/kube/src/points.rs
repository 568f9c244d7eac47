//! Named points between two effects, at which a test kills the driver. Outside tests they are nothing.

/// Where a driver may be killed while it prepares a claim or takes one back.
#[cfg(test)]
pub(crate) const ALL: [&str; 8] = [
    "record written aside",
    "folder synced",
    "record written",
    "slice made",
    "slice described",
    "claim prepared",
    "slice ended",
    "record removed",
];

#[cfg(test)]
thread_local! {
    static NEXT: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// The next time that this thread reaches the point it dies there.
#[cfg(test)]
pub(crate) fn kill_at(point: &'static str) {
    assert!(ALL.contains(&point), "{point}");
    NEXT.set(Some(point));
}

/// Forgets [`kill_at`]; whether the point was not reached.
#[cfg(test)]
pub(crate) fn spare() -> bool {
    NEXT.take().is_some()
}

/// This point is reached.
#[cfg(test)]
pub(crate) fn reach(point: &'static str) {
    assert!(ALL.contains(&point), "{point}");
    if NEXT.get() == Some(point) {
        NEXT.set(None);
        // No panic's message: a test reaches hundreds.
        std::panic::resume_unwind(Box::new(point));
    }
}

/// This point is reached.
#[cfg(not(test))]
pub(crate) fn reach(_: &'static str) {}

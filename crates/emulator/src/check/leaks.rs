//! What a process has not given back when it ends.

use super::{Checker, an_allocation, is_the_programs, of, on};
use crate::driver::{Driver, driver};
use crate::fork;

/// Allocations that are listed one by one.
const LISTED: usize = 100;
/// Numbers from here on tell apart kinds of objects; those below are allocations'.
const OBJECTS: u64 = 1 << 63;

/// Looks when the process ends by itself. One that is killed is not looked at.
pub fn at_end() {
    // SAFETY: the function takes nothing and keeps to what is static.
    let _registered = unsafe { libc::atexit(look_at_exit) };
}

extern "C" fn look_at_exit() {
    // A panic must not pass into the C library.
    let _ended = std::panic::catch_unwind(|| {
        if let (Some(checker), Ok(driver)) = (on(), driver())
            && !fork::is_child()
        {
            look(checker, driver);
        }
    });
}

fn look(checker: &Checker, driver: &Driver) {
    let mut left = Vec::new();
    driver.addresses.live.find_where(|allocation| {
        if is_the_programs(allocation) {
            left.push((allocation.buffer_id, of(allocation)));
        }
        false
    });
    let more = left.len().saturating_sub(LISTED);
    let rest: u64 = left.iter().skip(LISTED).map(|(_, owner)| owner.bytes).sum();
    for (id, owner) in left.into_iter().take(LISTED) {
        checker.leaked(
            id,
            format!("{} was never freed", an_allocation(&owner)),
            Some(owner),
        );
    }
    if more > 0 {
        checker.leaked(
            0,
            format!("{more} other allocations of {rest} bytes together were never freed"),
            None,
        );
    }
    let modules = driver.modules.loaded.all();
    let objects = [
        (
            "context",
            "cuCtxCreate",
            driver
                .contexts
                .all()
                .iter()
                .filter(|context| !context.primary)
                .count(),
        ),
        (
            "module",
            "cuModuleLoad",
            modules.iter().filter(|module| !module.of_library).count(),
        ),
        ("library", "cuLibraryLoad", driver.libraries.all().len()),
        ("stream", "cuStreamCreate", driver.streams.all().len()),
        ("event", "cuEventCreate", driver.events.all().len()),
        ("array", "cuArrayCreate", driver.arrays.all().len()),
    ];
    for (number, (what, call, count)) in objects.into_iter().enumerate() {
        match count {
            0 => continue,
            1 => checker.leaked(
                OBJECTS + number as u64,
                format!("1 {what} made by {call} was never destroyed"),
                None,
            ),
            _ => checker.leaked(
                OBJECTS + number as u64,
                format!("{count} {} made by {call} were never destroyed", plural(what)),
                None,
            ),
        }
    }
    checker.findings.flush();
}

fn plural(what: &str) -> String {
    match what.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{what}s"),
    }
}

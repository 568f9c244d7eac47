//! The privileges that the page server of a lasting slice gives up before it serves: user 0, groups, and every way to
//! regain them.

use divvy_model::Fault;
use divvy_privileged::confine_page_server;
use nix::unistd::User;

use crate::files::kernel;

/// The user of the system agent and of page servers, where the host has it.
const SYSTEM_USER: &str = "divvy";
/// The unprivileged overflow user, which every Linux system has.
const UNPRIVILEGED: u32 = 65_534;

/// Becomes an unprivileged user for good where this process is user 0, and restricts its own system calls.
///
/// # Errors
/// [`divvy_model::Code::Privilege`] where the system refuses: then nothing is served.
pub(crate) fn give_up_privileges() -> Result<(), Fault> {
    // Root in a user namespace is an ordinary user of the host, and may have no other user to become.
    if !rustix::process::geteuid().is_root() || in_user_namespace() {
        return confine_page_server(0, 0);
    }
    match User::from_name(SYSTEM_USER) {
        Ok(Some(user)) if !user.uid.is_root() => confine_page_server(user.uid.as_raw(), user.gid.as_raw()),
        _ => confine_page_server(UNPRIVILEGED, UNPRIVILEGED),
    }
}

/// Whether user 0 here is some other user of the host.
fn in_user_namespace() -> bool {
    let map = kernel::text("self", "uid_map").unwrap_or_default();
    map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]
}

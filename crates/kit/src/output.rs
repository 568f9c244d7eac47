//! What the kit prints.

use std::io::Write as _;

/// Prints a line. The reader may have gone, or its disk may be full: the results are in files.
pub(crate) fn say(line: &str) {
    let _unread = writeln!(std::io::stdout(), "{line}");
}

/// Prints why it ends.
pub(crate) fn complain(why: &str) {
    let _unread = writeln!(std::io::stderr(), "error: {why}");
}

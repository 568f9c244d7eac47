//! A line of the report that fails has a reason, and a full disk is a reason that no program may be able to say.

use std::path::Path;

/// Less than this is full, in bytes: an agent's journal and a program's last words need more.
const LITTLE: u64 = 1 << 20;

/// What went wrong, with a hint where the folder for temporary files is full. Never empty.
pub(crate) fn with_reason(why: &str) -> String {
    sentence(why, is_full(&std::env::temp_dir()))
}

fn sentence(why: &str, is_full: bool) -> String {
    let why = match why.trim() {
        "" => "no reason was given",
        why => why,
    };
    match is_full {
        true => format!("{why}; the folder for temporary files is full: TMPDIR names another"),
        false => why.to_owned(),
    }
}

/// Whether the file system of a folder has room for no more. One that does not tell has.
fn is_full(folder: &Path) -> bool {
    let Ok(told) = rustix::fs::statvfs(folder) else {
        return false;
    };
    // Some file systems count no files.
    told.f_bavail.saturating_mul(told.f_frsize) < LITTLE || (told.f_files > 0 && told.f_favail == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reason_is_empty_and_a_full_disk_is_named() {
        assert_eq!(sentence(" ", false), "no reason was given");
        assert_eq!(sentence("it ended", false), "it ended");
        let full = sentence("it ended", true);
        assert!(full.starts_with("it ended; ") && full.ends_with("TMPDIR names another"));
        // /proc has no room for anything.
        assert!(is_full(Path::new("/proc")));
        assert!(!is_full(Path::new("/nowhere")));
    }
}

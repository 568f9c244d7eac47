//! Subordinate users: which numbers /etc/subuid gives to which user.
//!
//! A user with such a range makes a set-user-id file of a number of the range, in a user namespace of its own. Executed
//! outside of that namespace, the program becomes that number wholly: the kernel no longer knows that it is the user's.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::User;

/// The most that is read of the file, in bytes.
const LONGEST: u64 = 4 << 20;
/// Writable by its group, or by all.
const WRITABLE: u32 = 0o022;

/// Whether a file such as /etc/subuid gives this number to this user. A file that others than root can write gives none.
pub(crate) fn has(file: &Path, uid: u32, number: u32) -> bool {
    let text = read(file).unwrap_or_default();
    gives(&text, number, |owner| {
        owner == uid.to_string()
            || User::from_name(owner).is_ok_and(|user| user.is_some_and(|user| user.uid.as_raw() == uid))
    })
}

fn read(file: &Path) -> Option<String> {
    let file = File::open(file).ok()?;
    let about = file.metadata().ok()?;
    if !about.is_file() || about.uid() != 0 || about.mode() & WRITABLE != 0 {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a line `owner:first:count` has the number, with such an owner. Owners of other numbers are not looked up.
fn gives(text: &str, number: u32, is_owner: impl Fn(&str) -> bool) -> bool {
    text.lines().any(|line| {
        let mut fields = line.split(':');
        let (Some(owner), Some(first), Some(count), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return false;
        };
        let (Ok(first), Ok(count)) = (first.trim().parse::<u32>(), count.trim().parse::<u32>()) else {
            return false;
        };
        // No range has root, nor the number that means "as it is".
        ![0, u32::MAX].contains(&number)
            && number.checked_sub(first).is_some_and(|at| at < count)
            && is_owner(owner)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_of_the_user_whose_range_has_it() {
        let text =
            "# ranges\nalice:100000:10\n1001:200000:1\nbroken:300000\nlong:300000:5:5\nall:0:4294967295\n";
        let has = |user: &str, number| gives(text, number, |owner| owner == user);
        assert!(has("alice", 100_000) && has("alice", 100_009));
        assert!(!has("alice", 99_999) && !has("alice", 100_010) && !has("alice", 200_000));
        assert!(has("1001", 200_000) && !has("1001", 200_001) && !has("1001", 100_000));
        assert!(!has("broken", 300_000) && !has("long", 300_000));
        assert!(has("all", 1) && !has("all", 0) && !has("all", u32::MAX));
    }
}

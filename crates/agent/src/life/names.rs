//! Names: of slices, made up or chosen, and of users.

use divvy_model::{Code, Fault, SliceRequest};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::life::slice::Slice;
use crate::state::State;
use crate::system::peer::Peer;

/// A user as people call them: the name, else the number.
#[must_use]
pub fn user_name(uid: u32) -> String {
    login_name(uid).unwrap_or_else(|| format!("user {uid}"))
}

/// The name of the slice that a user gets by default: the user's own, where it can be one.
#[must_use]
pub fn default_slice_name(uid: u32) -> String {
    login_name(uid)
        .filter(|name| is_name(name))
        .unwrap_or_else(|| format!("user-{uid}"))
}

/// The main group of a user.
#[must_use]
pub fn group_of(uid: u32) -> Option<u32> {
    let user = nix::unistd::User::from_uid(uid.into()).ok()??;
    Some(user.gid.as_raw())
}

fn login_name(uid: u32) -> Option<String> {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid));
    user.ok().flatten().map(|user| user.name)
}

/// The stand-in name in a dry run: no slice is ever called so.
pub const REFUSED: &str = "refused";

/// Eight hexadecimal digits that no living slice has.
pub(crate) fn fresh_id(state: &State) -> Result<String, Fault> {
    loop {
        let mut bytes = [0_u8; 4];
        getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| {
            Fault::new(Code::Internal, "cannot get random bytes").because(&std::io::Error::from(error))
        })?;
        let id = format!("{:08x}", u32::from_be_bytes(bytes));
        if !state.slices.contains_key(&id) {
            return Ok(id);
        }
    }
}

/// The requested name, checked, or one made of the program's.
pub(crate) fn slice_name(
    state: &State,
    peer: Peer,
    request: &SliceRequest,
    command: &[String],
    id: &str,
) -> Result<String, Fault> {
    let Some(name) = &request.name else {
        let program = command
            .first()
            .map_or("slice", |program| program.rsplit('/').next().unwrap_or("slice"));
        let plain: String = program
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c))
            .take(40)
            .collect();
        let plain = plain.trim_start_matches(['-', '_', '.']);
        let base = if plain.is_empty() { "slice" } else { plain };
        return Ok(format!("{base}-{}", &id[..4.min(id.len())]));
    };
    if !is_name(name) {
        return Err(
            Fault::new(Code::SliceName, format!("`{name}` is no name for a slice"))
                .hint("1 to 63 letters, digits, `-`, `_` or `.`, beginning with a letter or a digit"),
        );
    }
    if name == REFUSED {
        return Err(
            Fault::new(Code::SliceName, format!("no slice is called `{name}`")).hint(
                "`divvy container cdi slice` prints that name where it made no slice, so that engines find none: choose another",
            ),
        );
    }
    // Users name their slices independently of each other.
    let taken = |slice: &Slice| slice.record.uid == peer.uid && slice.record.name == *name;
    if state.slices.values().any(taken) {
        return Err(
            Fault::new(Code::NameTaken, format!("there is a slice `{name}` already"))
                .hint("choose another name, or leave --name out"),
        );
    }
    Ok(name.clone())
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=63).contains(&name.len())
        && name.bytes().all(plain)
        && name
            .bytes()
            .next()
            .is_some_and(|first| first.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["a", "train-1", "0.x_y", &"x".repeat(63)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "-a", ".a", "a b", "a/b", "ä", &"x".repeat(64)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn a_name_is_made_of_the_programs() {
        let request = SliceRequest::default();
        let peer = Peer::new(1000, 1);
        let named =
            |command: &str| slice_name(&State::default(), peer, &request, &[command.into()], "0123abcd");
        assert_eq!(named("/usr/bin/python3.12").expect("a name"), "python3.12-0123");
        assert_eq!(named("./run me").expect("a name"), "runme-0123");
        assert_eq!(named("--").expect("a name"), "slice-0123");
    }

    #[test]
    fn a_user_without_a_name_has_a_number() {
        assert_eq!(user_name(3_999_999_999), "user 3999999999");
        assert_eq!(default_slice_name(3_999_999_999), "user-3999999999");
        assert_eq!(default_slice_name(0), "root");
    }
}

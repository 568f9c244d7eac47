//! Names: of slices, made up or chosen, and of users.

use std::time::Duration;

use divvy_model::{Code, Fault, SliceRequest};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::decide::life::gone_within;
use crate::life::anchor::unix_seconds;
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
    match named(state, peer.uid, name) {
        Some(slice) => Err(taken(name, gone_within(&slice.record, unix_seconds()))),
        None => Ok(name.clone()),
    }
}

/// A user's slice of this name.
pub(crate) fn named<'a>(state: &'a State, uid: u32, name: &str) -> Option<&'a Slice> {
    let mut slices = state.slices.values();
    slices.find(|slice| slice.record.uid == uid && slice.record.name == name)
}

/// `ends`: within how long the slice that has the name is gone, if its time is over.
fn taken(name: &str, ends: Option<Duration>) -> Fault {
    let fault = Fault::new(Code::NameTaken, format!("there is a slice `{name}` already"));
    match ends.map(|ends| ends.as_secs()) {
        Some(seconds) => fault
            .cause("its time is over, and its programs are being ended")
            .hint(format!(
                "the name is free within {seconds} s: try again then, or choose another name"
            )),
        None => fault.hint("choose another name; `divvy ps` shows whose slice has it"),
    }
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
    fn a_name_whose_slice_is_ending_is_free_soon() {
        let named = |name: &str, expires_unix_s| {
            let record = divvy_model::SliceRecord {
                id: name.into(),
                name: name.into(),
                uid: 1000,
                expires_unix_s,
                ..divvy_model::SliceRecord::default()
            };
            (name.to_owned(), Slice::new(record, None, &[]))
        };
        let mut state = State::default();
        state
            .slices
            .extend([named("ending", Some(unix_seconds())), named("lives", None)]);
        let asked = |uid: u32, name: &str| {
            let request = SliceRequest {
                name: Some(name.into()),
                ..SliceRequest::default()
            };
            slice_name(&state, Peer::new(uid, 1), &request, &[], "0123abcd")
        };
        let ending = asked(1000, "ending").expect_err("taken");
        assert_eq!(ending.code, Code::NameTaken);
        assert!(
            ending
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("free within 1")),
            "{ending:?}"
        );
        let lives = asked(1000, "lives").expect_err("taken");
        assert!(
            lives
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("another name")),
            "{lives:?}"
        );
        assert_eq!(asked(1001, "ending").expect("another user's"), "ending");
    }

    #[test]
    fn a_user_without_a_name_has_a_number() {
        assert_eq!(user_name(3_999_999_999), "user 3999999999");
        assert_eq!(default_slice_name(3_999_999_999), "user-3999999999");
        assert_eq!(default_slice_name(0), "root");
    }
}

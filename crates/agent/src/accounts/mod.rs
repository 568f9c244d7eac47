//! Accounts: for which user a slice counts. A user with subordinate numbers (`/etc/subuid`) may ask as any of them, and
//! has one quota all the same, and its debts.
//!
//! An account is for counting, and never for rights: those are of the user that the kernel names.
//! docs/adr/0074-accounts.md has the reasons.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use divvy_model::{Code, Fault};
use nix::unistd::{Uid, User};
use rustix::fs::OFlags;

use crate::start::trust::is_roots;

mod ranges;
mod table;

use table::{Names, Table};

/// The most that is read of the file of ranges, in bytes. A larger one is not believed.
const LONGEST: u64 = 4 << 20;
/// The most that is read of the file of users.
const LONGEST_OF_USERS: u64 = 64 << 20;
/// Writable by its group, or by all.
const WRITABLE: u32 = 0o022;
/// A file that was written so short a time ago may change once more without a sign of it.
const UNSETTLED: Duration = Duration::from_secs(2);
/// How long the answer of a directory of users counts: that there is such a user, and that there is none.
const KNOWN_FOR: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(10)];
/// The most answers that are kept.
const ANSWERS: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// The files of ranges and of users. Without them each user is its own account.
    files: Option<[PathBuf; 2]>,
    now: RwLock<Arc<Table>>,
    read: Mutex<WhatWasRead>,
}

#[derive(Debug, Default)]
struct WhatWasRead {
    /// The two files as they were.
    stamps: Option<[Stamp; 2]>,
    at: Option<SystemTime>,
    /// The users of /etc/passwd.
    local: Names,
    /// What directories of users answered, by name and by number.
    names: HashMap<String, (Instant, Option<u32>)>,
    numbers: HashMap<u32, (Instant, bool)>,
}

/// A file as stat(2) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Accounts {
    /// By this machine's users.
    pub fn of_machine() -> Arc<Self> {
        Arc::new(Self::by(Path::new("/etc/subuid"), Path::new("/etc/passwd")))
    }

    /// By these files.
    pub fn by(ranges: &Path, users: &Path) -> Self {
        let accounts = Self {
            files: Some([ranges.into(), users.into()]),
            ..Self::default()
        };
        accounts.refresh();
        accounts
    }

    /// The accounts that a user counts for, in ascending order, as far as is known without a look at any file. There is
    /// one, but where ranges overlap.
    pub fn of(&self, uid: u32) -> Vec<u32> {
        self.table().of(uid)
    }

    /// One number to count a user's requests by.
    pub fn one(&self, uid: u32) -> u32 {
        self.table().one(uid)
    }

    /// The account of a user that asks for a slice.
    ///
    /// # Errors
    /// [`Code::UnclearAccount`] where several users have this number.
    pub fn require(&self, uid: u32) -> Result<u32, Fault> {
        let accounts = self.of(uid);
        if let [account] = accounts[..] {
            return Ok(account);
        }
        let owners: Vec<String> = accounts.iter().map(u32::to_string).collect();
        let message = format!(
            "user {uid} is a subordinate user of users {}",
            owners.join(" and ")
        );
        Err(Fault::new(Code::UnclearAccount, message)
            .cause("ranges in /etc/subuid overlap, so it is not clear whose quota the slice counts for")
            .hint("ask as your own user, or have the ranges in /etc/subuid set apart"))
    }

    /// Adds to a refusal by a quota that the user is a subordinate one, if it is.
    pub fn explain(&self, uid: u32, fault: Fault) -> Fault {
        let account = self.one(uid);
        if account == uid || !matches!(fault.code, Code::QuotaFull | Code::OverQuota) {
            return fault;
        }
        fault.cause(format!("by /etc/subuid user {uid} counts as user {account}"))
    }

    /// Reads the files if they have changed, and asks directories of users for what is lacking of this user. That may
    /// take long: no lock is to be held.
    pub fn prepare(&self, uid: u32) {
        self.refresh();
        let table = self.table();
        let (names, counts) = table.unknown(uid);
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let now = Instant::now();
        let mut news = false;
        for name in names {
            let known = self.read().names.get(&name).map(|(at, uid)| (*at, uid.is_some()));
            if is_fresh(known, now) {
                continue;
            }
            // An error is no answer: the one before counts.
            if let Ok(user) = User::from_name(&name) {
                let uid = user.map(|user| user.uid.as_raw());
                keep(&mut self.read().names, name, (now, uid));
                news = true;
            }
        }
        let known = self.read().numbers.get(&uid).copied();
        if counts
            && !is_fresh(known, now)
            && let Ok(user) = User::from_uid(Uid::from_raw(uid))
        {
            keep(&mut self.read().numbers, uid, (now, user.is_some()));
            news = true;
        }
        if news {
            let read = self.read();
            let names = read.all();
            let mut table = self.now.write().unwrap_or_else(PoisonError::into_inner);
            *table = Arc::new(table.with_names(names));
        }
    }

    /// Reads the files if they have changed.
    pub fn refresh(&self) {
        let Some([ranges, users]) = &self.files else {
            return;
        };
        let mut read = self.read();
        let stamps = [Stamp::of(ranges), Stamp::of(users)];
        let at = SystemTime::now();
        let is_settled = read.at.is_some_and(|read_at| {
            stamps.iter().all(|stamp| {
                // A time to come is one that a clock made: nothing follows from it.
                let age = read_at.duration_since(stamp.written());
                age.map_or(true, |age| age >= UNSETTLED)
            })
        });
        if is_settled && read.stamps == Some(stamps) {
            return;
        }
        read.local = match text(users, LONGEST_OF_USERS) {
            Ok(text) => Names::parse(&text.unwrap_or_default()),
            Err(_) => std::mem::take(&mut read.local),
        };
        let text = text(ranges, LONGEST);
        let before = self.table();
        let content = text.as_ref().ok().map(|text| text.as_deref().unwrap_or_default());
        let table = Table::after(&before, content, read.all());
        if let (Err(reason), false) = (&text, before.is_unfit) {
            tracing::warn!(
                file = %ranges.display(),
                "subordinate users are not known ({reason}): users without a name count as one"
            );
        }
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        (read.stamps, read.at) = (Some(stamps), Some(at));
    }

    fn table(&self) -> Arc<Table> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn read(&self) -> MutexGuard<'_, WhatWasRead> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WhatWasRead {
    /// All users that are known. /etc/passwd comes first.
    fn all(&self) -> Names {
        let mut names = self.local.clone();
        for (name, (_, uid)) in &self.names {
            if let Some(uid) = uid {
                names.by_name.entry(name.clone()).or_insert(*uid);
            }
        }
        let logins = self.numbers.iter().filter(|(_, (_, is_login))| *is_login);
        names.logins.extend(logins.map(|(uid, _)| *uid));
        names
    }
}

impl Stamp {
    /// A file that is not there has a stamp too.
    fn of(path: &Path) -> Self {
        let about = std::fs::metadata(path).ok();
        let of = |part: fn(&std::fs::Metadata) -> i64| about.as_ref().map_or(0, part);
        Self {
            place: about.as_ref().map_or((0, 0), |about| (about.dev(), about.ino())),
            size: about.as_ref().map_or(0, MetadataExt::size),
            written: (of(MetadataExt::mtime), of(MetadataExt::mtime_nsec)),
            changed: (of(MetadataExt::ctime), of(MetadataExt::ctime_nsec)),
        }
    }

    /// When it was last written or changed.
    fn written(&self) -> SystemTime {
        let (seconds, nanoseconds) = self.written.max(self.changed);
        let since = Duration::new(
            u64::try_from(seconds).unwrap_or(0),
            u32::try_from(nanoseconds).unwrap_or(0),
        );
        SystemTime::UNIX_EPOCH + since
    }
}

/// Whether an answer, by when it came and whether there is such a user, need not be asked for again.
fn is_fresh(answer: Option<(Instant, bool)>, now: Instant) -> bool {
    answer.is_some_and(|(at, is_some)| {
        let [some, none] = KNOWN_FOR;
        now.saturating_duration_since(at) < if is_some { some } else { none }
    })
}

fn keep<K: std::hash::Hash + Eq, T>(answers: &mut HashMap<K, T>, of: K, answer: T) {
    if answers.len() >= ANSWERS && !answers.contains_key(&of) {
        answers.clear();
    }
    answers.insert(of, answer);
}

/// A file's text; nothing where it is not there.
///
/// # Errors
/// Why it is not believed: what others than root could write, what is too long, what is no file.
#[expect(
    clippy::disallowed_methods,
    reason = "the machine's own file, in a folder of root's: it is looked at once it is open"
)]
fn text(path: &Path, longest: u64) -> io::Result<Option<String>> {
    let mut open = File::options();
    // What is no file must not delay.
    open.read(true)
        .custom_flags(i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or(0));
    let file = match open.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let about = file.metadata()?;
    if !about.is_file() || !is_roots(about.uid()) || about.mode() & WRITABLE != 0 {
        return Err(io::Error::other("others than root may write it"));
    }
    let mut bytes = Vec::new();
    let length = file.take(longest + 1).read_to_end(&mut bytes)? as u64;
    if length > longest {
        return Err(io::Error::other(format!("it has more than {longest} bytes")));
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

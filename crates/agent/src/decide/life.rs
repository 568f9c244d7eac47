//! The end of slices: whether a slice ends, and which slices go with containers that are gone.

use std::collections::HashMap;
use std::time::Duration;

use divvy_model::{Code, Fault, LifetimeAnchor, SliceRecord};

use crate::start::settings::Settings;

/// The decision on a slice after a look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The slice stays as it is.
    Stays,
    /// No page server serves it and no process uses it.
    Ends,
    /// Its page server is gone, but its processes are not.
    Orphaned,
}

/// Decides on a slice. `kept`: its page server lives. `may_be_in_use` tells whether processes may use the slice; it is
/// called only where that matters.
#[must_use]
pub fn ending(lasting: bool, kept: bool, may_be_in_use: impl FnOnce() -> bool) -> Ending {
    if lasting || kept {
        return Ending::Stays;
    }
    match may_be_in_use() {
        true => Ending::Orphaned,
        false => Ending::Ends,
    }
}

/// How long programs may take to end after their slice's time is over.
const GRACE: Duration = Duration::from_secs(10);
/// How long programs that are killed may take to be gone. What keeps the slice is ended then, whatever is left.
const LAST: Duration = Duration::from_secs(5);

/// What is due to a slice whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Its programs are asked to end.
    Ask,
    /// They have their grace.
    Wait,
    /// They are killed.
    Kill,
    /// They are killed, and so are the `divvy run`s that keep the slice without them.
    TakeBack,
}

/// What is due at `now`, in seconds since 1970; nothing where the slice has no end, or has time. `asked`: how long ago
/// its programs were asked to end.
#[must_use]
pub fn expiry(record: &SliceRecord, now: u64, asked: Option<Duration>) -> Option<Expiry> {
    record.expires_unix_s.filter(|at| *at <= now)?;
    Some(match asked {
        None => Expiry::Ask,
        Some(since) if since < GRACE => Expiry::Wait,
        Some(since) if since < GRACE + LAST => Expiry::Kill,
        Some(_) => Expiry::TakeBack,
    })
}

/// Within how long a slice whose time is over is gone, at `now` in seconds since 1970; nothing where it has no end, or
/// has time.
#[must_use]
pub fn gone_within(record: &SliceRecord, now: u64) -> Option<Duration> {
    /// A look may come a second late at each step.
    const LATE: Duration = Duration::from_secs(2);
    let over = record.expires_unix_s.and_then(|at| now.checked_sub(at))?;
    let left = (GRACE + LAST + LATE).saturating_sub(Duration::from_secs(over));
    Some(left.max(Duration::from_secs(1)))
}

/// Whether a slice in which nothing has run for `idle` is to be deleted. Only one that goes with a path stays as long as
/// that: no tenant can name a path. A tenant can name any process, and any time for a container to come.
#[must_use]
pub fn idled_out(record: &SliceRecord, idle: Duration) -> bool {
    let limit = record.terms.idle_ttl_s;
    let is_kept = matches!(record.lifetime_anchor, Some(LifetimeAnchor::Path(_)));
    record.lasting && !is_kept && limit > 0 && idle.as_secs() >= limit
}

/// Gives a new slice the times of the settings. Root and the agent's own user, who are trusted, have as long as they ask
/// for.
///
/// # Errors
/// [`Code::QuotaFull`] for a longer life than a user's slice may have.
pub fn bound(record: &mut SliceRecord, settings: &Settings, is_trusted: bool) -> Result<(), Fault> {
    let (asked, idle) = (record.terms.ttl_s, record.terms.idle_ttl_s);
    let of = |time: Option<Duration>| time.filter(|_| !is_trusted).map_or(0, |time| time.as_secs());
    let (longest, longest_idle) = (of(settings.user_ttl), of(settings.idle_ttl));
    if longest > 0 && asked > longest {
        return Err(Fault::new(
            Code::QuotaFull,
            format!("a slice of yours may live for {longest} s, and {asked} s were asked for"),
        )
        .hint("ask for a shorter --ttl, or for none: the setting `user_ttl` then says it"));
    }
    let or = |asked: u64, longest: u64| if asked == 0 { longest } else { asked };
    record.terms.ttl_s = or(asked, longest);
    record.terms.idle_ttl_s = match (record.lasting, longest_idle) {
        (false, _) => 0,
        (true, 0) => idle,
        (true, longest) => or(idle, longest).min(longest),
    };
    Ok(())
}

/// Whether a slice may still be joined at `now`.
///
/// # Errors
/// [`Code::UnknownSlice`] where its time is over.
pub fn check_time(record: &SliceRecord, now: u64) -> Result<(), Fault> {
    match gone_within(record, now) {
        None => Ok(()),
        Some(within) => Err(Fault::new(
            Code::UnknownSlice,
            format!("the time of slice `{}` is over", record.name),
        )
        .hint(format!(
            "it is gone within {} s, and can be made again then",
            within.as_secs()
        ))),
    }
}

/// Rounds without any of a slice's containers until they count as gone: a process may be in the middle of an execve(2).
const SURE: u32 = 2;

/// What one round saw of a slice's containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Nothing has changed.
    Nothing,
    /// The slice's first container has come.
    Taken,
    /// None of its containers is there, and none is expected.
    Missed,
}

/// The result of a round at `now` (seconds since the epoch) for a slice that goes with `anchor`. `seen`: the slice
/// has a container.
#[must_use]
pub fn sight_of(anchor: &LifetimeAnchor, seen: bool, now: u64) -> Sight {
    let LifetimeAnchor::Containers { until_unix_s, taken } = anchor else {
        return Sight::Nothing;
    };
    match (seen, *taken) {
        (true, true) => Sight::Nothing,
        (true, false) => Sight::Taken,
        (false, false) if now < *until_unix_s => Sight::Nothing,
        (false, _) => Sight::Missed,
    }
}

/// The slices whose containers the rounds did not see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    /// The number of consecutive rounds that missed them, by slice.
    pub missed: HashMap<String, u32>,
    /// Those whose containers are gone for sure.
    pub over: Vec<String>,
    /// Whether another round is needed to make sure of some.
    pub is_unsure: bool,
}

/// Counts one more round that missed the containers of these slices. `before` holds the earlier rounds.
#[must_use]
pub fn missed_rounds(before: &HashMap<String, u32>, missed: Vec<String>) -> Rounds {
    let rounds = |id: String| {
        let count = before.get(&id).copied().unwrap_or_default() + 1;
        (id, count)
    };
    let missed: HashMap<String, u32> = missed.into_iter().map(rounds).collect();
    let over = missed.iter().filter(|(_, rounds)| **rounds >= SURE);
    Rounds {
        over: over.map(|(id, _)| id.clone()).collect(),
        is_unsure: missed.values().any(|rounds| *rounds < SURE),
        missed,
    }
}

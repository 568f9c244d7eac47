//! Instances as people ask for them: by id, name, and place: `14`, `1g.6gb`, `1g.6gb:2`, `19,19,14,9`; parts of them by
//! name: `1c.3g.20gb`.

use divvy_model::{Code, Fault};

use super::compute::Filled;
use super::geometry::Shapes;
use super::plan::Goal;

/// One instance that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// A profile's name or id.
    pub profile: String,
    /// The memory slice it is to begin at.
    pub start: Option<u8>,
    /// Not a whole instance, but a compute instance of so many slices in one.
    pub part: Option<u8>,
}

impl Wanted {
    /// `3g.20gb`, `9`, or a part, `1c.3g.20gb`, wherever it fits.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let part = name
            .split_once('.')
            .and_then(|(first, rest)| Some((first.strip_suffix('c')?.parse().ok()?, rest)));
        Self {
            profile: part.map_or(name, |(_, rest)| rest).to_owned(),
            start: None,
            part: part.map(|(slices, _)| slices),
        }
    }
}

/// Reads `19,19,14,9:4`; spaces around entries do not matter.
///
/// # Errors
/// [`Code::MigRequest`] for an empty entry or a place that is no number.
pub fn parse_list(text: &str) -> Result<Vec<Wanted>, Fault> {
    let entry = |entry: &str| {
        let entry = entry.trim();
        let malformed = || {
            Fault::new(Code::MigRequest, format!("`{entry}` is no MIG instance")).hint(
                "write a profile's name or id, and after a colon the memory slice it begins at: 1g.10gb:2",
            )
        };
        let (profile, start) = match entry.split_once(':') {
            Some((profile, start)) => (profile, Some(start.parse().map_err(|_| malformed())?)),
            None => (entry, None),
        };
        if profile.is_empty() {
            return Err(malformed());
        }
        Ok(Wanted {
            start,
            ..Wanted::of_name(profile)
        })
    };
    text.split(',').map(entry).collect()
}

/// The goal of a device that is to hold exactly these.
///
/// # Errors
/// [`Code::MigRequest`] for a place that a profile cannot begin at; [`Code::MigFit`] for two that overlap or are more than
/// the device holds.
pub fn goal(shapes: &Shapes, wanted: &[Filled], device: &str) -> Result<Goal, Fault> {
    let geometry = &shapes.geometry;
    let mut goal = Goal {
        counts: vec![0; geometry.profiles.len()],
        pinned: 0,
        exact: true,
    };
    for one in wanted {
        let profile = one.profile;
        let kind = &geometry.profiles[profile];
        goal.counts[profile] = goal.counts[profile].saturating_add(1);
        if goal.counts[profile] > kind.max {
            return Err(Fault::new(
                Code::MigFit,
                format!("{device} holds at most {} of {}", kind.max, kind.name),
            )
            .hint("`divvy gpu mig list` shows how many of each profile a device holds"));
        }
        let Some(start) = one.start else { continue };
        let place = shapes.place(profile, start).ok_or_else(|| {
            let starts: Vec<String> = kind.starts.iter().map(u8::to_string).collect();
            Fault::new(
                Code::MigRequest,
                format!("{} cannot begin at memory slice {start}", kind.name),
            )
            .hint(format!("it can begin at {}", starts.join(", ")))
        })?;
        if !shapes.fits(goal.pinned, place) {
            return Err(Fault::new(
                Code::MigFit,
                format!(
                    "{}:{start} overlaps another instance that is asked for on {device}",
                    kind.name
                ),
            )
            .hint("leave the place out, and one is found"));
        }
        goal.pinned |= 1 << place;
    }
    Ok(goal)
}

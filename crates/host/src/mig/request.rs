//! Instances as people ask for them: by id, name, and place: `14`, `1g.6gb`, `1g.6gb:2`, `19,19,14,9`; parts of them by
//! name: `1c.3g.20gb`.

use divvy_model::{Code, Fault};

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

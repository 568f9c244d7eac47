//! What the slices of `divvy top` are sorted by.

use clap::ValueEnum;

/// What the slices are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// What each had of the last second.
    #[default]
    Use,
    /// What each comes to.
    Share,
    /// How long each waits.
    Queue,
    /// What each has to repay.
    Debt,
    /// What each holds of the memory.
    Memory,
    /// Its name.
    Name,
}

impl Order {
    /// The word on the screen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Use => "use",
            Self::Share => "share",
            Self::Queue => "queue",
            Self::Debt => "debt",
            Self::Memory => "memory",
            Self::Name => "name",
        }
    }

    /// The one after it, and after the last the first.
    pub fn next(self) -> Self {
        let all = Self::value_variants();
        let at = all.iter().position(|order| *order == self).unwrap_or(0);
        all[(at + 1) % all.len()]
    }
}

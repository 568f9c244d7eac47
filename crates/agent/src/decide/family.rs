//! Slices inside slices: the records of all slices, in the form that decisions read.

use std::collections::BTreeMap;

use divvy_model::SliceRecord;

/// All slices by id.
#[derive(Clone, Debug, Default)]
pub struct Family<'a>(BTreeMap<&'a str, &'a SliceRecord>);

impl<'a> Family<'a> {
    /// Takes these records.
    pub fn of(records: impl IntoIterator<Item = &'a SliceRecord>) -> Self {
        let by_id = records.into_iter().map(|record| (record.id.as_str(), record));
        Self(by_id.collect())
    }

    /// The slice with this id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&'a SliceRecord> {
        self.0.get(id).copied()
    }

    /// All, by id.
    pub fn all(&self) -> impl Iterator<Item = &'a SliceRecord> {
        self.0.values().copied()
    }

    /// Whether a slice is inside no other of these slices.
    #[must_use]
    pub fn is_outermost(&self, record: &SliceRecord) -> bool {
        let parent = record.parent_id.as_deref();
        parent.is_none_or(|parent| self.get(parent).is_none())
    }

    /// The slices that are inside no other. A nested slice is part of what its parent holds.
    pub fn outermost(&self) -> impl Iterator<Item = &'a SliceRecord> {
        self.all().filter(|record| self.is_outermost(record))
    }

    /// The slices directly inside this one.
    pub fn inside(&self, id: &str) -> impl Iterator<Item = &'a SliceRecord> {
        self.all()
            .filter(move |record| record.parent_id.as_deref() == Some(id))
    }

    /// Whether slice `id` is inside slice `home`, at any depth.
    #[must_use]
    pub fn is_within(&self, id: &str, home: &str) -> bool {
        let around = |id: &str| self.get(id).and_then(|record| record.parent_id.as_deref());
        let mut above = around(id);
        while let Some(next) = above {
            if next == home {
                return true;
            }
            above = around(next);
        }
        false
    }
}

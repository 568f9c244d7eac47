//! The slices at one look: their records, the `divvy run`s that live, and what the kernel says of all processes.
//!
//! A walk over all processes takes long where there are thousands, and any tenant can start those. So there is one for each
//! look, and another only while a slice is being stopped.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use divvy_model::SliceRecord;

use crate::life::members::{Members, roots};
use crate::lookout::bypass::containers;
use crate::system::procs::Table;
use crate::system::watched::Watched;

/// The slices at one look.
pub(super) struct Slices<'a> {
    pub records: &'a [SliceRecord],
    pub runs: Vec<(Watched, &'a SliceRecord)>,
    pub members: &'a Members,
    /// Read when it is needed first.
    table: RefCell<Option<Rc<Table>>>,
    /// The processes of containers, by slice: each one's number and start. Read when it is needed first.
    inside: RefCell<Option<Rc<Inside>>>,
    /// How long the longest walk took.
    took: RefCell<Duration>,
}

type Inside = HashMap<String, HashMap<u32, u64>>;

impl<'a> Slices<'a> {
    pub fn of(records: &'a [SliceRecord], members: &'a Members) -> Self {
        let runs = records
            .iter()
            .flat_map(|record| roots(record).into_iter().map(move |run| (run, record)));
        Self {
            records,
            runs: runs.collect(),
            members,
            table: RefCell::default(),
            inside: RefCell::default(),
            took: RefCell::default(),
        }
    }

    /// Whether this is a `divvy run`.
    pub fn is_run(&self, pid: u32) -> bool {
        self.runs.iter().any(|(run, _)| run.pid() == pid)
    }

    /// All processes, as this look found them.
    pub fn table(&self) -> Rc<Table> {
        let mut table = self.table.borrow_mut();
        Rc::clone(table.get_or_insert_with(|| {
            let begin = Instant::now();
            let read = Rc::new(Table::read());
            let mut took = self.took.borrow_mut();
            *took = begin.elapsed().max(*took);
            read
        }))
    }

    /// Has all processes looked for again: some may have started others.
    pub fn renew(&self) {
        self.table.replace(None);
    }

    /// How long a walk over all processes took at this look, if there was one.
    pub fn took(&self) -> Duration {
        *self.took.borrow()
    }

    /// The processes in containers of lasting slices, as this look found them. Each has to be compared by its start.
    pub fn inside(&self) -> Rc<Inside> {
        let mut inside = self.inside.borrow_mut();
        Rc::clone(inside.get_or_insert_with(|| {
            let lasting: Vec<&SliceRecord> = self.records.iter().filter(|record| record.lasting).collect();
            Rc::new(containers::members_of(&self.members.run, &lasting))
        }))
    }
}

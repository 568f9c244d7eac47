//! The thread that reads what the program's processes record, and tells the listeners in the order of time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use divvy_model::{Code, Fault};
use divvy_trace::{Follower, Heard};

use super::listener::Listener;
use super::story::Teller;
use super::summary::{Counting, Summary};

/// How often files are read.
const EVERY: Duration = Duration::from_millis(40);
/// A record is in its file so long after its time, unless its thread was kept from the processor.
const BEHIND_NS: u64 = 20_000_000;

/// What is followed, before and while the program runs.
pub struct Following {
    reader: std::cell::RefCell<Option<Reader>>,
    thread: std::cell::RefCell<Option<JoinHandle<Result<Summary, Fault>>>>,
    ended: Arc<AtomicBool>,
}

struct Reader {
    follower: Follower,
    teller: Teller,
    listeners: Vec<Box<dyn Listener>>,
    counting: Counting,
    waiting: Vec<Heard>,
}

impl Following {
    /// Prepares it.
    ///
    /// # Errors
    /// [`Code::OutputFile`].
    pub fn new(folder: &Path, teller: Teller, listeners: Vec<Box<dyn Listener>>) -> Result<Self, Fault> {
        let follower =
            Follower::new(folder.to_owned()).map_err(|error| crate::folder::cannot_write(folder, &error))?;
        let reader = Reader {
            follower,
            teller,
            listeners,
            counting: Counting::default(),
            waiting: Vec::new(),
        };
        Ok(Self {
            reader: std::cell::RefCell::new(Some(reader)),
            thread: std::cell::RefCell::default(),
            ended: Arc::default(),
        })
    }

    /// Begins. Signals are blocked by then, so that the thread takes none.
    pub fn start(&self) {
        let Some(mut reader) = self.reader.take() else {
            return;
        };
        let ended = Arc::clone(&self.ended);
        self.thread.replace(Some(std::thread::spawn(move || {
            loop {
                // Looked at first: what was written before the end is read.
                let is_last = ended.load(Ordering::Acquire);
                reader.read(is_last)?;
                if is_last {
                    return reader.end();
                }
                std::thread::park_timeout(EVERY);
            }
        })));
    }

    /// The program has ended: reads the rest, and ends all files.
    ///
    /// # Errors
    /// [`Code::OutputFile`] for the first file that could not be written.
    pub fn end(self) -> Result<Summary, Fault> {
        self.start();
        self.ended.store(true, Ordering::Release);
        let thread = self.thread.take();
        let Some(thread) = thread else {
            return Ok(Summary::default());
        };
        thread.thread().unpark();
        thread
            .join()
            .unwrap_or_else(|_| Err(Fault::new(Code::Internal, "the trace could not be read")))
    }
}

impl Reader {
    fn read(&mut self, is_last: bool) -> Result<(), Fault> {
        let until = match is_last {
            true => u64::MAX,
            false => divvy_trace::now_ns().saturating_sub(BEHIND_NS),
        };
        let heard = self.follower.read().map_err(|error| {
            Fault::new(
                Code::Internal,
                "cannot read what the program's processes recorded",
            )
            .because(&error)
        })?;
        self.waiting.extend(heard);
        // A stable sort: records of one thread stay in order where the clock did not move.
        self.waiting.sort_by_key(|heard| heard.event.at());
        let ripe = self.waiting.partition_point(|heard| heard.event.at() <= until);
        let (listeners, counting) = (&mut self.listeners, &mut self.counting);
        for heard in self.waiting.drain(..ripe) {
            self.teller.tell(heard, &mut |told| {
                counting.hear(&told);
                for listener in &mut *listeners {
                    listener.hear(&told);
                }
            });
        }
        self.listeners.iter_mut().for_each(|listener| listener.flush());
        Ok(())
    }

    fn end(mut self) -> Result<Summary, Fault> {
        let (listeners, counting) = (&mut self.listeners, &mut self.counting);
        self.teller.end(&mut |told| {
            counting.hear(&told);
            for listener in &mut *listeners {
                listener.hear(&told);
            }
        });
        let mut failed = None;
        for listener in self.listeners {
            // All files are ended, whichever of them failed.
            if let Err(fault) = listener.end() {
                failed = failed.or(Some(fault));
            }
        }
        let mut summary = self.counting.end();
        summary.incomplete = self.follower.has_lost();
        failed.map_or(Ok(summary), Err)
    }
}

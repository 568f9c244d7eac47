//! Questions with a time limit, for what may hang. NVIDIA's library waits for ever where the kernel's part of it does,
//! after an Xid or while a device falls off the bus; the caller would wait with it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use divvy_model::{Code, Fault};

type Question<T> = (u64, Box<dyn FnOnce(&mut T) + Send>);

/// An object on a thread of its own, which answers each question within a time limit. While one question has no answer
/// no other is asked: the caller gets an error at once. After a late answer it is asked again.
pub struct WithTimeout<T> {
    /// Questions go by their numbers, so both stand behind one lock.
    questions: Mutex<(Sender<Question<T>>, u64)>,
    /// The number of the last question that was worked on to its end.
    answered: Arc<AtomicU64>,
    /// The number of the last question whose caller has given up.
    given_up: AtomicU64,
}

/// There was no answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Within this time.
    Within(Duration),
    /// An earlier question has none yet.
    Still,
    /// It failed within a call, and is asked nothing any more.
    Failed,
}

impl<T: 'static> WithTimeout<T> {
    /// Starts the thread, and makes the object on it: that too may hang.
    pub fn start(make: impl FnOnce() -> T + Send + 'static) -> Self {
        let (questions, asked): (_, Receiver<Question<T>>) = channel();
        let answered = Arc::new(AtomicU64::new(0));
        let progress = answered.clone();
        // Where no thread is to be had, every question fails.
        let _refused = std::thread::Builder::new().spawn(move || {
            let mut asked_of = make();
            for (number, question) in asked {
                question(&mut asked_of);
                progress.store(number, SeqCst);
            }
        });
        Self {
            questions: Mutex::new((questions, 0)),
            answered,
            given_up: AtomicU64::new(0),
        }
    }

    /// Whether a question was given up that has no answer yet.
    pub fn is_silent(&self) -> bool {
        self.given_up.load(SeqCst) > self.answered.load(SeqCst)
    }

    /// Asks, and waits for `limit` at most.
    ///
    /// # Errors
    /// [`Silence`]. The work may still be done.
    pub fn ask<R: Send + 'static>(
        &self,
        limit: Duration,
        question: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Result<R, Silence> {
        if self.is_silent() {
            return Err(Silence::Still);
        }
        let (answer, answered) = sync_channel(1);
        let number = {
            let mut line = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
            line.1 += 1;
            let number = line.1;
            let boxed = Box::new(move |asked_of: &mut T| {
                let _gone = answer.send(question(asked_of));
            });
            line.0.send((number, boxed)).map_err(|_| Silence::Failed)?;
            number
        };
        answered.recv_timeout(limit).map_err(|why| match why {
            RecvTimeoutError::Timeout => {
                self.given_up.fetch_max(number, SeqCst);
                Silence::Within(limit)
            }
            RecvTimeoutError::Disconnected => Silence::Failed,
        })
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Within(limit) => write!(
                out,
                "NVIDIA's library does not answer within {} s",
                limit.as_secs_f64()
            ),
            Self::Still => out.write_str("NVIDIA's library does not answer"),
            Self::Failed => out.write_str("NVIDIA's library failed within a call"),
        }
    }
}

impl std::error::Error for Silence {}

impl From<Silence> for Fault {
    fn from(silence: Silence) -> Self {
        Fault::new(Code::Driver, silence.to_string()).hint(
            "the driver may hang: look at the kernel's log for Xid errors; `divvy devices --sysroot /` asks the kernel only",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_hangs_is_given_up_and_asked_again_once_it_answers() {
        let object = WithTimeout::start(|| 7);
        assert_eq!(object.ask(LONG, |seven| *seven), Ok(7));
        let (go_on, hangs) = channel::<()>();
        let silence = object.ask(SOON, move |_| hangs.recv().is_ok());
        assert_eq!(silence, Err(Silence::Within(SOON)));
        assert!(object.is_silent());
        assert_eq!(object.ask(LONG, |seven| *seven), Err(Silence::Still), "at once");
        go_on.send(()).expect("it waits");
        while object.is_silent() {
            std::thread::yield_now();
        }
        assert_eq!(object.ask(LONG, |seven| *seven), Ok(7), "it came back");
    }

    #[test]
    fn what_hangs_while_it_is_opened_is_given_up_as_well() {
        let (go_on, hangs) = channel::<()>();
        let object = WithTimeout::start(move || hangs.recv().is_ok());
        assert_eq!(object.ask(SOON, |opened| *opened), Err(Silence::Within(SOON)));
        drop(go_on);
        while object.is_silent() {
            std::thread::yield_now();
        }
        assert_eq!(object.ask(LONG, |opened| *opened), Ok(false));
    }

    #[test]
    fn what_fails_within_a_call_is_told_of() {
        let object = WithTimeout::start(|| ());
        let failed: Result<(), _> = object.ask(LONG, |()| std::panic::resume_unwind(Box::new("a fault")));
        assert_eq!(failed, Err(Silence::Failed));
        assert_eq!(object.ask(LONG, |()| 1), Err(Silence::Failed));
    }
}

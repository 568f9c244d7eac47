//! The number of connections that a page server has at once. A peer that comes when all places are taken waits in the
//! socket's queue. The places are for peers that may ask here: a peer that fills them delays its own slice alone.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use divvy_ledger::attach;

/// The number of refused connections that are kept open, so that their peers read the refusal before they write in
/// vain.
const REFUSED: usize = 32;

/// The connections that are inside.
#[derive(Debug, Default)]
struct Door {
    inside: Mutex<usize>,
    left: Condvar,
}

/// A place inside, until it is dropped.
struct Place(Arc<Door>);

impl Door {
    fn inside(&self) -> MutexGuard<'_, usize> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place.
    fn place(self: &Arc<Self>, most: usize) -> Place {
        let waited = self.left.wait_while(self.inside(), |inside| *inside >= most);
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
        Place(Arc::clone(self))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.inside() -= 1;
        self.0.left.notify_one();
    }
}

/// Serves the connections to a listener, `most` at once. Each has a thread of its own, so that a silent peer does not
/// delay the next one. Where no thread can be started the connection closes, and the peer is refused like any other.
///
/// A peer that `admits` does not let in takes no place: it is refused before it has said anything.
pub(crate) fn serve(
    listener: &UnixListener,
    most: usize,
    admits: impl Fn(&UnixStream) -> bool,
    answer: impl Fn(&UnixStream) + Clone + Send + 'static,
) {
    let door = Arc::new(Door::default());
    let mut refused = VecDeque::with_capacity(REFUSED);
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // The listener was shut down: no more connections come.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return,
            Err(_) => {
                // The process is out of descriptors: the next try may succeed.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        if !admits(&stream) {
            attach::refuse(&stream);
            if refused.len() == REFUSED {
                refused.pop_front();
            }
            refused.push_back(stream);
            continue;
        }
        let place = door.place(most);
        let answer = answer.clone();
        let _refused = std::thread::Builder::new().spawn(move || {
            answer(&stream);
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    const MOST: usize = 4;
    /// Longer than anything here takes, so that a failing test ends all the same.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn so_many_are_inside_and_the_others_wait_for_their_turn() {
        static INSIDE: AtomicUsize = AtomicUsize::new(0);
        static PEAK: AtomicUsize = AtomicUsize::new(0);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).expect("a socket");
        // It lasts as long as the test's process.
        std::thread::spawn(move || {
            serve(
                &listener,
                MOST,
                |_| true,
                |mut stream| {
                    PEAK.fetch_max(INSIDE.fetch_add(1, SeqCst) + 1, SeqCst);
                    let mut said = [0];
                    if stream.read(&mut said).is_ok_and(|bytes| bytes == 1) {
                        stream.write_all(&said).expect("it listens");
                    }
                    INSIDE.fetch_sub(1, SeqCst);
                },
            );
        });
        let speak = |number: u8| {
            let mut stream = UnixStream::connect(&path).expect("a connection");
            stream.set_read_timeout(Some(LONG)).expect("a socket");
            stream.write_all(&[number]).expect("it is taken");
            stream
        };
        let silent: Vec<UnixStream> = (0..MOST)
            .map(|_| UnixStream::connect(&path).expect("a connection"))
            .collect();
        let speakers: Vec<UnixStream> = (0..10).map(speak).collect();
        while INSIDE.load(SeqCst) < MOST {
            std::thread::yield_now();
        }
        drop(silent);
        for (number, mut speaker) in speakers.into_iter().enumerate() {
            let mut heard = [0];
            speaker.read_exact(&mut heard).expect("an answer");
            assert_eq!(usize::from(heard[0]), number);
        }
        assert_eq!(PEAK.load(SeqCst), MOST);
    }

    /// A thousand silent, open connections without permission keep no place from the one that has it.
    #[test]
    fn peers_that_may_not_ask_take_no_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).expect("a socket");
        static SEEN: AtomicUsize = AtomicUsize::new(0);
        std::thread::spawn(move || {
            let last = |_: &UnixStream| SEEN.fetch_add(1, SeqCst) == 1000;
            serve(&listener, 1, last, |mut stream| {
                stream.write_all(b"served").expect("it listens");
            });
        });
        let mut silent: Vec<UnixStream> = (0..1000)
            .map(|_| UnixStream::connect(&path).expect("a connection"))
            .collect();
        let mut one = UnixStream::connect(&path).expect("a connection");
        one.set_read_timeout(Some(LONG)).expect("a socket");
        let mut heard = String::new();
        one.read_to_string(&mut heard).expect("an answer");
        assert_eq!(heard, "served");
        // The refusal was sent, and is sent again.
        let last = silent.last_mut().expect("a thousand");
        last.set_read_timeout(Some(LONG)).expect("a socket");
        last.read_exact(&mut [0; 32]).expect("the refusal");
    }
}

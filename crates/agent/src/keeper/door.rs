//! How many are with a keeper at once. Who comes when all places are taken waits in the socket's queue: nobody who starts
//! in good faith is turned away, and who fills the queue holds up its own slice alone.

use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Those who are inside.
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

/// Serves who comes to a listener, `most` at once. One thread per connection: a peer that says nothing must not keep the
/// next one waiting. Where no thread is to be had the connection closes, and the peer is refused like any other.
pub(crate) fn serve(
    listener: &UnixListener,
    most: usize,
    answer: impl Fn(&UnixStream) + Clone + Send + 'static,
) {
    let door = Arc::new(Door::default());
    loop {
        let place = door.place(most);
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // It was shut down: there is nothing more to come.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return,
            Err(_) => {
                // Out of descriptors: the next try may fare better.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
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
    /// Longer than anything here takes; a test that fails ends all the same.
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
            serve(&listener, MOST, |mut stream| {
                PEAK.fetch_max(INSIDE.fetch_add(1, SeqCst) + 1, SeqCst);
                let mut said = [0];
                if stream.read(&mut said).is_ok_and(|bytes| bytes == 1) {
                    stream.write_all(&said).expect("it listens");
                }
                INSIDE.fetch_sub(1, SeqCst);
            });
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
}

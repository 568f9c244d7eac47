//! A stream whose bytes the other side chose.

use std::io::{self, Read, Write};

use divvy_remote::stream::{Frames, Stream};

struct Bytes<'a>(&'a [u8]);

impl Read for Bytes<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // In small parts, as a network may give them.
        let part = into.len().min(7);
        self.0.read(&mut into[..part])
    }
}

impl Write for Bytes<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Bytes<'_> {
    fn has_more(&mut self) -> bool {
        true
    }
}

/// Takes all frames, and reads each as a message of the control connection.
pub fn read(data: &[u8]) {
    const MOST: usize = 4096;
    let mut frames = Frames::new(Bytes(data), MOST);
    let mut message = Vec::new();
    while frames.take(&mut message).is_ok() {
        assert!(message.len() <= MOST);
        divvy_tunnel::talk::read_any(&message);
    }
}

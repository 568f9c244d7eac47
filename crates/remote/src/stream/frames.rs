//! Messages with their lengths in a stream of bytes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Bytes of a frame's length.
const LENGTH: usize = 4;
/// Small messages gather up to so many bytes before they are written, and are read so many at once.
const BUFFER: usize = 1 << 16;

/// A stream of bytes to the other side.
pub trait Stream: Read + Write {
    /// Whether a read gives something at once: bytes, or the stream's end.
    fn has_more(&mut self) -> bool;
}

/// Whether a descriptor has something to read, or its other end is closed.
fn readable(fd: &impl AsFd) -> bool {
    let mut look = [PollFd::new(fd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut look, Some(&now)).is_ok_and(|ready| ready != 0)
}

impl Stream for TcpStream {
    fn has_more(&mut self) -> bool {
        readable(self)
    }
}

impl Stream for UnixStream {
    fn has_more(&mut self) -> bool {
        readable(self)
    }
}

/// Messages over a stream.
#[derive(Debug)]
pub struct Frames<S> {
    stream: S,
    /// Bytes of the largest message.
    most: usize,
    /// What was read and not taken: these bytes, from `start`.
    inward: Vec<u8>,
    start: usize,
    /// What was put and not written.
    outward: Vec<u8>,
}

impl<S: Stream> Frames<S> {
    /// Over a stream. A message may have `most` bytes, in either direction.
    pub fn new(stream: S, most: usize) -> Self {
        Self {
            stream,
            most,
            inward: Vec::new(),
            start: 0,
            outward: Vec::new(),
        }
    }

    /// From now on a message may have so many bytes.
    pub fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// The stream below.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Sends a message. It may lie in a buffer until [`Frames::flush`]: many small messages go in one write.
    ///
    /// # Errors
    /// It is too long, or the stream's reason.
    pub fn put(&mut self, message: &[u8]) -> io::Result<()> {
        if message.len() > self.most {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.outward.len() + LENGTH + message.len() > BUFFER {
            self.write_out()?;
        }
        self.outward.extend((message.len() as u32).to_le_bytes());
        if message.len() > BUFFER - LENGTH {
            // A long message is not copied once more.
            self.write_out()?;
            return self.stream.write_all(message);
        }
        self.outward.extend_from_slice(message);
        Ok(())
    }

    /// Writes what lies in the buffer.
    ///
    /// # Errors
    /// The stream's reason.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write_out()?;
        self.stream.flush()
    }

    fn write_out(&mut self) -> io::Result<()> {
        if !self.outward.is_empty() {
            self.stream.write_all(&self.outward)?;
            self.outward.clear();
        }
        Ok(())
    }

    /// Whether [`Frames::take`] finds at least the beginning of a message, or the stream's end.
    pub fn has_more(&mut self) -> bool {
        self.start < self.inward.len() || self.stream.has_more()
    }

    /// Waits for the next message, which replaces what `into` held.
    ///
    /// # Errors
    /// `InvalidData` for a length that is not allowed, `UnexpectedEof` at the stream's end, or the stream's reason.
    pub fn take(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        let mut length = [0; LENGTH];
        self.read(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > self.most {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Only what it grows by is filled with zeros.
        into.resize(length, 0);
        self.read(into)
    }

    /// Fills `into`, from the buffer first.
    fn read(&mut self, into: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            let buffered = &self.inward[self.start..];
            if buffered.is_empty() {
                let rest = &mut into[filled..];
                if rest.len() >= BUFFER {
                    return self.stream.read_exact(rest);
                }
                self.fill()?;
                continue;
            }
            let count = buffered.len().min(into.len() - filled);
            into[filled..filled + count].copy_from_slice(&buffered[..count]);
            filled += count;
            self.start += count;
        }
        Ok(())
    }

    /// Reads into the empty buffer.
    fn fill(&mut self) -> io::Result<()> {
        self.start = 0;
        self.inward.resize(BUFFER, 0);
        let count = loop {
            match self.stream.read(&mut self.inward) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                count => break count,
            }
        };
        self.inward.truncate(*count.as_ref().unwrap_or(&0));
        match count? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(most: usize) -> (Frames<UnixStream>, Frames<UnixStream>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Frames::new(ours, most), Frames::new(theirs, most))
    }

    #[test]
    fn messages_of_all_lengths_come_as_they_went() {
        let lengths = [0, 1, 24, BUFFER - LENGTH, BUFFER, BUFFER + 1, 3 * BUFFER + 7, 5];
        let message = |length: usize| -> Vec<u8> { (0..length).map(|at| (at * 7 + length) as u8).collect() };
        let (mut ours, mut theirs) = pair(4 * BUFFER);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for length in lengths {
                    ours.put(&message(length)).unwrap();
                }
                ours.flush().unwrap();
            });
            let mut taken = vec![9; 10];
            for length in lengths {
                theirs.take(&mut taken).unwrap();
                assert!(taken == message(length), "{length}");
            }
        });
        assert!(!theirs.has_more());
        drop(ours);
        assert!(theirs.has_more(), "its end");
        let end = theirs.take(&mut Vec::new()).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn small_messages_wait_for_the_flush() {
        let (mut ours, mut theirs) = pair(100);
        for _ in 0..1000 {
            ours.put(b"launch").unwrap();
        }
        assert!(!theirs.has_more());
        ours.flush().unwrap();
        assert!(theirs.has_more());
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_memory_is_taken() {
        let (mut ours, mut theirs) = pair(100);
        assert!(ours.put(&[0; 101]).is_err());
        ours.set_most(101);
        ours.put(&[0; 101]).unwrap();
        ours.flush().unwrap();
        let mut into = Vec::new();
        let refused = theirs.take(&mut into).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert_eq!(into.capacity(), 0);
    }
}

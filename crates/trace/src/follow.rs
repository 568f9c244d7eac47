//! Reading what traced processes write, while they write it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, fallocate};

use crate::chunk::{CHUNK, records};
use crate::event::Event;

/// A file of one byte in the folder: it is not 0 once something could not be written.
pub const LOST: &str = "lost";
/// Chunks of one file that are read: 64 GiB. A program could make a file of any length.
const MOST: usize = 1 << 20;

/// An event, and the process that it happened in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// The process.
    pub pid: u32,
    /// What happened.
    pub event: Event,
}

/// The files of a folder, and how far each was read.
#[derive(Debug)]
pub struct Follower {
    folder: PathBuf,
    files: BTreeMap<OsString, Followed>,
    /// Chunks of one file that are read.
    most: usize,
}

#[derive(Debug)]
struct Followed {
    pid: u32,
    file: File,
    /// How far each chunk was read: up to its length where it is finished.
    read: Vec<usize>,
}

impl Follower {
    /// Follows what is written into a folder.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn new(folder: PathBuf) -> std::io::Result<Follower> {
        // The byte is there before the disk may be full.
        std::fs::write(folder.join(LOST), b"0")?;
        Ok(Follower {
            folder,
            files: BTreeMap::new(),
            most: MOST,
        })
    }

    /// What is new. Events of one thread are in order; those of several are not.
    ///
    /// # Errors
    /// The folder or a file in it cannot be read.
    pub fn read(&mut self) -> std::io::Result<Vec<Heard>> {
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            // A process id, when it began, its library.
            let pid = name.to_str().and_then(|name| name.split('-').next());
            let Some(pid) = pid.and_then(|pid| pid.parse().ok()) else {
                continue;
            };
            if let Entry::Vacant(place) = self.files.entry(name) {
                let file = File::options().read(true).write(true).open(entry.path())?;
                let read = Vec::new();
                place.insert(Followed { pid, file, read });
            }
        }
        let mut heard = Vec::new();
        for followed in self.files.values_mut() {
            followed.read(self.most, &mut heard)?;
        }
        Ok(heard)
    }

    /// Whether something could not be written.
    pub fn has_lost(&self) -> bool {
        std::fs::read(self.folder.join(LOST)).is_ok_and(|told| told != b"0")
    }
}

impl Followed {
    fn read(&mut self, most: usize, heard: &mut Vec<Heard>) -> std::io::Result<()> {
        let chunks = self.file.metadata()?.len() as usize / CHUNK;
        self.read.resize(chunks.min(most), 0);
        let mut bytes = vec![0; CHUNK];
        for (number, read) in self
            .read
            .iter_mut()
            .enumerate()
            .filter(|(_, read)| **read < CHUNK)
        {
            let offset = (number * CHUNK) as u64;
            let fill = |bytes: &mut [u8], at| match self.file.read_exact_at(bytes, at) {
                // It was made shorter meanwhile.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
                done => done.map(|()| true),
            };
            // Most have nothing new: one word says so.
            let mut length = [0; 4];
            if !fill(&mut length, offset + *read as u64)? {
                break;
            }
            if length == [0; 4] {
                continue;
            }
            if !fill(&mut bytes, offset)? {
                break;
            }
            let (found, next) = records(&bytes, *read);
            let events = found.into_iter().filter_map(Event::decode);
            heard.extend(events.map(|event| Heard { pid: self.pid, event }));
            *read = next;
            if next == CHUNK {
                // The writer is done with it. Long traces would fill the disk. Not each file system can.
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _given_back = fallocate(&self.file, flags, offset, CHUNK as u64);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::written;

    #[test]
    fn files_that_no_library_wrote_do_no_harm() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let mut follower = Follower::new(folder.path().to_owned()).expect("a follower");
        follower.most = 8;
        let event = Event::Memory {
            at: 1,
            device: 0,
            bytes: 2,
        };
        let mut chunk = written(std::slice::from_ref(&event));
        chunk.resize(CHUNK, 0);
        std::fs::write(path("7-1-libcuda"), &chunk).expect("a file");
        // Longer than what is read of one.
        let long = File::create(path("8-1-libcuda")).expect("a file");
        long.set_len(13 * CHUNK as u64).expect("its length");
        long.write_all_at(&chunk, 0).expect("a chunk");
        let heard = |pid| Heard {
            pid,
            event: event.clone(),
        };
        assert_eq!(follower.read().expect("both"), [heard(7), heard(8)]);
        let followed = follower.files.values().map(|followed| followed.read.len());
        assert_eq!(followed.collect::<Vec<_>>(), [1, 8]);
        // It becomes shorter than what was read of it.
        long.set_len(CHUNK as u64 + 9).expect("its length");
        assert_eq!(follower.read().expect("nothing new"), []);
    }
}

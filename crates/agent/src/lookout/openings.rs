//! The moment in which a container takes its slice: the dynamic loader of its first program opens the file of preloads,
//! which only containers have mounted. inotify(7) reports that wherever the file is mounted. The rounds, which come
//! each 2 s, would miss a container that ends earlier.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use crate::files::Folder;

/// The watched files, each until it is first opened.
#[derive(Debug)]
pub(crate) struct Openings {
    /// None where the system has no more inotify instances: then the rounds alone find containers.
    queue: Option<OwnedFd>,
    slices: Mutex<HashMap<i32, String>>,
}

impl Default for Openings {
    fn default() -> Self {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        if let Err(error) = &queue {
            tracing::debug!(%error, "containers that end within a moment are not seen");
        }
        Self {
            queue: queue.ok(),
            slices: Mutex::default(),
        }
    }
}

impl Openings {
    /// Watches the file `name` of `folder`, which containers of the slice have mounted.
    pub fn watch(&self, folder: &Folder, name: &str, slice: &str) {
        let Some(queue) = &self.queue else { return };
        let mut slices = self.slices.lock().unwrap_or_else(PoisonError::into_inner);
        match inotify::add_watch(
            queue,
            folder.place_of(name),
            WatchFlags::OPEN | WatchFlags::ONESHOT,
        ) {
            Ok(number) => {
                slices.insert(number, slice.to_owned());
            }
            Err(error) => tracing::debug!(slice, %error, "its first container may go unseen"),
        }
    }

    /// The slices whose file was opened since the last call, each once.
    pub fn take(&self) -> Vec<String> {
        let Some(queue) = &self.queue else {
            return Vec::new();
        };
        let mut slices = self.slices.lock().unwrap_or_else(PoisonError::into_inner);
        if slices.is_empty() {
            return Vec::new();
        }
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(queue, &mut room);
        let mut taken = Vec::new();
        // The first error means that there are no more events. A watch that ends because its file is gone also yields
        // an event, which is no opening.
        while let Ok(event) = events.next() {
            let slice = slices.remove(&event.wd());
            if event.events().contains(inotify::ReadFlags::OPEN) {
                taken.extend(slice);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_opening_of_a_file_is_told_once_and_its_end_is_none() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(base.path()).expect("ours");
        let openings = Openings::default();
        for name in ["opened", "removed", "left"] {
            folder.write(name, b"", 0o644).expect("written");
            openings.watch(&folder, name, name);
        }
        assert!(openings.take().is_empty());
        for _ in 0..2 {
            std::fs::read(base.path().join("opened")).expect("read");
        }
        folder.remove("removed").expect("removed");
        assert_eq!(openings.take(), ["opened"]);
        assert!(openings.take().is_empty());
        let watched: Vec<String> = openings.slices.lock().expect("ours").values().cloned().collect();
        assert_eq!(watched, ["left"]);
    }
}

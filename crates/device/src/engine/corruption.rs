//! What the fuzz target does with one input: it overwrites a page in use, stroke by stroke. Figures may be wrong and
//! time may be stolen, but every look ends and nothing panics.

use super::page::{PLACES, Page};
use super::schedule::{JOBS, Job, State, WHOLE};
use crate::page_file::PageFile;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of one stroke: where, in four; what, in eight.
const STROKE: usize = 12;
/// Where the page's places begin, and how large one is.
const PLACES_AT: u64 = 4096;
const PLACE: u64 = 1024;
/// Places that strokes hit most.
const NEAR: u64 = 3;

/// Overwrites an engine's page and goes on using it. Returns how many strokes there were.
#[must_use]
pub fn engine_page(data: &[u8]) -> usize {
    static PAGES: AtomicU64 = AtomicU64::new(0);
    let name = format!(
        "divvy-engine-{}-{}",
        std::process::id(),
        PAGES.fetch_add(1, Relaxed)
    );
    let path = std::env::temp_dir().join(name);
    let strokes = open_and_stroke(&path, data);
    let _gone = std::fs::remove_file(&path);
    strokes
}

fn open_and_stroke(path: &std::path::Path, data: &[u8]) -> usize {
    let file = PageFile::Path(path.to_owned());
    let Ok(page) = Page::open(&file) else { return 0 };
    let Ok(place) = page.join() else { return 0 };
    let Ok(file_to_corrupt) = File::options().write(true).open(path) else {
        return 0;
    };
    let strokes = data.chunks_exact(STROKE).take(32);
    let mut count = 0;
    for stroke in strokes {
        count += 1;
        let (at, what) = stroke.split_at(4);
        let word = u64::from(u16::from_le_bytes([at[2], at[3]])) * 8;
        let at = match at[0] % 4 {
            // The head: magic and version too, which only matter to later processes.
            0 => word % 512,
            1 | 2 => PLACES_AT + word % (NEAR * PLACE),
            _ => PLACES_AT + word,
        };
        let _written = file_to_corrupt.write_all_at(what, at);
        go_on(&page, place.index, count as u64, what);
        if at < 512 {
            // A lock without a living holder is waited for, some milliseconds: once is enough.
            let _written = file_to_corrupt.write_all_at(&[0; 8], 16);
        }
    }
    let _another = Page::open(&file).and_then(|page| page.join().map(drop));
    count
}

/// What a process does with its page: it asks for engine time, looks, says how long it took, and looks again.
fn go_on(page: &Page, index: usize, number: u64, what: &[u8]) {
    let odd = what[0] & 1 == 1;
    {
        let locked = page.lock();
        let mut schedule = locked.load();
        let now = page.now();
        schedule.advance(now);
        let own = schedule.places.iter_mut().find(|own| own.index == index);
        let free = own.and_then(|own| own.jobs.iter_mut().find(|job| job.state == State::Free));
        if let Some(free) = free {
            *free = Job {
                number,
                state: if odd { State::Closed } else { State::Open },
                ready: now.device,
                extent: 1_000,
                touched: now.real,
                width: WHOLE,
                ..Job::default()
            };
        }
        locked.store(&schedule, Some(index));
        locked.sample(now.device);
    }
    let (_, _, all) = page.busy();
    assert!(all.len() <= PLACES + 1);
    let locked = page.lock();
    let schedule = locked.load();
    assert!(schedule.places.iter().all(|place| place.jobs.len() == JOBS));
    let _when = schedule.predict(index, page.now());
    locked.set_slice(u64::from(what[1]) << 16);
    drop(locked);
    let server = u64::from(what[2] % 3);
    let _failed = page.has_failed(server);
    page.fail(server, u32::from(what[3]));
    page.reap();
}

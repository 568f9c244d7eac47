//! A process that may write a device's file may shorten it. Processes that only look must not die of that. (Containers
//! and other users have memory files that cannot be shortened: crates/agent.)

use divvy_device::{devices, engine_usage_in, set_aside, set_time_slice, usage_in};
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[test]
fn looks_at_a_page_that_is_shortened_and_regrown_end_in_an_answer_or_an_error() {
    const LOOKS: usize = 10_000;
    let folder = tempfile::TempDir::new().unwrap();
    let directory = folder.path().to_owned();
    let device = devices("h100", &directory).unwrap()[0].uuid;
    let id = device.to_string();
    // Both make the files.
    set_time_slice(&directory, device, 2).unwrap();
    drop(set_aside(&directory, device).unwrap());
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory.join("emulated"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    // The engine's, then the memory's.
    paths.sort_by_key(|path| path.extension().map(ToOwned::to_owned));
    let files: Vec<_> = paths
        .iter()
        .map(|page| OpenOptions::new().write(true).open(page).unwrap())
        .collect();
    assert_eq!(files.len(), 2);
    let lengths: Vec<u64> = files.iter().map(|file| file.metadata().unwrap().len()).collect();
    // As if processes used it, so that the looks read all that there is to read.
    let used = u32::MAX.to_ne_bytes();
    std::os::unix::fs::FileExt::write_all_at(&files[1], &used, 20).unwrap();
    let stop = AtomicBool::new(false);
    let (mut answers, mut errors) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                for (file, length) in files.iter().zip(&lengths) {
                    for short in [0, 4096, 8192] {
                        file.set_len(short).unwrap();
                        file.set_len(*length).unwrap();
                    }
                }
                std::thread::yield_now();
            }
        });
        for _ in 0..LOOKS {
            for answer in [
                usage_in(&directory, &id).is_ok(),
                engine_usage_in(&directory, device).is_ok(),
            ] {
                match answer {
                    true => answers += 1,
                    false => errors += 1,
                }
            }
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(answers + errors, 2 * LOOKS);
    assert!(
        errors > 0,
        "the page was never seen short: the test shows nothing"
    );
    // What is left of them is no page. Without one the device is not used.
    usage_in(&directory, &id).unwrap_err();
    for path in &paths {
        std::fs::remove_file(path).unwrap();
    }
    usage_in(&directory, &id).unwrap();
    engine_usage_in(&directory, device).unwrap();
}

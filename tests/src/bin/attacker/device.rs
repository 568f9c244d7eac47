//! Attacks on the pages of an emulated device by one who has them.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use divvy_ledger::attach::device_pages;
use rustix::fs::{SealFlags, fcntl_add_seals};

use super::paths::below;

/// What the attacker can lay hands on.
pub struct Reach {
    folder: PathBuf,
    pages: Vec<File>,
}

/// A UUID's bytes; `granted` stands for the first one that a container's folder names.
fn uuid(folder: &Path, name: &str) -> anyhow::Result<[u8; 16]> {
    let text = match name {
        "granted" => {
            let said = fs::read_to_string(folder.join("granted"))?;
            let line = said.lines().find_map(|line| line.strip_prefix("uuid "));
            line.context("nothing was granted")?.to_owned()
        }
        name => name.to_owned(),
    };
    let digits: String = text.trim_start_matches("GPU-").split('-').collect();
    let number = u128::from_str_radix(&digits, 16).with_context(|| format!("{text:?} is no UUID"))?;
    Ok(number.to_be_bytes())
}

impl Reach {
    /// The files below a folder, and the pages that the holder gives out at a socket.
    pub fn new(folder: &Path, socket: &Path, device: &str) -> anyhow::Result<Self> {
        let pages = match uuid(folder, device).map(|uuid| device_pages(socket, uuid)) {
            Ok(Ok(pages)) => vec![pages.ledger.into(), pages.engine.into()],
            // In an earlier layout the pages are files.
            refused => {
                println!("refused: {:?}", refused.map(|answer| answer.map(drop)));
                Vec::new()
            }
        };
        Ok(Self {
            folder: folder.to_owned(),
            pages,
        })
    }

    /// Makes everything shorter and as long as it was; over and over. In between it gives modes, adds seals and unlinks.
    pub fn shorten(self, rounds: u64, seconds: u64) -> anyhow::Result<()> {
        let begin = Instant::now();
        let (mut done, mut harm) = (0_u64, 0_u64);
        while done < rounds && begin.elapsed() < Duration::from_secs(seconds) {
            let named = below(&self.folder);
            let own = below(Path::new("/proc/self/fd"));
            let files = named
                .iter()
                .chain(&own)
                .filter(|path| path.metadata().is_ok_and(|meta| meta.is_file()));
            let opened = files.filter_map(|path| OpenOptions::new().write(true).open(path).ok());
            // Memory of its own is no harm.
            for file in opened.filter(|file| !is_own(file)) {
                harm += u64::from(shortened(&file));
            }
            for page in &self.pages {
                harm += u64::from(shortened(page));
                let again = format!("/proc/self/fd/{}", page.as_raw_fd());
                if let Ok(again) = OpenOptions::new().read(true).write(true).open(again) {
                    harm += u64::from(shortened(&again));
                }
                for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
                    harm += u64::from(fcntl_add_seals(page, seal).is_ok());
                }
            }
            for path in named.iter().filter(|path| path.extension().is_some()) {
                harm += u64::from(fs::remove_file(path).is_ok());
            }
            done += 1;
        }
        // A later process is to have the pages all the same.
        for page in &self.pages {
            let _mode = page.set_permissions(fs::Permissions::from_mode(0o0));
        }
        println!("{done} rounds, {harm} harmed, {} pages", self.pages.len());
        Ok(())
    }
}

fn shortened(file: &File) -> bool {
    let length = file.metadata().map_or(0, |meta| meta.len());
    let short = file.set_len(0).is_ok();
    let long = file.set_len(length + (1 << 20)).is_ok();
    let _again = file.set_len(length);
    // An empty file loses nothing.
    length > 0 && (short || long)
}

/// Whether it is a log, a pipe or a page of this process's making.
fn is_own(file: &File) -> bool {
    rustix::fs::fstat(file.as_fd()).is_ok_and(|seen| seen.st_nlink == 0 && seen.st_size == 0)
}

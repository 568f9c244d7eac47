//! A slice of an emulated device, and the two ways in which a program uses it: by itself, and over a worker.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use divvy_bench::slice::Slice;
use tempfile::TempDir;

/// What is built for it.
const PACKAGES: [&str; 4] = ["divvy-worker", "remote-cuda", "limit-cuda", "emulated-cuda"];

/// How a program uses the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The limiter is in the program's own process.
    Itself,
    /// The program's calls are made by a worker.
    Worker,
}

/// A slice, a worker, and the libraries of both ways.
pub struct Place {
    slice: Slice,
    home: TempDir,
    built: PathBuf,
    worker: Child,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ended = self.worker.kill();
        let _status = self.worker.wait();
    }
}

impl Place {
    /// Builds what is needed and starts a worker.
    pub fn new() -> anyhow::Result<Self> {
        let built = divvy_bench::artifacts::build(&PACKAGES)?;
        let home = tempfile::Builder::new().prefix("divvy-").tempdir()?;
        for (folder, library) in [
            ("itself", "libdivvy_limit_cuda.so"),
            ("worker", "libdivvy_remote_cuda.so"),
        ] {
            let folder = home.path().join(folder);
            std::fs::create_dir(&folder)?;
            std::os::unix::fs::symlink(built.join(library), folder.join("libcuda.so.1"))?;
        }
        let slice = Slice::new()?;
        let mut command = Command::new(built.join("divvy-worker"));
        holder(&mut command, &slice, home.path(), &built);
        let worker = command.arg(home.path().join("worker.sock")).spawn();
        let mut place = Self {
            worker: worker.context("Cannot start a worker")?,
            slice,
            home,
            built,
        };
        let began = Instant::now();
        while !place.home.path().join("worker.sock").exists() {
            if began.elapsed() > Duration::from_secs(20) || place.worker.try_wait()?.is_some() {
                bail!("The worker does not listen");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(place)
    }

    /// The worker's socket.
    pub fn socket(&self) -> PathBuf {
        self.home.path().join("worker.sock")
    }

    /// The driver that a program loads.
    pub fn library(&self, way: Way) -> PathBuf {
        self.folder(way).join("libcuda.so.1")
    }

    fn folder(&self, way: Way) -> PathBuf {
        self.home.path().join(match way {
            Way::Itself => "itself",
            Way::Worker => "worker",
        })
    }

    /// Has a program use the device this way.
    pub fn prepare(&self, command: &mut Command, way: Way) {
        match way {
            Way::Itself => holder(command, &self.slice, self.home.path(), &self.built),
            Way::Worker => {
                command
                    .env("DIVVY_REMOTE", self.home.path().join("worker.sock"))
                    .stdin(Stdio::null());
            }
        }
        command.env("LD_LIBRARY_PATH", self.folder(way));
    }
}

/// The environment of a process that holds the device.
fn holder(command: &mut Command, slice: &Slice, home: &Path, built: &Path) {
    command
        .env("DIVVY_SLICE", slice.socket())
        .env("DIVVY_DRIVER", built.join("libdivvy_emulated_cuda.so"))
        .env("DIVVY_RUN_DIR", home)
        .env("DIVVY_EMULATED", "h100")
        .stdin(Stdio::null());
}

//! The slice that the limiter works in, and the workers that join it.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, bail};
use divvy_ledger::GrantSpec;
use divvy_ledger::attach::{Keeper, Pages, deliver};

use crate::report::Figure;
use crate::worker::Task;

/// A slice whose keeper is a thread of this program.
pub struct Slice {
    socket: PathBuf,
    /// Held, or the folder with the socket would go.
    _folder: tempfile::TempDir,
    pages: Pages,
}

impl Slice {
    pub fn new() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("attach.sock");
        let listener = UnixListener::bind(&socket)?;
        let keeper = Arc::new(Keeper::new(rustix::process::getuid().as_raw()));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A worker that went away is its own parent's affair.
                let _served = keeper.serve(&stream);
            }
        });
        let pages = Pages::create(&GrantSpec {
            memory_limit_bytes: 64 << 30,
            device_uuid: [0; 16],
            slice_id: "bench-intercept",
            slice_name: "bench",
            ..GrantSpec::default()
        })?;
        deliver(&socket, &pages)?;
        Ok(Self {
            socket,
            _folder: folder,
            pages,
        })
    }

    /// Runs `copies` worker processes at the same time; answers what they printed.
    pub fn workers(
        &self,
        task: Task,
        copies: usize,
        libraries: &Path,
        rounds: usize,
    ) -> anyhow::Result<Vec<Figure>> {
        let mut workers = (0..copies)
            .map(|_| self.worker(task, libraries, rounds))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut outputs: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                worker
                    .stdout
                    .take()
                    .map(BufReader::new)
                    .context("A pipe was asked for")
            })
            .collect::<anyhow::Result<_>>()?;
        if let Task::Process = task {
            for output in &mut outputs {
                output.read_line(&mut String::new())?;
            }
        }
        for worker in &mut workers {
            drop(worker.stdin.take());
        }
        let mut figures = Vec::new();
        for output in outputs {
            for line in output.lines() {
                figures.push(Figure::parse(&line?)?);
            }
        }
        for mut worker in workers {
            let status = worker.wait()?;
            if !status.success() {
                bail!("A worker ended with {status}");
            }
        }
        let left = self.pages.ledger.total_used();
        if left != 0 {
            bail!("The ledger reads {left} bytes although every allocation was freed");
        }
        Ok(figures)
    }

    fn worker(&self, task: Task, libraries: &Path, rounds: usize) -> anyhow::Result<Child> {
        let task = clap::ValueEnum::to_possible_value(&task).context("Every task has a name")?;
        Command::new(std::env::current_exe()?)
            .args([
                "--worker",
                task.get_name(),
                "--rounds",
                &rounds.to_string(),
                "--libraries",
            ])
            .arg(libraries)
            .env("DIVVY_SLICE", &self.socket)
            .env("DIVVY_DRIVER", libraries.join("libdivvy_null_cuda.so"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("Cannot start a worker")
    }
}

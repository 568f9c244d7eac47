//! What is told of the program, and where it writes.

use std::io::Write;
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};

use super::story::Told;
use crate::folder::{cannot_write, output_file};

/// Something that is told what the program does.
pub trait Listener: Send {
    /// Something happened.
    fn hear(&mut self, told: &Told);

    /// All that was told so far is to be on the disk.
    fn flush(&mut self) {}

    /// The program has ended.
    ///
    /// # Errors
    /// Why something could not be written.
    fn end(self: Box<Self>) -> Result<(), Fault>;
}

/// Where a listener writes. The first failure is kept, and nothing is written after it: the program goes on.
pub struct Sink {
    out: Box<dyn Write + Send>,
    path: PathBuf,
    failed: Option<Fault>,
}

impl Sink {
    /// To a file, which is made.
    ///
    /// # Errors
    /// [`Code::OutputFile`].
    pub fn file(path: &Path) -> Result<Self, Fault> {
        Ok(Self {
            out: Box::new(std::io::BufWriter::new(output_file(path)?)),
            path: path.to_owned(),
            failed: None,
        })
    }

    /// To standard error.
    pub fn standard_error() -> Self {
        Self {
            // A line is one write, so that it does not mix with what the program writes.
            out: Box::new(std::io::LineWriter::new(std::io::stderr())),
            path: PathBuf::from("standard error"),
            failed: None,
        }
    }

    pub fn write(&mut self, text: &str) {
        if self.failed.is_none()
            && let Err(error) = self.out.write_all(text.as_bytes())
        {
            self.fail(&error);
        }
    }

    pub fn flush(&mut self) {
        if self.failed.is_none()
            && let Err(error) = self.out.flush()
        {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &std::io::Error) {
        self.failed = Some(cannot_write(&self.path, error));
        // The file is closed: what came behind the gap would make no sense.
        self.out = Box::new(std::io::sink());
    }

    /// Nothing follows.
    ///
    /// # Errors
    /// [`Code::OutputFile`], for the first failure.
    pub fn end(mut self) -> Result<(), Fault> {
        self.flush();
        match self.failed {
            Some(fault) if fault.code == Code::OutputFile => Err(fault),
            _ => Ok(()),
        }
    }
}

//! The agent's side: this process itself, or a helper, does what needs root.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use divvy_model::{Code, Fault};

use crate::answer::Answer;
use crate::channel::Channel;
use crate::request::Request;
use crate::rules::{Rules, perform_with};
use crate::vendor;

/// How long an answer may take that no vendor's tool gives.
const SOON: Duration = Duration::from_secs(3);
/// How long the helper is left alone after it could not be reached.
const PAUSE: Duration = Duration::from_secs(1);

/// An answer, and the descriptor that came with it.
#[derive(Debug)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// Of what was opened.
    pub descriptor: Option<OwnedFd>,
}

/// The process that does what needs root.
pub trait Privileged: fmt::Debug + Send + Sync {
    /// Has it done.
    ///
    /// # Errors
    /// [`Code::Privilege`] where no helper answers.
    fn ask(&self, request: &Request) -> Result<Reply, Fault> {
        self.ask_with(request, None)
    }

    /// Has it done, with a descriptor that goes beside the request.
    ///
    /// # Errors
    /// As [`Self::ask`].
    fn ask_with(&self, request: &Request, descriptor: Option<BorrowedFd<'_>>) -> Result<Reply, Fault>;

    /// Whether it is a process of its own.
    fn is_separate(&self) -> bool;
}

/// This process itself: an agent of one user's own.
#[derive(Debug)]
pub struct Direct(Rules);

impl Direct {
    /// For the agent of a run directory.
    #[must_use]
    pub fn new(run: &Path) -> Self {
        Self(Rules::of_oneself(run))
    }
}

impl Privileged for Direct {
    fn ask_with(&self, request: &Request, descriptor: Option<BorrowedFd<'_>>) -> Result<Reply, Fault> {
        let descriptor = descriptor
            .map(|descriptor| descriptor.try_clone_to_owned())
            .transpose()
            .map_err(|error| {
                Fault::new(Code::Privilege, "a descriptor cannot be handed over").because(&error)
            })?;
        let (answer, descriptor) = perform_with(request, descriptor, &self.0);
        Ok(Reply { answer, descriptor })
    }

    fn is_separate(&self) -> bool {
        false
    }
}

/// A helper, over two channels: a slow vendor's tool holds up no other request.
#[derive(Debug)]
pub struct Remote {
    quick: Mutex<Connection>,
    slow: Mutex<Connection>,
    /// Where it listens, if it does: it is connected to again when it was started again.
    path: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct Connection {
    channel: Option<Channel>,
    number: u64,
    lost_at: Option<Instant>,
}

impl Remote {
    /// Over channels to a helper that was started for this process.
    #[must_use]
    pub fn over([quick, slow]: [Channel; 2]) -> Self {
        let connection = |channel| {
            Mutex::new(Connection {
                channel: Some(channel),
                ..Connection::default()
            })
        };
        Self {
            quick: connection(quick),
            slow: connection(slow),
            path: None,
        }
    }

    /// To the helper that listens at a path, now or later.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self {
            quick: Mutex::default(),
            slow: Mutex::default(),
            path: Some(path.into()),
        }
    }

    fn unreachable(&self, error: &io::Error) -> Fault {
        let fault = Fault::new(
            Code::Privilege,
            "the helper that does what needs root does not answer",
        );
        fault.because(error).hint(match self.path {
            Some(_) => "`systemctl status divvy-helper` tells why",
            None => "the agent goes on without it: `divvy agent stop`, and start it again",
        })
    }
}

impl Privileged for Remote {
    fn ask_with(&self, request: &Request, descriptor: Option<BorrowedFd<'_>>) -> Result<Reply, Fault> {
        let (connection, timeout) = match request {
            Request::Mps { .. } | Request::SetTimeSlice { .. } | Request::Mig { .. } => {
                // Two tools one after the other, at most.
                (&self.slow, vendor::TIMEOUT * 2 + SOON)
            }
            _ => (&self.quick, SOON),
        };
        let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut outcome = connection.ask(request, descriptor, timeout, self.path.as_deref());
        // A helper that was started again meanwhile has closed the old channel. Nothing was done then.
        if connection.channel.is_none() && self.path.is_some() && outcome.is_err() {
            outcome = connection.ask(request, descriptor, timeout, self.path.as_deref());
        }
        outcome.map_err(|error| self.unreachable(&error))
    }

    fn is_separate(&self) -> bool {
        true
    }
}

impl Connection {
    fn ask(
        &mut self,
        request: &Request,
        descriptor: Option<BorrowedFd<'_>>,
        timeout: Duration,
        path: Option<&Path>,
    ) -> io::Result<Reply> {
        self.number += 1;
        let number = self.number;
        let channel = self.channel(timeout, path)?;
        let outcome = ask(channel, request, descriptor, number);
        if let Err(error) = &outcome
            && !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
        {
            self.channel = None;
        }
        outcome
    }

    fn channel(&mut self, timeout: Duration, path: Option<&Path>) -> io::Result<&Channel> {
        if self.channel.is_none() {
            let path = path.ok_or(io::ErrorKind::BrokenPipe)?;
            if self.lost_at.is_some_and(|at| at.elapsed() < PAUSE) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            match Channel::connect(path) {
                Ok(channel) => {
                    self.lost_at = None;
                    self.channel = Some(channel);
                }
                Err(error) => {
                    self.lost_at = Some(Instant::now());
                    return Err(error);
                }
            }
        }
        let channel = self.channel.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        channel.set_timeout(timeout)?;
        Ok(channel)
    }
}

fn ask(
    channel: &Channel,
    request: &Request,
    descriptor: Option<BorrowedFd<'_>>,
    number: u64,
) -> io::Result<Reply> {
    channel.send(&request.encode(number), descriptor)?;
    loop {
        let received = channel.receive()?.ok_or(io::ErrorKind::BrokenPipe)?;
        let (its, answer) = Answer::decode(&received.bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        // The answer to an earlier question that was given up, not to ours. A message that is not understood has no
        // number.
        if its == number || its == 0 {
            return Ok(Reply {
                answer,
                descriptor: received.descriptor,
            });
        }
    }
}

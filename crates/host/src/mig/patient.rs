//! A driver that may hang. NVIDIA's library waits for ever where the kernel's part of it does, after an Xid or while
//! a device falls off the bus; whoever asked would wait with it.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::time::Duration;

use divvy_model::{Code, Fault};

use super::driver::{MigDevice, MigDriver};

type Question = Box<dyn FnOnce(&mut dyn MigDriver) + Send>;

/// Asks a driver on a thread of its own, each question within a time. Once one was not answered none is asked any more:
/// the thread hangs in the driver, and what it was told to do may still happen.
pub struct Patient {
    questions: Sender<Question>,
    look: Duration,
    change: Duration,
    hangs: bool,
}

impl Patient {
    /// How long a look at all devices may take: sixteen GPUs that nothing has used since they started take some seconds.
    pub const LOOK: Duration = Duration::from_secs(15);
    /// How long one change may take: turning MIG mode on can reset a device.
    pub const CHANGE: Duration = Duration::from_secs(60);

    /// Over a driver, with times for a look and for a change.
    pub fn over(mut driver: impl MigDriver + Send + 'static, look: Duration, change: Duration) -> Self {
        let (questions, asked) = channel::<Question>();
        std::thread::spawn(move || {
            for question in asked {
                question(&mut driver);
            }
        });
        Self {
            questions,
            look,
            change,
            hangs: false,
        }
    }

    fn ask<T: Send + 'static>(
        &mut self,
        limit: Duration,
        question: impl FnOnce(&mut dyn MigDriver) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        if self.hangs {
            return Err(hangs("NVIDIA's library does not answer".into()));
        }
        let (answer, answered) = sync_channel(1);
        let boxed: Question = Box::new(move |driver| {
            let _gone = answer.send(question(driver));
        });
        let _gone = self.questions.send(boxed);
        answered.recv_timeout(limit).unwrap_or_else(|why| {
            self.hangs = true;
            Err(hangs(match why {
                RecvTimeoutError::Timeout => {
                    format!("NVIDIA's library does not answer within {} s", limit.as_secs())
                }
                RecvTimeoutError::Disconnected => "NVIDIA's library failed within a call".into(),
            }))
        })
    }
}

fn hangs(message: String) -> Fault {
    Fault::new(Code::Driver, message)
        .hint("the driver may hang: look at the kernel's log for Xid errors; `divvy devices --sysroot /` asks the kernel only")
}

impl MigDriver for Patient {
    fn devices(&mut self) -> Result<Vec<MigDevice>, Fault> {
        self.ask(self.look, |driver| driver.devices())
    }

    fn set_mode(&mut self, uuid: &str, on: bool) -> Result<bool, Fault> {
        let uuid = uuid.to_owned();
        self.ask(self.change, move |driver| driver.set_mode(&uuid, on))
    }

    fn create(
        &mut self,
        uuid: &str,
        profile_id: u32,
        start: u8,
        size: u8,
        parts: &[u8],
    ) -> Result<u32, Fault> {
        let (uuid, parts) = (uuid.to_owned(), parts.to_vec());
        self.ask(self.change, move |driver| {
            driver.create(&uuid, profile_id, start, size, &parts)
        })
    }

    fn destroy(&mut self, uuid: &str, instance: u32) -> Result<(), Fault> {
        let uuid = uuid.to_owned();
        self.ask(self.change, move |driver| driver.destroy(&uuid, instance))
    }

    fn create_compute(&mut self, uuid: &str, instance: u32, slices: u8) -> Result<(), Fault> {
        let uuid = uuid.to_owned();
        self.ask(self.change, move |driver| {
            driver.create_compute(&uuid, instance, slices)
        })
    }

    fn destroy_compute(&mut self, uuid: &str, instance: u32, compute: u32) -> Result<(), Fault> {
        let uuid = uuid.to_owned();
        self.ask(self.change, move |driver| {
            driver.destroy_compute(&uuid, instance, compute)
        })
    }
}

//! A MIG driver that may hang: each question within a time.

use std::time::Duration;

use divvy_model::Fault;

use super::driver::{MigDevice, MigDriver, NewInstance};
use crate::timeout;

/// Asks a driver on a thread of its own. While a question has no answer no other is asked: the change may still happen.
pub struct MigWithTimeout {
    driver: timeout::WithTimeout<Box<dyn MigDriver>>,
    look: Duration,
    change: Duration,
}

impl MigWithTimeout {
    /// How long a look at all devices may take: sixteen GPUs that nothing has used since they started take some seconds.
    pub const LOOK: Duration = Duration::from_secs(15);
    /// How long one change may take: turning MIG mode on can reset a device.
    pub const CHANGE: Duration = Duration::from_secs(60);

    /// Over a driver, with times for a look and for a change.
    pub fn over(driver: impl MigDriver + Send + 'static, look: Duration, change: Duration) -> Self {
        Self {
            driver: timeout::WithTimeout::start(|| Box::new(driver) as Box<dyn MigDriver>),
            look,
            change,
        }
    }

    fn ask<T: Send + 'static>(
        &self,
        limit: Duration,
        question: impl FnOnce(&mut dyn MigDriver) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        self.driver.ask(limit, |driver| question(driver.as_mut()))?
    }
}

impl MigDriver for MigWithTimeout {
    fn devices(&mut self) -> Result<Vec<MigDevice>, Fault> {
        self.ask(self.look, |driver| driver.devices())
    }

    fn set_mode(&mut self, uuid: &str, on: bool) -> Result<bool, Fault> {
        let uuid = uuid.to_owned();
        self.ask(self.change, move |driver| driver.set_mode(&uuid, on))
    }

    fn create(&mut self, uuid: &str, new: &NewInstance) -> Result<u32, Fault> {
        let (uuid, new) = (uuid.to_owned(), new.clone());
        self.ask(self.change, move |driver| driver.create(&uuid, &new))
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

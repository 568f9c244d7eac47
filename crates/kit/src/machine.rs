//! On what machine a run was: the card, its driver, the kernel, the C library, the date. No name, no serial.

use serde::{Deserialize, Serialize};

use divvy_abi::nvml::client::Client;

/// See the module. What is not known is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The card's product name.
    pub gpu: Option<String>,
    /// How many cards there are.
    pub gpus: Option<u32>,
    /// The version of NVIDIA's driver.
    pub driver: Option<String>,
    /// Name and version of the kernel.
    pub kernel: String,
    /// The processor's architecture.
    pub architecture: String,
    /// The C library's version.
    pub libc: Option<String>,
    /// Processors that may be used.
    pub processors: usize,
    /// Whether the card is an emulated one.
    pub emulated: bool,
    /// When the report was written: seconds since 1970.
    pub unix_seconds: u64,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn here(device: Option<&str>) -> Self {
        let one = crate::card::one(device);
        let device = one.as_deref();
        let system = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let emulated = device.is_some_and(|device| device.starts_with("emulated:"));
        let mut machine = Self {
            kernel: format!("{} {}", text(system.sysname()), text(system.release())),
            architecture: text(system.machine()),
            libc: libc_version(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            emulated,
            unix_seconds: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            ..Self::default()
        };
        if emulated {
            machine.gpu = device.map(str::to_owned);
        } else if let Ok(nvml) = Client::open(c"libnvidia-ml.so.1") {
            machine.gpus = nvml.device_count().ok();
            let mut all = (0..machine.gpus.unwrap_or(0)).filter_map(|index| nvml.device(index).ok());
            let asked = all.find(|facts| device.is_none_or(|device| device == facts.uuid));
            machine.gpu = asked.map(|facts| facts.name);
            machine.driver = nvml.driver_version().ok();
        }
        machine
    }
}

/// The day and the time of day in UTC: `2026-11-23 14:05:09 UTC`. Days become dates by Howard Hinnant's `civil_from_days`.
pub(crate) fn date(unix_seconds: u64) -> String {
    const DAY: u64 = 86_400;
    // Counted from the first of March of the year 0, so that a leap day is a year's last.
    let day = unix_seconds / DAY + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let time = unix_seconds % DAY;
    format!(
        "{year:04}-{month:02}-{of_month:02} {:02}:{:02}:{:02} UTC",
        time / 3600,
        time / 60 % 60,
        time % 60
    )
}

/// The version of glibc, by its own function; none of another C library's.
fn libc_version() -> Option<String> {
    // SAFETY: it takes nothing, and answers a string that lasts as long as the library.
    let version = unsafe {
        let address = libc::dlsym(libc::RTLD_DEFAULT, c"gnu_get_libc_version".as_ptr());
        if address.is_null() {
            return None;
        }
        let ask: extern "C" fn() -> *const libc::c_char = std::mem::transmute(address);
        std::ffi::CStr::from_ptr(ask())
    };
    Some(format!("glibc {}", version.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_as_a_calendar_has_them() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_709_251_199), "2024-02-29 23:59:59 UTC");
        assert_eq!(date(1_767_225_600), "2026-01-01 00:00:00 UTC");
    }
}

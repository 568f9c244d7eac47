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

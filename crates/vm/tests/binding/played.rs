//! A kernel played on a tree of files: it binds and unbinds drivers as `/sys` is told to. Any write can fail, or be the last
//! one before a crash.

use std::cell::Cell;
use std::io;

use divvy_host::built::{Built, Function};
use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};
use divvy_vm::function::DEVICES;
use divvy_vm::kernel::Kernel;

/// What goes wrong at a write, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// This write is refused.
    Fails(usize),
    /// This write and all after it are refused.
    FailsOn(usize),
    /// The program is killed before this write.
    Crash(usize),
    /// The GPU is taken out of the machine before this write.
    Unplug(usize),
}

/// The last words of a program that is killed.
pub const KILLED: &str = "killed";

pub struct Played {
    pub built: Built,
    pub folder: tempfile::TempDir,
    pub trouble: Trouble,
    pub writes: Cell<usize>,
    /// A driver that binds nothing.
    pub broken: Option<&'static str>,
    /// Whether the boot configuration gives the GPU's id to VFIO.
    pub vfio_ids: bool,
    /// Whether the kernel has VFIO at all.
    pub has_vfio: bool,
}

pub const GPU: &str = "0000:01:00.0";
pub const AUDIO: &str = "0000:01:00.1";
pub const NIC: &str = "0000:03:00.0";
const DRIVERS: [(&str, &str); 3] = [(GPU, "nvidia"), (AUDIO, "snd_hda_intel"), (NIC, "e1000e")];

impl Played {
    /// A GPU with its sound in group 7, and a network card in group 8, or with them.
    pub fn new(nic_in_group: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let built = Built::at(folder.path());
        let place = |address, id, class, driver, port, group| Function {
            address,
            id,
            class,
            driver,
            port,
            numa: 0,
            group,
        };
        let port = "0000:00:01.0";
        built.function(place(GPU, "10de:2330", "0x030200", "nvidia", port, 7));
        built.function(place(AUDIO, "10de:22ba", "0x040300", "snd_hda_intel", port, 7));
        built.function(place(
            port,
            "8086:a70d",
            "0x060400",
            "pcieport",
            "0000:00:00.0",
            7,
        ));
        let group = if nic_in_group { 7 } else { 8 };
        built.function(place(
            NIC,
            "8086:10d3",
            "0x020000",
            "e1000e",
            "0000:00:02.0",
            group,
        ));
        for address in [GPU, AUDIO, NIC] {
            built.function_file(address, "driver_override", "(null)\n");
            built.function_file(address, "modalias", "pci:v000010DEd00002330sv0sd0bc03sc02i00\n");
        }
        for driver in ["nvidia", "snd_hda_intel", "e1000e", "pcieport"] {
            built.file(&format!("sys/bus/pci/drivers/{driver}/bind"), "");
        }
        built.file("proc/sys/kernel/random/boot_id", "one\n");
        built.file("proc/sys/kernel/osrelease", "6.1.0\n");
        built.file(
            "lib/modules/6.1.0/modules.dep",
            "kernel/drivers/vfio/pci/vfio-pci.ko: x.ko\n",
        );
        Self {
            built,
            folder,
            trouble: Trouble::None,
            writes: Cell::new(0),
            broken: None,
            vfio_ids: false,
            has_vfio: true,
        }
    }

    pub fn root(&self) -> Sysroot {
        Sysroot::at(self.folder.path())
    }

    /// The kernel with one kind of trouble, counting from now.
    pub fn with(&mut self, trouble: Trouble) {
        self.trouble = trouble;
        self.writes.set(0);
    }

    pub fn driver(&self, address: &str) -> Option<String> {
        self.root().link(&format!("{DEVICES}/{address}/driver"))
    }

    pub fn only(&self, address: &str) -> Option<String> {
        self.root().text(&format!("{DEVICES}/{address}/driver_override"))
    }

    /// Everything as it was first.
    pub fn is_as_first(&self) -> bool {
        DRIVERS.iter().all(|(address, driver)| {
            self.driver(address).as_deref() == Some(driver) && self.only(address).as_deref() == Some("(null)")
        })
    }

    /// Starts the machine again: the kernel has its own drivers and forgot every override.
    pub fn reboot(&mut self) {
        for (address, driver) in DRIVERS {
            self.bind(address, None);
            self.bind(address, Some(driver));
            self.built.function_file(address, "driver_override", "(null)\n");
        }
        self.built.file("proc/sys/kernel/random/boot_id", "two\n");
    }

    fn bind(&self, address: &str, driver: Option<&str>) {
        let link = format!("{DEVICES}/{address}/driver");
        if self.driver(address).is_some() {
            self.built.remove(&link);
        }
        if let Some(driver) = driver {
            self.built
                .link(&link, &format!("../../../../bus/pci/drivers/{driver}"));
        }
    }

    pub fn unplug(&self, address: &str) {
        self.built.remove(&format!("{DEVICES}/{address}"));
        self.built
            .remove(&format!("sys/kernel/iommu_groups/7/devices/{address}"));
    }

    fn probe(&self, address: &str) -> io::Result<()> {
        if !self.root().has(&format!("{DEVICES}/{address}")) {
            return Err(io::Error::from_raw_os_error(19));
        }
        if self.driver(address).is_some() {
            return Ok(());
        }
        let only = self.only(address).filter(|only| only != "(null)");
        let native = DRIVERS.iter().find(|(place, _)| *place == address);
        let by_id = (self.vfio_ids && address == GPU).then(|| "vfio-pci".to_owned());
        let driver = only
            .or(by_id)
            .or_else(|| native.map(|(_, driver)| (*driver).to_owned()));
        if let Some(driver) = driver
            && self.broken != Some(driver.as_str())
            && self.root().has(&format!("sys/bus/pci/drivers/{driver}"))
        {
            self.bind(address, Some(&driver));
        }
        Ok(())
    }
}

impl Kernel for Played {
    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        let number = self.writes.get();
        self.writes.set(number + 1);
        match self.trouble {
            Trouble::Fails(at) if at == number => return Err(io::Error::from_raw_os_error(30)),
            Trouble::FailsOn(at) if at <= number => return Err(io::Error::from_raw_os_error(30)),
            Trouble::Crash(at) if at == number => std::panic::panic_any(KILLED),
            Trouble::Unplug(at) if at == number => self.unplug(GPU),
            _ => {}
        }
        if path == "sys/bus/pci/drivers_probe" {
            return self.probe(text);
        }
        let rest = path
            .strip_prefix(DEVICES)
            .expect("a device")
            .trim_start_matches('/');
        let (address, file) = rest.split_once('/').expect("a file of a device");
        if !self.root().has(&format!("{DEVICES}/{address}")) {
            return Err(io::Error::from_raw_os_error(2));
        }
        match file {
            "driver_override" => {
                let text = if text.trim().is_empty() { "(null)" } else { text };
                self.built.function_file(address, "driver_override", text);
            }
            "driver/unbind" => {
                assert_eq!(text, address);
                if self.driver(address).is_none() {
                    return Err(io::Error::from_raw_os_error(2));
                }
                self.bind(address, None);
            }
            other => panic!("nothing writes to {other}"),
        }
        Ok(())
    }

    fn load(&mut self, module: &str) -> Result<(), Fault> {
        if !self.has_vfio {
            return Err(Fault::new(Code::Tool, "`modprobe` failed"));
        }
        let name = if module == "vfio_pci" { "vfio-pci" } else { module };
        self.built.file(&format!("sys/bus/pci/drivers/{name}/bind"), "");
        Ok(())
    }
}

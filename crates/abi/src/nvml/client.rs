//! NVML as a client: the calls about MIG, which no safe library has, behind safe functions.
//!
//! A library that lacks a function answers it with `NVML_ERROR_NOT_SUPPORTED`, as [`Table::UNSUPPORTED`] does.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;

use super::*;

mod compute;

pub use compute::ComputeFacts;

// The dynamic loader's own interface (dlopen(3)); part of every libc that can load a driver at all.
unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;

/// What a call was refused with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    call: &'static str,
    result: nvmlReturn_t,
}

impl Failure {
    /// Whether the device or the library does not have it.
    #[must_use]
    pub fn is_not_supported(&self) -> bool {
        self.result == NVML_ERROR_NOT_SUPPORTED
    }

    /// Whether the caller has no permission.
    #[must_use]
    pub fn is_permission(&self) -> bool {
        self.result == NVML_ERROR_NO_PERMISSION
    }

    /// Whether the device or instance is in use.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.result == NVML_ERROR_IN_USE
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.result.description().to_string_lossy();
        write!(f, "{}: {words}", self.call)
    }
}

fn check(call: &'static str, result: nvmlReturn_t) -> Result<(), Failure> {
    match result {
        NVML_SUCCESS => Ok(()),
        result => Err(Failure { call, result }),
    }
}

/// A device of one [`Client`]. It stays valid as long as the library is initialised, which a client never ends.
#[derive(Clone, Copy, Debug)]
pub struct Handle(nvmlDevice_t);

/// A device.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// For further calls.
    pub handle: Handle,
    /// `GPU-…`
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// PCI device and vendor: `0x233010de`.
    pub pci_id: u32,
}

/// A GPU instance profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileFacts {
    /// The id that further calls take.
    pub id: u32,
    /// `MIG 1g.10gb`; empty where the driver tells no names.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// The most that a device holds.
    pub max: u32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Begin and size of each place, in memory slices.
    pub placements: Vec<(u32, u32)>,
}

/// A GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceFacts {
    /// Its id.
    pub id: u32,
    /// First memory slice.
    pub start: u32,
}

/// A MIG device: a compute instance, as programs use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigDeviceFacts {
    /// Id of the GPU instance that it is in.
    pub gpu_instance: u32,
    /// Id of the compute instance that it is.
    pub compute_instance: u32,
    /// `MIG-…`
    pub uuid: String,
    /// Processes that run there.
    pub processes: Vec<u32>,
}

/// A device's memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFacts {
    /// All of it.
    pub total: u64,
    /// Memory that driver and firmware have set aside, so that no program gets it. 0 where the library is too old to
    /// tell (before R510): it counts as used then.
    pub reserved: u64,
    /// Memory in use by all processes.
    pub used: u64,
}

/// An initialised NVML.
pub struct Client {
    table: Table,
}

impl Client {
    /// Loads a library by name and initialises it. It stays loaded.
    ///
    /// # Errors
    /// Why there is no NVML to talk to.
    pub fn open(library: &CStr) -> Result<Self, String> {
        // SAFETY: the name is a C string. The library's constructors run, as they would in any program that uses it.
        let library_handle = unsafe { dlopen(library.as_ptr(), RTLD_NOW) };
        if library_handle.is_null() {
            return Err(format!("{} is not installed", library.to_string_lossy()));
        }
        let mut table = Table::UNSUPPORTED;
        for symbol in Symbol::ALL {
            // SAFETY: the handle is the loaded library's, the name a C string.
            let address = unsafe { dlsym(library_handle, Symbol::C_NAMES[symbol.index()].as_ptr()) };
            if !address.is_null() {
                let slots = (&raw mut table).cast::<*mut c_void>();
                // SAFETY: a table is an array of pointers, one for each symbol by its number (asserted beside the
                // type), so the slot lies within; the function under this name has the slot's type, as nvml.h says.
                unsafe { slots.add(symbol.index()).write(address) };
            }
        }
        Self::over(table)
    }

    /// Initialises a library that is linked, and not loaded.
    ///
    /// # Errors
    /// Why it does not serve.
    pub fn over(table: Table) -> Result<Self, String> {
        let client = Self { table };
        // SAFETY: no arguments.
        check("nvmlInit", unsafe { (client.table.nvmlInit_v2)() }).map_err(|failure| failure.to_string())?;
        Ok(client)
    }

    /// How many GPUs there are.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn device_count(&self) -> Result<u32, Failure> {
        let mut count = 0;
        // SAFETY: the pointer is to a live variable of the type that the table's signature names.
        check("nvmlDeviceGetCount", unsafe {
            (self.table.nvmlDeviceGetCount_v2)(&mut count)
        })?;
        Ok(count)
    }

    /// A GPU by its index.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn device(&self, index: u32) -> Result<DeviceFacts, Failure> {
        let mut device: nvmlDevice_t = core::ptr::null_mut();
        let mut uuid = [0; 96];
        let mut name = [0; 96];
        let mut pci = nvmlPciInfo_t::default();
        // SAFETY: every pointer is to a live variable of the type named, and each length is that of its array.
        unsafe {
            let found = (self.table.nvmlDeviceGetHandleByIndex_v2)(index, &mut device);
            check("nvmlDeviceGetHandleByIndex", found)?;
            check(
                "nvmlDeviceGetUUID",
                (self.table.nvmlDeviceGetUUID)(device, uuid.as_mut_ptr(), 96),
            )?;
            check(
                "nvmlDeviceGetName",
                (self.table.nvmlDeviceGetName)(device, name.as_mut_ptr(), 96),
            )?;
            check(
                "nvmlDeviceGetPciInfo",
                (self.table.nvmlDeviceGetPciInfo_v3)(device, &mut pci),
            )?;
        }
        Ok(DeviceFacts {
            handle: Handle(device),
            uuid: text(&uuid),
            name: text(&name),
            pci_id: pci.pciDeviceId,
        })
    }

    /// A GPU by its UUID.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn device_by_uuid(&self, uuid: &str) -> Result<Handle, Failure> {
        let mut device: nvmlDevice_t = core::ptr::null_mut();
        let uuid = std::ffi::CString::new(uuid).unwrap_or_default();
        // SAFETY: the text is a C string that lives through the call; the pointer is to a live variable.
        let found = unsafe { (self.table.nvmlDeviceGetHandleByUUID)(uuid.as_ptr(), &mut device) };
        check("nvmlDeviceGetHandleByUUID", found)?;
        Ok(Handle(device))
    }

    /// A device's memory. The part that is set aside is told apart where the library does so.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn memory(&self, device: Handle) -> Result<MemoryFacts, Failure> {
        let mut apart = nvmlMemory_v2_t {
            version: nvmlMemory_v2,
            ..nvmlMemory_v2_t::default()
        };
        // SAFETY: the handle is this library's; the pointer is to a live record, whose version says how large it is.
        let told = unsafe { (self.table.nvmlDeviceGetMemoryInfo_v2)(device.0, &mut apart) };
        if told == NVML_SUCCESS {
            return Ok(MemoryFacts {
                total: apart.total,
                reserved: apart.reserved,
                used: apart.used,
            });
        }
        let mut together = nvmlMemory_t::default();
        // SAFETY: the handle is this library's; the pointer is to a live record.
        let told = unsafe { (self.table.nvmlDeviceGetMemoryInfo)(device.0, &mut together) };
        check("nvmlDeviceGetMemoryInfo", told)?;
        Ok(MemoryFacts {
            total: together.total,
            reserved: 0,
            used: together.used,
        })
    }

    /// Whether MIG mode is on.
    ///
    /// # Errors
    /// The error that the library returns: not supported for a product without MIG.
    pub fn mig_mode(&self, device: Handle) -> Result<bool, Failure> {
        let (mut current, mut pending) = (0, 0);
        // SAFETY: the handle is this library's; the pointers are to live variables.
        let told = unsafe { (self.table.nvmlDeviceGetMigMode)(device.0, &mut current, &mut pending) };
        check("nvmlDeviceGetMigMode", told)?;
        Ok(current == 1)
    }

    /// Turns MIG mode on or off; false where that waits for a reset.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn set_mig_mode(&self, device: Handle, on: bool) -> Result<bool, Failure> {
        let mut activated = NVML_SUCCESS;
        // SAFETY: the handle is this library's; the pointer is to a live variable.
        let set = unsafe { (self.table.nvmlDeviceSetMigMode)(device.0, u32::from(on), &mut activated) };
        check("nvmlDeviceSetMigMode", set)?;
        match activated {
            NVML_SUCCESS => Ok(true),
            NVML_ERROR_RESET_REQUIRED => Ok(false),
            // The mode is pending because the device is in use.
            result => Err(Failure {
                call: "nvmlDeviceSetMigMode",
                result,
            }),
        }
    }

    /// The profiles that a device offers, MIG mode being on.
    ///
    /// # Errors
    /// The error that the library returns, but for profiles it does not know.
    pub fn profiles(&self, device: Handle) -> Result<Vec<ProfileFacts>, Failure> {
        let mut found = Vec::new();
        for profile in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
            let mut info = nvmlGpuInstanceProfileInfo_t::default();
            // SAFETY: the handle is this library's; the pointer is to a live record.
            let told =
                unsafe { (self.table.nvmlDeviceGetGpuInstanceProfileInfo)(device.0, profile, &mut info) };
            match check("nvmlDeviceGetGpuInstanceProfileInfo", told) {
                Ok(()) => {}
                // Not of this product, or not of this driver.
                Err(Failure {
                    result: NVML_ERROR_NOT_SUPPORTED | NVML_ERROR_INVALID_ARGUMENT,
                    ..
                }) => continue,
                Err(failure) => return Err(failure),
            }
            let mut named = nvmlGpuInstanceProfileInfo_v2_t {
                version: version_of::<nvmlGpuInstanceProfileInfo_v2_t>(2),
                ..nvmlGpuInstanceProfileInfo_v2_t::default()
            };
            // SAFETY: as above; the version says how large the record is.
            let told =
                unsafe { (self.table.nvmlDeviceGetGpuInstanceProfileInfoV)(device.0, profile, &mut named) };
            found.push(ProfileFacts {
                id: info.id,
                name: if told == NVML_SUCCESS {
                    text(&named.name)
                } else {
                    String::new()
                },
                slices: info.sliceCount,
                max: info.instanceCount,
                sm_count: info.multiprocessorCount,
                memory_mib: info.memorySizeMB,
                placements: self.placements(device, info.id)?,
            });
        }
        Ok(found)
    }

    fn placements(&self, device: Handle, profile_id: u32) -> Result<Vec<(u32, u32)>, Failure> {
        let mut places = [nvmlGpuInstancePlacement_t::default(); 64];
        let mut count = places.len() as u32;
        // SAFETY: the handle is this library's; the array is live and has `count` elements.
        let told = unsafe {
            (self.table.nvmlDeviceGetGpuInstancePossiblePlacements_v2)(
                device.0,
                profile_id,
                places.as_mut_ptr(),
                &mut count,
            )
        };
        match check("nvmlDeviceGetGpuInstancePossiblePlacements", told) {
            Err(failure) if failure.is_not_supported() => return Ok(Vec::new()),
            told => told?,
        }
        let places = &places[..(count as usize).min(places.len())];
        Ok(places.iter().map(|place| (place.start, place.size)).collect())
    }

    /// The instances of a profile.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn instances(&self, device: Handle, profile_id: u32) -> Result<Vec<InstanceFacts>, Failure> {
        let mut found = Vec::new();
        for instance in self.handles(device, profile_id)? {
            let mut info = nvmlGpuInstanceInfo_t::default();
            // SAFETY: the instance's handle was just given by this library; the pointer is to a live record.
            check("nvmlGpuInstanceGetInfo", unsafe {
                (self.table.nvmlGpuInstanceGetInfo)(instance, &mut info)
            })?;
            found.push(InstanceFacts {
                id: info.id,
                start: info.placement.start,
            });
        }
        Ok(found)
    }

    fn handles(&self, device: Handle, profile_id: u32) -> Result<Vec<nvmlGpuInstance_t>, Failure> {
        let mut instances: [nvmlGpuInstance_t; 64] = [core::ptr::null_mut(); 64];
        let mut count = instances.len() as u32;
        // SAFETY: the handle is this library's. No product holds more instances of a profile than the array has
        // elements; the library wants space for the profile's most.
        let told = unsafe {
            (self.table.nvmlDeviceGetGpuInstances)(device.0, profile_id, instances.as_mut_ptr(), &mut count)
        };
        check("nvmlDeviceGetGpuInstances", told)?;
        Ok(instances[..(count as usize).min(64)].to_vec())
    }

    /// The version of the driver, as NVIDIA writes it: `550.54.15`.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn driver_version(&self) -> Result<String, Failure> {
        let mut version = [0; 96];
        // SAFETY: the array is live, and the length is its own.
        let told = unsafe { (self.table.nvmlSystemGetDriverVersion)(version.as_mut_ptr(), 96) };
        check("nvmlSystemGetDriverVersion", told)?;
        Ok(text(&version))
    }

    /// How many programs may have a context on a device at once.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn compute_mode(&self, device: Handle) -> Result<nvmlComputeMode_t, Failure> {
        let mut mode = NVML_COMPUTEMODE_DEFAULT;
        // SAFETY: the handle is this library's; the pointer is to a live variable.
        let told = unsafe { (self.table.nvmlDeviceGetComputeMode)(device.0, &mut mode) };
        check("nvmlDeviceGetComputeMode", told).map(|()| mode)
    }

    /// Errors of a device's memory that ECC could not correct, since the driver was loaded.
    ///
    /// # Errors
    /// The error that the library returns: not supported where the memory has no ECC, or where it is off.
    pub fn uncorrected_errors(&self, device: Handle) -> Result<u64, Failure> {
        let mut count = 0;
        // SAFETY: the handle is this library's; the pointer is to a live variable.
        let told = unsafe {
            (self.table.nvmlDeviceGetTotalEccErrors)(
                device.0,
                NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                NVML_VOLATILE_ECC,
                &mut count,
            )
        };
        check("nvmlDeviceGetTotalEccErrors", told).map(|()| count)
    }

    /// The memory of a device that each process that computes there holds, in bytes, by its id; none where the library
    /// does not tell.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn process_memory(&self, device: Handle) -> Result<Vec<(u32, Option<u64>)>, Failure> {
        let infos = self.process_infos(device)?;
        // NVML_VALUE_NOT_AVAILABLE: all bits are set.
        let told = |info: &nvmlProcessInfo_t| Some(info.usedGpuMemory).filter(|bytes| *bytes != u64::MAX);
        Ok(infos.iter().map(|info| (info.pid, told(info))).collect())
    }

    /// Processes on a whole device.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn processes(&self, device: Handle) -> Result<Vec<u32>, Failure> {
        Ok(self.process_infos(device)?.iter().map(|info| info.pid).collect())
    }

    fn process_infos(&self, device: Handle) -> Result<Vec<nvmlProcessInfo_t>, Failure> {
        let mut infos = [nvmlProcessInfo_t::default(); 256];
        let mut count = infos.len() as u32;
        // SAFETY: the handle is this library's; the array is live and has `count` elements.
        let told = unsafe {
            (self.table.nvmlDeviceGetComputeRunningProcesses_v3)(device.0, &mut count, infos.as_mut_ptr())
        };
        match check("nvmlDeviceGetComputeRunningProcesses", told) {
            // More than fit: that a process runs there is what matters.
            Ok(())
            | Err(Failure {
                result: NVML_ERROR_INSUFFICIENT_SIZE,
                ..
            }) => {}
            Err(failure) => return Err(failure),
        }
        Ok(infos[..(count as usize).min(infos.len())].to_vec())
    }

    /// The MIG devices of a device in MIG mode.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn mig_devices(&self, device: Handle) -> Result<Vec<MigDeviceFacts>, Failure> {
        let mut most = 0;
        // SAFETY: the handle is this library's; the pointer is to a live variable.
        let told = unsafe { (self.table.nvmlDeviceGetMaxMigDeviceCount)(device.0, &mut most) };
        check("nvmlDeviceGetMaxMigDeviceCount", told)?;
        let mut found = Vec::new();
        for index in 0..most {
            let mut mig: nvmlDevice_t = core::ptr::null_mut();
            let (mut id, mut compute) = (0, 0);
            // SAFETY: as above.
            let told = unsafe { (self.table.nvmlDeviceGetMigDeviceHandleByIndex)(device.0, index, &mut mig) };
            match check("nvmlDeviceGetMigDeviceHandleByIndex", told) {
                // There may be holes between the indices.
                Err(Failure {
                    result: NVML_ERROR_NOT_FOUND | NVML_ERROR_INVALID_ARGUMENT,
                    ..
                }) => continue,
                told => told?,
            }
            let mut uuid = [0; 96];
            // SAFETY: the handle was just given by this library; the pointers are to live variables, the length is the
            // array's.
            unsafe {
                check(
                    "nvmlDeviceGetGpuInstanceId",
                    (self.table.nvmlDeviceGetGpuInstanceId)(mig, &mut id),
                )?;
                check(
                    "nvmlDeviceGetComputeInstanceId",
                    (self.table.nvmlDeviceGetComputeInstanceId)(mig, &mut compute),
                )?;
                check(
                    "nvmlDeviceGetUUID",
                    (self.table.nvmlDeviceGetUUID)(mig, uuid.as_mut_ptr(), 96),
                )?;
            }
            found.push(MigDeviceFacts {
                gpu_instance: id,
                compute_instance: compute,
                uuid: text(&uuid),
                processes: self.processes(Handle(mig))?,
            });
        }
        Ok(found)
    }

    /// Makes a GPU instance at a place, with compute instances of these many slices, and returns the GPU instance's id.
    /// Where one of them is refused all of it is removed again.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn create(
        &self,
        device: Handle,
        profile_id: u32,
        start: u32,
        size: u32,
        parts: &[u32],
    ) -> Result<u32, Failure> {
        let place = nvmlGpuInstancePlacement_t { start, size };
        let mut instance: nvmlGpuInstance_t = core::ptr::null_mut();
        let mut info = nvmlGpuInstanceInfo_t::default();
        // SAFETY: the handle is this library's; the pointers are to live variables.
        unsafe {
            let made = (self.table.nvmlDeviceCreateGpuInstanceWithPlacement)(
                device.0,
                profile_id,
                &place,
                &mut instance,
            );
            check("nvmlDeviceCreateGpuInstanceWithPlacement", made)?;
            check(
                "nvmlGpuInstanceGetInfo",
                (self.table.nvmlGpuInstanceGetInfo)(instance, &mut info),
            )?;
        }
        let mut filled = Ok(());
        for slices in parts {
            filled = filled.and_then(|()| self.add_compute(instance, *slices));
        }
        match filled {
            Ok(()) => Ok(info.id),
            Err(failure) => {
                let _kept = self.clear(instance);
                Err(failure)
            }
        }
    }

    /// Removes a GPU instance, its compute instances first.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn destroy(&self, device: Handle, instance_id: u32) -> Result<(), Failure> {
        self.clear(self.instance(device, instance_id)?)
    }

    fn clear(&self, instance: nvmlGpuInstance_t) -> Result<(), Failure> {
        for (compute, _) in self.inner(instance)? {
            // SAFETY: the handle was just given by this library.
            check("nvmlComputeInstanceDestroy", unsafe {
                (self.table.nvmlComputeInstanceDestroy)(compute)
            })?;
        }
        // SAFETY: the handle is this library's, and nothing is in the instance.
        check("nvmlGpuInstanceDestroy", unsafe {
            (self.table.nvmlGpuInstanceDestroy)(instance)
        })
    }

    fn instance(&self, device: Handle, id: u32) -> Result<nvmlGpuInstance_t, Failure> {
        let mut instance: nvmlGpuInstance_t = core::ptr::null_mut();
        // SAFETY: the handle is this library's; the pointer is to a live variable.
        let found = unsafe { (self.table.nvmlDeviceGetGpuInstanceById)(device.0, id, &mut instance) };
        check("nvmlDeviceGetGpuInstanceById", found)?;
        Ok(instance)
    }
}

/// NVML's way of versioning a record: its size, and the version in the top byte.
fn version_of<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters
        .iter()
        .map(|character| character.to_ne_bytes()[0])
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    unsafe extern "C-unwind" fn init() -> nvmlReturn_t {
        NVML_SUCCESS
    }

    unsafe extern "C-unwind" fn by_uuid(_: *const c_char, device: *mut nvmlDevice_t) -> nvmlReturn_t {
        // SAFETY: the client's own variable.
        unsafe { device.write(core::ptr::null_mut()) };
        NVML_SUCCESS
    }

    unsafe extern "C-unwind" fn together(_: nvmlDevice_t, memory: *mut nvmlMemory_t) -> nvmlReturn_t {
        let (total, used) = (80 * GIB, 3 * GIB);
        let told = nvmlMemory_t {
            total,
            free: total - used,
            used,
        };
        // SAFETY: the client's own record.
        unsafe { memory.write(told) };
        NVML_SUCCESS
    }

    unsafe extern "C-unwind" fn apart(_: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) -> nvmlReturn_t {
        // SAFETY: the client's own record.
        let version = unsafe { (*memory).version };
        if version != nvmlMemory_v2 {
            return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
        }
        let (total, reserved, used) = (80 * GIB, GIB, 2 * GIB);
        let told = nvmlMemory_v2_t {
            version,
            total,
            reserved,
            free: total - reserved - used,
            used,
        };
        // SAFETY: as above.
        unsafe { memory.write(told) };
        NVML_SUCCESS
    }

    const OLD: Table = Table {
        nvmlInit_v2: init,
        nvmlDeviceGetHandleByUUID: by_uuid,
        nvmlDeviceGetMemoryInfo: together,
        ..Table::UNSUPPORTED
    };

    #[test]
    fn what_is_set_aside_is_told_apart_where_the_library_does() {
        let memory = |table| {
            let client = Client::over(table).expect("it starts");
            client.memory(client.device_by_uuid("GPU-0").expect("a device"))
        };
        let new = Table {
            nvmlDeviceGetMemoryInfo_v2: apart,
            ..OLD
        };
        let (total, gib) = (80 * GIB, GIB);
        assert_eq!(
            memory(new),
            Ok(MemoryFacts {
                total,
                reserved: gib,
                used: 2 * gib
            })
        );
        assert_eq!(
            memory(OLD),
            Ok(MemoryFacts {
                total,
                reserved: 0,
                used: 3 * gib
            })
        );
        let none = Table {
            nvmlDeviceGetMemoryInfo: Table::UNSUPPORTED.nvmlDeviceGetMemoryInfo,
            ..OLD
        };
        assert!(memory(none).expect_err("nothing is told").is_not_supported());
    }

    #[test]
    fn a_library_that_is_not_there_is_an_answer() {
        let why = Client::open(c"libdivvy-no-such-library.so.1")
            .err()
            .expect("no library");
        assert!(why.contains("is not installed"), "{why}");
    }

    #[test]
    fn a_library_without_mig_says_so() {
        let client = Client {
            table: Table::UNSUPPORTED,
        };
        let failure = client.device_count().expect_err("nothing answers");
        assert!(failure.is_not_supported() && failure.to_string().starts_with("nvmlDeviceGetCount: "));
        assert_eq!(version_of::<nvmlGpuInstanceProfileInfo_v2_t>(2) >> 24, 2);
    }
}

//! VFIO's system calls, as `linux/vfio.h` has them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

/// `_IO(';', 100 + n)`.
const fn request(number: u64) -> u64 {
    (b';' as u64) << 8 | (100 + number)
}
const GET_API_VERSION: u64 = request(0);
const SET_IOMMU: u64 = request(2);
const GROUP_GET_STATUS: u64 = request(3);
const GROUP_SET_CONTAINER: u64 = request(4);
const GROUP_GET_DEVICE_FD: u64 = request(6);
const DEVICE_GET_REGION_INFO: u64 = request(8);
const IOMMU_MAP_DMA: u64 = request(13);
const IOMMU_UNMAP_DMA: u64 = request(14);
const TYPE1V2: u64 = 3;
const VIABLE: u32 = 1;
/// The region of a function's configuration space.
const CONFIGURATION: u32 = 7;

#[repr(C)]
#[derive(Default)]
struct GroupStatus {
    size: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct RegionInfo {
    size: u32,
    flags: u32,
    index: u32,
    capabilities: u32,
    length: u64,
    offset: u64,
}

#[repr(C)]
struct Map {
    size: u32,
    flags: u32,
    memory: u64,
    address: u64,
    length: u64,
}

#[repr(C)]
struct Unmap {
    size: u32,
    flags: u32,
    address: u64,
    length: u64,
}

#[expect(clippy::cast_possible_truncation, reason = "structs of some bytes")]
const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

fn call<T>(file: &File, request: u64, argument: *mut T) -> io::Result<i32> {
    // SAFETY: the callers pass a pointer to the struct that the request is about, whose `size` says how long it is, or a
    // plain number, which the kernel does not follow.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), request, argument) };
    match answer {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

/// What a machine's memory is mapped in.
pub struct Container(File);

impl Container {
    pub fn new() -> anyhow::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/vfio/vfio")?;
        let version = call::<u8>(&file, GET_API_VERSION, std::ptr::null_mut())?;
        anyhow::ensure!(version == 0, "VFIO's version {version} is not known");
        Ok(Self(file))
    }

    pub fn choose_iommu(&self) -> io::Result<()> {
        call(&self.0, SET_IOMMU, TYPE1V2 as *mut u8).map(|_| ())
    }

    /// Lets devices reach this memory at an address of theirs.
    pub fn map(&self, memory: &Memory, address: u64) -> io::Result<()> {
        let mut map = Map {
            size: size::<Map>(),
            flags: 3,
            memory: memory.pointer as u64,
            address,
            length: memory.length as u64,
        };
        call(&self.0, IOMMU_MAP_DMA, &raw mut map).map(|_| ())
    }

    pub fn unmap(&self, address: u64, length: usize) -> io::Result<()> {
        let mut unmap = Unmap {
            size: size::<Unmap>(),
            flags: 0,
            address,
            length: length as u64,
        };
        call(&self.0, IOMMU_UNMAP_DMA, &raw mut unmap).map(|_| ())
    }
}

/// An IOMMU group.
pub struct Group(File);

impl Group {
    pub fn open(number: &str) -> io::Result<Self> {
        let path = format!("/dev/vfio/{number}");
        Ok(Self(OpenOptions::new().read(true).write(true).open(path)?))
    }

    pub fn is_viable(&self) -> io::Result<bool> {
        let mut status = GroupStatus {
            size: size::<GroupStatus>(),
            flags: 0,
        };
        call(&self.0, GROUP_GET_STATUS, &raw mut status)?;
        Ok(status.flags & VIABLE != 0)
    }

    pub fn join(&self, container: &Container) -> io::Result<()> {
        let mut file = container.0.as_raw_fd();
        call(&self.0, GROUP_SET_CONTAINER, &raw mut file).map(|_| ())
    }

    pub fn device(&self, address: &str) -> anyhow::Result<Device> {
        let name = std::ffi::CString::new(address)?;
        let file = call(&self.0, GROUP_GET_DEVICE_FD, name.as_ptr().cast_mut())?;
        // SAFETY: the kernel made this descriptor for us just now, and nothing else has it.
        Ok(Device(unsafe { File::from_raw_fd(file) }))
    }
}

/// A function.
pub struct Device(File);

impl Device {
    fn region(&self, index: u32) -> io::Result<RegionInfo> {
        let mut region = RegionInfo {
            size: size::<RegionInfo>(),
            index,
            ..RegionInfo::default()
        };
        call(&self.0, DEVICE_GET_REGION_INFO, &raw mut region)?;
        Ok(region)
    }

    /// Maps a BAR.
    pub fn map(&self, index: u32) -> anyhow::Result<Memory> {
        let region = self.region(index)?;
        let length = usize::try_from(region.length)?;
        Ok(Memory::of(Some(&self.0), i64::try_from(region.offset)?, length)?)
    }

    /// Lets the function answer on its BARs, and reach memory by itself.
    pub fn enable(&self) -> anyhow::Result<()> {
        const COMMAND: u64 = 4;
        let at = self.region(CONFIGURATION)?.offset + COMMAND;
        let mut command = [0; 2];
        self.0.read_exact_at(&mut command, at)?;
        command[0] |= 6;
        Ok(self.0.write_all_at(&command, at)?)
    }
}

/// Memory that is mapped here: a BAR, or pages of our own.
pub struct Memory {
    pointer: *mut u8,
    length: usize,
}

impl Memory {
    /// Pages of our own, zeroed.
    pub fn new(length: usize) -> io::Result<Self> {
        Self::of(None, 0, length)
    }

    fn of(file: Option<&File>, offset: i64, length: usize) -> io::Result<Self> {
        let (descriptor, flags) = match file {
            Some(file) => (file.as_raw_fd(), libc::MAP_SHARED),
            None => (-1, libc::MAP_SHARED | libc::MAP_ANONYMOUS),
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory of ours.
        let pointer = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                flags,
                descriptor,
                offset,
            )
        };
        match pointer == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(Self {
                pointer: pointer.cast(),
                length,
            }),
        }
    }

    pub fn length(&self) -> usize {
        self.length
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= self.length && offset.is_multiple_of(size_of::<T>()));
        // SAFETY: the offset is inside the mapping, as was just checked.
        unsafe { self.pointer.add(offset).cast() }
    }

    pub fn read<T: Copy>(&self, offset: usize) -> T {
        // SAFETY: `at` gives an aligned place inside the mapping. A device may change it, so the read is volatile; the
        // callers read plain numbers only.
        unsafe { self.at::<T>(offset).read_volatile() }
    }

    pub fn write<T: Copy>(&self, offset: usize, value: T) {
        // SAFETY: as in `read`.
        unsafe { self.at::<T>(offset).write_volatile(value) }
    }
}

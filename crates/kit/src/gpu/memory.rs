//! Every way of getting device memory.

use divvy_abi::{
    CU_AD_FORMAT_FLOAT, CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ATTACH_GLOBAL, CU_MEM_LOCATION_TYPE_DEVICE,
    CUDA_ARRAY_DESCRIPTOR_v2, CUDA_ARRAY3D_DESCRIPTOR_v2, CUarray, CUdeviceptr, CUmemAllocationProp_v1,
    CUmemGenericAllocationHandle, CUmemPoolProps_v1, CUmemoryPool, CUmipmappedArray,
};

use super::driver::{CudaError, Gpu, check};
use super::shared::{Exported, InGraph};

/// A way of getting memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// cuMemAlloc.
    Plain,
    /// cuMemAllocPitch.
    Pitch,
    /// cuMemAllocManaged.
    Managed,
    /// cuArrayCreate.
    Array,
    /// cuMipmappedArrayCreate.
    Mipmap,
    /// cuMemCreate.
    Physical,
    /// cuMemAllocAsync, from the device's own pool.
    Async,
    /// cuMemAllocFromPoolAsync, from a pool of the program's.
    Pool,
    /// A node of a graph.
    Graph,
    /// cuMemCreate, exported as a descriptor and imported again.
    Exported,
    /// The same, imported as external memory.
    External,
}

/// Managed memory comes to the device in blocks of at least so many bytes (NVIDIA's open kernel modules, uvm_va_block.c:
/// "big pages" of 64 KiB).
const MANAGED_PAGE: usize = 64 << 10;

impl Way {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Plain,
        Self::Pitch,
        Self::Array,
        Self::Mipmap,
        Self::Physical,
        Self::Async,
        Self::Pool,
        Self::Graph,
        Self::Exported,
        Self::External,
        Self::Managed,
    ];

    /// Its name in findings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Pitch => "pitch",
            Self::Managed => "managed",
            Self::Array => "array",
            Self::Mipmap => "mipmap",
            Self::Physical => "physical",
            Self::Async => "async",
            Self::Pool => "pool",
            Self::Graph => "graph",
            Self::Exported => "exported",
            Self::External => "external",
        }
    }

    /// The way of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }
}

/// A pool of the program's own, never given back.
#[derive(Clone, Copy, Debug)]
pub struct Pool(CUmemoryPool);

/// What was got.
#[derive(Clone, Copy, Debug)]
pub enum Held {
    /// An address.
    Address(CUdeviceptr),
    /// An address that a stream gave.
    InStream(CUdeviceptr),
    /// An array.
    Array(CUarray),
    /// A mipmapped array.
    Mipmap(CUmipmappedArray),
    /// Memory without an address.
    Physical(CUmemGenericAllocationHandle),
    /// Memory that was exported and imported.
    Exported(Exported),
    /// A graph's memory.
    InGraph(InGraph),
}

impl Gpu {
    /// Gets `bytes` in one of the ways; [`Way::Pool`] needs a pool.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn get(&self, way: Way, bytes: u64, pool: Option<Pool>) -> Result<Held, CudaError> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let none = std::ptr::null_mut();
        let mut address: CUdeviceptr = 0;
        // Rows of 64 KiB, of single precision: their pitch is their width on every card.
        const ROW: usize = 64 << 10;
        let rows = length.div_ceil(ROW);
        // SAFETY: in each arm, every pointer is to a live variable or record of the type that the signature names, and
        // streams are the default one.
        unsafe {
            match way {
                Way::Plain => {
                    check("cuMemAlloc", (self.table.cuMemAlloc_v2)(&mut address, length))?;
                    Ok(Held::Address(address))
                }
                Way::Pitch => {
                    let mut pitch = 0;
                    let got = (self.table.cuMemAllocPitch_v2)(&mut address, &mut pitch, ROW, rows, 4);
                    check("cuMemAllocPitch", got)?;
                    Ok(Held::Address(address))
                }
                Way::Managed => {
                    let got = (self.table.cuMemAllocManaged)(&mut address, length, CU_MEM_ATTACH_GLOBAL.0);
                    check("cuMemAllocManaged", got)?;
                    // It takes room on the device once the device has used it: one byte of each page is enough.
                    let pages = length / MANAGED_PAGE;
                    let set = (self.table.cuMemsetD2D8_v2)(address, MANAGED_PAGE, 0, 1, pages);
                    check("cuMemsetD2D8", set)?;
                    check("cuCtxSynchronize", (self.table.cuCtxSynchronize)())?;
                    Ok(Held::Address(address))
                }
                Way::Array => {
                    let shape = CUDA_ARRAY_DESCRIPTOR_v2 {
                        Width: ROW / 4,
                        Height: rows,
                        Format: CU_AD_FORMAT_FLOAT,
                        NumChannels: 1,
                    };
                    let mut array: CUarray = std::ptr::null_mut();
                    check("cuArrayCreate", (self.table.cuArrayCreate_v2)(&mut array, &shape))?;
                    Ok(Held::Array(array))
                }
                Way::Mipmap => {
                    let shape = CUDA_ARRAY3D_DESCRIPTOR_v2 {
                        Width: ROW / 4,
                        Height: rows,
                        Depth: 0,
                        Format: CU_AD_FORMAT_FLOAT,
                        NumChannels: 1,
                        Flags: 0,
                    };
                    let mut array: CUmipmappedArray = std::ptr::null_mut();
                    let made = (self.table.cuMipmappedArrayCreate)(&mut array, &shape, 1);
                    check("cuMipmappedArrayCreate", made)?;
                    Ok(Held::Mipmap(array))
                }
                Way::Physical => {
                    let (minimum, _) = self.granularity()?;
                    let length = length.next_multiple_of(minimum.max(1));
                    let mut handle: CUmemGenericAllocationHandle = 0;
                    check(
                        "cuMemCreate",
                        (self.table.cuMemCreate)(&mut handle, length, &self.pinned(), 0),
                    )?;
                    Ok(Held::Physical(handle))
                }
                Way::Async => {
                    check(
                        "cuMemAllocAsync",
                        (self.table.cuMemAllocAsync)(&mut address, length, none),
                    )?;
                    Ok(Held::InStream(address))
                }
                Way::Pool => {
                    let got = (self.table.cuMemAllocFromPoolAsync)(
                        &mut address,
                        length,
                        pool.map_or(none.cast(), |pool| pool.0),
                        none,
                    );
                    check("cuMemAllocFromPoolAsync", got)?;
                    Ok(Held::InStream(address))
                }
                Way::Graph => self.in_graph(length).map(Held::InGraph),
                Way::Exported => self.exported(length).map(Held::Exported),
                Way::External => self.external(length).map(Held::Exported),
            }
        }
    }

    /// Gives it back.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn give_back(&self, held: Held) -> Result<(), CudaError> {
        // SAFETY: each was got from this driver, in the way that its kind says, and is given back once.
        let given = unsafe {
            match held {
                Held::Address(address) => (self.table.cuMemFree_v2)(address),
                Held::InStream(address) => (self.table.cuMemFreeAsync)(address, std::ptr::null_mut()),
                Held::Array(array) => (self.table.cuArrayDestroy)(array),
                Held::Mipmap(array) => (self.table.cuMipmappedArrayDestroy)(array),
                Held::Physical(handle) => (self.table.cuMemRelease)(handle),
                Held::Exported(exported) => return self.give_back_exported(exported),
                Held::InGraph(made) => return self.give_back_in_graph(made),
            }
        };
        check("giving memory back", given)
    }

    /// A pool of the program's own on the device.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn pool(&self) -> Result<Pool, CudaError> {
        let mut properties = CUmemPoolProps_v1 {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            ..CUmemPoolProps_v1::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        let mut pool: CUmemoryPool = std::ptr::null_mut();
        // SAFETY: a live record and a live variable.
        let made = unsafe { (self.table.cuMemPoolCreate)(&mut pool, &properties) };
        check("cuMemPoolCreate", made).map(|()| Pool(pool))
    }

    /// The least step of physical memory, and the one that the driver recommends, in bytes.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn granularity(&self) -> Result<(usize, usize), CudaError> {
        let step = |which| {
            let mut step = 0;
            // SAFETY: a live record and a live variable.
            let told =
                unsafe { (self.table.cuMemGetAllocationGranularity)(&mut step, &self.pinned(), which) };
            check("cuMemGetAllocationGranularity", told).map(|()| step)
        };
        Ok((
            step(CU_MEM_ALLOC_GRANULARITY_MINIMUM)?,
            step(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)?,
        ))
    }

    pub(super) fn pinned(&self) -> CUmemAllocationProp_v1 {
        let mut properties = CUmemAllocationProp_v1 {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            ..CUmemAllocationProp_v1::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        properties
    }
}

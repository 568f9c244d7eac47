//! Types and constants of OpenCL that the layer needs, by the names and values of Khronos' headers (cl.h, cl_ext.h).
#![allow(non_camel_case_types, reason = "C's names")]

use core::ffi::c_void;

pub(crate) type cl_int = i32;
pub(crate) type cl_uint = u32;
pub(crate) type cl_bitfield = u64;

/// Handles are the driver's: the layer never looks behind one.
macro_rules! handles {
    ($($name:ident)*) => { $(pub(crate) type $name = *mut c_void;)* };
}

handles! { cl_platform_id cl_device_id cl_context cl_command_queue cl_mem cl_kernel cl_event cl_command_buffer_khr }

pub(crate) type ContextCallback = Option<unsafe extern "C" fn(*const i8, *const c_void, usize, *mut c_void)>;
pub(crate) type EventCallback = Option<unsafe extern "C" fn(cl_event, cl_int, *mut c_void)>;
pub(crate) type ObjectCallback = Option<unsafe extern "C" fn(cl_mem, *mut c_void)>;
pub(crate) type NativeKernel = Option<unsafe extern "C" fn(*mut c_void)>;
pub(crate) type SvmFreeCallback =
    Option<unsafe extern "C" fn(cl_command_queue, cl_uint, *mut *mut c_void, *mut c_void)>;

pub(crate) const CL_SUCCESS: cl_int = 0;
pub(crate) const CL_DEVICE_NOT_AVAILABLE: cl_int = -2;
pub(crate) const CL_MEM_OBJECT_ALLOCATION_FAILURE: cl_int = -4;
pub(crate) const CL_OUT_OF_RESOURCES: cl_int = -5;
pub(crate) const CL_OUT_OF_HOST_MEMORY: cl_int = -6;
pub(crate) const CL_INVALID_VALUE: cl_int = -30;
pub(crate) const CL_INVALID_OPERATION: cl_int = -59;

pub(crate) const CL_PLATFORM_NAME: cl_uint = 0x0902;
pub(crate) const CL_DEVICE_TYPE: cl_uint = 0x1000;
pub(crate) const CL_DEVICE_VENDOR_ID: cl_uint = 0x1001;
pub(crate) const CL_DEVICE_MAX_MEM_ALLOC_SIZE: cl_uint = 0x1010;
pub(crate) const CL_DEVICE_GLOBAL_MEM_SIZE: cl_uint = 0x101f;
pub(crate) const CL_DEVICE_AVAILABLE: cl_uint = 0x1027;
pub(crate) const CL_DEVICE_PLATFORM: cl_uint = 0x1031;
pub(crate) const CL_DEVICE_PARENT_DEVICE: cl_uint = 0x1042;
/// cl_khr_device_uuid: 16 bytes.
pub(crate) const CL_DEVICE_UUID_KHR: cl_uint = 0x106a;
/// cl_nv_device_attribute_query: numbers of 32 bits.
pub(crate) const CL_DEVICE_PCI_BUS_ID_NV: cl_uint = 0x4008;
pub(crate) const CL_DEVICE_PCI_SLOT_ID_NV: cl_uint = 0x4009;
pub(crate) const CL_DEVICE_PCI_DOMAIN_ID_NV: cl_uint = 0x400a;
/// cl_amd_device_attribute_query: kibibytes that are free, and those of the largest block.
pub(crate) const CL_DEVICE_GLOBAL_FREE_MEMORY_AMD: cl_uint = 0x4039;
/// cl_khr_pci_bus_info: domain, bus, device and function, 32 bits each.
pub(crate) const CL_DEVICE_PCI_BUS_INFO_KHR: cl_uint = 0x410f;

pub(crate) const CL_DEVICE_TYPE_CPU: cl_bitfield = 1 << 1;

pub(crate) const CL_CONTEXT_DEVICES: cl_uint = 0x1081;
pub(crate) const CL_QUEUE_CONTEXT: cl_uint = 0x1090;
pub(crate) const CL_QUEUE_DEVICE: cl_uint = 0x1091;
pub(crate) const CL_QUEUE_REFERENCE_COUNT: cl_uint = 0x1092;
pub(crate) const CL_QUEUE_PROPERTIES: cl_uint = 0x1093;
pub(crate) const CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE: cl_bitfield = 1;
pub(crate) const CL_COMPLETE: cl_int = 0;
pub(crate) const CL_EVENT_COMMAND_EXECUTION_STATUS: cl_uint = 0x11d3;

pub(crate) const CL_MEM_OBJECT_IMAGE2D: cl_uint = 0x10f1;
pub(crate) const CL_MEM_OBJECT_IMAGE3D: cl_uint = 0x10f2;
pub(crate) const CL_MEM_OBJECT_IMAGE2D_ARRAY: cl_uint = 0x10f3;
pub(crate) const CL_MEM_OBJECT_IMAGE1D: cl_uint = 0x10f4;
pub(crate) const CL_MEM_OBJECT_IMAGE1D_ARRAY: cl_uint = 0x10f5;
pub(crate) const CL_MEM_OBJECT_IMAGE1D_BUFFER: cl_uint = 0x10f6;

/// cl_loader_layers, as Khronos published it and as the loaders ask.
pub(crate) const CL_LAYER_API_VERSION: cl_uint = 0x4240;
pub(crate) const CL_LAYER_NAME: cl_uint = 0x4241;
pub(crate) const CL_LAYER_API_VERSION_100: cl_uint = 100;

/// `cl_image_format`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ImageFormat {
    pub order: cl_uint,
    pub kind: cl_uint,
}

/// `cl_image_desc`. Which fields count depends on the type.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ImageDescription {
    pub kind: cl_uint,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub layers: usize,
    pub row_pitch: usize,
    pub slice_pitch: usize,
    pub mip_levels: cl_uint,
    pub samples: cl_uint,
    /// The buffer or image whose memory it uses, or null.
    pub of: cl_mem,
}

//! The ICD loader's dispatch table: one pointer for each entry point, in the order of Khronos' cl_icd.h.
//!
//! A loader tells how many pointers its table has. Newer loaders append, so pointers that this list does not name are
//! handed on as they are.

macro_rules! entries {
    ($($name:ident,)*) => {
        /// An entry point, as its place in the table.
        #[allow(dead_code, non_camel_case_types, reason = "all places are named, by C's names")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Entry {
            $($name,)*
        }

        /// The names, in the order of the table.
        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name),)*];
    };
}

entries! {
    clGetPlatformIDs, clGetPlatformInfo, clGetDeviceIDs, clGetDeviceInfo, clCreateContext, clCreateContextFromType,
    clRetainContext, clReleaseContext, clGetContextInfo, clCreateCommandQueue, clRetainCommandQueue,
    clReleaseCommandQueue, clGetCommandQueueInfo, clSetCommandQueueProperty, clCreateBuffer, clCreateImage2D,
    clCreateImage3D, clRetainMemObject, clReleaseMemObject, clGetSupportedImageFormats, clGetMemObjectInfo,
    clGetImageInfo, clCreateSampler, clRetainSampler, clReleaseSampler, clGetSamplerInfo, clCreateProgramWithSource,
    clCreateProgramWithBinary, clRetainProgram, clReleaseProgram, clBuildProgram, clUnloadCompiler, clGetProgramInfo,
    clGetProgramBuildInfo, clCreateKernel, clCreateKernelsInProgram, clRetainKernel, clReleaseKernel, clSetKernelArg,
    clGetKernelInfo, clGetKernelWorkGroupInfo, clWaitForEvents, clGetEventInfo, clRetainEvent, clReleaseEvent,
    clGetEventProfilingInfo, clFlush, clFinish, clEnqueueReadBuffer, clEnqueueWriteBuffer, clEnqueueCopyBuffer,
    clEnqueueReadImage, clEnqueueWriteImage, clEnqueueCopyImage, clEnqueueCopyImageToBuffer,
    clEnqueueCopyBufferToImage, clEnqueueMapBuffer, clEnqueueMapImage, clEnqueueUnmapMemObject,
    clEnqueueNDRangeKernel, clEnqueueTask, clEnqueueNativeKernel, clEnqueueMarker, clEnqueueWaitForEvents,
    clEnqueueBarrier, clGetExtensionFunctionAddress, clCreateFromGLBuffer, clCreateFromGLTexture2D,
    clCreateFromGLTexture3D, clCreateFromGLRenderbuffer, clGetGLObjectInfo, clGetGLTextureInfo,
    clEnqueueAcquireGLObjects, clEnqueueReleaseGLObjects, clGetGLContextInfoKHR, clGetDeviceIDsFromD3D10KHR,
    clCreateFromD3D10BufferKHR, clCreateFromD3D10Texture2DKHR, clCreateFromD3D10Texture3DKHR,
    clEnqueueAcquireD3D10ObjectsKHR, clEnqueueReleaseD3D10ObjectsKHR, clSetEventCallback, clCreateSubBuffer,
    clSetMemObjectDestructorCallback, clCreateUserEvent, clSetUserEventStatus, clEnqueueReadBufferRect,
    clEnqueueWriteBufferRect, clEnqueueCopyBufferRect, clCreateSubDevicesEXT, clRetainDeviceEXT, clReleaseDeviceEXT,
    clCreateEventFromGLsyncKHR, clCreateSubDevices, clRetainDevice, clReleaseDevice, clCreateImage,
    clCreateProgramWithBuiltInKernels, clCompileProgram, clLinkProgram, clUnloadPlatformCompiler, clGetKernelArgInfo,
    clEnqueueFillBuffer, clEnqueueFillImage, clEnqueueMigrateMemObjects, clEnqueueMarkerWithWaitList,
    clEnqueueBarrierWithWaitList, clGetExtensionFunctionAddressForPlatform, clCreateFromGLTexture,
    clGetDeviceIDsFromD3D11KHR, clCreateFromD3D11BufferKHR, clCreateFromD3D11Texture2DKHR,
    clCreateFromD3D11Texture3DKHR, clCreateFromDX9MediaSurfaceKHR, clEnqueueAcquireD3D11ObjectsKHR,
    clEnqueueReleaseD3D11ObjectsKHR, clGetDeviceIDsFromDX9MediaAdapterKHR, clEnqueueAcquireDX9MediaSurfacesKHR,
    clEnqueueReleaseDX9MediaSurfacesKHR, clCreateFromEGLImageKHR, clEnqueueAcquireEGLObjectsKHR,
    clEnqueueReleaseEGLObjectsKHR, clCreateEventFromEGLSyncKHR, clCreateCommandQueueWithProperties, clCreatePipe,
    clGetPipeInfo, clSVMAlloc, clSVMFree, clEnqueueSVMFree, clEnqueueSVMMemcpy, clEnqueueSVMMemFill, clEnqueueSVMMap,
    clEnqueueSVMUnmap, clCreateSamplerWithProperties, clSetKernelArgSVMPointer, clSetKernelExecInfo,
    clGetKernelSubGroupInfoKHR, clCloneKernel, clCreateProgramWithIL, clEnqueueSVMMigrateMem, clGetDeviceAndHostTimer,
    clGetHostTimer, clGetKernelSubGroupInfo, clSetDefaultDeviceCommandQueue, clSetProgramReleaseCallback,
    clSetProgramSpecializationConstant, clCreateBufferWithProperties, clCreateImageWithProperties,
    clSetContextDestructorCallback,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_header() {
        // Counted in cl_icd.h of version 3.0; the last one before each version's own.
        assert_eq!(NAMES.len(), 149);
        for (entry, place) in [
            (Entry::clGetPlatformIDs, 0),
            (Entry::clCreateBuffer, 14),
            (Entry::clEnqueueNDRangeKernel, 59),
            (Entry::clSetEventCallback, 81),
            (Entry::clCreateImage, 96),
            (Entry::clCreatePipe, 124),
            (Entry::clCloneKernel, 137),
            (Entry::clCreateBufferWithProperties, 146),
            (Entry::clSetContextDestructorCallback, 148),
        ] {
            assert_eq!(entry as usize, place, "{entry:?}");
            assert_eq!(NAMES[place], format!("{entry:?}"));
        }
    }
}

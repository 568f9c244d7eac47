//! The generated stubs, and the table of all of the driver's functions.
#![allow(non_snake_case)]

use divvy_abi::*;

use super::arguments::*;
use super::{
    attribute, callback, context, copy3d, device, function, given, launch, link, local, managed, memcpy,
    module, names, new_name, node, occupancy, pinned, primary, start, texture, thread,
};
use crate::handle::{Kind, Word};
use crate::wire::Pointee;

macro_rules! offsets {
    ($of:ty, [$($member:ident)*]) => {
        &[$(std::mem::offset_of!(<$of as Pointee>::To, $member)),*]
    };
}

macro_rules! number {
    ($literal:literal) => {
        $literal
    };
    ($argument:ident) => {
        Count::count($argument)
    };
}

macro_rules! product {
    ($($factor:tt)*) => {
        1_u64$(.saturating_mul(number!($factor)))*
    };
}

/// What a stub keeps beside an argument: the name of a new object, and the room of a list, which is counted before an
/// answer overwrites the count.
macro_rules! beside {
    (create $p:ident, [$kind:ident $($parent:tt)*]) => {
        if $p.is_null() { 0 } else { new_name(Kind::$kind) }
    };
    (outputs $p:ident, [$($count:tt)*]) => {
        product!($($count)*)
    };
    (finds $p:ident, [$kind:ident $(of $parent:ident)?; $($count:tt)*]) => {
        product!($($count)*)
    };
    ($role:ident $p:ident, $needs:tt) => {
        0_u64
    };
}

macro_rules! put {
    ($m:ident value $p:ident $of:ty, $beside:ident, $needs:tt) => { $m.plain($p) };
    ($m:ident device $p:ident $of:ty, $beside:ident, $needs:tt) => { $m.plain(start::to_worker($p)) };
    ($m:ident input $p:ident $of:ty, $beside:ident, $needs:tt) => { put_input($m, $p, offsets!($of, $needs)) };
    ($m:ident inout $p:ident $of:ty, $beside:ident, $needs:tt) => { put_input($m, $p, &[]) };
    ($m:ident inputs $p:ident $of:ty, $beside:ident, [$($count:tt)*]) => {
        put_inputs($m, $p, product!($($count)*))
    };
    ($m:ident handles $p:ident $of:ty, $beside:ident, [$kind:ident; $($count:tt)*]) => {
        put_handles($m, $p, product!($($count)*))
    };
    ($m:ident string $p:ident $of:ty, $beside:ident, $needs:tt) => { put_string($m, $p) };
    ($m:ident handle $p:ident $of:ty, $beside:ident, $needs:tt) => { $m.plain($p.bits()) };
    ($m:ident destroy $p:ident $of:ty, $beside:ident, $needs:tt) => { $m.plain($p.bits()) };
    ($m:ident memory $p:ident $of:ty, $beside:ident, $needs:tt) => { $m.plain($p.bits()) };
    ($m:ident rows $p:ident $of:ty, $beside:ident, $needs:tt) => { $m.plain($p.bits()) };
    ($m:ident free_memory $p:ident $of:ty, $beside:ident, $needs:tt) => { $m.plain($p.bits()) };
    ($m:ident create $p:ident $of:ty, $beside:ident, $needs:tt) => { $m.plain($beside) };
    ($m:ident null $p:ident $of:ty, $beside:ident, $needs:tt) => {};
    // output, outputs, find, finds, find_device, new_memory
    ($m:ident $role:ident $p:ident $of:ty, $beside:ident, $needs:tt) => { $m.flag(!$p.is_null()) };
}

macro_rules! take {
    ($m:ident output $p:ident $beside:ident) => {
        take_output($m, $p)?;
    };
    ($m:ident find_device $p:ident $beside:ident) => {
        take_device($m, $p)?;
    };
    ($m:ident outputs $p:ident $beside:ident) => {
        take_outputs($m, $p, $beside)?;
    };
    ($m:ident find $p:ident $beside:ident) => {
        take_word($m, $p)?;
    };
    ($m:ident finds $p:ident $beside:ident) => {
        take_outputs($m, $p, $beside)?;
    };
    ($m:ident new_memory $p:ident $beside:ident) => {
        take_word($m, $p)?;
    };
    ($m:ident create $p:ident $beside:ident) => {
        write_name($p, $beside);
    };
    ($m:ident $role:ident $p:ident $beside:ident) => {};
}

macro_rules! changed {
    // A call that stopped before the driver below changed nothing, and answers nothing.
    ($m:ident inout $p:ident) => {
        if !$m.rest().is_empty() {
            take_output($m, $p)?;
        }
    };
    ($m:ident $role:ident $p:ident) => {};
}

/// A count that an answer wrote says no more than the list beside it has room for, where there is one.
macro_rules! bound {
    (outputs $p:ident $beside:ident [$count:ident]) => {
        if !$p.is_null() {
            Count::bound($count, $beside);
        }
    };
    (finds $p:ident $beside:ident [$kind:ident $(of $parent:ident)?; $count:ident]) => {
        if !$p.is_null() {
            Count::bound($count, $beside);
        }
    };
    ($role:ident $p:ident $beside:ident $needs:tt) => {};
}

macro_rules! code_of {
    ($code:ident find_device $p:ident) => {
        // SAFETY: the program vouches for its pointer, and a call that succeeded has written there.
        let $code = unsafe { code_of_device($code, $p) };
    };
    ($code:ident $role:ident $p:ident) => {};
}

/// After a call that succeeded: the device memory that the program was given, or that is gone.
macro_rules! settle {
    (new_memory $p:ident [$(current)?; $($count:tt)*]) => {
        settle!(@add $p 0 [$($count)*])
    };
    (new_memory $p:ident [$owner:ident; $($count:tt)*]) => {
        settle!(@add $p $owner.bits() [$($count)*])
    };
    (@add $p:ident $owner:tt $(.$bits:ident())? [$($count:tt)*]) => {
        // SAFETY: the program vouches for its pointers, and a call that succeeded has written there.
        unsafe {
            if let Some(address) = $p.as_ref() {
                given::add(address.bits(), product!($($count)*), $owner$(.$bits())?);
            }
        }
    };
    (free_memory $p:ident $needs:tt) => {
        given::freed($p.bits())
    };
    (destroy $p:ident [$kind:ident]) => {
        given::ended(Kind::$kind, $p.bits())
    };
    ($role:ident $p:ident $needs:tt) => {};
}

macro_rules! stubs {
    ([] $($name:ident $id:literal [$how:ident] ($($p:ident: $of:ty = $role:ident $needs:tt),*);)*) => {
        /// The generated stubs.
        mod generated {
            use super::*;

            $(
                /// The driver's function of this name.
                ///
                /// # Safety
                /// As NVIDIA's reference says of this function.
                #[allow(non_snake_case, unused_unsafe, unused_variables, clippy::too_many_arguments)]
                pub unsafe extern "C-unwind" fn $name($($p: $of),*) -> CUresult {
                    // The values beside the arguments go by the arguments' own names, one scope further in.
                    stub!($id $name $how [] $(($p $of, $role $needs))*)
                }
            )*
        }

        /// The driver that a program sees: generated stubs, those written by hand, and `NOT_SUPPORTED` for the rest.
        pub const TABLE: Table = Table {
            $($name: generated::$name,)*
            ..BY_HAND
        };
    };
}

/// Gives each argument a second name, for what stands beside it, and then makes the call.
macro_rules! stub {
    ($id:literal $name:ident $how:ident [$($done:tt)*]) => {
        stub!(@call $id $name $how $($done)*)
    };
    ($id:literal $name:ident $how:ident [$($done:tt)*] ($p:ident $of:ty, $role:ident $needs:tt) $($rest:tt)*) => {{
        // SAFETY: the program vouches for its pointers.
        let beside = unsafe { beside!($role $p, $needs) };
        stub!($id $name $how [$($done)* ($p $of, $role $needs beside)] $($rest)*)
    }};
    (@call $id:literal $name:ident $how:ident $(($p:ident $of:ty, $role:ident $needs:tt $beside:ident))*) => {
        {
            callback::before(Symbol::$name);
            let code = thread::$how(
                $id,
                Symbol::$name,
                // SAFETY: the program vouches for its pointers.
                |m| unsafe { $(put!(m $role $p $of, $beside, $needs);)* },
                // SAFETY: as above.
                |m, good| unsafe {
                    if good {
                        $(take!(m $role $p $beside);)*
                    }
                    $(changed!(m $role $p);)*
                    $(bound!($role $p $beside $needs);)*
                    Ok(())
                },
            );
            callback::after(Symbol::$name, code);
            if code == CUDA_SUCCESS {
                $(settle!($role $p $needs);)*
            }
            $(code_of!(code $role $p);)*
            code
        }
    };
}

driver_roles! { [stubs] }

/// The functions that are written by hand.
const BY_HAND: Table = implemented! { Table {
    attribute: cuDeviceGetGraphMemAttribute cuDeviceSetGraphMemAttribute cuMemPoolGetAttribute cuMemPoolSetAttribute
        cuPointerGetAttribute cuPointerGetAttributes;
    callback: cuLaunchHostFunc cuLaunchHostFunc_ptsz cuLaunchHostFunc_v2 cuLaunchHostFunc_v2_ptsz cuStreamAddCallback
        cuStreamAddCallback_ptsz cuUserObjectCreate;
    context: cuCtxCreate_v4;
    copy3d: cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds cuMemcpy2D_v2
        cuMemcpy2D_v2_ptds cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz cuMemcpy3D_v2 cuMemcpy3D_v2_ptds;
    device: cuDeviceGetAttribute;
    function: cuModuleGetFunction;
    names: cuFuncGetName cuKernelGetName cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v2_ptsz
        cuStreamGetCaptureInfo_v3 cuStreamGetCaptureInfo_v3_ptsz;
    node: cuGraphAddHostNode cuGraphAddKernelNode cuGraphAddKernelNode_v2 cuGraphAddMemAllocNode cuGraphAddMemcpyNode
        cuGraphAddMemsetNode cuGraphAddNode cuGraphAddNode_v2 cuGraphAddNode_v3 cuGraphExecHostNodeSetParams
        cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2 cuGraphExecMemcpyNodeSetParams
        cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams cuGraphExecUpdate_v2 cuGraphHostNodeGetParams
        cuGraphHostNodeSetParams cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz
        cuGraphKernelNodeGetParams cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetParams
        cuGraphKernelNodeSetParams_v2 cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams
        cuGraphNodeSetParams cuGraphNodeSetParams_v2;
    launch: cuFuncSetAttribute cuKernelSetAttribute cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz cuLaunchKernel
        cuLaunchKernelEx cuLaunchKernelEx_ptsz cuLaunchKernel_ptsz;
    link: cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy;
    local: cuGetErrorName cuGetErrorString cuGetProcAddress cuGetProcAddress_v2;
    managed: cuMemAdvise cuMemAdvise_v2 cuMemAllocManaged cuMemFree_v2 cuMemPrefetchAsync cuMemPrefetchAsync_ptsz
        cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz cuStreamAttachMemAsync cuStreamAttachMemAsync_ptsz;
    memcpy: cuMemcpy cuMemcpyAsync cuMemcpyAsync_ptsz cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz cuMemcpyAtoH_v2
        cuMemcpyAtoH_v2_ptds cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds
        cuMemcpy_ptds cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds cuMemcpyHtoDAsync_v2
        cuMemcpyHtoDAsync_v2_ptsz cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds;
    module: cuLibraryLoadData cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary;
    occupancy: cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags;
    pinned: cuMemAllocHost_v2 cuMemFreeHost cuMemHostAlloc cuMemHostGetDevicePointer_v2 cuMemHostGetFlags
        cuMemHostRegister cuMemHostRegister_v2 cuMemHostUnregister;
    primary: cuCtxSetCurrent cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2
        cuDevicePrimaryCtxRetain;
    start: cuDeviceGet cuDeviceGetCount cuDriverGetVersion cuInit;
    texture: cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuTexObjectCreate cuTexObjectDestroy
        cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc;
} };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_what_the_roles_say_and_nothing_else() {
        let mut expected: Vec<Symbol> = crate::wire::shapes().iter().map(|(symbol, ..)| *symbol).collect();
        expected.extend(divvy_abi::BY_HAND.iter().map(|(symbol, _)| *symbol));
        expected.sort_unstable();
        let implemented: Vec<Symbol> = Symbol::ALL
            .iter()
            .copied()
            .filter(|symbol| TABLE.implements(*symbol))
            .collect();
        assert_eq!(implemented, expected);
    }
}

//! Errors: the driver's as the runtime's, and the last one of each thread.

use core::cell::Cell;
use core::ffi::{CStr, c_char};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::OnceLock;

use divvy_abi::runtime::*;
use divvy_abi::{CUDA_SUCCESS, CUresult};

/// What a function of the runtime answers.
pub type Result<T> = core::result::Result<T, cudaError_t>;

thread_local! {
    static LAST: Cell<cudaError_t> = const { Cell::new(cudaSuccess) };
}

/// The driver's code as the runtime's: since CUDA 11 they are the same numbers.
///
/// # Errors
/// Anything but `CUDA_SUCCESS`.
#[inline]
pub fn check(result: CUresult) -> Result<()> {
    if result == CUDA_SUCCESS {
        Ok(())
    } else {
        Err(cudaError(result.0))
    }
}

/// `Err(code)` where `refused`.
///
/// # Errors
/// `code`.
#[inline]
pub fn refuse(refused: bool, code: cudaError_t) -> Result<()> {
    if refused { Err(code) } else { Ok(()) }
}

/// The code of a result. An error becomes the thread's last one.
#[inline]
pub fn answer(result: Result<()>) -> cudaError_t {
    match result {
        Ok(()) => cudaSuccess,
        Err(code) => {
            LAST.set(code);
            code
        }
    }
}

/// The thread's last error.
pub fn last() -> cudaError_t {
    LAST.get()
}

/// Forgets the thread's last error, whichever it is.
pub fn forget() {
    LAST.set(cudaSuccess);
}

/// Whether a context in which it happened is of no more use: such an error stays until the device is reset.
pub fn is_sticky(code: cudaError_t) -> bool {
    matches!(
        code,
        cudaErrorIllegalAddress
            | cudaErrorLaunchTimeout
            | cudaErrorAssert
            | cudaErrorHardwareStackError
            | cudaErrorIllegalInstruction
            | cudaErrorMisalignedAddress
            | cudaErrorInvalidAddressSpace
            | cudaErrorInvalidPc
            | cudaErrorLaunchFailure
            | cudaErrorECCUncorrectable
            | cudaErrorExternalDevice
    )
}

/// Names and sentences of every code, as C strings.
fn texts() -> &'static BTreeMap<u32, (CString, CString)> {
    static TEXTS: OnceLock<BTreeMap<u32, (CString, CString)>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        (0..=10_000)
            .filter_map(|number| {
                let name = CString::new(cudaError(number).label()?).ok()?;
                let own = OWN.iter().find(|(code, _)| code.0 == number);
                let text = match own {
                    Some((_, text)) => (*text).into(),
                    None => CUresult(number).description().map(CStr::to_owned)?,
                };
                Some((number, (name, text)))
            })
            .collect()
    })
}

/// What cudaGetErrorName answers.
pub fn name(code: cudaError_t) -> *const c_char {
    texts()
        .get(&code.0)
        .map_or(UNKNOWN.as_ptr(), |(name, _)| name.as_ptr())
}

/// What cudaGetErrorString answers.
pub fn description(code: cudaError_t) -> *const c_char {
    texts()
        .get(&code.0)
        .map_or(UNKNOWN.as_ptr(), |(_, text)| text.as_ptr())
}

const UNKNOWN: &CStr = c"unrecognized error code";

/// The sentences that the driver has not, or words in another way.
const OWN: &[(cudaError_t, &CStr)] = &[
    (cudaErrorInvalidConfiguration, c"invalid configuration argument"),
    (cudaErrorVersionTranslation, c"Driver is newer than runtime and returned parameters the runtime cannot process"),
    (cudaErrorInvalidPitchValue, c"invalid pitch argument"),
    (cudaErrorInvalidSymbol, c"invalid device symbol"),
    (cudaErrorInvalidHostPointer, c"invalid host pointer"),
    (cudaErrorInvalidDevicePointer, c"invalid device pointer"),
    (cudaErrorInvalidTexture, c"invalid texture reference"),
    (cudaErrorInvalidTextureBinding, c"texture is not bound to a pointer"),
    (cudaErrorInvalidChannelDescriptor, c"invalid channel descriptor"),
    (cudaErrorInvalidMemcpyDirection, c"invalid copy direction for memcpy"),
    (cudaErrorAddressOfConstant, c"invalid address of constant"),
    (cudaErrorTextureFetchFailed, c"fetch from texture failed"),
    (cudaErrorTextureNotBound, c"cannot fetch from a texture that is not bound"),
    (cudaErrorSynchronizationError, c"incorrect use of __syncthreads()"),
    (cudaErrorInvalidFilterSetting, c"linear filtering not supported for non-float type"),
    (cudaErrorInvalidNormSetting, c"read as normalized float not supported for data type"),
    (cudaErrorMixedDeviceExecution, c"device emulation mode and device execution mode cannot be mixed"),
    (cudaErrorNotYetImplemented, c"feature not yet implemented"),
    (cudaErrorMemoryValueTooLarge, c"memory size or pointer value too large to fit in 32 bit"),
    (cudaErrorInsufficientDriver, c"CUDA driver version is insufficient for CUDA runtime version"),
    (cudaErrorInvalidSurface, c"invalid surface reference"),
    (cudaErrorDuplicateVariableName, c"duplicate global variable looked up by string name"),
    (cudaErrorDuplicateTextureName, c"duplicate texture looked up by string name"),
    (cudaErrorDuplicateSurfaceName, c"duplicate surface looked up by string name"),
    (cudaErrorIncompatibleDriverContext, c"incompatible driver context"),
    (cudaErrorMissingConfiguration, c"__global__ function call is not configured"),
    (cudaErrorPriorLaunchFailure, c"unspecified launch failure in prior launch"),
    (cudaErrorLaunchMaxDepthExceeded, c"launch would exceed maximum depth of nested launches"),
    (cudaErrorLaunchFileScopedTex, c"launch failed because kernel uses unsupported, file-scoped textures (texture objects are supported)"),
    (cudaErrorLaunchFileScopedSurf, c"launch failed because kernel uses unsupported, file-scoped surfaces (surface objects are supported)"),
    (cudaErrorSyncDepthExceeded, c"cudaDeviceSynchronize failed because caller's grid depth exceeds cudaLimitDevRuntimeSyncDepth"),
    (cudaErrorLaunchPendingCountExceeded, c"launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount"),
    (cudaErrorInvalidDeviceFunction, c"invalid device function"),
    (cudaErrorSoftwareValidityNotEstablished, c"integrity checks failed"),
    (cudaErrorStartupFailure, c"startup failure in cuda runtime"),
    (cudaErrorApiFailureBase, c"api failure base"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn text(of: *const c_char) -> &'static str {
        // SAFETY: the two functions answer C strings that live for ever.
        unsafe { CStr::from_ptr(of) }.to_str().expect("ASCII")
    }

    #[test]
    fn every_code_has_a_name_and_a_sentence() {
        assert_eq!(text(name(cudaSuccess)), "cudaSuccess");
        assert_eq!(text(description(cudaSuccess)), "no error");
        assert_eq!(text(name(cudaErrorMemoryAllocation)), "cudaErrorMemoryAllocation");
        assert_eq!(text(description(cudaErrorMemoryAllocation)), "out of memory");
        assert_eq!(
            text(description(cudaErrorInvalidConfiguration)),
            "invalid configuration argument"
        );
        assert_eq!(text(name(cudaError(5_000))), "unrecognized error code");
        for number in (0..2_000).filter(|number| cudaError(*number).label().is_some()) {
            assert_ne!(
                text(description(cudaError(number))),
                "unrecognized error code",
                "{number}"
            );
        }
    }

    #[test]
    fn an_error_is_the_last_one_of_its_thread_only() {
        assert_eq!(answer(Err(cudaErrorInvalidValue)), cudaErrorInvalidValue);
        assert_eq!(last(), cudaErrorInvalidValue);
        assert_eq!(std::thread::spawn(last).join().ok(), Some(cudaSuccess));
        assert_eq!(answer(Ok(())), cudaSuccess);
        assert_eq!(last(), cudaErrorInvalidValue, "what succeeds leaves it");
        forget();
        assert_eq!(last(), cudaSuccess);
    }
}

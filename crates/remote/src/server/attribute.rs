//! Attributes whose value's type depends on the attribute.

use divvy_abi::*;

use super::{Call, Stop};
use crate::handle::{Kind, Word};
use crate::wire::attribute::{self, Value};

/// No memory lies here: what the driver below says of it holds for every address that it does not know.
const UNKNOWN: CUdeviceptr = 1;

/// Of an address: whether an unknown one has zeros for attributes, the attribute, the address.
pub fn pointer(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let lenient = call.message.flag()?;
    let mut attribute = CUpointer_attribute(call.message.plain()?);
    let address: CUdeviceptr = call.message.plain()?;
    call.message.end()?;
    let value = attribute::of_pointer(attribute).ok_or(Stop::Malformed)?;
    let known = address != 0 && call.within(address, 1).is_ok();
    let address = if known { address } else { UNKNOWN };
    let mut word = [0_u8; 8];
    let mut to: *mut c_void = word.as_mut_ptr().cast();
    // SAFETY: no attribute's value is longer than the word.
    let code = unsafe {
        match lenient {
            false => (call.driver.cuPointerGetAttribute)(to, attribute, address),
            true => (call.driver.cuPointerGetAttributes)(1, &raw mut attribute, &raw mut to, address),
        }
    };
    match (code, value) {
        (CUDA_SUCCESS, Value::Plain(bytes)) => call.answer.bytes(&word[..bytes]),
        (CUDA_SUCCESS, Value::Object(kind)) => {
            let real = u64::from_le_bytes(word);
            let found = call.server.tables().objects.found(kind, real, None);
            call.answer
                .plain(found.ok_or(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY))?);
        }
        _ => {}
    }
    Ok(code)
}

fn pool_and_attribute(call: &mut Call<'_>) -> Result<(CUmemoryPool, CUmemPool_attribute, usize), Stop> {
    let pool = call.handle(Kind::Pool)?;
    let attribute = CUmemPool_attribute(call.message.plain()?);
    let value = attribute::of_pool(attribute).ok_or(Stop::Malformed)?;
    Ok((Word::from_bits(pool.real), attribute, value.bytes()))
}

/// Of a pool: the pool, the attribute.
pub fn get_pool(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let (pool, attribute, bytes) = pool_and_attribute(call)?;
    call.message.end()?;
    let mut word = [0_u8; 8];
    // SAFETY: the pool is the driver's, and no attribute's value is longer than the word.
    let code = unsafe { (call.driver.cuMemPoolGetAttribute)(pool, attribute, word.as_mut_ptr().cast()) };
    call.answer.bytes(&word[..bytes]);
    Ok(code)
}

/// Of a pool: the pool, the attribute, the value.
pub fn set_pool(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let (pool, attribute, bytes) = pool_and_attribute(call)?;
    let mut word = [0_u8; 8];
    word[..bytes].copy_from_slice(call.message.bytes(bytes)?);
    call.message.end()?;
    // SAFETY: as above.
    Ok(unsafe { (call.driver.cuMemPoolSetAttribute)(pool, attribute, word.as_mut_ptr().cast()) })
}

/// Of the memory of a device's graphs: the device, the attribute.
pub fn get_graph_memory(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let device: CUdevice = call.message.plain()?;
    let attribute = CUgraphMem_attribute(call.message.plain()?);
    call.message.end()?;
    let mut word = 0_u64;
    // SAFETY: every attribute's value is a number of 64 bits.
    let code =
        unsafe { (call.driver.cuDeviceGetGraphMemAttribute)(device, attribute, (&raw mut word).cast()) };
    call.answer.plain(word);
    Ok(code)
}

/// Of the memory of a device's graphs: the device, the attribute, the value.
pub fn set_graph_memory(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let device: CUdevice = call.message.plain()?;
    let attribute = CUgraphMem_attribute(call.message.plain()?);
    let mut word: u64 = call.message.plain()?;
    call.message.end()?;
    // SAFETY: as above.
    Ok(unsafe { (call.driver.cuDeviceSetGraphMemAttribute)(device, attribute, (&raw mut word).cast()) })
}

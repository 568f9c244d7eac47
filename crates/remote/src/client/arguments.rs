//! Arguments on the program's side: what a message says of them, and where an answer goes.
//!
//! Every pointer here is the program's: what CUDA says of the argument is what the program vouches for.

use core::any::TypeId;
use core::ffi::CStr;

use divvy_abi::{CUDA_ERROR_INVALID_DEVICE, CUDA_SUCCESS, CUdevice, CUresult, c_char};

use super::{location, start};
use crate::handle::Word;
use crate::wire::{Malformed, Reader, Writer};

/// A number that counts: an argument, or what an argument points to.
pub trait Count {
    /// # Safety
    /// A pointer is null or may be read.
    unsafe fn count(self) -> u64;

    /// Lowers what an answer wrote there to the room of the list that it counts.
    ///
    /// # Safety
    /// A pointer is null or may be written.
    unsafe fn bound(self, room: u64);
}

macro_rules! count {
    ($($of:ty)*) => {$(
        impl Count for $of {
            unsafe fn count(self) -> u64 {
                // A negative count is more than any list has.
                u64::try_from(self).unwrap_or(u64::MAX)
            }

            // The program's own number.
            unsafe fn bound(self, _: u64) {}
        }

        impl Count for *mut $of {
            unsafe fn count(self) -> u64 {
                // SAFETY: the caller vouches for the pointer.
                unsafe { self.as_ref() }.map_or(0, |value| u64::try_from(*value).unwrap_or(u64::MAX))
            }

            unsafe fn bound(self, room: u64) {
                // SAFETY: the caller vouches for the pointer.
                if let Some(count) = unsafe { self.as_mut() }
                    && u64::try_from(*count).unwrap_or(u64::MAX) > room
                {
                    // It was read from such a number.
                    *count = <$of>::try_from(room).unwrap_or(<$of>::MAX);
                }
            }
        }
    )*};
}

count! { u32 u64 usize i32 }

/// One element, or a null pointer; pointers at these offsets are not sent.
///
/// # Safety
/// `from` is null, or may be read.
pub unsafe fn put_input<T: 'static>(to: &mut Writer<'_>, from: *const T, cleared: &[usize]) {
    to.flag(!from.is_null());
    if from.is_null() {
        return;
    }
    let mut at = 0;
    for offset in cleared {
        // SAFETY: the bytes up to a member are the element's; the caller vouches for it.
        unsafe { to.copy(from.cast::<u8>().add(at), offset - at) };
        to.plain(0_usize);
        at = offset + size_of::<usize>();
    }
    // SAFETY: the rest of the element; the caller vouches for it.
    unsafe { to.copy(from.cast::<u8>().add(at), size_of::<T>() - at) };
    location::to_worker::<T>(to.last(size_of::<T>()));
}

/// A list, or a null pointer.
///
/// # Safety
/// `from` is null, or has so many elements.
pub unsafe fn put_inputs<T: 'static>(to: &mut Writer<'_>, from: *const T, count: u64) {
    let Some(bytes) = bytes(to, from.is_null(), count, size_of::<T>()) else {
        return;
    };
    // SAFETY: the caller vouches for the elements.
    unsafe { to.copy(from.cast(), bytes) };
    for one in to.last(bytes).chunks_exact_mut(size_of::<T>().max(1)) {
        location::to_worker::<T>(one);
    }
}

/// Writes the count of a list. Gives its bytes, where there is a list and it is not too long for any message.
fn bytes(to: &mut Writer<'_>, null: bool, count: u64, size: usize) -> Option<usize> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    to.count((!null).then_some(count));
    let bytes = count.saturating_mul(size);
    (!null).then_some(bytes)
}

/// A list of handles, or a null pointer.
///
/// # Safety
/// `from` is null, or has so many elements.
pub unsafe fn put_handles<T: Word + 'static>(to: &mut Writer<'_>, from: *const T, count: u64) {
    const { assert!(size_of::<T>() == 8) };
    // SAFETY: promised by the caller.
    unsafe { put_inputs(to, from, count) };
}

/// A C string, or a null pointer.
///
/// # Safety
/// `from` is null, or a C string.
pub unsafe fn put_string(to: &mut Writer<'_>, from: *const c_char) {
    if from.is_null() {
        return to.count(None);
    }
    // SAFETY: the caller vouches for the string.
    let text = unsafe { CStr::from_ptr(from) }.to_bytes();
    to.count(Some(text.len()));
    to.bytes(text);
}

/// One element of an answer.
///
/// # Safety
/// `to` is null, or may be written.
pub unsafe fn take_output<T: 'static>(from: &mut Reader<'_>, to: *mut T) -> Result<(), Malformed> {
    if to.is_null() {
        return Ok(());
    }
    let bytes = from.bytes(size_of::<T>())?;
    // SAFETY: the caller vouches for the target, and the message has as many bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len());
        location::from_worker::<T>(std::slice::from_raw_parts_mut(to.cast(), bytes.len()));
    }
    Ok(())
}

/// A device of an answer, by the program's number.
///
/// # Safety
/// `to` is null, or may be written.
pub unsafe fn take_device(from: &mut Reader<'_>, to: *mut CUdevice) -> Result<(), Malformed> {
    if !to.is_null() {
        let device = start::from_worker(from.plain()?);
        // SAFETY: the caller vouches for the target.
        unsafe { to.write(device) };
    }
    Ok(())
}

/// The code of a call that found a device: one that the program does not see is none.
///
/// # Safety
/// `found` is null, or the call has written there.
pub unsafe fn code_of_device(code: CUresult, found: *const CUdevice) -> CUresult {
    // SAFETY: promised by the caller.
    let is_hidden = code == CUDA_SUCCESS && unsafe { found.as_ref() } == Some(&start::NO_DEVICE);
    if is_hidden {
        CUDA_ERROR_INVALID_DEVICE
    } else {
        code
    }
}

/// A list of an answer: at most so many elements. A list of characters is a text, and gets its end where that is missing.
///
/// # Safety
/// `to` is null, or has room for so many elements.
pub unsafe fn take_outputs<T: 'static>(
    from: &mut Reader<'_>,
    to: *mut T,
    room: u64,
) -> Result<(), Malformed> {
    if to.is_null() {
        return Ok(());
    }
    let bytes = from.list(size_of::<T>())?.ok_or(Malformed)?;
    if (bytes.len() / size_of::<T>().max(1)) as u64 > room {
        return Err(Malformed);
    }
    // SAFETY: the caller vouches for the target, and there are no more elements than it has room for.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    if TypeId::of::<T>() == TypeId::of::<c_char>() && room > 0 && !bytes.contains(&0) {
        let end = (bytes.len() as u64).min(room - 1);
        // SAFETY: the text has more room than that.
        unsafe { to.cast::<u8>().add(end as usize).write(0) };
    }
    Ok(())
}

/// A handle or an address of an answer.
///
/// # Safety
/// `to` is null, or may be written.
pub unsafe fn take_word<T: Word>(from: &mut Reader<'_>, to: *mut T) -> Result<(), Malformed> {
    if !to.is_null() {
        let word = T::from_bits(from.plain()?);
        // SAFETY: the caller vouches for the target.
        unsafe { to.write(word) };
    }
    Ok(())
}

/// The name of a new object goes to the program.
///
/// # Safety
/// `to` is null, or may be written.
pub unsafe fn write_name<T: Word>(to: *mut T, name: u64) {
    if !to.is_null() {
        // SAFETY: the caller vouches for the target.
        unsafe { to.write(T::from_bits(name)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_says_no_more_than_its_list_has_room_for() {
        for (told, room, shown) in [(7_usize, 3, 3), (3, 3, 3), (2, 3, 2), (9, 0, 0)] {
            let mut count = told;
            let told_of = std::ptr::from_mut(&mut count);
            // SAFETY: it is a number of this function.
            unsafe { Count::bound(told_of, room) };
            assert_eq!(count, shown, "{told} {room}");
        }
        // SAFETY: null is allowed.
        unsafe { Count::bound(std::ptr::null_mut::<u32>(), 1) };
    }

    #[test]
    fn a_text_ends_within_its_buffer() {
        for (text, room, shown) in [
            (&b"abcd"[..], 4, b"abc\0zz"),
            (b"abc\0", 4, b"abc\0zz"),
            (b"ab", 4, b"ab\0zzz"),
            (b"", 4, b"\0zzzzz"),
            (b"", 0, b"zzzzzz"),
        ] {
            let mut message = [0; 64];
            let mut m = Writer::new(&mut message);
            m.count(Some(text.len()));
            m.bytes(text);
            let length = m.finish().unwrap();
            let mut buffer = *b"zzzzzz";
            let to = buffer.as_mut_ptr().cast::<c_char>();
            // SAFETY: the buffer has more room than is told.
            unsafe { take_outputs(&mut Reader::new(&message[..length]), to, room) }.unwrap();
            assert_eq!(&buffer, shown, "{text:?} {room}");
        }
    }
}

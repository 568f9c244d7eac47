//! A structure of the program's, kept as it was given.

/// Keeps a structure whose pointers are the program's business. We copy them, and follow none without the checks of the
/// call that uses it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Foreign<T: Copy>(pub T);

// SAFETY: the value is plain data of the driver's ABI (`Copy`). A pointer in it is a number to us, so another
// thread may hold it.
unsafe impl<T: Copy> Send for Foreign<T> {}
// SAFETY: as above; nothing in it can be changed through a shared reference.
unsafe impl<T: Copy> Sync for Foreign<T> {}

//! Which stream a launch goes into, as the gate tells streams apart.

use divvy_abi::CUstream;

use crate::below::ask;
use crate::charges::CHARGES;

/// A stream as a call names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub handle: CUstream,
    /// The call's default stream is the per-thread one.
    pub per_thread: bool,
}

/// The identity of a stream within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// The handle, never 0.
    pub stream: usize,
    /// The thread whose default stream it is. For the legacy default stream, the context, if there are several.
    pub owner: usize,
}

/// Numbers, since a constant cannot hold a pointer.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

impl Name {
    /// Whether only its own thread can name it.
    pub fn is_per_thread(self) -> bool {
        self.stream == PER_THREAD
    }

    /// The handle by which any thread with the right context can name it.
    pub fn handle(self) -> CUstream {
        self.stream as CUstream
    }
}

impl Stream {
    /// Costs no call of the driver as long as the process has one context.
    #[inline]
    pub(super) fn name(self) -> Name {
        let handle = self.handle as usize;
        if handle > PER_THREAD {
            return Name {
                stream: handle,
                owner: 0,
            };
        }
        if handle == PER_THREAD || (handle == 0 && self.per_thread) {
            return Name {
                stream: PER_THREAD,
                // SAFETY: always callable.
                owner: unsafe { libc::pthread_self() as usize },
            };
        }
        Name {
            stream: LEGACY,
            owner: if CHARGES.are_contexts_several() {
                ask::current_context()
            } else {
                0
            },
        }
    }

    /// Its priority: a lower number is a higher one.
    pub(super) fn priority(self) -> i32 {
        if self.handle as usize > PER_THREAD {
            ask::priority_of(self.handle)
        } else {
            0
        }
    }

    /// The context that it belongs to.
    pub(super) fn context(self) -> usize {
        if self.handle as usize > PER_THREAD {
            ask::context_of(self.handle)
        } else {
            ask::current_context()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_abis() {
        assert_eq!(LEGACY, divvy_abi::CU_STREAM_LEGACY as usize);
        assert_eq!(PER_THREAD, divvy_abi::CU_STREAM_PER_THREAD as usize);
    }
}

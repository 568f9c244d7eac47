//! User objects: the program's resources, kept as long as a graph needs them.

use crate::Result;
use crate::handle::{self, Handles};
use divvy_abi::*;
use divvy_device::exec::pool::Pool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The program's function that ends the resource.
pub type Destructor = unsafe extern "C" fn(*mut c_void);

/// A resource of the program with a count of references.
pub struct UserObject {
    /// What the program holds.
    pub handle: u64,
    /// The live ones, of which it is one.
    live: Arc<Handles<UserObject>>,
    references: AtomicU64,
    end: Mutex<Option<(Destructor, u64)>>,
}

/// References that a graph holds; given back on drop.
pub struct ObjectReference {
    object: Arc<UserObject>,
    count: u64,
}

impl UserObject {
    /// A resource with this many references of the program's.
    pub fn create(
        live: &Arc<Handles<UserObject>>,
        data: u64,
        destructor: Destructor,
        references: u32,
    ) -> Arc<UserObject> {
        let object = Arc::new(UserObject {
            handle: handle::fresh(),
            live: Arc::clone(live),
            references: AtomicU64::new(u64::from(references)),
            end: Mutex::new(Some((destructor, data))),
        });
        live.insert(object.handle, Arc::clone(&object));
        object
    }

    /// More references.
    pub fn retain(&self, count: u64) {
        self.references.fetch_add(count, Ordering::Relaxed);
    }

    /// Fewer references. With the last one the destructor runs, on a thread of ours as CUDA says.
    pub fn release(&self, count: u64) -> Result {
        let left = self
            .references
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |references| {
                references.checked_sub(count)
            })
            .map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        if left > count {
            return Ok(());
        }
        self.live.remove(self.handle);
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((destructor, data)) = end {
            Pool::global().push(Box::new(move || {
                // SAFETY: the program gave a function of this type and vouches for its data; it is called once.
                unsafe { destructor(data as *mut c_void) };
            }));
        }
        Ok(())
    }
}

impl ObjectReference {
    /// References that are the graph's from here on: new ones, or the caller's own.
    pub fn new(object: &Arc<UserObject>, count: u64, moved: bool) -> ObjectReference {
        if !moved {
            object.retain(count);
        }
        ObjectReference {
            object: Arc::clone(object),
            count,
        }
    }

    /// Gives back some of the references to an object that `held` has.
    pub fn release(held: &mut Vec<ObjectReference>, object: u64, mut count: u64) -> Result {
        let of_object = |entry: &&mut ObjectReference| entry.object.handle == object;
        let have: u64 = held.iter_mut().filter(of_object).map(|entry| entry.count).sum();
        if have < count {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for entry in held.iter_mut().filter(of_object) {
            let part = entry.count.min(count);
            entry.count -= part;
            count -= part;
            entry.object.release(part)?;
        }
        held.retain(|entry| entry.count > 0);
        Ok(())
    }
}

impl Clone for ObjectReference {
    fn clone(&self) -> ObjectReference {
        ObjectReference::new(&self.object, self.count, false)
    }
}

impl Drop for ObjectReference {
    fn drop(&mut self) {
        if self.count > 0 {
            let _ = self.object.release(self.count);
        }
    }
}

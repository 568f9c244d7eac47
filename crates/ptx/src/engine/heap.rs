//! `malloc` and `free` of a kernel: the device's heap is the caller's, reached through its address space.

use super::ctx::{Ctx, Stop};
use super::functions::{Value, collect, deliver};
use crate::inst::{Flow, Inst};

/// `void *malloc(size_t)`: null where the heap has not so many bytes, or none are asked for.
pub(crate) fn allocate(c: &mut Ctx, i: &Inst) -> Flow {
    let call = &c.launch().code().calls[i.aux as usize];
    let sizes = collect(c, &call.arguments);
    let results = call.results.clone();
    let mut given = [0u64; 32];
    for lane in c.active() {
        let bytes = sizes.first().map_or(0, |value| value.word(lane));
        if bytes > 0 {
            given[lane] = c.launch().memory.allocate(bytes).unwrap_or(0);
        }
    }
    deliver(c, &results, &[Value::of_wide_words(&given)]);
    Flow::Next
}

/// `void free(void *)`: nothing for null; a trap for what is not the heap's.
pub(crate) fn free(c: &mut Ctx, i: &Inst) -> Flow {
    let call = &c.launch().code().calls[i.aux as usize];
    let addresses = collect(c, &call.arguments);
    for lane in c.active() {
        let address = addresses.first().map_or(0, |value| value.word(lane));
        if address != 0 && !c.launch().memory.free(address) {
            c.fault = Some(Stop::Trap);
            return Flow::Fault;
        }
    }
    Flow::Next
}

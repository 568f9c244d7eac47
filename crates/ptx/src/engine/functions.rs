//! Calls: how arguments and results travel between register areas.

use super::ctx::Ctx;
use crate::code::{FunctionCode, Place};

/// A value per lane: `stride` bytes each.
pub(crate) struct Value {
    bytes: Vec<u8>,
    stride: usize,
}

impl Value {
    /// The first 8 bytes of a lane's value.
    pub fn word(&self, lane: usize) -> u64 {
        let mut word = [0u8; 8];
        let take = self.stride.min(8);
        word[..take].copy_from_slice(&self.bytes[lane * self.stride..lane * self.stride + take]);
        u64::from_le_bytes(word)
    }

    pub fn of_wide_words(words: &[u64; 32]) -> Value {
        Value {
            bytes: words.iter().flat_map(|w| w.to_le_bytes()).collect(),
            stride: 8,
        }
    }

    pub fn of_words(words: &[u32; 32]) -> Value {
        Value {
            bytes: words.iter().flat_map(|w| w.to_le_bytes()).collect(),
            stride: 4,
        }
    }
}

/// Reads `places` of the current area for all lanes.
pub(crate) fn collect(c: &Ctx, places: &[Place]) -> Vec<Value> {
    places
        .iter()
        .map(|place| match *place {
            Place::Reg(slot) => Value::of_words(&c.lanes::<u32>(slot)),
            Place::Wide(slot) => Value {
                bytes: c
                    .lanes::<u64>(slot)
                    .iter()
                    .flat_map(|w| w.to_le_bytes())
                    .collect(),
                stride: 8,
            },
            Place::Pred(slot) => {
                let bits = c.pred_signed(slot);
                Value::of_words(&std::array::from_fn(|n| bits >> n & 1))
            }
            Place::Memory { slot, bytes } => {
                // SAFETY: the decoder laid out `32 * bytes` bytes at `slot` inside the area.
                let all =
                    unsafe { std::slice::from_raw_parts(c.regs.add(slot as usize), 32 * bytes as usize) };
                Value {
                    bytes: all.to_vec(),
                    stride: bytes as usize,
                }
            }
            Place::Nowhere => Value {
                bytes: Vec::new(),
                stride: 0,
            },
        })
        .collect()
}

/// Writes values to `places` of the current area, for the active lanes.
pub(crate) fn deliver(c: &mut Ctx, places: &[Place], values: &[Value]) {
    for (place, value) in places.iter().zip(values) {
        match *place {
            Place::Reg(slot) => {
                for lane in c.active() {
                    c.put_lane(slot, lane, value.word(lane) as u32);
                }
            }
            Place::Wide(slot) => {
                for lane in c.active() {
                    c.put_lane(slot, lane, value.word(lane));
                }
            }
            Place::Pred(slot) => {
                let bits = (0..32).fold(0, |m, n| m | u32::from(value.word(n) != 0) << n);
                c.put_pred(slot, bits);
            }
            Place::Memory { slot, bytes } => {
                let take = value.stride.min(bytes as usize);
                for lane in c.active() {
                    let from = &value.bytes[lane * value.stride..lane * value.stride + take];
                    // SAFETY: as in `collect`; `take` is at most the lane's share.
                    unsafe {
                        let to = c.regs.add(slot as usize + lane * bytes as usize);
                        std::ptr::copy_nonoverlapping(from.as_ptr(), to, take);
                    }
                }
            }
            Place::Nowhere => {}
        }
    }
}

/// Puts a recursive function's registers back for the active lanes, as `saved` has them.
pub(crate) fn restore(c: &mut Ctx, function: &FunctionCode, saved: &[u8]) {
    let word = |at: usize| u32::from_le_bytes(saved[at..at + 4].try_into().unwrap_or_default());
    let lanes: Vec<usize> = c.active().collect();
    for slot in (function.narrow.0..function.narrow.1).step_by(128) {
        for lane in &lanes {
            c.put_lane(slot, *lane, word(slot as usize + lane * 4));
        }
    }
    for slot in (function.wide.0..function.wide.1).step_by(256) {
        for lane in &lanes {
            let at = slot as usize + lane * 8;
            c.put_lane(slot, *lane, u64::from(word(at)) | u64::from(word(at + 4)) << 32);
        }
    }
    for slot in (function.preds.0..function.preds.1).step_by(4) {
        c.put_pred(slot, word(slot as usize));
    }
    for (slot, bytes) in &function.memory {
        for lane in &lanes {
            let at = *slot as usize + lane * *bytes as usize;
            for (n, byte) in saved[at..at + *bytes as usize].iter().enumerate() {
                // SAFETY: `at + n` lies inside the variable's `32 * bytes` bytes of the area.
                unsafe { c.regs.add(at + n).write(*byte) };
            }
        }
    }
}

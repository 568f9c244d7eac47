//! `slct`: a where c is at least zero, b elsewhere.

use super::compare::flush;
use super::ctx::{Ctx, Lane};
use crate::inst::{Exec, Flow, Inst};

fn by_int<T: Lane>(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let from = if c.lane::<i32>(i.c, lane) >= 0 { i.a } else { i.b };
        let value = c.lane::<T>(from, lane);
        c.put_lane(i.d, lane, value);
    }
    Flow::Next
}

fn by_float<T: Lane, const F: bool>(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        // NaN compares false: b. A negative subnormal counts as zero under `.ftz`.
        let from = if flush::<F>(c.lane::<f32>(i.c, lane)) >= 0.0 {
            i.a
        } else {
            i.b
        };
        let value = c.lane::<T>(from, lane);
        c.put_lane(i.d, lane, value);
    }
    Flow::Next
}

pub(crate) fn slct(wide: bool, float: bool, ftz: bool) -> Exec {
    match (wide, float, ftz) {
        (false, false, _) => by_int::<u32>,
        (true, false, _) => by_int::<u64>,
        (false, true, false) => by_float::<u32, false>,
        (false, true, true) => by_float::<u32, true>,
        (true, true, false) => by_float::<u64, false>,
        (true, true, true) => by_float::<u64, true>,
    }
}

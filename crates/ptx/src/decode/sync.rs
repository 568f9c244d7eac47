//! Barriers, fences, and operations across the lanes of a warp.

use super::{D, Decoded, Decoder, E, Refusal, V};
use crate::engine::watch::Seen;
use crate::engine::{control, shuffle};
use crate::parse::ast::Operand;
use crate::types::Ty;

impl<'a> Decoder<'_, 'a> {
    pub(super) fn sync(&mut self) -> Decoded {
        match self.at.op[0] {
            "bar" | "barrier" if self.has("warp") => {
                self.expect_operands(1)?;
                let members = self.source(0, Ty::B32)?;
                self.emit(shuffle::warp_barrier, V::None, [V::None; 3], 0).f = members;
                self.set_aux(shuffle::SYNC_WARP_BARRIER);
                self.set_seen(Seen::WarpBarrier);
                Ok(())
            }
            "barrier" if self.has("cluster") => Err(Refusal::Unsupported),
            "bar" | "barrier" => self.barrier(),
            "membar" | "fence" => {
                if self.has("proxy") && self.at.operands.len() > 1 {
                    return Err(Refusal::Unsupported);
                }
                let device = !self.has("cta");
                self.emit(control::fence, V::None, [V::None; 3], 0).seen = Seen::Fence { device };
                Ok(())
            }
            "activemask" => {
                self.expect_operands(1)?;
                let d = self.target(0, Ty::B32)?;
                self.emit(shuffle::active_mask, d, [V::None; 3], D);
                Ok(())
            }
            "shfl" => self.shfl(),
            "vote" => self.vote(),
            "match" => self.match_lanes(),
            "redux" => self.redux(),
            "elect" => {
                self.expect_operands(2)?;
                let (d, p) = self.pair()?;
                let members = self.source(1, Ty::B32)?;
                let draft = self.emit(shuffle::elect, d, [V::None, V::None, p], D | super::C);
                draft.f = members;
                Ok(())
            }
            _ => Err(Refusal::Unsupported),
        }
    }

    fn set_seen(&mut self, seen: Seen) {
        if let Some(draft) = self.drafts.last_mut() {
            draft.seen = seen;
        }
    }

    fn set_aux(&mut self, aux: u32) {
        if let Some(draft) = self.drafts.last_mut() {
            draft.aux = aux;
        }
    }

    fn barrier(&mut self) -> Decoded {
        let operands = self.at.operands.len();
        let none = [V::None; 3];
        let aligned = self.at.op[0] == "bar" || self.has("aligned");
        if self.has("red") {
            let count_of = self.has("popc");
            let aux = if count_of {
                control::BARRIER_COUNT
            } else if self.has("and") {
                control::BARRIER_AND
            } else {
                control::BARRIER_OR
            };
            if !matches!(operands, 3 | 4) {
                return Err("expected a destination, a barrier, a count, a predicate".into());
            }
            let d = self.target(0, if count_of { Ty::U32 } else { Ty::Pred })?;
            let id = self.source(1, Ty::U32)?;
            let count = if operands == 4 {
                self.source(2, Ty::U32)?
            } else {
                V::None
            };
            let predicate = self.operand(operands - 1)?.clone();
            let (p, not_p) = self.predicate(&predicate)?;
            let draft = self.emit(control::barrier, d, [id, count, p], D);
            draft.aux = aux;
            draft.not_c = not_p;
            draft.seen = Seen::Barrier { aligned };
            return Ok(());
        }
        let arrive = self.has("arrive");
        if operands == 0 || operands > 2 || arrive && operands != 2 {
            return Err("expected a barrier, and maybe a count".into());
        }
        let id = self.source(0, Ty::U32)?;
        let count = if operands == 2 {
            self.source(1, Ty::U32)?
        } else {
            V::None
        };
        let draft = self.emit(control::barrier, V::None, none, 0);
        draft.a = id;
        draft.b = count;
        draft.aux = if arrive { control::BARRIER_ARRIVE } else { 0 };
        draft.seen = Seen::Barrier { aligned };
        Ok(())
    }

    /// `d|p` or `d` in operand 0.
    fn pair(&mut self) -> Decoded<(V, V)> {
        match self.operand(0)?.clone() {
            Operand::Pair(d, p) => Ok((self.target_of(&d, Ty::B32)?, self.target_of(&p, Ty::Pred)?)),
            d => Ok((self.target_of(&d, Ty::B32)?, V::TrashPred)),
        }
    }

    /// `shfl.sync.mode.b32 d|p, a, b, c, membermask`; before sm_70 without the mask.
    fn shfl(&mut self) -> Decoded {
        let sync = self.has("sync");
        self.expect_operands(if sync { 5 } else { 4 })?;
        let mode = ["up", "down", "bfly", "idx"].iter().position(|m| self.has(m));
        let Some(mode) = mode else {
            return Err("`shfl` names no mode".into());
        };
        let (d, p) = self.pair()?;
        let a = self.source(1, Ty::B32)?;
        let b = self.source(2, Ty::B32)?;
        let c = self.source(3, Ty::B32)?;
        let members = if sync { self.source(4, Ty::B32)? } else { V::None };
        let exec = shuffle::shuffle(mode as u32);
        let draft = self.emit(exec, d, [a, b, c], D | E);
        draft.e = p;
        draft.f = members;
        Ok(())
    }

    fn vote(&mut self) -> Decoded {
        let sync = self.has("sync");
        self.expect_operands(if sync { 3 } else { 2 })?;
        let ballot = self.has("ballot");
        let kind = if ballot {
            shuffle::VOTE_BALLOT
        } else if self.has("all") {
            shuffle::VOTE_ALL
        } else if self.has("any") {
            shuffle::VOTE_ANY
        } else {
            shuffle::VOTE_UNI
        };
        let d = self.target(0, if ballot { Ty::B32 } else { Ty::Pred })?;
        let operand = self.operand(1)?.clone();
        let (p, not_p) = self.predicate(&operand)?;
        let members = if sync { self.source(2, Ty::B32)? } else { V::None };
        let draft = self.emit(shuffle::vote, d, [V::None, V::None, p], D);
        draft.aux = kind;
        draft.not_c = not_p;
        draft.f = members;
        Ok(())
    }

    fn match_lanes(&mut self) -> Decoded {
        self.expect_operands(3)?;
        let ty = self.ty()?;
        let all = self.has("all");
        let (d, p) = self.pair()?;
        let a = self.source(1, ty)?;
        let members = self.source(2, Ty::B32)?;
        let exec = match (all, ty.bytes()) {
            (false, 8) => shuffle::match_any::<u64>,
            (false, _) => shuffle::match_any::<u32>,
            (true, 8) => shuffle::match_all::<u64>,
            (true, _) => shuffle::match_all::<u32>,
        };
        let draft = self.emit(exec, d, [a, V::None, p], D | super::C);
        draft.f = members;
        Ok(())
    }

    fn redux(&mut self) -> Decoded {
        self.expect_operands(3)?;
        let ty = self.ty()?;
        if ty.float() || ty.bytes() != 4 {
            return Err(Refusal::Unsupported);
        }
        let ops = ["add", "min", "max", "and", "or", "xor"];
        let Some(op) = ops.iter().position(|o| self.has(o)) else {
            return Err("`redux` names no operation".into());
        };
        let d = self.target(0, ty)?;
        let a = self.source(1, ty)?;
        let members = self.source(2, Ty::B32)?;
        let draft = self.emit(shuffle::reduce, d, [a, V::None, V::None], D);
        draft.aux = op as u32 | if ty.signed() { shuffle::SIGNED } else { 0 };
        draft.f = members;
        Ok(())
    }
}

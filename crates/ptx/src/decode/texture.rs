//! `tex`, `tld4`, `txq`, `suld`, `sust`, `suq` of texture and surface objects.

use super::{D, Decoded, Decoder, Refusal, V};
use crate::engine::texture::{
    self, CLAMP, COUNT_SHIFT, FLOATS, LAYERED, PLACE_SHIFT, QUERIES, SIZE_SHIFT, ZERO,
};
use crate::inst::Exec;
use crate::parse::ast::Operand;
use crate::types::Ty;

impl<'a> Decoder<'_, 'a> {
    pub(super) fn texture(&mut self) -> Decoded {
        match self.at.op[0] {
            "tex" => self.sample(),
            "tld4" => self.gather(),
            "txq" | "suq" => self.query(),
            "suld" => self.surface(false),
            _ => self.surface(true),
        }
    }

    /// Dimensions and layers, as `aux` has them, and how many coordinates that makes.
    fn geometry(&self) -> Decoded<(u32, usize)> {
        let known = [("1d", 1), ("2d", 2), ("3d", 3), ("a1d", 1), ("a2d", 2)];
        let found = known.iter().find(|(word, _)| self.has(word));
        let Some((word, dimensions)) = found else {
            return Err(Refusal::Unsupported);
        };
        let layered = word.starts_with('a');
        let aux = dimensions | if layered { LAYERED } else { 0 };
        Ok((aux, *dimensions as usize + usize::from(layered)))
    }

    /// The object and the coordinates in operand `n`. There may be more coordinates than are used: vectors have 2 or 4.
    fn object(&mut self, n: usize, count: usize, floats: bool, layered: bool) -> Decoded<(V, Vec<V>)> {
        let Operand::Coordinates(object, given) = self.operand(n)?.clone() else {
            return Err("expected an object and coordinates in brackets".into());
        };
        let Operand::Reg(register) = *object else {
            // A `.texref` or `.surfref` of the module.
            return Err(Refusal::Unsupported);
        };
        if self.register_type(register).bytes() != 8 {
            return Err("an object is 64 bits wide".into());
        }
        if given.len() < count {
            return Err("a coordinate is missing".into());
        }
        let mut places = Vec::new();
        for (n, operand) in given.iter().take(count).enumerate() {
            let ty = match floats {
                true if n > 0 || !layered => Ty::F32,
                _ => Ty::B32,
            };
            places.push(self.source_of(operand, ty)?);
        }
        Ok((V::Reg(register), places))
    }

    /// An instruction whose result is four registers.
    fn four(&mut self, exec: Exec, aux: u32, count: usize) -> Decoded {
        let Operand::Vector(results) = self.operand(0)?.clone() else {
            return Err(Refusal::Unsupported);
        };
        if results.len() != 4 {
            return Err(Refusal::Unsupported);
        }
        let floats = aux & FLOATS != 0;
        let (object, places) = self.object(1, count, floats, aux & LAYERED != 0)?;
        let mut written = Vec::new();
        for result in &results {
            written.push(self.target_of(result, Ty::B32)?);
        }
        let draft = self.emit(exec, V::None, [object, V::None, V::None], 0);
        draft.aux = aux | 4 << COUNT_SHIFT | (count as u32) << PLACE_SHIFT;
        self.list(written, places);
        Ok(())
    }

    fn sample(&mut self) -> Decoded {
        let types = self.types();
        let [to, from] = types[..] else {
            return Err("`tex` names two types".into());
        };
        if !self.has("v4") || !matches!(to, Ty::F32 | Ty::U32 | Ty::S32) || self.has("base") {
            return Err(Refusal::Unsupported);
        }
        let floats = match from {
            Ty::F32 => FLOATS,
            Ty::S32 => 0,
            _ => return Err("coordinates are `.f32` or `.s32`".into()),
        };
        // Images have one level here: the level of detail and the derivatives that may follow choose it.
        let more = match () {
            () if self.has("level") => 1,
            () if self.has("grad") => 2,
            () => 0,
        };
        self.expect_operands(2 + more)?;
        let (aux, count) = self.geometry()?;
        self.four(texture::sample, aux | floats, count)
    }

    fn gather(&mut self) -> Decoded {
        let Some(channel) = ["r", "g", "b", "a"].iter().position(|c| self.has(c)) else {
            return Err("`tld4` names no channel".into());
        };
        if !self.has("v4") || self.ty()? != Ty::F32 {
            return Err(Refusal::Unsupported);
        }
        self.expect_operands(2)?;
        let (aux, count) = self.geometry()?;
        if aux & texture::DIMENSIONS != 2 {
            return Err(Refusal::Unsupported);
        }
        let aux = aux | FLOATS | (channel as u32) << SIZE_SHIFT;
        self.four(texture::gather, aux, count)
    }

    fn query(&mut self) -> Decoded {
        let Some(what) = QUERIES.iter().position(|q| self.has(q)) else {
            return Err(Refusal::Unsupported);
        };
        self.expect_operands(2)?;
        let d = self.target(0, Ty::B32)?;
        let Operand::Address(object, 0) = self.operand(1)?.clone() else {
            return Err(Refusal::Unsupported);
        };
        let Operand::Reg(register) = *object else {
            return Err(Refusal::Unsupported);
        };
        if self.register_type(register).bytes() != 8 {
            return Err("an object is 64 bits wide".into());
        }
        let surface = self.at.op[0] == "suq";
        let draft = self.emit(texture::query, d, [V::Reg(register), V::None, V::None], D);
        draft.imm = what as u64;
        draft.aux = u32::from(surface);
        Ok(())
    }

    fn surface(&mut self, store: bool) -> Decoded {
        if !self.has("b") {
            return Err(Refusal::Unsupported);
        }
        let ty = self.ty()?;
        let size = match ty {
            Ty::B8 => 0,
            Ty::B16 => 1,
            Ty::B32 => 2,
            Ty::B64 => 3,
            _ => return Err(Refusal::Unsupported),
        };
        self.expect_operands(2)?;
        let (mut aux, count) = self.geometry()?;
        aux |= match () {
            () if self.has("zero") => ZERO,
            () if self.has("clamp") => CLAMP,
            () => 0,
        };
        let (at, of) = if store { (0, 1) } else { (1, 0) };
        let (object, places) = self.object(at, count, false, false)?;
        let values = match self.operand(of)?.clone() {
            Operand::Vector(list) => list,
            one => vec![one],
        };
        let wanted = match () {
            () if self.has("v4") => 4,
            () if self.has("v2") => 2,
            () => 1,
        };
        if values.len() != wanted {
            return Err("the vector's length is not the instruction's".into());
        }
        let mut moved = Vec::new();
        for value in &values {
            moved.push(if store {
                self.source_of(value, ty)?
            } else {
                self.target_of(value, ty)?
            });
        }
        let exec: Exec = if store {
            texture::surface_store
        } else {
            texture::surface_load
        };
        let draft = self.emit(exec, V::None, [object, V::None, V::None], 0);
        draft.aux = aux | (wanted as u32) << COUNT_SHIFT | (count as u32) << PLACE_SHIFT | size << SIZE_SHIFT;
        if store {
            let read = moved.into_iter().chain(places).collect();
            self.list(Vec::new(), read);
        } else {
            self.list(moved, places);
        }
        Ok(())
    }
}

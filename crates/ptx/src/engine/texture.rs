//! `tex`, `tld4`, `txq`, `suld`, `sust`, `suq`: texture and surface objects, which the address space knows.

use super::ctx::{Ctx, Stop};
use super::image::{Image, Texture};
use super::matrix::slots;
use super::memory::failed;
use crate::error::Access;
use crate::inst::{Flow, Inst};

/// Dimensions that coordinates name: the low bits of `Inst::aux`.
pub(crate) const DIMENSIONS: u32 = 3;
/// Of `aux`: a layer comes before the coordinates.
pub(crate) const LAYERED: u32 = 4;
/// Of `aux`: coordinates are floats, and whole numbers otherwise.
pub(crate) const FLOATS: u32 = 8;
/// Of `aux`: `suld` outside gives zero, and `sust` writes nothing.
pub(crate) const ZERO: u32 = 16;
/// Of `aux`: what is outside becomes the nearest element. With neither it is a fault.
pub(crate) const CLAMP: u32 = 32;
/// Registers of the result, or of what is stored: four bits from here.
pub(crate) const COUNT_SHIFT: u32 = 8;
/// Coordinates: four bits from here.
pub(crate) const PLACE_SHIFT: u32 = 12;
/// The logarithm of the bytes of an element, or the channel of `tld4`: two bits from here.
pub(crate) const SIZE_SHIFT: u32 = 16;

/// What a query asks for, in `aux`.
pub(crate) const QUERIES: [&str; 4] = ["width", "height", "depth", "array_size"];

/// Textures and surfaces that a worker remembers.
const KNOWN: usize = 8;

fn count(i: &Inst, shift: u32) -> u32 {
    i.aux >> shift & 15
}

fn unknown(object: u64, access: Access) -> Stop {
    Stop::Illegal {
        address: object,
        access,
    }
}

fn texture(c: &mut Ctx, object: u64) -> Result<Texture, Stop> {
    if let Some((_, known)) = c.textures.iter().find(|(of, _)| *of == object) {
        return Ok(*known);
    }
    let Some(found) = c.launch().memory.texture(object) else {
        return Err(unknown(object, Access::Read));
    };
    c.textures.truncate(KNOWN - 1);
    c.textures.insert(0, (object, found));
    Ok(found)
}

fn surface(c: &mut Ctx, object: u64, access: Access) -> Result<Image, Stop> {
    if let Some((_, known)) = c.surfaces.iter().find(|(of, _)| *of == object) {
        return Ok(*known);
    }
    let Some(found) = c.launch().memory.surface(object) else {
        return Err(unknown(object, access));
    };
    c.surfaces.truncate(KNOWN - 1);
    c.surfaces.insert(0, (object, found));
    Ok(found)
}

/// A lane's coordinates, and its layer.
fn place(c: &Ctx, i: &Inst, slots: &[u32], lane: usize) -> ([u32; 3], Option<u32>) {
    let mut coordinates = slots.iter().map(|slot| c.lane::<u32>(*slot, lane));
    let layer = if i.aux & LAYERED != 0 {
        coordinates.next()
    } else {
        None
    };
    let mut at = [0; 3];
    for to in at.iter_mut().take((i.aux & DIMENSIONS) as usize) {
        *to = coordinates.next().unwrap_or(0);
    }
    (at, layer)
}

/// Runs `f` for each active lane with its object, coordinates and layer, and writes the registers that it gives.
fn each(
    c: &mut Ctx,
    i: &Inst,
    f: impl Fn(&Texture, [u32; 3], Option<u32>) -> [u32; 4],
) -> Result<Flow, Stop> {
    let counts = [count(i, COUNT_SHIFT), count(i, PLACE_SHIFT)];
    let [out, at] = slots(c, i, counts);
    for lane in c.active() {
        let texture = texture(c, c.lane::<u64>(i.a, lane))?;
        let (coordinates, layer) = place(c, i, &at[..counts[1] as usize], lane);
        let values = f(&texture, coordinates, layer);
        for (slot, value) in out.iter().zip(values).take(counts[0] as usize) {
            c.put_lane(*slot, lane, value);
        }
    }
    Ok(Flow::Next)
}

/// `tex`.
pub(crate) fn sample(c: &mut Ctx, i: &Inst) -> Flow {
    let dimensions = (i.aux & DIMENSIONS) as usize;
    let floats = i.aux & FLOATS != 0;
    each(c, i, |texture, at, layer| {
        if floats {
            return texture.sample(at.map(f32::from_bits), dimensions, layer);
        }
        let mut place = at.map(|x| i64::from(x as i32));
        if let Some(layer) = layer {
            place[2] = i64::from(layer.min(texture.image.extent[2] - 1));
        }
        texture.fetch(place)
    })
    .unwrap_or_else(|stop| failed(c, stop))
}

/// `tld4`.
pub(crate) fn gather(c: &mut Ctx, i: &Inst) -> Flow {
    let channel = (i.aux >> SIZE_SHIFT & 3) as usize;
    each(c, i, |texture, at, layer| {
        texture.gather(at.map(f32::from_bits), layer, channel)
    })
    .unwrap_or_else(|stop| failed(c, stop))
}

/// `txq` and `suq` of the object `a`: the extent `imm` says which; `aux` is 1 for a surface.
pub(crate) fn query(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let object = c.lane::<u64>(i.a, lane);
        let image = if i.aux != 0 {
            surface(c, object, Access::Read)
        } else {
            texture(c, object).map(|texture| texture.image)
        };
        let extent = match image {
            Ok(image) => image.extent[(i.imm as usize).min(2)],
            Err(stop) => return failed(c, stop),
        };
        c.put_lane(i.d, lane, extent);
    }
    Flow::Next
}

/// `suld` and `sust`: the element of a surface that a lane names. `x` counts bytes.
fn element(
    c: &mut Ctx,
    i: &Inst,
    lane: usize,
    at: &[u32],
    bytes: u32,
    access: Access,
) -> Result<Option<u64>, Stop> {
    let object = c.lane::<u64>(i.a, lane);
    let image = surface(c, object, access)?;
    let (at, layer) = place(c, i, at, lane);
    let [mut x, y, z] = at.map(|x| i64::from(x as i32));
    let row = i64::from(image.extent[0]) * i64::from(image.texel_bytes());
    let [_, height, depth] = image.extent.map(i64::from);
    let (mut y, mut z) = (y, layer.map_or(z, i64::from));
    let bytes = i64::from(bytes);
    if i.aux & CLAMP != 0 {
        x = x.clamp(0, (row - bytes).max(0)) / bytes * bytes;
        (y, z) = (y.clamp(0, height - 1), z.clamp(0, depth - 1));
    }
    let inside = x >= 0 && x + bytes <= row && (0..height).contains(&y) && (0..depth).contains(&z);
    let address = image.at([0, y as u32, z as u32]).wrapping_add(x as u64);
    if inside && x % bytes == 0 {
        Ok(Some(address))
    } else if inside {
        Err(Stop::Misaligned {
            address: x as u64,
            access,
        })
    } else if i.aux & ZERO != 0 {
        Ok(None)
    } else {
        Err(Stop::Illegal {
            address: x as u64,
            access,
        })
    }
}

/// `suld.b`.
pub(crate) fn surface_load(c: &mut Ctx, i: &Inst) -> Flow {
    surface_access(c, i, false).unwrap_or_else(|stop| failed(c, stop))
}

/// `sust.b`.
pub(crate) fn surface_store(c: &mut Ctx, i: &Inst) -> Flow {
    c.polls = 0;
    surface_access(c, i, true).unwrap_or_else(|stop| failed(c, stop))
}

fn surface_access(c: &mut Ctx, i: &Inst, store: bool) -> Result<Flow, Stop> {
    let counts = [count(i, COUNT_SHIFT), count(i, PLACE_SHIFT)];
    let [values, at] = slots(c, i, counts);
    let bytes = 1u32 << (i.aux >> SIZE_SHIFT & 3);
    let access = if store { Access::Write } else { Access::Read };
    for lane in c.active() {
        let at = element(c, i, lane, &at[..counts[1] as usize], bytes * counts[0], access)?;
        for (n, slot) in values.iter().take(counts[0] as usize).enumerate() {
            let at = at.map(|at| at + n as u64 * u64::from(bytes));
            match (store, bytes, at) {
                (true, _, None) => {}
                (true, 1, Some(at)) => c.poke(at, c.lane::<u32>(*slot, lane) as u8),
                (true, 2, Some(at)) => c.poke(at, c.lane::<u32>(*slot, lane) as u16),
                (true, 4, Some(at)) => c.poke(at, c.lane::<u32>(*slot, lane)),
                (true, _, Some(at)) => c.poke(at, c.lane::<u64>(*slot, lane)),
                (false, 8, at) => {
                    let value = at.map_or(0, |at| c.peek::<u64>(at));
                    c.put_lane(*slot, lane, value);
                }
                (false, bytes, at) => {
                    let value = at.map_or(0, |at| match bytes {
                        1 => u32::from(c.peek::<u8>(at)),
                        2 => u32::from(c.peek::<u16>(at)),
                        _ => c.peek::<u32>(at),
                    });
                    c.put_lane(*slot, lane, value);
                }
            }
        }
    }
    Ok(Flow::Next)
}

//! Images in memory, and what a texture makes of one: addressing, filtering, conversion. The rules are those of the
//! chapter "Texture Fetching" of CUDA's programming guide.

use super::half::{Binary16, Format};

/// What a channel of a texel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 8 bits.
    S8,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 16 bits.
    S16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    S32,
    /// binary16.
    F16,
    /// binary32.
    F32,
}

impl Channel {
    /// Its size in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Channel::U8 | Channel::S8 => 1,
            Channel::U16 | Channel::S16 | Channel::F16 => 2,
            Channel::U32 | Channel::S32 | Channel::F32 => 4,
        }
    }
}

/// Texels in memory. All of them are readable (and, of a surface, writable) for the length of a launch that is shown it.
/// The address and the steps between rows and slices are multiples of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// Address of the first texel.
    pub address: u64,
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Bytes from a slice or layer to the next.
    pub slice: u64,
    /// Texels of a row, rows of a slice, and slices or layers: each at least one.
    pub extent: [u32; 3],
    /// What a texel's channels are.
    pub channel: Channel,
    /// Channels of a texel: 1, 2 or 4.
    pub channels: u32,
}

impl Image {
    /// Bytes of a texel.
    pub fn texel_bytes(&self) -> u32 {
        self.channel.bytes() * self.channels
    }

    /// Address of a texel, whose place is inside.
    pub(super) fn at(&self, [x, y, z]: [u32; 3]) -> u64 {
        let x = u64::from(x) * u64::from(self.texel_bytes());
        self.address + u64::from(z) * self.slice + u64::from(y) * self.pitch + x
    }

    /// Bits of a texel's channels.
    fn read(&self, place: [u32; 3]) -> [u32; 4] {
        debug_assert!(place.iter().zip(self.extent).all(|(at, size)| *at < size));
        let (at, bytes) = (self.at(place), self.channel.bytes());
        let mut out = [0; 4];
        for (n, bits) in out.iter_mut().take(self.channels as usize).enumerate() {
            let at = at + n as u64 * u64::from(bytes);
            // SAFETY: the place is inside the image, whose texels the address space says are readable. Memory may
            // change under us: an element of at most 4 aligned bytes does not tear.
            *bits = unsafe {
                match self.channel {
                    Channel::U8 => u32::from((at as *const u8).read_volatile()),
                    Channel::S8 => i32::from((at as *const i8).read_volatile()) as u32,
                    Channel::U16 | Channel::F16 => u32::from((at as *const u16).read_volatile()),
                    Channel::S16 => i32::from((at as *const i16).read_volatile()) as u32,
                    _ => (at as *const u32).read_volatile(),
                }
            };
        }
        out
    }
}

/// What becomes of a coordinate outside the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// The image repeats. Of normalised coordinates only; others are clamped.
    Wrap,
    /// The nearest texel.
    Clamp,
    /// The image repeats, every second one reversed. Of normalised coordinates only; others are clamped.
    Mirror,
    /// The border's colour.
    Border,
}

/// An image and how it is read.
#[derive(Clone, Copy, Debug)]
pub struct Texture {
    /// The texels.
    pub image: Image,
    /// By dimension.
    pub addressing: [Addressing; 3],
    /// Between texels, and the nearest one otherwise.
    pub linear: bool,
    /// Coordinates go from 0 to 1, and count texels otherwise.
    pub normalised: bool,
    /// Whole numbers of 8 and 16 bits become floats from 0 or -1 to 1.
    pub as_float: bool,
    /// The border's colour.
    pub border: [f32; 4],
    /// Beyond the ends of memory that is no array texels are zero, whatever the addressing.
    pub of_memory: bool,
}

/// The index of a texel, from one that could be outside; None is the border.
fn index(addressing: Addressing, at: i64, size: u32) -> Option<u32> {
    let n = i64::from(size);
    let inside = match addressing {
        Addressing::Clamp => at.clamp(0, n - 1),
        Addressing::Wrap => at.rem_euclid(n),
        Addressing::Mirror => {
            let at = at.rem_euclid(2 * n);
            at.min(2 * n - 1 - at)
        }
        Addressing::Border if (0..n).contains(&at) => at,
        Addressing::Border => return None,
    };
    Some(inside as u32)
}

/// A coordinate's texel, without overflow of what follows.
fn floor(x: f64) -> i64 {
    x.floor().clamp(-1e12, 1e12) as i64
}

/// Places of the dimensions that an instruction does not name.
type Places = [i64; 3];

impl Texture {
    /// Whether a texel is bits, and floats otherwise.
    fn is_bits(&self) -> bool {
        match self.image.channel {
            Channel::U8 | Channel::S8 | Channel::U16 | Channel::S16 => !self.as_float,
            Channel::U32 | Channel::S32 => true,
            Channel::F16 | Channel::F32 => false,
        }
    }

    fn value(&self, bits: u32) -> f64 {
        match self.image.channel {
            Channel::U8 => f64::from(bits) / 255.0,
            Channel::U16 => f64::from(bits) / 65535.0,
            Channel::S8 => (f64::from(bits as i32) / 127.0).max(-1.0),
            Channel::S16 => (f64::from(bits as i32) / 32767.0).max(-1.0),
            Channel::F16 => Binary16::widen(bits as u16),
            _ => f64::from(f32::from_bits(bits)),
        }
    }

    fn inside(&self, at: Places) -> Option<[u32; 3]> {
        let extent = self.image.extent;
        let mut place = [0; 3];
        for n in 0..3 {
            let addressing = match self.addressing[n] {
                _ if self.of_memory => Addressing::Border,
                Addressing::Wrap | Addressing::Mirror if !self.normalised => Addressing::Clamp,
                other => other,
            };
            place[n] = index(addressing, at[n], extent[n])?;
        }
        Some(place)
    }

    /// Channels as floats; those that the image has not are 0, 0 and 1.
    fn floats(&self, at: Places) -> [f64; 4] {
        let Some(place) = self.inside(at) else {
            return if self.of_memory {
                [0.0; 4]
            } else {
                self.border.map(f64::from)
            };
        };
        let bits = self.image.read(place);
        let mut out = [0.0, 0.0, 0.0, 1.0];
        for n in 0..self.image.channels as usize {
            out[n] = self.value(bits[n]);
        }
        out
    }

    /// Channels as an instruction gives them: bits of whole numbers, or of singles.
    fn texel(&self, at: Places) -> [u32; 4] {
        if !self.is_bits() {
            return self.floats(at).map(|x| (x as f32).to_bits());
        }
        match self.inside(at) {
            Some(place) => {
                let mut bits = self.image.read(place);
                if self.image.channels < 4 {
                    bits[3] = 1;
                }
                bits
            }
            None if self.of_memory => [0; 4],
            None => self.border.map(|x| x as i32 as u32),
        }
    }

    /// The texel at whole coordinates.
    pub(super) fn fetch(&self, at: Places) -> [u32; 4] {
        self.texel(at)
    }

    /// Coordinates in texels; `z` of a layered image is the layer, as it is.
    fn texels(&self, at: [f32; 3], dimensions: usize) -> [f64; 3] {
        let mut out = at.map(f64::from);
        for n in 0..dimensions {
            if self.normalised {
                out[n] *= f64::from(self.image.extent[n]);
            }
        }
        out
    }

    /// A sample at coordinates; `layer` where the image has layers.
    pub(super) fn sample(&self, at: [f32; 3], dimensions: usize, layer: Option<u32>) -> [u32; 4] {
        let at = self.texels(at, dimensions);
        let place = |of: [i64; 3]| self.layered(of, dimensions, layer);
        if !self.linear || self.is_bits() {
            return self.texel(place(at.map(floor)));
        }
        // Between the centres of two texels a dimension; the place between them has 8 bits of fraction.
        let mut low = [0i64; 3];
        let mut share = [0f64; 3];
        for n in 0..dimensions {
            let x = at[n] - 0.5;
            low[n] = floor(x);
            share[n] = ((x - x.floor()) * 256.0).round() / 256.0;
        }
        let mut sum = [0f64; 4];
        for corner in 0..1 << dimensions {
            let mut weight = 1.0;
            let mut of = low;
            for n in 0..dimensions {
                let upper = corner >> n & 1 != 0;
                weight *= if upper { share[n] } else { 1.0 - share[n] };
                of[n] += i64::from(upper);
            }
            if weight != 0.0 {
                let texel = self.floats(place(of));
                for n in 0..4 {
                    sum[n] += weight * texel[n];
                }
            }
        }
        sum.map(|x| (x as f32).to_bits())
    }

    /// The same channel of the four texels that a sample in a plane lies between.
    pub(super) fn gather(&self, at: [f32; 3], layer: Option<u32>, channel: usize) -> [u32; 4] {
        let at = self.texels(at, 2);
        let (x, y) = (floor(at[0] - 0.5), floor(at[1] - 0.5));
        let corners = [(x, y + 1), (x + 1, y + 1), (x + 1, y), (x, y)];
        corners.map(|(x, y)| self.texel(self.layered([x, y, 0], 2, layer))[channel & 3])
    }

    /// What the instruction names no coordinate of is the first; a layer is clamped.
    fn layered(&self, mut of: Places, dimensions: usize, layer: Option<u32>) -> Places {
        of[dimensions..].fill(0);
        if let Some(layer) = layer {
            of[2] = i64::from(layer.min(self.image.extent[2] - 1));
        }
        of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_outside() {
        let of = |addressing| (-5..9).map(|at| index(addressing, at, 4)).collect::<Vec<_>>();
        let some = |list: [u32; 14]| list.map(Some).to_vec();
        assert_eq!(
            of(Addressing::Clamp),
            some([0, 0, 0, 0, 0, 0, 1, 2, 3, 3, 3, 3, 3, 3])
        );
        assert_eq!(
            of(Addressing::Wrap),
            some([3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0])
        );
        assert_eq!(
            of(Addressing::Mirror),
            some([3, 3, 2, 1, 0, 0, 1, 2, 3, 3, 2, 1, 0, 0])
        );
        let inside = (-5..9).map(|at| u32::try_from(at).ok().filter(|at| *at < 4));
        assert_eq!(of(Addressing::Border), inside.collect::<Vec<_>>());
    }
}

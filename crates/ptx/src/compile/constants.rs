//! Constants that compiled code reads, at the beginning of its buffer.

/// Where each of them is.
pub(super) struct Pool {
    pub bytes: Vec<u8>,
    /// The address of the function that runs one instruction in the interpreter.
    pub interpret: u32,
    /// 32 lanes of 32 bits: each lane's distance from the first where elements have 1, 2, 4, 8 or 16 bytes.
    pub steps: [u32; 5],
    /// 32 lanes of 64 bits, likewise.
    pub wide_steps: [u32; 5],
    /// The bits of a number of 16 bits.
    pub low: u32,
    pub ones: u32,
    pub sign: u32,
    pub wide_sign: u32,
    pub magnitude: u32,
    pub wide_magnitude: u32,
    pub one: u32,
    pub wide_one: u32,
    /// The NaN that operations give.
    pub nan: u32,
    /// 2^31 as f32.
    pub beyond: u32,
    /// 2^31 - 1.
    pub most: u32,
}

impl Pool {
    pub fn new(interpret: u64) -> Pool {
        let mut bytes: Vec<u8> = Vec::new();
        let lanes = 0..32u64;
        let steps = [1, 2, 4, 8, 16].map(|step| {
            let at = bytes.len() as u32;
            bytes.extend(lanes.clone().flat_map(|n| ((n * step) as u32).to_le_bytes()));
            at
        });
        let wide_steps = [1, 2, 4, 8, 16].map(|step| {
            let at = bytes.len() as u32;
            bytes.extend(lanes.clone().flat_map(|n| (n * step).to_le_bytes()));
            at
        });
        let mut wide = |value: u64| {
            let at = bytes.len() as u32;
            bytes.extend_from_slice(&value.to_le_bytes());
            at
        };
        Pool {
            steps,
            wide_steps,
            interpret: wide(interpret),
            low: wide(0xffff),
            ones: wide(u64::MAX),
            sign: wide(1 << 31),
            wide_sign: wide(1 << 63),
            magnitude: wide(u64::from(i32::MAX as u32)),
            wide_magnitude: wide(i64::MAX as u64),
            one: wide(u64::from(1f32.to_bits())),
            wide_one: wide(1f64.to_bits()),
            nan: wide(0x7fff_ffff),
            beyond: wide(u64::from(2_147_483_648f32.to_bits())),
            most: wide(i32::MAX as u64),
            bytes,
        }
    }
}

//! The numbers that matrices are made of, from and to small whole numbers, by the definition of each format.

/// Bits of an element of type `name`.
pub fn bits_of(name: &str) -> u32 {
    match name {
        "f64" => 64,
        "f32" | "tf32" | "s32" => 32,
        "f16" | "bf16" => 16,
        "s8" | "u8" | "e4m3" | "e5m2" => 8,
        "s4" | "u4" => 4,
        "b1" => 1,
        _ => panic!("no matrix of {name}"),
    }
}

/// The least and the largest value that a test gives an element.
pub fn range(name: &str) -> (i64, i64) {
    match name {
        "u8" => (0, 255),
        "s8" => (-128, 127),
        "u4" => (0, 15),
        "s4" => (-8, 7),
        "b1" => (0, 1),
        _ => (-4, 4),
    }
}

/// A whole number as an element: exact in each format for the numbers that the tests have.
pub fn encode(name: &str, value: i64) -> u64 {
    let single = u64::from((value as f32).to_bits());
    let half = || match single & 0x7fff_ffff {
        0 => 0,
        magnitude => single >> 16 & 0x8000 | ((magnitude >> 13) - (112 << 10)),
    };
    match name {
        "f64" => (value as f64).to_bits(),
        "f32" => single,
        // What is below the ten bits of fraction does not count.
        "tf32" => single | 0x1abc & if value == 0 { 0 } else { !0 },
        "bf16" => single >> 16,
        "f16" => half(),
        "e5m2" => half() >> 8,
        "e4m3" => match half() {
            0 => 0,
            bits => bits >> 8 & 0x80 | (((bits & 0x7fff) >> 7) - (8 << 3)),
        },
        _ => value as u64 & u64::MAX >> (64 - bits_of(name)),
    }
}

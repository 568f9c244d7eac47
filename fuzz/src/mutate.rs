//! Mutations of PTX text that mostly still parse: by lines, words, numbers and modifiers, now and then by bytes.

/// Words that turn one instruction into another.
const WORDS: &[&str] = &[
    "u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "b8", "b16", "b32", "b64", "f16", "f32", "f64",
    "pred", "lo", "hi", "wide", "rn", "rz", "rm", "rp", "rni", "rzi", "ftz", "sat", "global", "shared",
    "local", "const", "param", "sync", "v2", "v4", "nc", "volatile", "add", "sub", "mul", "mad", "fma",
    "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr", "setp", "selp", "cvt", "cvta", "to", "ld",
    "st", "atom", "red", "cas", "exch", "inc", "dec", "bar", "shfl", "up", "down", "bfly", "idx", "vote",
    "ballot", "any", "all", "ret", "exit", "bra", "uni", "call", "popc", "clz", "brev", "bfe", "bfi", "prmt",
    "lop3", "shf", "sqrt", "rcp", "approx", "eq", "ne", "lt", "ge", "nan", "trap", "align", "reg", "%tid.x",
    "%ctaid.x", "%ntid.x", "%laneid", "%clock", "%warpid",
];

/// Numbers at which things overflow.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "3",
    "4",
    "7",
    "8",
    "16",
    "31",
    "32",
    "33",
    "63",
    "64",
    "255",
    "256",
    "1023",
    "1024",
    "4096",
    "65535",
    "65536",
    "0x7fffffff",
    "0x80000000",
    "0xffffffff",
    "4294967296",
    "0x7fffffffffffffff",
    "0x8000000000000000",
    "0xffffffffffffffff",
    "0f7F800000",
    "0f7FC00000",
    "0d7FF0000000000000",
    "1000000000",
];

/// A small generator, so that a seed always gives the same mutant.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end.max(1)
    }

    fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
}

/// One to four changes to `text`, at most `most` bytes long.
pub fn mutate(text: &[u8], most: usize, seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    let mut text = text.to_vec();
    for _ in 0..=dice.below(4) {
        text = match dice.below(12) {
            0..6 => words(&text, &mut dice),
            6..11 => lines(&text, &mut dice),
            _ => bytes(&text, &mut dice),
        };
    }
    text.truncate(most);
    text
}

/// Replaces one word or number, or swaps two.
fn words(text: &[u8], dice: &mut Dice) -> Vec<u8> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'%' | b'$');
    let mut places = Vec::new();
    let mut start = None;
    for (at, byte) in text.iter().chain([&b' ']).enumerate() {
        match (is_word(*byte), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                places.push(from..at);
                start = None;
            }
            _ => {}
        }
    }
    if places.is_empty() {
        return text.to_vec();
    }
    let place = places[dice.below(places.len())].clone();
    let number = text[place.start].is_ascii_digit();
    let other = places[dice.below(places.len())].clone();
    let by = match (number, dice.below(4)) {
        (_, 0) => &text[other],
        (true, _) => dice.pick(NUMBERS).as_bytes(),
        (false, _) => dice.pick(WORDS).as_bytes(),
    };
    [&text[..place.start], by, &text[place.end..]].concat()
}

/// Drops, doubles, swaps or moves lines.
fn lines(text: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    let (a, b) = (dice.below(lines.len()), dice.below(lines.len()));
    match dice.below(5) {
        0 => drop(lines.remove(a)),
        1 => lines.insert(b, lines[a]),
        2 => lines.swap(a, b),
        3 => lines[a] = lines[b],
        _ => {
            let line = lines.remove(a);
            lines.insert(b.min(lines.len()), line);
        }
    }
    lines.join(&b'\n')
}

/// Flips, drops or repeats bytes.
fn bytes(text: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut text = text.to_vec();
    if text.is_empty() {
        return vec![dice.below(256) as u8];
    }
    let at = dice.below(text.len());
    match dice.below(4) {
        0 => text[at] = dice.below(256) as u8,
        1 => text[at] ^= 1 << dice.below(8),
        2 => drop(text.remove(at)),
        _ => text.truncate(at),
    }
    text
}

//! The fuzz target's corpus on stable, each input as it is, cut, and mutated.

use std::path::Path;

use divvy_trace::fuzzing::chunk;

/// A repeatable sequence of numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn what_a_program_wrote_is_read_or_left_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/trace");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut most = 0;
    for file in std::fs::read_dir(folder).expect("the corpus").flatten() {
        let input = std::fs::read(file.path()).expect("an input");
        most = most.max(chunk(&input));
        for end in (0..input.len()).step_by(7) {
            chunk(&input[..end]);
        }
        for _ in 0..300 {
            let mut mutant = input.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(mutant.len());
                mutant[at] = [0, 1, 8, 0x7f, 0xff, random.below(256) as u8][random.below(6)];
            }
            chunk(&mutant);
        }
    }
    assert!(most >= 7, "a seed has each kind of event: {most}");
}

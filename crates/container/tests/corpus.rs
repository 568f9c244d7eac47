//! The fuzz target's corpus on stable, each input as it is and mutated: what the fuzzer would do, a little of it, always.

#[path = "../../../fuzz/src/oci.rs"]
mod drive;
#[path = "../../../fuzz/src/nri.rs"]
mod nri;
#[path = "../../../fuzz/src/yaml.rs"]
mod yaml;

use std::path::PathBuf;

/// A small generator of numbers (xorshift64): what fails, fails again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end.max(1) as u64).unwrap_or(0)
    }
}

/// Words that mean something in a configuration.
const WORDS: [&str; 14] = [
    "\"NVIDIA_VISIBLE_DEVICES=all\"",
    "\"AMD_VISIBLE_DEVICES=0-99999999999\"",
    "\"DIVVY_MEMORY=1GiB\"",
    "\"divvy.dev/memory\"",
    "\"divvy.dev/slice\"",
    "\"CAP_SYS_ADMIN\"",
    "\"process\"",
    "\"linux\"",
    "\"Mounts\"",
    "{}",
    "[]",
    "null",
    "-1e999",
    "\"\\ud800\"",
];

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target]
        .iter()
        .collect();
    let entries = std::fs::read_dir(folder).expect("a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() > 2);
    paths
        .iter()
        .map(|path| std::fs::read(path).expect("an input"))
        .collect()
}

/// What a real containerd said (recorded), and mutations of it.
#[test]
fn nri() {
    let (mut dice, mut answers) = (Dice(29), 0);
    for input in inputs("nri") {
        let whole = nri::runtime(&input);
        assert!(whole > 0, "a recorded conversation has answers");
        answers += whole;
        for _ in 0..300 {
            let mut mutant = input.clone();
            for _ in 0..=dice.below(4) {
                let at = dice.below(mutant.len());
                match dice.below(4) {
                    0 => mutant[at] ^= 1 << dice.below(8),
                    1 => mutant.truncate(at.max(2)),
                    2 => mutant[at] = [0, 0x7f, 0x80, 0xff][dice.below(4)],
                    _ => {
                        let until = at + dice.below(mutant.len() - at).min(16);
                        mutant.drain(at..until);
                    }
                }
            }
            answers += nri::runtime(&mutant);
        }
    }
    assert!(answers > 300, "{answers} answers");
}

#[test]
fn oci_config() {
    let (mut dice, mut read) = (Dice(23), 0);
    for input in inputs("oci_config") {
        read += u32::from(drive::config(&input));
        for _ in 0..2000 {
            let mut mutant = input.clone();
            for _ in 0..=dice.below(3) {
                let at = dice.below(mutant.len());
                match dice.below(5) {
                    0 => mutant[at] ^= 1 << dice.below(8),
                    1 => mutant.truncate(at.max(2)),
                    2 => {
                        // A value's place: another string's.
                        let quotes: Vec<usize> = (0..mutant.len()).filter(|at| mutant[*at] == b'"').collect();
                        let first = dice.below(quotes.len() / 2) * 2;
                        if let Some([begin, end]) = quotes.get(first..first + 2) {
                            let word = WORDS[dice.below(WORDS.len())];
                            mutant.splice(begin..=end, word.bytes());
                        }
                    }
                    3 => {
                        let word = WORDS[dice.below(WORDS.len())];
                        mutant.splice(at..at, word.bytes());
                    }
                    _ => {
                        let until = at + dice.below(mutant.len() - at);
                        mutant.drain(at..until);
                    }
                }
                if mutant.is_empty() {
                    mutant.push(b'{');
                }
            }
            read += u32::from(drive::config(&mutant));
        }
    }
    assert!(read > 1000, "{read} of them were configurations");
}

/// Words that mean something in YAML.
const MARKS: [&str; 24] = [
    "- ",
    "? ",
    ": ",
    "&a ",
    "*a",
    "<<: ",
    "!!binary ",
    "!!str ",
    "|\n",
    ">-\n",
    "---\n",
    "...\n",
    "%YAML 9\n",
    "[",
    "]",
    "{",
    "}",
    ",",
    "\"",
    "'",
    "\n  ",
    "\t",
    "~",
    "# ",
];

#[test]
fn yaml() {
    let (mut dice, mut read, mut whole) = (Dice(31), 0, 0);
    for input in inputs("yaml") {
        whole += yaml::files(&input);
        for _ in 0..500 {
            let mut mutant = input.clone();
            for _ in 0..=dice.below(3) {
                let at = dice.below(mutant.len());
                let until = at + dice.below(mutant.len() - at).min(40);
                match dice.below(6) {
                    0 => mutant[at] ^= 1 << dice.below(7),
                    1 => mutant.truncate(at.max(2)),
                    2 => drop(mutant.drain(at..until)),
                    3 => {
                        let copy = mutant[at..until].to_vec();
                        let to = dice.below(mutant.len());
                        mutant.splice(to..to, copy);
                    }
                    _ => {
                        let word = MARKS[dice.below(MARKS.len())];
                        mutant.splice(at..at, word.bytes());
                    }
                }
                if mutant.is_empty() {
                    mutant.push(b'a');
                }
            }
            read += yaml::files(&mutant);
        }
    }
    assert_eq!(whole, 3, "the others never were files");
    assert!(read > 50, "{read} of the mutants were files");
}

/// Texts that are made to cost a reader much, on the stack that a thread has by default.
#[test]
fn costly_yaml_is_given_up_soon() {
    const BYTES: usize = 64 << 10;
    let many = |text: &str| text.repeat(BYTES / text.len());
    let cdi = "cdiVersion: 0.5.0\nkind: a.b/c\ncontainerEdits:\n  env: ";
    let mut laughs = String::from("x0: &x0 [a,a,a,a,a,a,a,a,a]\n");
    for at in 1..30 {
        laughs += &format!("x{at}: &x{at} [{}]\n", format!("*x{},", at - 1).repeat(9));
    }
    let stairs: String = (0..300).map(|deep| format!("{}a:\n", " ".repeat(deep))).collect();
    let texts = [
        many("["),
        many("{a: "),
        many("- "),
        many("? "),
        stairs,
        laughs,
        format!("a: &a {{k: v}}\nb:\n{}", many(" <<: *a\n")),
        format!("{cdi}[&a {}, {}]", "z".repeat(BYTES), many("*a, ")),
        many("--- a\n"),
        many("\n"),
        format!("\"{}", many("a\n")),
        format!("%TAG ! {}\n--- a", many("x")),
    ];
    for text in texts {
        let shown: String = text.chars().take(60).collect();
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(yaml::files(text.as_bytes())));
        // A guard against hanging: it takes a few hundredths of a second.
        let read = ended.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(read, Ok(0), "{shown}");
    }
}

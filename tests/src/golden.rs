//! Golden files: what Divvy writes for other programs, committed. `DIVVY_GOLDEN=write` writes them again; read what
//! changed before you commit it.

use std::fs;
use std::path::Path;

/// Compares `text` with the golden file of this name, or writes it.
///
/// # Panics
/// Where they differ: with the first line that does.
pub fn golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var_os("DIVVY_GOLDEN").is_some_and(|value| value == "write") {
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(&file, text).expect("written");
        return;
    }
    let known = fs::read_to_string(&file).unwrap_or_default();
    if known == text {
        return;
    }
    let both = known.lines().map(Some).chain(std::iter::repeat(None));
    let now = text.lines().map(Some).chain(std::iter::repeat(None));
    let (number, (known, now)) = both
        .zip(now)
        .enumerate()
        .find(|(_, (known, now))| known != now || known.is_none())
        .expect("they differ, or end");
    panic!(
        "golden/{name}, line {}:\nknown: {}\nnow:   {}\nif that is meant, write it again with DIVVY_GOLDEN=write",
        number + 1,
        known.unwrap_or("(its end)"),
        now.unwrap_or("(its end)")
    );
}

//! Programs that are checked, and what was found in them.

use super::common::alone;
use std::path::Path;

/// A module with a kernel `k` of this body.
pub fn ptx(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.file 1 \"planted.cu\"\n
.visible .entry k(.param .u64 p0) {{
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<32>;
    .shared .align 16 .b8 s[1024];
    .local .align 8 .b8 l[64];
    ld.param.u64 %rd1, [p0];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd4, %rd1, %rd3;
    mov.u32 %r3, s;
    shl.b32 %r4, %r1, 2;
    add.u32 %r5, %r3, %r4;
    {body}
    ret;
}}"
    )
}

/// Runs a body in a process that is checked; what was found, one line each.
pub fn checked(test: &str, case: &str, body: impl FnOnce()) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text").to_owned();
    alone(test, &[("CASE", case), ("DIVVY_CHECK", &path)], body);
    found(folder.path())
}

/// The lines in a folder.
pub fn found(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).expect("a folder").flatten();
    let texts = files.map(|file| std::fs::read_to_string(file.path()).expect("text"));
    texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .filter(|line| !line.contains(r#""kind":"begun""#))
        .collect()
}

/// Those that are no leaks.
pub fn defects(lines: &[String]) -> Vec<&String> {
    lines
        .iter()
        .filter(|line| !line.contains(r#""kind":"leak""#))
        .collect()
}

/// The line of this kind that says so.
pub fn of_kind<'a>(lines: &'a [String], kind: &str, says: &str) -> Option<&'a String> {
    lines
        .iter()
        .find(|line| line.contains(&format!(r#""kind":"{kind}""#)) && line.contains(says))
}

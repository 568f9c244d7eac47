//! `DIVVY_PROFILE`: what a kernel's instructions did, counted exactly.

mod common;

use common::{alone, code, cu, function, get, launch, module, param};
use divvy_abi::*;

/// Loads a run, a column, and a column of shared memory; half of the lanes add once more.
const KERNEL: &str = ".version 8.0
.target sm_80
.address_size 64
.file 1 \"counted.cu\"
.visible .entry k(.param .u64 p0) {
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<32>;
    .shared .align 16 .b8 s[4096];
    ld.param.u64 %rd1, [p0];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    .loc 1 10 0
    ld.global.u32 %r2, [%rd3];
    mul.wide.u32 %rd4, %r1, 128;
    add.u64 %rd5, %rd1, %rd4;
    .loc 1 11 0
    ld.global.u32 %r3, [%rd5];
    shl.b32 %r4, %r1, 6;
    mov.u32 %r5, s;
    add.u32 %r6, %r5, %r4;
    .loc 1 12 0
    st.shared.u32 [%r6], %r3;
    setp.ge.u32 %p1, %r1, 16;
    @%p1 bra END;
    .loc 1 13 0
    add.u32 %r7, %r2, %r3;
END:
    ret;
}";

#[test]
fn instructions_lanes_sectors_and_passes_are_counted() {
    const TEST: &str = "instructions_lanes_sectors_and_passes_are_counted";
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text").to_owned();
    alone(TEST, &[("DIVVY_PROFILE", &path)], || {
        common::start(0);
        let function = function(module(KERNEL), c"k");
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
        for _ in 0..3 {
            let outcome = launch(function, 2, 32, std::ptr::null_mut(), &mut [param(&memory)]);
            assert_eq!(outcome, CUDA_SUCCESS);
        }
        cu!(cuCtxSynchronize());
    });
    if common::role().is_some() {
        return;
    }
    let files: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .flatten()
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let text = std::fs::read_to_string(files[0].path()).expect("text");
    let line = |source: &str, instruction: &str| {
        let found = text
            .lines()
            .find(|line| line.contains(&format!("\"counted.cu:{source}\"")) && line.contains(instruction));
        found.unwrap_or_else(|| panic!("{source} {instruction}: {text}"))
    };
    // Three launches of two blocks of a warp each.
    for (source, instruction, counts) in [
        ("10", "ld.global.u32 %r2", "\"launches\":3,\"blocks\":6,"),
        (
            "10",
            "ld.global.u32 %r2",
            "\"warps\":6,\"lanes\":192,\"requests\":6,\"bytes\":768,\"sectors\":24,\"ideal_sectors\":24,\"shared_accesses\":0,",
        ),
        (
            "11",
            "ld.global.u32 %r3",
            "\"warps\":6,\"lanes\":192,\"requests\":6,\"bytes\":768,\"sectors\":192,\"ideal_sectors\":24,",
        ),
        (
            "12",
            "st.shared.u32",
            "\"shared_accesses\":6,\"shared_passes\":96",
        ),
        ("13", "add.u32 %r7", "\"warps\":6,\"lanes\":96,"),
        ("13", "ret", "\"warps\":6,\"lanes\":192,"),
    ] {
        let line = match instruction {
            "ret" => text
                .lines()
                .find(|line| line.contains("\"ret;\""))
                .expect("an end"),
            _ => line(source, instruction),
        };
        let blocks = match counts.starts_with("\"launches") {
            true => "\"launches\":3,\"blocks\":6,",
            false => counts,
        };
        assert!(line.contains(blocks), "{counts} in {line}");
    }
}

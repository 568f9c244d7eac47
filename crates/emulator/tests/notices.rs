//! The one line that the emulated driver writes to a program's standard error when it refuses it for good.

mod common;

use common::{POKE, code, cu, function, launch, module, param, process, start, upload};
use divvy_abi::*;
use std::ffi::c_void;
use std::process::Stdio;
use std::ptr::null_mut;

const MACHINE_CODE: &[u8] = include_bytes!("fixtures/scale-machine-code.fatbin");
const TEST: &str = "a_refusal_for_good_is_one_line_on_standard_error";

/// A program that is refused in the way that `CASE` names, three times over, and goes on.
#[expect(
    clippy::disallowed_methods,
    reason = "the test's own process has the signals of a C program"
)]
fn refused(case: &str) {
    match case {
        "runtime" => cu!(cuInit(0)),
        "no reader" => {
            // SAFETY: it takes back what Rust's start-up changed, so that the signal would end this process.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            cu!(cuInit(0));
        }
        _ => {
            start(0);
        }
    }
    for _ in 0..3 {
        match case {
            "runtime" | "no reader" => {
                let (id, mut table) = (CUuuid::default(), std::ptr::dangling::<c_void>());
                let outcome = code!(cuGetExportTable(&raw mut table, &raw const id));
                assert_eq!(outcome, CUDA_ERROR_NOT_SUPPORTED);
            }
            "machine code" => {
                let mut loaded = null_mut();
                let outcome = code!(cuModuleLoadData(&raw mut loaded, MACHINE_CODE.as_ptr().cast()));
                assert_eq!(outcome, CUDA_ERROR_NO_BINARY_FOR_GPU);
            }
            _ => {
                let text = POKE.replace(
                    "mov.u32 %r1, 1;",
                    "mov.u32 %r1, 1;\n    wgmma.fence.sync.aligned;",
                );
                let poke = function(module(&text), c"poke");
                let target = upload(&[0u32]);
                let outcome = launch(poke, 1, 1, null_mut(), &mut [param(&target)]);
                assert_eq!(outcome, CUDA_ERROR_NOT_SUPPORTED);
            }
        }
    }
}

#[test]
fn a_refusal_for_good_is_one_line_on_standard_error() {
    if let Ok(case) = std::env::var("CASE") {
        return refused(&case);
    }
    let directory = tempfile::tempdir().expect("a folder");
    let run = |case: &str, notices: &str| {
        let mut command = process(TEST, "alone", directory.path().to_str().expect("UTF-8"));
        command.env("CASE", case).env("DIVVY_NOTICES", notices);
        command
    };
    for (case, code, word) in [
        ("runtime", "D0071", "NVIDIA's CUDA runtime"),
        ("machine code", "D0072", "no PTX"),
        (
            "instruction",
            "D0073",
            "`wgmma.fence.sync.aligned` in kernel `poke`",
        ),
    ] {
        let output = run(case, "").output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{case}: {said}");
        let lines: Vec<_> = said.lines().filter(|line| line.contains("divvy: ")).collect();
        assert_eq!(lines.len(), 1, "{case}: {said}");
        assert!(lines[0].contains(word), "{said}");
        assert!(
            lines[0].ends_with(&format!("; see `divvy explain {code}`")),
            "{said}"
        );

        let silent = run(case, "off").output().expect("it runs");
        assert!(silent.status.success(), "{case}");
        assert!(
            !String::from_utf8_lossy(&silent.stderr).contains("divvy: "),
            "{case}: turned off"
        );
    }
    // A reader that is gone: the program is refused, and is not ended by SIGPIPE.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = run("no reader", "")
        .env_remove("DIVVY_LOG")
        .stdout(Stdio::null())
        .stderr(writer)
        .status()
        .expect("it runs");
    assert!(status.success(), "{status}");
}

//! Faults while a kernel runs: named with their place, and without harm to other launches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use divvy_ptx::Fault;

use crate::probe::{attempt, module, module_with};
use crate::support::{Buffer, Loaded};

/// Runs `body` on one full warp and hands back its fault, and the line of the text on which `at` stands.
fn fault(body: &str, at: &str) -> (Fault, u32, Buffer) {
    let text = module_with(
        ".shared .align 4 .b8 cells[256];\n.const .align 4 .u32 fixed = 1;",
        body,
    );
    let input = Buffer::zeroed(256);
    let (_, end) = attempt(&text, 1, 32, &input);
    let line = text.lines().position(|line| line.contains(at)).unwrap() as u32 + 1;
    (end.expect_err(&text), line, input)
}

#[test]
fn out_of_bounds() {
    let accesses = [
        "ld.global.u32 %r, [%in+256];",
        "ld.global.u32 %r, [%in+-4];",
        "st.global.u32 [%in+256], %r;",
        "st.global.u8 [%in+256], %r;",
        "ld.global.v4.u32 {%a, %b, %c, %k}, [%in+256];",
        "atom.global.add.u32 %r, [%in+256], 1;",
        "red.global.add.u32 [%in+256], 1;",
        "ld.u32 %r, [%in+256];",
    ];
    for access in accesses {
        let (fault, line, input) = fault(access, access);
        let Fault::IllegalAddress {
            kernel,
            line: named,
            address,
            ..
        } = &fault
        else {
            panic!("{access}: {fault}")
        };
        assert_eq!((kernel.as_str(), *named), ("probe", line), "{access}");
        let end = if access.contains("-4") {
            input.address() - 4
        } else {
            input.address() + 256
        };
        assert_eq!(*address, end, "{access}");
        assert!(fault.to_string().contains("probe"), "{fault}");
    }
}

/// A vector that begins inside and ends outside; one bad lane among good ones.
#[test]
fn partly_out_of_bounds() {
    let body = "add.s64 %x, %in, 256;\n add.s64 %x, %x, -8;\n and.b64 %x, %x, -16;\n ld.global.v4.u32 {%a, %b, %c, %k}, [%x+16];";
    assert!(matches!(fault(body, "v4").0, Fault::IllegalAddress { .. }));
    let body = "mul.wide.u32 %x, %t, 4;\n add.s64 %x, %x, %in;\n setp.eq.u32 %p, %t, 17;\n @%p add.s64 %x, %x, 4096;\n ld.global.u32 %r, [%x];";
    let (fault, line, input) = fault(body, "ld.global.u32 %r");
    let Fault::IllegalAddress {
        line: named, address, ..
    } = fault
    else {
        panic!("{fault}")
    };
    assert_eq!((named, address), (line, input.address() + 17 * 4 + 4096));
}

#[test]
fn null_and_wild_addresses() {
    for address in [
        "0",
        "8",
        "-8",
        "0x7fffffffffffff00",
        "0xffffffffffff0000",
        "0x1000",
    ] {
        for access in [
            "ld.global.u32 %r, [%x];",
            "st.u32 [%x], %t;",
            "atom.add.u32 %r, [%x], 1;",
        ] {
            let (fault, _, _) = fault(&format!("mov.u64 %x, {address};\n {access}"), access);
            assert!(
                matches!(fault, Fault::IllegalAddress { .. }),
                "{access} at {address}: {fault}"
            );
        }
    }
}

/// A warp's window slides over a buffer word by word: the last place inside is fine, one word further is not.
#[test]
fn a_window_slides_off_the_end() {
    for (access, words) in [
        ("ld.global.u32 %r, [%x];", 35),
        ("st.u32 [%x], %t;", 33),
        ("ld.global.u32 %r, [%x];", 32),
    ] {
        for (places, fine) in [(words - 31, true), (words - 30, false)] {
            let text = module(&format!(
                "mov.u32 %k, 0;\n mul.wide.u32 %x, %t, 4;\n add.s64 %x, %x, %in;\n AGAIN: {access}\n \
                 add.s64 %x, %x, 4;\n add.u32 %k, %k, 1;\n setp.lt.u32 %p, %k, {places};\n @%p bra AGAIN;"
            ));
            let input = Buffer::zeroed(words * 4);
            match attempt(&text, 1, 32, &input).1 {
                Ok(_) => assert!(fine, "{places} places of {words} words\n{text}"),
                Err(Fault::IllegalAddress { address, .. }) => {
                    assert_eq!((fine, address), (false, input.range().end));
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

/// Neighbouring lanes whose addresses run over the middle or the end of all addresses, at an instruction that was fine
/// a moment ago: nothing must wrap into range.
#[test]
fn runs_over_the_edge_of_the_address_space() {
    let accesses = [
        "ld.global.u32 %r, [%x];",
        "st.u32 [%x], %t;",
        "ld.shared.u32 %r, [%x];",
        "atom.add.u32 %r, [%x], 1;",
    ];
    for start in [
        "0x7fffffffffffffc0",
        "0xffffffffffffffc0",
        "0x7fffffffffffff80",
        "0xffffffc0",
    ] {
        for access in accesses {
            let good = if access.contains("shared") { "cells" } else { "%in" };
            let body = format!(
                "mul.wide.u32 %y, %t, 4;\n mov.u64 %x, {good};\n add.s64 %x, %x, %y;\n mov.u32 %k, 0;\n \
                 AGAIN: {access}\n add.s64 %x, %y, {start};\n add.u32 %k, %k, 1;\n setp.lt.u32 %p, %k, 2;\n @%p bra AGAIN;"
            );
            let (fault, _, _) = fault(&body, access);
            assert!(
                matches!(fault, Fault::IllegalAddress { .. }),
                "{access} from {start}: {fault}"
            );
        }
    }
}

/// Shared and local memory have ends too.
#[test]
fn outside_shared_and_local_memory() {
    let accesses = [
        "mov.u32 %a, cells;\n add.u32 %a, %a, 0x100000;\n ld.shared.u32 %r, [%a];",
        "mov.u32 %a, 0xfffffff0;\n st.shared.u32 [%a], %r;",
        "mov.u32 %a, 0x7ffffff0;\n atom.shared.add.u32 %r, [%a], 1;",
        ".local .align 4 .b8 mine[16];\n mov.u64 %x, mine;\n add.s64 %x, %x, 0x1000000;\n ld.local.u32 %r, [%x];",
        ".local .align 4 .b8 mine[16];\n mov.u64 %x, mine;\n sub.s64 %x, %x, 0x1000000;\n st.local.u32 [%x], %r;",
    ];
    for access in accesses {
        let (fault, _, _) = fault(access, "%r");
        assert!(matches!(fault, Fault::IllegalAddress { .. }), "{access}: {fault}");
    }
}

#[test]
fn misaligned() {
    let accesses = [
        "ld.global.u32 %r, [%in+2];",
        "st.global.u64 [%in+4], %x;",
        "ld.global.v4.u32 {%a, %b, %c, %k}, [%in+8];",
        "ld.global.v2.u32 {%a, %b}, [%in+4];",
        "atom.global.add.u32 %r, [%in+1];".trim_end_matches("];"),
        "ld.shared.u32 %r, [cells+1];",
        "ld.u16 %r, [%in+1];",
    ];
    for access in accesses {
        let access = if access.starts_with("atom") {
            format!("{access}], 1;")
        } else {
            access.to_string()
        };
        let (fault, line, _) = fault(&access, &access);
        let Fault::MisalignedAddress { line: named, .. } = fault else {
            panic!("{access}: {fault}")
        };
        assert_eq!(named, line, "{access}");
    }
}

#[test]
fn trap_and_guarded_trap() {
    let (fault, line, _) = fault("setp.eq.u32 %p, %t, 9;\n @%p trap;", "trap");
    let Fault::Trap { kernel, line: named } = &fault else {
        panic!("{fault}")
    };
    assert_eq!((kernel.as_str(), *named), ("probe", line));
    let text = module("setp.eq.u32 %p, %t, 99;\n @%p trap;\n mov.u32 %r, 1;");
    assert_eq!(attempt(&text, 1, 32, &Buffer::zeroed(4)).0, vec![1; 32]);
}

/// While one launch faults again and again, its neighbour on the same engine computes on, and the engine serves later.
#[test]
fn the_neighbour_goes_on() {
    let bad = module("ld.global.u32 %r, [%in+1024];");
    let good = module(
        "mov.u32 %k, 0;\n LOOP: add.u32 %r, %r, %k;\n add.u32 %k, %k, 1;\n setp.lt.u32 %p, %k, 2000;\n @%p bra LOOP;",
    );
    let input = Buffer::zeroed(4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                let (_, end) = attempt(&bad, 16, 64, &input);
                assert!(matches!(end, Err(Fault::IllegalAddress { .. })), "{end:?}");
            }
        });
        for _ in 0..10 {
            let (words, end) = attempt(&good, 8, 64, &input);
            assert!(end.is_ok(), "{end:?}");
            assert_eq!(words, vec![1999 * 1000; 512]);
        }
    });
    assert!(attempt(&good, 1, 32, &input).1.is_ok());
}

/// A kernel without an end stops when told to: by a loop, a barrier-free spin on memory, and before it began.
#[test]
fn cancellation() {
    let endless = [
        "LOOP: add.u32 %r, %r, 1;\n bra LOOP;",
        "LOOP: ld.volatile.global.u32 %a, [%in];\n setp.eq.u32 %p, %a, 0;\n @%p bra LOOP;",
        "LOOP: bar.sync 0;\n bra LOOP;",
        "LOOP: nanosleep.u32 100;\n bra LOOP;",
    ];
    for body in endless {
        let loaded = Loaded::new(&module(body));
        let (out, input) = (Buffer::zeroed(8 * 64 * 4), Buffer::zeroed(4));
        let cancel = AtomicBool::new(false);
        let run = loaded
            .kernel("probe")
            .grid(8)
            .block(64)
            .buffer(&out)
            .buffer(&input)
            .cancel(&cancel);
        let end = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                cancel.store(true, Ordering::Relaxed);
            });
            run.end()
        });
        assert!(matches!(end, Err(Fault::Cancelled)), "{body}: {end:?}");
        let run = loaded
            .kernel("probe")
            .grid(8)
            .block(64)
            .buffer(&out)
            .buffer(&input)
            .cancel(&cancel);
        assert!(matches!(run.end(), Err(Fault::Cancelled)), "{body}");
    }
}

//! Atomic operations: each one's value and result, in global and shared memory, under contention of many blocks.

use crate::probe::{module, module_with, run};
use crate::support::Buffer;

/// One thread at a time, so that old values and results are exact: operation, type, start, operand, old stays, new.
#[test]
fn every_operation() {
    type Case = (&'static str, &'static str, u64, &'static str, u64);
    let cases: [Case; 35] = [
        ("add", "u32", 0xffff_fffe, "5", 3),
        ("add", "s32", 7, "-9", 0xffff_fffe),
        ("add", "u64", u64::MAX, "2", 1),
        ("add", "f32", 0x3fc0_0000, "0f40000000", 0x4060_0000),
        (
            "add",
            "f64",
            0x3ff8_0000_0000_0000,
            "0d4000000000000000",
            0x400c_0000_0000_0000,
        ),
        ("min", "u32", 5, "0xffffffff", 5),
        ("min", "s32", 5, "-1", 0xffff_ffff),
        ("min", "u64", 1 << 40, "77", 77),
        ("min", "s64", 1, "-77", (-77i64) as u64),
        ("max", "u32", 5, "0xffffffff", 0xffff_ffff),
        ("max", "s32", 5, "-1", 5),
        ("max", "u64", 1 << 40, "77", 1 << 40),
        ("max", "s64", (-5i64) as u64, "-77", (-5i64) as u64),
        ("and", "b32", 0xff00_ff00, "0x0ff00ff0", 0x0f00_0f00),
        ("or", "b32", 0xff00_ff00, "0x0ff00ff0", 0xfff0_fff0),
        ("xor", "b32", 0xff00_ff00, "0x0ff00ff0", 0xf0f0_f0f0),
        ("and", "b64", 0xff00_0000_0000_ff00, "0xff0", 0xf00),
        ("or", "b64", 0xff00_0000_0000_ff00, "0xff0", 0xff00_0000_0000_fff0),
        (
            "xor",
            "b64",
            0xff00_0000_0000_ff00,
            "0xff0",
            0xff00_0000_0000_f0f0,
        ),
        ("exch", "b32", 17, "99", 99),
        ("exch", "b64", 17, "0x123456789abc", 0x1234_5678_9abc),
        ("inc", "u32", 4, "4", 0),
        ("inc", "u32", 3, "4", 4),
        ("inc", "u32", 9, "4", 0),
        ("dec", "u32", 0, "4", 4),
        ("dec", "u32", 3, "4", 2),
        ("dec", "u32", 9, "4", 4),
        ("cas", "b32", 17, "17, 5", 5),
        ("cas", "b32", 17, "18, 5", 17),
        ("cas", "b64", 17, "17, 0x7fffffffffff", 0x7fff_ffff_ffff),
        ("cas", "b64", 1 << 33, "0, 5", 1 << 33),
        ("add.relaxed.gpu", "u32", 1, "1", 2),
        ("add.acq_rel.sys", "u64", 1, "1", 2),
        ("exch.release.cta", "b32", 1, "3", 3),
        ("cas.acquire.gpu", "b32", 1, "1, 8", 8),
    ];
    for (operation, ty, start, operand, want) in cases {
        let wide = ty.ends_with("64");
        // Modifiers stand before the space, the operation itself after it.
        let (name, order) = operation
            .split_once('.')
            .map_or((operation, String::new()), |(n, o)| (n, format!(".{o}")));
        for space in ["global", "shared", ""] {
            let dot = if space.is_empty() {
                String::new()
            } else {
                format!(".{space}")
            };
            let class = if wide { "y" } else { "a" };
            let register = if ty.starts_with('f') {
                if wide { "%d" } else { "%f" }
            } else {
                &*format!("%{class}")
            };
            let back = match ty {
                "f32" => "mov.b32 %a, %f;",
                "f64" => "mov.b64 %y, %d;",
                _ => "",
            };
            let (bits, moved) = if wide { ("b64", "%at") } else { ("b32", "%b") };
            let at = if space == "shared" { "cells" } else { "%in" };
            let body = format!(
                ".reg .f64 %d;\n .reg .b64 %cells;\n ld.global.{bits} {moved}, [%in];\n st.shared.{bits} [cells], {moved};\n \
                 atom{order}{dot}.{name}.{ty} {register}, [{at}], {operand};\n {back}\n st.global.{bits} [%in+8], %{class};\n \
                 ld.shared.{bits} {moved}, [cells];\n st.global.{bits} [%in+16], {moved};"
            );
            let cell = Buffer::of_u64(&[start, 0, 0]);
            run(&module_with(".shared .align 8 .b8 cells[8];", &body), 1, 1, &cell);
            let now = if space == "shared" {
                cell.u64s()[2]
            } else {
                cell.u64s()[0]
            };
            assert_eq!(
                (cell.u64s()[1], now),
                (start, want),
                "atom{order}{dot}.{name}.{ty} of {start:x} and {operand}"
            );
            if name == "exch" || name == "cas" {
                continue;
            }
            let body = format!("red{order}.global.{name}.{ty} [%in], {operand};");
            let cell = Buffer::of_u64(&[start, 0, 0]);
            run(&module(&body), 1, 1, &cell);
            assert_eq!(
                cell.u64s()[0],
                want,
                "red{order}.{name}.{ty} of {start:x} and {operand}"
            );
        }
    }
}

/// All lanes of all blocks on one word; the old values handed out are all different.
#[test]
fn tickets_are_unique() {
    let counter = Buffer::zeroed(4);
    let mut tickets = run(&module("atom.global.add.u32 %r, [%in], 1;"), 40, 96, &counter);
    assert_eq!(counter.u32s(), [40 * 96]);
    tickets.sort_unstable();
    assert_eq!(tickets, (0..40 * 96).collect::<Vec<_>>());
}

/// In a loop, under divergence, on words that lanes share in different ways.
#[test]
fn contention_from_many_blocks() {
    let cells = Buffer::zeroed(64);
    let body = "mov.u32 %k, 0;\n LOOP: add.u32 %a, %k, %t;\n and.b32 %a, %a, 3;\n mul.wide.u32 %x, %a, 4;\n add.s64 %x, %in, %x;\n\
         red.global.add.u32 [%x], 1;\n and.b32 %b, %t, 1;\n setp.eq.u32 %p, %b, 0;\n @%p atom.global.max.u32 %c, [%in+16], %i;\n\
         @!%p atom.global.add.u64 %y, [%in+24], 1;\n atom.global.inc.u32 %c, [%in+32], 6;\n red.global.xor.b32 [%in+36], %i;\n\
         add.u32 %k, %k, 1;\n setp.lt.u32 %p, %k, 25;\n @%p bra LOOP;";
    run(&module(body), 20, 64, &cells);
    let words = cells.u32s();
    assert_eq!(words[..4], [20 * 64 * 25 / 4; 4]);
    // Only even threads offer theirs.
    assert_eq!(words[4], 20 * 64 - 2);
    assert_eq!(cells.u64s()[3], 20 * 32 * 25);
    assert_eq!(words[8], 20 * 64 * 25 % 7);
    assert_eq!(words[9], (0..20 * 64).fold(0, |x, i| x ^ i));
}

/// A block's own counter, all its lanes at once, then read back.
#[test]
fn shared_atomics() {
    let shared = ".shared .align 8 .b8 cells[64];";
    let body = "setp.ge.u32 %p, %t, 16;\n @%p bra GO;\n mov.u32 %a, cells;\n mad.lo.u32 %a, %t, 4, %a;\n st.shared.u32 [%a], 0;\n\
         GO: bar.sync 0;\n and.b32 %b, %t, 7;\n mov.u32 %a, cells;\n mad.lo.u32 %a, %b, 4, %a;\n \
         atom.shared.add.u32 %c, [%a], %b;\n red.shared.max.s32 [cells+32], %t;\n atom.shared.add.u64 %y, [cells+40], 3;\n\
         bar.sync 0;\n ld.shared.u32 %r, [%a];\n ld.shared.u32 %c, [cells+32];\n mad.lo.u32 %r, %c, 1000, %r;\n\
         ld.shared.u32 %c, [cells+40];\n mad.lo.u32 %r, %c, 1000000, %r;";
    let got = run(&module_with(shared, body), 6, 128, &Buffer::zeroed(4));
    let want: Vec<u32> = (0..6 * 128)
        .map(|i| 384 * 1_000_000 + 127_000 + (i % 8) * 16)
        .collect();
    assert_eq!(got, want);
}

/// Compare-and-swap loops that every lane must win once.
#[test]
fn optimistic_loops() {
    let cell = Buffer::of_u32(&[0]);
    let body = "AGAIN: ld.volatile.global.u32 %a, [%in];\n mad.lo.u32 %b, %a, 1, 3;\n atom.global.cas.b32 %c, [%in], %a, %b;\n\
         setp.ne.u32 %p, %c, %a;\n @%p bra AGAIN;";
    run(&module(body), 10, 64, &cell);
    assert_eq!(cell.u32s(), [10 * 64 * 3]);
}

/// Sums of whole floats are exact in any order.
#[test]
fn float_atomics() {
    let cells = Buffer::zeroed(16);
    let body = ".reg .f64 %d;\n cvt.rn.f32.u32 %f, %t;\n red.global.add.f32 [%in], %f;\n cvt.rn.f64.u32 %d, %i;\n\
         atom.global.add.f64 %d, [%in+8], %d;";
    run(&module(body), 8, 64, &cells);
    assert_eq!(cells.f32s()[0], (8 * (0..64).sum::<u32>()) as f32);
    assert_eq!(cells.f64s()[1], f64::from((0..512).sum::<u32>()));
}

/// `red` of a vector adds each element by itself.
#[test]
fn vectors_of_floats() {
    for (count, ty) in [(2u32, "v2"), (4, "v4")] {
        let list = ["%f", "%g", "0f40000000", "%f"][..count as usize].join(", ");
        let body = format!(
            "cvt.rn.f32.u32 %f, %t;\n mov.f32 %g, 0f3F800000;\n and.b32 %a, %t, 3;\n mad.wide.u32 %x, %a, 16, %in;\n \
             red.global.{ty}.f32.add [%x], {{{list}}};\n red.relaxed.gpu.global.add.{ty}.f32 [%x], {{{list}}};"
        );
        let cells = Buffer::of_f32(&[0.5; 16]);
        run(&module(&body), 1, 32, &cells);
        let want: Vec<f32> = (0..4)
            .flat_map(|cell| {
                let lanes: f32 = (0..8).map(|k| (cell + 4 * k) as f32).sum::<f32>() * 2.0;
                [lanes, 16.0, 32.0, lanes]
                    .map(|sum| sum + 0.5)
                    .into_iter()
                    .enumerate()
            })
            .map(|(n, sum)| if n < count as usize { sum } else { 0.5 })
            .collect();
        assert_eq!(cells.f32s(), want, "{ty}");
    }
}

//! shfl.sync: all four modes, widths and clamps, the predicate, lanes that are not there.

use crate::probe::{block, module, run};
use crate::support::Buffer;

/// What lane `lane` reads, and whether its source was in range, as the ISA's pseudo-code has it.
fn source(mode: &str, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let most = lane & segment | clamp & !segment;
    let least = lane & segment;
    let from = match mode {
        "up" => i64::from(lane) - i64::from(b),
        "down" => i64::from(lane + b),
        "bfly" => i64::from(lane ^ b),
        _ => i64::from(least | b & !segment),
    };
    let inside = if mode == "up" {
        from >= i64::from(most)
    } else {
        from <= i64::from(most)
    };
    if inside {
        (from as u32, true)
    } else {
        (lane, false)
    }
}

/// Every mode over widths of 32, 16, 8 and 2, every distance, lane values that tell lanes apart.
#[test]
fn every_mode_width_and_distance() {
    for mode in ["up", "down", "bfly", "idx"] {
        for width in [32u32, 16, 8, 2] {
            let c = (32 - width) << 8 | if mode == "up" { 0 } else { 31 };
            for b in [0, 1, 2, 3, 7, 15, 16, 31] {
                let body = format!(
                    "mad.lo.u32 %a, %t, 3, 5;\n shfl.sync.{mode}.b32 %r|%p, %a, {b}, {c}, 0xffffffff;\n \
                     @%p add.u32 %r, %r, 10000;"
                );
                let want: Vec<u32> = (0..64)
                    .map(|t| {
                        let (from, inside) = source(mode, t % 32, b, c);
                        ((t & !31) + from) * 3 + 5 + if inside { 10000 } else { 0 }
                    })
                    .collect();
                assert_eq!(block(&body, 64), want, "{mode} by {b} within {width}");
            }
        }
    }
}

/// Distance and clamp in registers, different in every lane.
#[test]
fn operands_per_lane() {
    for mode in ["up", "down", "bfly", "idx"] {
        let body = format!(
            "mul.lo.u32 %a, %t, 7;\n rem.u32 %b, %a, 13;\n mov.u32 %c, {};\n \
             shfl.sync.{mode}.b32 %r, %a, %b, %c, -1;",
            if mode == "up" { "0x1000" } else { "0x101f" }
        );
        let c = if mode == "up" { 0x1000 } else { 0x101f };
        let want: Vec<u32> = (0..32).map(|t| source(mode, t, t * 7 % 13, c).0 * 7).collect();
        assert_eq!(block(&body, 32), want, "{mode}");
    }
}

/// Only the lanes of the mask take part; what they read from each other is exact.
#[test]
fn part_of_a_warp() {
    let body = "and.b32 %a, %t, 1;\n setp.eq.u32 %p, %a, 0;\n @!%p bra SKIP;\n add.u32 %a, %t, 100;\n\
         shfl.sync.bfly.b32 %r, %a, 2, 31, 0x55555555;\n SKIP:";
    assert_eq!(
        block(body, 32),
        (0..32)
            .map(|t| if t % 2 == 0 { (t ^ 2) + 100 } else { 0 })
            .collect::<Vec<_>>()
    );
    // Both sides of a branch shuffle at once, each among its own.
    let body = "setp.lt.u32 %p, %t, 12;\n add.u32 %a, %t, 100;\n @%p bra LOW;\n\
         shfl.sync.idx.b32 %r, %a, 20, 31, 0xfffff000;\n bra JOIN;\n\
         LOW: shfl.sync.idx.b32 %r, %a, 3, 31, 0x00000fff;\n JOIN:";
    assert_eq!(
        block(body, 32),
        (0..32)
            .map(|t| if t < 12 { 103 } else { 120 })
            .collect::<Vec<_>>()
    );
}

/// Reading a lane that has left: the value is not specified, but nothing breaks and the others are right.
#[test]
fn lanes_that_left() {
    let body = "setp.ge.u32 %p, %t, 20;\n @%p exit;\n mul.lo.u32 %a, %t, 2;\n\
         shfl.sync.down.b32 %r, %a, 4, 31, 0xffffffff;";
    let got = block(body, 32);
    assert_eq!(got[..16], (0..16).map(|t| (t + 4) * 2).collect::<Vec<u32>>());
    assert_eq!(got[20..], [0; 12]);
}

/// What a lane reads of one that takes no part is zero, as on hardware; the others' values are theirs.
#[test]
fn lanes_that_take_no_part() {
    let body = "mul.lo.u32 %a, %t, 2;\n add.u32 %a, %a, 1;\n setp.ge.u32 %p, %t, 20;\n @%p exit;\n\
         shfl.sync.down.b32 %r, %a, 4, 31, 0xffffffff;";
    let want = (0..32u32).map(|t| if t < 16 { (t + 4) * 2 + 1 } else { 0 });
    assert_eq!(block(body, 32), want.collect::<Vec<_>>());
    // Two halves with masks of their own at one instruction are both served.
    let body = "setp.lt.u32 %p, %t, 16;\n selp.b32 %c, 0xffff, 0xffff0000, %p;\n add.u32 %a, %t, 100;\n\
         shfl.sync.bfly.b32 %r, %a, 1, 31, %c;";
    assert_eq!(
        block(body, 32),
        (0..32u32).map(|t| (t ^ 1) + 100).collect::<Vec<_>>()
    );
}

/// A last warp that is not full.
#[test]
fn a_short_warp() {
    let body = "shfl.sync.idx.b32 %r, %t, 2, 31, 0x1f;";
    let got = run(&module(body), 2, 5, &Buffer::zeroed(4));
    assert_eq!(got, vec![2; 10]);
}

/// Lanes that come to the shuffle by different ways wait for each other.
#[test]
fn lanes_meet_at_the_shuffle() {
    let body = "setp.lt.u32 %p, %t, 16;\n mov.u32 %a, 0;\n @%p bra SHORT;\n LONG: add.u32 %a, %a, 1;\n\
         setp.lt.u32 %q, %a, %t;\n @%q bra LONG;\n\
         SHORT: add.u32 %a, %a, 500;\n shfl.sync.bfly.b32 %r, %a, 16, 31, -1;";
    let value = |t: u32| if t < 16 { 500 } else { 500 + t };
    assert_eq!(
        block(body, 32),
        (0..32).map(|t| value(t ^ 16)).collect::<Vec<_>>()
    );
}

//! Barriers: whole blocks, part of one, several at once, reductions through one, blocks whose threads have left.

use divvy_ptx::Fault;

use crate::probe::{attempt, block, module, module_with, run};
use crate::support::Buffer;

const SHARED: &str = ".shared .align 4 .b8 cells[4096];";

fn shared(body: &str, blocks: u32, threads: u32) -> Vec<u32> {
    run(&module_with(SHARED, body), blocks, threads, &Buffer::zeroed(4))
}

/// Every thread reads what a thread of another warp wrote before the barrier, again and again.
#[test]
fn rounds_of_exchange() {
    for bar in [
        "bar.sync 0",
        "barrier.sync 0",
        "barrier.sync.aligned 0",
        "bar.cta.sync 0",
    ] {
        let body = format!(
            "mov.u32 %a, cells;\n mad.lo.u32 %b, %t, 4, %a;\n mov.u32 %r, %t;\n mov.u32 %k, 0;\n add.u32 %c, %t, 37;\n \
             rem.u32 %c, %c, %n;\n mad.lo.u32 %c, %c, 4, %a;\n\
             ROUND: st.shared.u32 [%b], %r;\n {bar};\n ld.shared.u32 %r, [%c];\n {bar};\n add.u32 %r, %r, 1;\n\
             add.u32 %k, %k, 1;\n setp.lt.u32 %p, %k, 5;\n @%p bra ROUND;"
        );
        let want: Vec<u32> = (0..3)
            .flat_map(|_| (0..130).map(|t| (t + 5 * 37) % 130 + 5))
            .collect();
        assert_eq!(shared(&body, 3, 130), want, "{bar}");
    }
}

/// A barrier inside a branch that all threads take, and inside a loop with the same count everywhere.
#[test]
fn nested_in_control_flow() {
    let body = "mov.u32 %a, cells;\n mad.lo.u32 %b, %t, 4, %a;\n st.shared.u32 [%b], 1;\n bar.sync 0;\n\
         shr.u32 %k, %n, 1;\n HALF: setp.lt.u32 %p, %t, %k;\n @!%p bra SKIP;\n mad.lo.u32 %c, %k, 4, %b;\n\
         ld.shared.u32 %c, [%c];\n ld.shared.u32 %r, [%b];\n add.u32 %r, %r, %c;\n st.shared.u32 [%b], %r;\n\
         SKIP: bar.sync 0;\n shr.u32 %k, %k, 1;\n setp.ne.u32 %p, %k, 0;\n @%p bra HALF;\n ld.shared.u32 %r, [%a];";
    assert_eq!(shared(body, 2, 256), vec![256; 512]);
}

/// Warps that left do not count: the others pass the barrier without them.
#[test]
fn exited_warps_do_not_hold_the_rest() {
    let body = "setp.ge.u32 %p, %t, 64;\n @%p ret;\n mov.u32 %a, cells;\n mad.lo.u32 %b, %t, 4, %a;\n\
         st.shared.u32 [%b], %t;\n bar.sync 0;\n xor.b32 %c, %t, 32;\n mad.lo.u32 %c, %c, 4, %a;\n ld.shared.u32 %r, [%c];";
    let got = shared(body, 1, 128);
    assert_eq!(got[..64], (0..64).map(|t| t ^ 32).collect::<Vec<u32>>());
    assert_eq!(got[64..], [0; 64]);
}

/// Some lanes of each warp have left; the warp's others still meet.
#[test]
fn exited_lanes_do_not_hold_the_rest() {
    let body = "and.b32 %a, %t, 1;\n setp.eq.u32 %p, %a, 1;\n @%p exit;\n mov.u32 %a, cells;\n\
         mad.lo.u32 %b, %t, 4, %a;\n st.shared.u32 [%b], %t;\n bar.sync 0;\n xor.b32 %c, %t, 32;\n\
         mad.lo.u32 %c, %c, 4, %a;\n ld.shared.u32 %r, [%c];";
    let want: Vec<u32> = (0..64).map(|t| if t % 2 == 1 { 0 } else { t ^ 32 }).collect();
    assert_eq!(shared(body, 1, 64), want);
}

/// Producers arrive at one barrier without waiting, consumers wait there; a second barrier hands the place back.
#[test]
fn producers_and_consumers() {
    let body = "mov.u32 %a, cells;\n mov.u32 %k, 0;\n setp.lt.u32 %p, %t, 32;\n @%p bra CONSUME;\n\
         PRODUCE: sub.u32 %b, %t, 32;\n mad.lo.u32 %b, %b, 4, %a;\n mad.lo.u32 %c, %k, 100, %t;\n bar.sync 2, 64;\n\
         st.shared.u32 [%b], %c;\n bar.arrive 1, 64;\n add.u32 %k, %k, 1;\n setp.lt.u32 %q, %k, 4;\n @%q bra PRODUCE;\n\
         bra DONE;\n\
         CONSUME: mad.lo.u32 %b, %t, 4, %a;\n bar.arrive 2, 64;\n bar.sync 1, 64;\n ld.shared.u32 %c, [%b];\n\
         add.u32 %r, %r, %c;\n add.u32 %k, %k, 1;\n setp.lt.u32 %q, %k, 4;\n @%q bra CONSUME;\n DONE:";
    let want: Vec<u32> = (0..64)
        .map(|t| if t < 32 { 4 * (t + 32) + 600 } else { 0 })
        .collect();
    assert_eq!(shared(body, 1, 64), want);
}

/// Two halves of a block use barriers of their own, the number in a register.
#[test]
fn independent_halves() {
    let body = "mov.u32 %a, cells;\n shr.u32 %k, %t, 6;\n add.u32 %k, %k, 3;\n mad.lo.u32 %b, %t, 4, %a;\n\
         st.shared.u32 [%b], %t;\n barrier.sync %k, 64;\n xor.b32 %c, %t, 32;\n mad.lo.u32 %c, %c, 4, %a;\n\
         ld.shared.u32 %r, [%c];\n barrier.sync %k, 64;";
    assert_eq!(shared(body, 1, 128), (0..128).map(|t| t ^ 32).collect::<Vec<_>>());
}

#[test]
fn reductions_through_a_barrier() {
    let body = "rem.u32 %a, %t, 3;\n setp.eq.u32 %p, %a, 0;\n bar.red.popc.u32 %r, 0, %p;\n\
         bar.red.popc.u32 %b, 0, !%p;\n mad.lo.u32 %r, %b, 1000, %r;";
    let zeros = (0..100).filter(|t| t % 3 == 0).count() as u32;
    assert_eq!(block(body, 100), vec![(100 - zeros) * 1000 + zeros; 100]);

    for (operation, threshold, want) in [("and", 100, 1), ("and", 99, 0), ("or", 0, 0), ("or", 1, 1)] {
        for bar in ["bar", "barrier.cta"] {
            let body = format!(
                "setp.lt.u32 %p, %t, {threshold};\n {bar}.red.{operation}.pred %q, 0, %p;\n selp.u32 %r, 1, 0, %q;"
            );
            assert_eq!(
                block(&body, 100),
                vec![want; 100],
                "{bar} {operation} {threshold}"
            );
        }
    }
}

/// Lanes of one warp meet again after a detour.
#[test]
fn warp_barriers() {
    let body = "mov.u32 %a, cells;\n mad.lo.u32 %b, %t, 4, %a;\n setp.lt.u32 %p, %lane, 16;\n @%p bra LOW;\n\
         st.shared.u32 [%b], 200;\n bra JOIN;\n LOW: st.shared.u32 [%b], 100;\n JOIN: bar.warp.sync 0xffffffff;\n\
         xor.b32 %c, %t, 16;\n mad.lo.u32 %c, %c, 4, %a;\n ld.shared.u32 %r, [%c];";
    assert_eq!(
        shared(body, 1, 64),
        (0..64)
            .map(|t| if t % 32 < 16 { 200 } else { 100 })
            .collect::<Vec<_>>()
    );
}

/// Both sides of a branch wait at a warp barrier of their own; lanes meet through the mask, not the place.
#[test]
fn warp_barriers_in_two_places() {
    let body = "mov.u32 %a, cells;\n mad.lo.u32 %b, %t, 4, %a;\n setp.lt.u32 %p, %lane, 16;\n @%p bra LOW;\n\
         st.shared.u32 [%b], 200;\n bar.warp.sync 0xffffffff;\n xor.b32 %c, %t, 16;\n mad.lo.u32 %c, %c, 4, %a;\n\
         ld.shared.u32 %r, [%c];\n bra JOIN;\n\
         LOW: st.shared.u32 [%b], 100;\n bar.warp.sync 0xffffffff;\n xor.b32 %c, %t, 16;\n mad.lo.u32 %c, %c, 4, %a;\n\
         ld.shared.u32 %r, [%c];\n JOIN:";
    assert_eq!(
        shared(body, 1, 32),
        (0..32)
            .map(|t| if t < 16 { 200 } else { 100 })
            .collect::<Vec<_>>()
    );
}

/// Half the block waits at one barrier, half at another. No thread can ever come, and the engine says so.
#[test]
fn a_deadlock_is_named() {
    let body = "setp.lt.u32 %p, %t, 32;\n @%p bra LOW;\n bar.sync 1;\n bra JOIN;\n LOW: bar.sync 2;\n JOIN:";
    let (_, end) = attempt(&module(body), 1, 64, &Buffer::zeroed(4));
    assert!(matches!(end, Err(Fault::Deadlock { .. })), "{end:?}");
}

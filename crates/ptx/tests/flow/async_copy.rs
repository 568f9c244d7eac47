//! `cp.async` and `mbarrier`.

use divvy_ptx::Fault;

use crate::probe::{attempt, block, module, run};
use crate::support::Buffer;

/// Each thread has 16 bytes of shared memory, `[%sa]`, full of nines, and 16 bytes of the input, `[%ga]`. After `body`
/// `%r` has the low bytes of its four words.
fn copies(body: &str) -> String {
    module(&format!(
        ".shared .align 16 .b8 s[2048]; .reg .b32 %sa, %w<4>; .reg .b64 %ga;\n\
         mov.u32 %sa, s; mad.lo.u32 %sa, %t, 16, %sa; mad.wide.u32 %ga, %t, 16, %in;\n\
         st.shared.v4.u32 [%sa], {{9, 9, 9, 9}};\n {body}\n\
         ld.shared.v4.u32 {{%w0, %w1, %w2, %w3}}, [%sa];\n\
         prmt.b32 %a, %w0, %w1, 0x0040; prmt.b32 %b, %w2, %w3, 0x0040; prmt.b32 %r, %a, %b, 0x5410;"
    ))
}

/// The numbers from 1 on, one a word.
fn input() -> Buffer {
    Buffer::of_u32(&(1..=128).collect::<Vec<u32>>())
}

/// Sizes, with a part of the source, and what is not copied.
#[test]
fn copies_of_every_size() {
    for (copy, words) in [
        ("ca.shared.global [%sa], [%ga], 4", [Some(1), None, None, None]),
        (
            "ca.shared::cta.global [%sa+8], [%ga+8], 8",
            [None, None, Some(3), Some(4)],
        ),
        (
            "cg.shared.global [%sa], [%ga], 16",
            [Some(1), Some(2), Some(3), Some(4)],
        ),
        (
            "cg.shared.global.L2::128B [%sa], [%ga], 16, 5",
            [Some(1), Some(2), Some(0), Some(0)],
        ),
        (
            "ca.shared.global [%sa], [%ga], 8, 0",
            [Some(0), Some(0), None, None],
        ),
        (
            "ca.shared.global [%sa], [%ga], 4, 99",
            [Some(1), None, None, None],
        ),
    ] {
        let text = copies(&format!(
            "cp.async.{copy};\n cp.async.commit_group;\n cp.async.wait_group 0;"
        ));
        let want: Vec<u32> = (0..32u32)
            .map(|t| {
                let word = |n: usize| match words[n] {
                    Some(0) => 0,
                    Some(of) => t * 4 + of,
                    None => 9,
                };
                (0..4).fold(0, |all, n| all | word(n) << (8 * n))
            })
            .collect();
        assert_eq!(run(&text, 1, 32, &input()), want, "{copy}");
    }
}

#[test]
fn copies_under_predicates() {
    let odd = "and.b32 %a, %t, 1; setp.eq.u32 %p, %a, 1;";
    let all = |t: u32| (0..4).fold(0, |word, n| word | (t * 4 + n + 1) << (8 * n));
    for (copy, even, of_odd) in [
        ("cp.async.cg.shared.global [%sa], [%ga], 16, %p;", 1, 0),
        ("cp.async.cg.shared.global [%sa], [%ga], 16, !%p;", 0, 1),
        ("@%p cp.async.cg.shared.global [%sa], [%ga], 16;", 9, 1),
    ] {
        let text = copies(&format!("{odd}\n {copy}\n cp.async.wait_all;"));
        let lane = |t: u32| match if t.is_multiple_of(2) { even } else { of_odd } {
            0 => 0,
            1 => all(t),
            _ => 0x0909_0909,
        };
        assert_eq!(
            run(&text, 1, 32, &input()),
            (0..32).map(lane).collect::<Vec<_>>(),
            "{copy}"
        );
    }
}

/// A copy is checked at both ends; bytes that are not read are not checked.
#[test]
fn copies_out_of_bounds() {
    for (copy, misaligned) in [
        ("[%sa], [%ga+4], 8", true),
        ("[%sa+4], [%ga], 8", true),
        ("[%sa], [%ga+512], 16", false),
        ("[%sa+32768], [%ga], 16", false),
    ] {
        let text = copies(&format!("cp.async.ca.shared.global {copy};"));
        let (_, end) = attempt(&text, 1, 32, &input());
        match end {
            Err(Fault::MisalignedAddress { .. }) if misaligned => {}
            Err(Fault::IllegalAddress { .. }) if !misaligned => {}
            end => panic!("{copy}: {end:?}"),
        }
    }
    let text = copies("cp.async.ca.shared.global [%sa], [%ga+512], 16, 0;");
    assert_eq!(run(&text, 1, 32, &input()), vec![0; 32]);
}

/// Threads of two warps meet at a barrier in shared memory, by its states and by its parity, three times.
#[test]
fn threads_meet_at_an_mbarrier() {
    let body = ".shared .align 8 .b64 bar; .shared .b32 s[64]; .reg .b32 %mine, %other; .reg .b64 %state;\n\
         setp.eq.u32 %p, %t, 0; @%p mbarrier.init.shared.b64 [bar], 64; bar.sync 0;\n\
         add.u32 %a, %t, 33; and.b32 %a, %a, 63; mov.u32 %mine, s; mad.lo.u32 %other, %a, 4, %mine;\n\
         mad.lo.u32 %mine, %t, 4, %mine; mov.u32 %c, 0;\n\
         ROUND: mad.lo.u32 %a, %t, 7, %c; st.shared.u32 [%mine], %a;\n\
         mbarrier.arrive.shared.b64 %state, [bar];\n\
         ONE: mbarrier.test_wait.shared.b64 %p, [bar], %state; @!%p bra ONE;\n\
         ld.shared.u32 %b, [%other]; add.u32 %r, %r, %b;\n\
         mbarrier.arrive.release.cta.shared::cta.b64 _, [bar];\n\
         TWO: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p, [bar], 1, 1000; @!%p bra TWO;\n\
         add.u32 %c, %c, 1; setp.lt.u32 %p, %c, 3; @%p bra ROUND;";
    let want: Vec<u32> = (0..64).map(|t| (t + 33) % 64 * 7 * 3 + 3).collect();
    assert_eq!(block(body, 64), want);
}

/// One thread walks a barrier through its phases.
#[test]
fn phases_of_an_mbarrier() {
    let begin = ".shared .align 8 .b64 bar; .reg .b64 %state; .reg .b32 %bar; mov.u32 %bar, bar;";
    let tested =
        "mbarrier.test_wait.shared.b64 %p, [%bar], %state; selp.u32 %a, 1, 0, %p; mad.lo.u32 %r, %r, 10, %a;";
    let pending = "mbarrier.pending_count.b64 %a, %state; mad.lo.u32 %r, %r, 10, %a;";
    for (steps, want) in [
        // Bytes that are awaited hold a phase up.
        (
            format!(
                "mbarrier.init.shared.b64 [%bar], 1; mbarrier.arrive.expect_tx.shared.b64 %state, [%bar], 16; {tested}\
                 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 10; {tested}\
                 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 6; {tested}{pending}"
            ),
            11,
        ),
        (
            format!(
                "mbarrier.init.shared.b64 [%bar], 1; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 8;\
                 mbarrier.arrive.shared.b64 %state, [%bar]; {tested}\
                 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 8; {tested}"
            ),
            1,
        ),
        // A thread that drops out is not awaited in the next phase.
        (
            format!(
                "mbarrier.init.shared.b64 [%bar], 3; mbarrier.arrive_drop.shared.b64 %state, [%bar]; {pending}\
                 mbarrier.arrive.noComplete.shared.b64 %state, [%bar], 1; {pending}{tested}\
                 mbarrier.arrive.shared.b64 _, [%bar]; {tested}\
                 mbarrier.arrive.shared.b64 %state, [%bar], 2; {pending}{tested}"
            ),
            320_121,
        ),
        // The copies of a thread arrive for it.
        (
            format!(
                "mbarrier.init.shared.b64 [%bar], 2; mbarrier.arrive.shared.b64 %state, [%bar];\
                 cp.async.mbarrier.arrive.shared.b64 [%bar]; {tested}\
                 cp.async.mbarrier.arrive.noinc.shared.b64 [%bar]; {tested} mbarrier.inval.shared.b64 [%bar];"
            ),
            1,
        ),
    ] {
        assert_eq!(block(&format!("{begin}\n{steps}"), 1), [want], "{steps}");
    }
}

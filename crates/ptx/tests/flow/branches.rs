//! Divergence: branches, loops, early exits, jump tables.

use crate::probe::{block, module, run};
use crate::support::Buffer;

fn lanes(threads: u32, model: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..threads).map(model).collect()
}

#[test]
fn if_and_else() {
    let body = "and.b32 %a, %t, 1;\n setp.eq.u32 %p, %a, 1;\n @%p bra ODD;\n mul.lo.u32 %r, %t, 3;\n bra JOIN;\n\
                ODD: add.u32 %r, %t, 1000;\n JOIN: add.u32 %r, %r, 7;";
    for threads in [1, 31, 32, 33, 100] {
        assert_eq!(
            block(body, threads),
            lanes(threads, |t| 7 + if t % 2 == 1 { t + 1000 } else { t * 3 })
        );
    }
}

#[test]
fn nested_ifs() {
    let body = "setp.lt.u32 %p, %t, 20;\n @!%p bra HIGH;\n setp.lt.u32 %q, %t, 10;\n @!%q bra MIDDLE;\n\
                mov.u32 %r, 1;\n setp.lt.u32 %q, %t, 5;\n @!%q bra JOIN;\n add.u32 %r, %r, 1;\n bra JOIN;\n\
                MIDDLE: mov.u32 %r, 3;\n bra JOIN;\n HIGH: mov.u32 %r, 4;\n\
                JOIN: activemask.b32 %a;\n popc.b32 %a, %a;\n mad.lo.u32 %r, %a, 100, %r;";
    let arm = |t: u32| match t {
        0..5 => 2,
        5..10 => 1,
        10..20 => 3,
        _ => 4,
    };
    // After the join all lanes run together again.
    assert_eq!(block(body, 32), lanes(32, |t| 3200 + arm(t)));
}

/// Each lane goes round as often as its number says; an inner loop inside.
#[test]
fn divergent_loops() {
    let body = "mov.u32 %a, 0;\n OUTER: setp.ge.u32 %p, %a, %t;\n @%p bra DONE;\n mov.u32 %b, 0;\n\
                INNER: setp.ge.u32 %q, %b, %a;\n @%q bra NEXT;\n add.u32 %r, %r, %b;\n add.u32 %b, %b, 1;\n bra INNER;\n\
                NEXT: add.u32 %a, %a, 1;\n bra OUTER;\n DONE: add.u32 %r, %r, 1;";
    let sum = |t: u32| 1 + (0..t).flat_map(|a| 0..a).sum::<u32>();
    assert_eq!(block(body, 64), lanes(64, sum));
}

/// Breaking out of two loops at once, and going on from the middle of one.
#[test]
fn break_and_continue() {
    let body = "mov.u32 %a, 0;\n LOOP: add.u32 %a, %a, 1;\n setp.gt.u32 %p, %a, 40;\n @%p bra DONE;\n\
                rem.u32 %b, %a, 3;\n setp.eq.u32 %p, %b, 0;\n @%p bra LOOP;\n add.u32 %r, %r, %a;\n\
                setp.gt.u32 %p, %r, %k;\n @%p bra DONE;\n bra LOOP;\n DONE:";
    let body = format!("mul.lo.u32 %k, %t, 10;\n {body}");
    let model = |t: u32| {
        let mut sum = 0;
        for a in (1..=40).filter(|a| a % 3 != 0) {
            sum += a;
            if sum > t * 10 {
                break;
            }
        }
        sum
    };
    assert_eq!(block(&body, 32), lanes(32, model));
}

/// Lanes that are done leave; the others' results do not suffer, whether by ret or by exit.
#[test]
fn early_exits() {
    for leave in ["ret", "exit"] {
        let body = format!(
            "setp.lt.u32 %p, %t, 7;\n @%p {leave};\n and.b32 %a, %t, 3;\n setp.eq.u32 %p, %a, 0;\n @!%p bra ON;\n \
             {leave};\n ON: activemask.b32 %r;"
        );
        let active = lanes(32, |t| u32::from(t >= 7 && t % 4 != 0) << t)
            .into_iter()
            .sum::<u32>();
        assert_eq!(
            block(&body, 32),
            lanes(32, |t| if active >> t & 1 == 1 { active } else { 0 }),
            "{leave}"
        );
    }
}

#[test]
fn jump_tables() {
    let body = "rem.u32 %a, %t, 4;\n TABLE: .branchtargets A, B, C, A;\n brx.idx %a, TABLE;\n\
                A: mov.u32 %r, 10;\n bra JOIN;\n B: add.u32 %r, %t, 20;\n bra JOIN;\n C: mov.u32 %r, 30;\n\
                JOIN: add.u32 %r, %r, 1;";
    let arm = |t: u32| match t % 4 {
        1 => t + 21,
        2 => 31,
        _ => 11,
    };
    assert_eq!(block(body, 40), lanes(40, arm));
}

/// A branch into the middle of a loop: no single entry, so no structured reading of it works.
#[test]
fn irreducible_flow() {
    let body = "mov.u32 %a, %t;\n and.b32 %b, %t, 1;\n setp.eq.u32 %p, %b, 1;\n @%p bra SECOND;\n\
                FIRST: add.u32 %r, %r, 1;\n SECOND: add.u32 %r, %r, 100;\n setp.eq.u32 %p, %a, 0;\n @%p bra DONE;\n\
                sub.u32 %a, %a, 1;\n and.b32 %b, %a, 2;\n setp.eq.u32 %p, %b, 0;\n @%p bra FIRST;\n bra SECOND;\n DONE:";
    let model = |t: u32| {
        let (mut a, mut r, mut first) = (t, 0, t.is_multiple_of(2));
        loop {
            r += if first { 101 } else { 100 };
            if a == 0 {
                return r;
            }
            a -= 1;
            first = a & 2 == 0;
        }
    };
    assert_eq!(block(body, 32), lanes(32, model));
}

/// One lane holds the lock, its neighbours spin on it: the holder must get its turn.
#[test]
fn spin_lock_within_a_warp() {
    let body = "AGAIN: atom.global.cas.b32 %a, [%in], 0, 1;\n setp.ne.u32 %p, %a, 0;\n @%p bra AGAIN;\n\
                ld.volatile.global.u32 %b, [%in+4];\n add.u32 %b, %b, 1;\n st.volatile.global.u32 [%in+4], %b;\n\
                membar.gl;\n atom.global.exch.b32 %a, [%in], 0;\n mov.u32 %r, 1;";
    let counter = Buffer::zeroed(8);
    assert_eq!(run(&module(body), 3, 64, &counter), vec![1; 192]);
    assert_eq!(counter.u32s(), [0, 192]);
}

/// One lane of a warp waits for a flag that another lane of it sets.
#[test]
fn waiting_for_a_neighbour() {
    let body = "setp.eq.u32 %p, %lane, 0;\n @%p bra WAIT;\n setp.eq.u32 %q, %lane, 5;\n @!%q bra JOIN;\n\
                st.volatile.global.u32 [%in], 77;\n bra JOIN;\n\
                WAIT: ld.volatile.global.u32 %a, [%in];\n setp.ne.u32 %q, %a, 77;\n @%q bra WAIT;\n mov.u32 %r, 1;\n\
                JOIN: add.u32 %r, %r, 1;";
    assert_eq!(block_with(body), lanes(32, |t| if t == 0 { 2 } else { 1 }));
}

fn block_with(body: &str) -> Vec<u32> {
    run(&module(body), 1, 32, &Buffer::zeroed(4))
}

/// Guards that are true or false for all lanes, and branches marked uniform.
#[test]
fn uniform_branches() {
    let body = "setp.gt.u32 %p, %n, 0;\n @%p bra.uni A;\n mov.u32 %r, 99;\n A: @!%p bra.uni B;\n add.u32 %r, %r, 1;\n\
                B: @!%p mov.u32 %r, 98;";
    assert_eq!(block(body, 45), vec![1; 45]);
}

//! Device functions: arguments, results, frames, nesting, divergence inside and around.

use crate::probe::{module_with, run};
use crate::support::Buffer;

const FUNCTIONS: &str = "
.func (.param .b32 result) collatz(.param .b32 from) {
 .reg .b32 %v, %steps, %odd; .reg .pred %p;
 ld.param.b32 %v, [from];
 mov.u32 %steps, 0;
AGAIN: setp.le.u32 %p, %v, 1;
 @%p bra DONE;
 and.b32 %odd, %v, 1;
 setp.eq.u32 %p, %odd, 0;
 add.u32 %steps, %steps, 1;
 @%p bra EVEN;
 mad.lo.u32 %v, %v, 3, 1;
 bra AGAIN;
EVEN: shr.u32 %v, %v, 1;
 bra AGAIN;
DONE: st.param.b32 [result], %steps;
 ret;
}
.func (.param .b32 result) twice_collatz(.param .b32 from) {
 .reg .b32 %v, %w;
 ld.param.b32 %v, [from];
 { .param .b32 a; .param .b32 r; st.param.b32 [a], %v; call (r), collatz, (a); ld.param.b32 %w, [r]; }
 add.u32 %v, %v, 1;
 { .param .b32 a; .param .b32 r; st.param.b32 [a], %v; call (r), collatz, (a); ld.param.b32 %v, [r]; }
 add.u32 %v, %v, %w;
 st.param.b32 [result], %v;
 ret;
}
.func (.reg .b32 %sum) add_registers(.reg .b32 %l, .reg .b32 %m) { add.u32 %sum, %l, %m; ret; }
.func store(.param .b64 to, .param .align 8 .b8 pair[16]) {
 .reg .b64 %to; .reg .b32 %v, %w;
 ld.param.u64 %to, [to];
 ld.param.u32 %v, [pair+4];
 ld.param.u32 %w, [pair+8];
 add.u32 %v, %v, %w;
 st.global.u32 [%to], %v;
 ret;
}
.func (.param .b32 result) with_frame(.param .b32 seed) {
 .local .align 4 .b8 frame[64]; .reg .b64 %at; .reg .b32 %v, %k, %sum; .reg .pred %p;
 ld.param.b32 %v, [seed];
 mov.u32 %k, 0; mov.u64 %at, frame;
FILL: mul.lo.u32 %sum, %v, %k; st.local.u32 [%at], %sum; add.s64 %at, %at, 4; add.u32 %k, %k, 1;
 setp.lt.u32 %p, %k, 16; @%p bra FILL;
 mov.u32 %sum, 0; mov.u32 %k, 0; mov.u64 %at, frame;
ADD: ld.local.u32 %v, [%at]; add.u32 %sum, %sum, %v; add.s64 %at, %at, 4; add.u32 %k, %k, 1;
 setp.lt.u32 %p, %k, 16; @%p bra ADD;
 st.param.b32 [result], %sum;
 ret;
}
";

fn collatz(mut v: u32) -> u32 {
    let mut steps = 0;
    while v > 1 {
        v = if v.is_multiple_of(2) { v / 2 } else { v * 3 + 1 };
        steps += 1;
    }
    steps
}

fn with_functions(body: &str, threads: u32) -> Vec<u32> {
    run(
        &module_with(FUNCTIONS, body),
        1,
        threads,
        &Buffer::zeroed(4 * threads as usize),
    )
}

#[test]
fn a_call_with_a_loop_inside() {
    let body = "{ .param .b32 a; .param .b32 r; st.param.b32 [a], %t; call (r), collatz, (a); ld.param.b32 %r, [r]; }";
    assert_eq!(with_functions(body, 64), (0..64).map(collatz).collect::<Vec<_>>());
}

#[test]
fn nested_calls() {
    let body = "{ .param .b32 a; .param .b32 r; st.param.b32 [a], %t; call (r), twice_collatz, (a); ld.param.b32 %r, [r]; }";
    assert_eq!(
        with_functions(body, 64),
        (0..64).map(|t| collatz(t) + collatz(t + 1)).collect::<Vec<_>>()
    );
}

/// Only some lanes call, and some from another place.
#[test]
fn calls_under_divergence() {
    let body = "and.b32 %a, %t, 3;\n setp.eq.u32 %p, %a, 0;\n setp.eq.u32 %q, %a, 1;\n add.u32 %b, %t, 10;\n @%q bra OTHER;\n \
         @!%p bra JOIN;\n\
         { .param .b32 x; .param .b32 r; st.param.b32 [x], %t; call (r), collatz, (x); ld.param.b32 %r, [r]; }\n bra JOIN;\n\
         OTHER: { .param .b32 x; .param .b32 r; st.param.b32 [x], %b; call (r), collatz, (x); ld.param.b32 %r, [r]; }\n\
         JOIN: add.u32 %r, %r, 1000;";
    let model = |t: u32| match t % 4 {
        0 => 1000 + collatz(t),
        1 => 1000 + collatz(t + 10),
        _ => 1000,
    };
    assert_eq!(with_functions(body, 32), (0..32).map(model).collect::<Vec<_>>());
}

#[test]
fn arguments_in_registers() {
    let body =
        "add.u32 %a, %t, 5;\n call (%r), add_registers, (%t, %a);\n call.uni (%r), add_registers, (%r, 3);";
    assert_eq!(
        with_functions(body, 33),
        (0..33).map(|t| 2 * t + 8).collect::<Vec<_>>()
    );
}

/// A structure by value, no result, a store as the effect.
#[test]
fn structures_by_value() {
    let body = "mul.wide.u32 %x, %i, 4;\n add.s64 %x, %in, %x;\n add.u32 %a, %t, 7;\n\
         { .param .b64 to; .param .align 8 .b8 pair[16]; st.param.b64 [to], %x; st.param.b32 [pair+4], %t;\n\
         st.param.b32 [pair+8], %a; call.uni store, (to, pair); }\n ld.global.u32 %r, [%x];";
    assert_eq!(
        with_functions(body, 32),
        (0..32).map(|t| 2 * t + 7).collect::<Vec<_>>()
    );
}

/// Each lane and each call has its own frame.
#[test]
fn local_frames() {
    let body = "{ .param .b32 a; .param .b32 r; st.param.b32 [a], %t; call (r), with_frame, (a); ld.param.b32 %r, [r]; }";
    assert_eq!(
        with_functions(body, 50),
        (0..50).map(|t| t * 120).collect::<Vec<_>>()
    );
}

/// Through a register that differs per lane.
#[test]
fn indirect_calls() {
    let functions = ".func (.param .b32 r) one(.param .b32 a) { .reg .b32 %v; ld.param.b32 %v, [a]; add.u32 %v, %v, 1; \
         st.param.b32 [r], %v; ret; }\n\
         .func (.param .b32 r) two(.param .b32 a) { .reg .b32 %v; ld.param.b32 %v, [a]; mul.lo.u32 %v, %v, 2; \
         st.param.b32 [r], %v; ret; }\n";
    let body = "and.b32 %a, %t, 1;\n setp.eq.u32 %p, %a, 1;\n mov.u64 %x, one;\n mov.u64 %y, two;\n selp.b64 %x, %x, %y, %p;\n\
         { .param .b32 a; .param .b32 r; st.param.b32 [a], %t;\n\
         P: .callprototype (.param .b32 _) _ (.param .b32 _);\n call (r), %x, (a), P; ld.param.b32 %r, [r]; }";
    let got = run(&module_with(functions, body), 1, 32, &Buffer::zeroed(4));
    assert_eq!(
        got,
        (0..32)
            .map(|t| if t % 2 == 1 { t + 1 } else { t * 2 })
            .collect::<Vec<_>>()
    );
}

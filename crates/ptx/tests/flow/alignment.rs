//! Alignment: the address a lane sees is as aligned as the variable asks, in every lane, warp and frame.

use crate::probe::{module_with, run};
use crate::support::Buffer;

/// Bits of `variable`'s generic address below its alignment, added to `%r`; then a store and a load through it.
fn look(space: &str, variable: &str, align: u64) -> String {
    format!(
        "mov.u64 %x, {variable}; cvta.{space}.u64 %x, %x; and.b64 %y, %x, {}; cvt.u32.u64 %a, %y; add.u32 %r, %r, %a;\n\
         st.u32 [%x], %t; ld.u32 %b, [%x]; sub.u32 %b, %b, %t; add.u32 %r, %r, %b;\n",
        align - 1
    )
}

/// What numba's `cuda.local.array(..., alignment=256)` computes, for every power of two to a page and beyond.
#[test]
fn local_variables() {
    for shift in 0..=13 {
        let align = 1u64 << shift;
        let declared = format!(
            ".local .align 1 .b8 odd[7]; .local .align {align} .b8 first[12]; .local .align 4 .b8 between[4];\n\
             .local .align {align} .b8 second[20];\n"
        );
        // One lane's word at a time: addresses of less than 4 bytes of alignment are only looked at.
        let body = declared
            + &if align < 4 {
                format!(
                    "mov.u64 %x, first; cvta.local.u64 %x, %x; and.b64 %y, %x, {}; cvt.u32.u64 %r, %y;",
                    align - 1
                )
            } else {
                look("local", "first", align) + &look("local", "second", align)
            };
        assert_eq!(
            run(&module_with("", &body), 3, 96, &Buffer::zeroed(4)),
            [0; 288],
            "{align}"
        );
    }
}

/// Frames of functions, below frames of odd sizes, and one that a recursive function makes.
#[test]
fn frames_of_functions() {
    let frame = |name: &str, align: u64, then: &str| {
        format!(
            ".func (.param .b32 o) {name}(.param .b32 n) {{\n\
             .local .align {align} .b8 v[24]; .reg .b64 %x, %y; .reg .b32 %r, %a, %b, %t; .reg .pred %p;\n\
             ld.param.b32 %t, [n]; mov.u32 %r, 0;\n{}{then}\nst.param.b32 [o], %r; ret; }}\n",
            look("local", "v", align)
        )
    };
    let call = |name: &str| {
        format!(
            "{{ .param .b32 g; .param .b32 w; st.param.b32 [g], %t; call (w), {name}, (g); ld.param.b32 %a, [w]; \
             add.u32 %r, %r, %a; }}\n"
        )
    };
    let again = format!(
        "setp.eq.u32 %p, %t, 0; @%p bra END; sub.u32 %t, %t, 1;\n{}END:",
        call("deep")
    );
    let functions = ".func (.param .b32 o) deep(.param .b32 n);\n".to_owned()
        + &frame("deep", 128, &again)
        + &frame("leaf", 256, "")
        + &frame("middle", 8, &call("leaf"))
        + &frame("top", 1024, &call("middle"));
    let body = format!(
        ".local .align 4 .b8 own[4];\n{}{}{}and.b32 %t, %t, 7;\n{}",
        look("local", "own", 4),
        call("leaf"),
        call("top"),
        call("deep")
    );
    assert_eq!(
        run(&module_with(&functions, &body), 2, 64, &Buffer::zeroed(4)),
        [0; 128]
    );
}

#[test]
fn shared_variables() {
    for align in [4, 64, 256, 1024, 4096] {
        let before = format!(
            ".extern .shared .align {align} .b8 window[];\n.shared .align 4 .b8 little[4];\n\
             .shared .align {align} .b8 wide[64];\n"
        );
        let body = [("little", 4), ("wide", align), ("window", align)]
            .map(|(name, align)| {
                format!(
                    "mov.u64 %x, {name}; cvta.shared.u64 %x, %x; and.b64 %y, %x, {}; cvt.u32.u64 %a, %y; \
                     add.u32 %r, %r, %a;\n",
                    align - 1
                )
            })
            .concat();
        assert_eq!(
            run(&module_with(&before, &body), 3, 64, &Buffer::zeroed(4)),
            [0; 192],
            "{align}"
        );
    }
}

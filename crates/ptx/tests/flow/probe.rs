//! A kernel around a few lines of PTX: one word out per thread.

use divvy_ptx::{Fault, Stats};

use crate::support::{Buffer, Loaded};

/// A module with the one kernel `probe(out, in)`. Before `body`, `%i` is the thread's number in the grid, `%t` in its
/// block, `%lane` in its warp, `%in` and `%out` the buffers; after it `%r` goes to `out[%i]`. `%a`, `%b`, `%c`, `%k`
/// (32 bits), `%x`, `%y` (64 bits), `%f`, `%g` (floats), `%p`, `%q` (predicates) are free.
pub fn module(body: &str) -> String {
    module_with("", body)
}

/// As [`module`], with declarations before the kernel.
pub fn module_with(before: &str, body: &str) -> String {
    format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n{before}\n\
         .visible .entry probe(.param .u64 out_p, .param .u64 in_p)\n{{\n\
         .reg .b32 %i, %t, %lane, %n, %r, %a, %b, %c, %k; .reg .b64 %in, %out, %at, %x, %y;\n\
         .reg .f32 %f, %g; .reg .pred %p, %q;\n\
         mov.u32 %t, %tid.x;\n mov.u32 %n, %ntid.x;\n mov.u32 %i, %ctaid.x;\n mad.lo.s32 %i, %i, %n, %t;\n\
         and.b32 %lane, %t, 31;\n ld.param.u64 %in, [in_p];\n ld.param.u64 %out, [out_p];\n mov.u32 %r, 0;\n\
         {body}\n\
         mul.wide.u32 %at, %i, 4;\n add.s64 %at, %out, %at;\n st.global.u32 [%at], %r;\n ret;\n}}\n"
    )
}

/// Runs `text`'s kernel over `blocks` of `threads`, with `input` lent; the words written, and how it ended.
pub fn attempt(text: &str, blocks: u32, threads: u32, input: &Buffer) -> (Vec<u32>, Result<Stats, Fault>) {
    let out = Buffer::zeroed((blocks * threads * 4) as usize);
    let loaded = Loaded::new(text);
    let end = loaded
        .kernel("probe")
        .grid(blocks)
        .block(threads)
        .shared(4096)
        .buffer(&out)
        .buffer(input)
        .end();
    (out.u32s(), end)
}

/// As [`attempt`] for a kernel that must end well.
pub fn run(text: &str, blocks: u32, threads: u32, input: &Buffer) -> Vec<u32> {
    let (words, end) = attempt(text, blocks, threads, input);
    if let Err(fault) = end {
        panic!("{fault}\n{text}");
    }
    words
}

/// One block of `threads` around `body`, without input.
pub fn block(body: &str, threads: u32) -> Vec<u32> {
    run(&module(body), 1, threads, &Buffer::zeroed(4))
}

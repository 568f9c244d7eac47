//! Cooperative launches: every block runs although each waits for all others.

use std::sync::atomic::AtomicBool;

use divvy_ptx::Fault;

use crate::support::{Buffer, Loaded};

/// A grid-wide barrier by hand: arrive, then spin until all blocks have. Twice the workers' number of blocks and more.
const GRID_BARRIER: &str = ".version 8.5
.target sm_90
.address_size 64
.visible .entry rounds(.param .u64 cells, .param .u64 arrived, .param .u32 rounds)
{
 .reg .b32 %t, %b, %g, %k, %n, %v, %want, %left; .reg .b64 %cells, %arrived, %at, %next; .reg .pred %p, %first;
 ld.param.u64 %cells, [cells]; ld.param.u64 %arrived, [arrived]; ld.param.u32 %n, [rounds];
 mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %g, %nctaid.x; mov.u32 %k, 0;
 setp.eq.u32 %first, %t, 0;
ROUND:
 mul.wide.u32 %at, %b, 4; add.s64 %at, %cells, %at;
 add.u32 %left, %b, 1; rem.u32 %left, %left, %g; mul.wide.u32 %next, %left, 4; add.s64 %next, %cells, %next;
 @!%first bra MEET;
 ld.volatile.global.u32 %v, [%next];
 add.u32 %v, %v, 1;
MEET:
 bar.sync 0;
 @!%first bra WAIT;
 membar.gl;
 red.global.add.u32 [%arrived], 1;
 mad.lo.u32 %want, %k, 2, 1; mul.lo.u32 %want, %want, %g;
SPIN:
 ld.volatile.global.u32 %left, [%arrived];
 setp.lt.u32 %p, %left, %want;
 @%p bra SPIN;
 st.volatile.global.u32 [%at], %v;
 membar.gl;
 red.global.add.u32 [%arrived], 1;
 add.u32 %want, %want, %g;
AGAIN:
 ld.acquire.gpu.global.u32 %left, [%arrived];
 setp.lt.u32 %p, %left, %want;
 @%p bra AGAIN;
WAIT:
 bar.sync 0;
 add.u32 %k, %k, 1;
 setp.lt.u32 %p, %k, %n;
 @%p bra ROUND;
 ret;
}
";

/// After each round every cell holds its right neighbour's value plus one.
#[test]
fn blocks_wait_for_each_other() {
    let loaded = Loaded::new(GRID_BARRIER);
    for (blocks, threads, rounds) in [(2u32, 32, 5), (9, 64, 4), (33, 96, 3)] {
        let start: Vec<u32> = (0..blocks).map(|b| b * 100).collect();
        let (cells, arrived) = (Buffer::of_u32(&start), Buffer::zeroed(4));
        let run = loaded.kernel("rounds").grid(blocks).block(threads).cooperative();
        run.buffer(&cells).buffer(&arrived).u32(rounds).ok();
        let want: Vec<u32> = (0..blocks)
            .map(|b| (b + rounds) % blocks * 100 + rounds)
            .collect();
        assert_eq!(cells.u32s(), want, "{blocks} blocks");
        assert_eq!(arrived.u32s(), [blocks * rounds * 2]);
    }
}

/// The same without asking for it: blocks are preempted all the same, so nothing hangs.
#[test]
fn an_ordinary_launch_that_spins() {
    let loaded = Loaded::new(GRID_BARRIER);
    let (cells, arrived) = (Buffer::zeroed(24), Buffer::zeroed(4));
    loaded
        .kernel("rounds")
        .grid(6)
        .block(32)
        .buffer(&cells)
        .buffer(&arrived)
        .u32(2)
        .ok();
    assert_eq!(cells.u32s(), [2; 6]);
}

/// The barrier of CUDA's device runtime, as cooperative groups call it. Every thread adds its left neighbour's value
/// of the round before, across blocks. `conduct`: block 0's behaviour: 1 returns first, 2 traps in round 1, 3 spins.
const RUNTIME_BARRIER: &str = ".version 8.5
.target sm_90
.address_size 64
.extern .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope);
.extern .func (.param .b32 error) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);
.visible .entry rounds(.param .u64 cells, .param .u32 rounds, .param .u32 conduct)
{
 .reg .b32 %t, %b, %i, %n, %k, %v, %w, %e, %rounds, %conduct; .reg .b64 %cells, %h, %at, %from; .reg .pred %p, %q;
 ld.param.u64 %cells, [cells]; ld.param.u32 %rounds, [rounds]; ld.param.u32 %conduct, [conduct];
 mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x; mad.lo.u32 %i, %b, %n, %t;
 mov.u32 %w, %nctaid.x; mul.lo.u32 %n, %n, %w;
 mul.wide.u32 %at, %i, 4; add.s64 %at, %cells, %at;
 add.u32 %w, %i, %n; sub.u32 %w, %w, 1; rem.u32 %w, %w, %n; mul.wide.u32 %from, %w, 4; add.s64 %from, %cells, %from;
 setp.ne.u32 %p, %b, 0; selp.u32 %conduct, 0, %conduct, %p;
 setp.eq.u32 %p, %conduct, 1; @%p ret;
 { .param .b32 s; .param .b64 r; st.param.b32 [s], 1; call (r), cudaCGGetIntrinsicHandle, (s); ld.param.b64 %h, [r]; }
 mov.u32 %k, 0;
ROUND:
 ld.global.u32 %v, [%from]; ld.global.u32 %w, [%at]; add.u32 %v, %v, %w;
 { .param .b64 g; .param .b32 f; .param .b32 r; st.param.b64 [g], %h; st.param.b32 [f], 0;
   call.uni (r), cudaCGSynchronize, (g, f); ld.param.b32 %e, [r]; }
 setp.ne.u32 %q, %e, 0; @%q bra FAILED;
 st.global.u32 [%at], %v;
 setp.eq.u32 %p, %conduct, 2; @%p trap;
SPIN: setp.eq.u32 %p, %conduct, 3; @%p bra SPIN;
 // Lanes come to this barrier in two groups.
 and.b32 %w, %t, 1; setp.eq.u32 %p, %w, 0; @%p bra EVEN;
 { .param .b64 g; .param .b32 f; .param .b32 r; st.param.b64 [g], %h; st.param.b32 [f], 0;
   call (r), cudaCGSynchronize, (g, f); ld.param.b32 %e, [r]; }
 bra NEXT;
EVEN:
 { .param .b64 g; .param .b32 f; .param .b32 r; st.param.b64 [g], %h; st.param.b32 [f], 0;
   call (r), cudaCGSynchronize, (g, f); ld.param.b32 %e, [r]; }
NEXT:
 setp.ne.u32 %q, %e, 0; @%q bra FAILED;
 add.u32 %k, %k, 1; setp.lt.u32 %p, %k, %rounds; @%p bra ROUND;
 ret;
FAILED:
 add.u32 %e, %e, 1000; st.global.u32 [%at], %e;
 ret;
}
";

#[test]
fn the_runtimes_barrier() {
    let loaded = Loaded::new(RUNTIME_BARRIER);
    for (blocks, threads, rounds) in [(1u32, 32u32, 2u32), (2, 1, 3), (7, 70, 5), (40, 96, 4)] {
        let mut want: Vec<u32> = (0..blocks * threads).map(|i| i * 3 + 1).collect();
        let cells = Buffer::of_u32(&want);
        let run = loaded.kernel("rounds").grid(blocks).block(threads).cooperative();
        run.buffer(&cells).u32(rounds).u32(0).ok();
        for _ in 0..rounds {
            let before = want.clone();
            for (i, cell) in want.iter_mut().enumerate() {
                *cell = cell.wrapping_add(before[(i + before.len() - 1) % before.len()]);
            }
        }
        assert_eq!(cells.u32s(), want, "{blocks} blocks of {threads}");
    }
}

/// Without a cooperative launch there is no handle, and the barrier says so instead of waiting.
#[test]
fn the_runtimes_barrier_in_an_ordinary_launch() {
    let loaded = Loaded::new(RUNTIME_BARRIER);
    let cells = Buffer::zeroed(3 * 32 * 4);
    loaded.kernel("rounds").grid(3).buffer(&cells).u32(2).u32(0).ok();
    assert_eq!(cells.u32s(), [1001; 96]);
}

/// A block that ends before the barrier, fails or never comes does not leave the others waiting.
#[test]
fn a_block_that_never_comes_to_the_runtimes_barrier() {
    let loaded = Loaded::new(RUNTIME_BARRIER);
    let end = |conduct: u32, cancel: &AtomicBool| {
        let cells = Buffer::zeroed(9 * 64 * 4);
        let run = loaded
            .kernel("rounds")
            .grid(9)
            .block(64)
            .cooperative()
            .cancel(cancel);
        run.buffer(&cells).u32(2).u32(conduct).end()
    };
    let never = AtomicBool::new(false);
    let gone = end(1, &never);
    assert!(matches!(gone, Err(Fault::Deadlock { .. })), "{gone:?}");
    let failed = end(2, &never);
    assert!(matches!(failed, Err(Fault::Trap { .. })), "{failed:?}");
    let cancel = AtomicBool::new(false);
    let cancelled = std::thread::scope(|scope| {
        let run = scope.spawn(|| end(3, &cancel));
        std::thread::sleep(std::time::Duration::from_millis(50));
        cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        run.join().unwrap()
    });
    assert!(matches!(cancelled, Err(Fault::Cancelled)), "{cancelled:?}");
}

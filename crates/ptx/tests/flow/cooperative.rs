//! Cooperative launches: every block runs although each waits for all others.

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

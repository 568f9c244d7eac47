//! A model of time: the times that waiting kernels see, and the lengths that are reported for them.

use crate::support::{Buffer, Loaded};
use divvy_ptx::{Times, Timing};

/// Waits in each usual way for `n` ticks of a clock, and stores when it began and ended.
fn waiting(clock: &str, ty: &str, body: &str) -> String {
    let (b, s) = (format!("b{ty}"), format!("u{ty}"));
    format!(
        ".version 7.0\n.target sm_75\n.address_size 64
        .visible .entry wait(.param .u64 out, .param .{s} n) {{
            .reg .pred %p; .reg .{b} %start, %now, %gone, %n, %end; .reg .b64 %out; .reg .b32 %r<4>; .reg .b64 %t;
            ld.param.u64 %out, [out];
            ld.param.{s} %n, [n];
            mov.u32 %r0, %tid.x;
            mul.wide.u32 %t, %r0, 16;
            add.u64 %out, %out, %t;
            mov.{s} %start, {clock};
            add.{s} %end, %start, %n;
            {body}
            mov.{s} %now, {clock};
            st.global.{s} [%out], %start;
            st.global.{s} [%out+8], %now;
            ret;
        }}"
    )
    .replace("CLOCK", clock)
    .replace("TY", ty)
}

const LOOPS: [&str; 6] = [
    "L: mov.uTY %now, CLOCK; sub.sTY %gone, %now, %start; setp.lt.sTY %p, %gone, %n; @%p bra L;",
    "L: mov.uTY %now, CLOCK; setp.lt.uTY %p, %now, %end; @%p bra L;",
    "L: mov.uTY %now, CLOCK; sub.uTY %gone, %now, %start; setp.ge.uTY %p, %gone, %n; @%p bra D; bra L; D:",
    "L: mov.uTY %now, CLOCK; sub.uTY %gone, %now, %start; setp.gt.uTY %p, %n, %gone; @%p bra.uni L;",
    "L: mov.uTY %now, CLOCK; sub.uTY %gone, %now, %start; setp.hs.uTY %p, %gone, %n; @!%p bra L;",
    "bra M; L: nanosleep.u32 1; M: mov.uTY %now, CLOCK; sub.uTY %gone, %now, %start; setp.lo.uTY %p, %gone, %n; @%p bra L;",
];

const INSTRUCTION_PS: u64 = 2000;

/// Runs it; the times, and what each thread stored.
fn run(text: &str, n: u64, narrow: bool, grid: u32, block: u32, start_ns: u64) -> (Times, Vec<(u64, u64)>) {
    let loaded = Loaded::new(text);
    let out = Buffer::zeroed(block as usize * 16);
    let launch = loaded.kernel("wait").grid(grid).block(block).buffer(&out);
    let launch = if narrow {
        launch.u32(n as u32)
    } else {
        launch.u64(n)
    };
    let stats = launch
        .timing(Timing {
            start_ns,
            instruction_ps: INSTRUCTION_PS,
            cpu_ns: &|| 0,
            progress: &|_| {},
        })
        .ok();
    let words = out.bytes();
    let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().unwrap());
    let stored = (0..block as usize)
        .map(|n| (word(n * 16), word(n * 16 + 8)))
        .collect();
    (stats.times, stored)
}

#[test]
fn a_wait_lasts_what_it_says_to_the_tick() {
    for (clock, ty) in [
        ("%globaltimer", "64"),
        ("%clock64", "64"),
        ("%globaltimer_lo", "32"),
        ("%clock", "32"),
    ] {
        for body in LOOPS {
            let text = waiting(clock, ty, body);
            let narrow = ty == "32";
            for n in [0u64, 1, 1000, 20_000_000, 1_000_000_007] {
                // The lower half of the clock overflows on the way.
                let start = (7 << 32) - 500;
                let (times, stored) = run(&text, n, narrow, 1, 64, start);
                for (begun, ended) in stored {
                    let gone = ended.wrapping_sub(begun) & if narrow { 0xffff_ffff } else { u64::MAX };
                    let body_case = format!("{clock} {n}: {body}");
                    if body.contains("%end") && narrow {
                        // It compares times that overflow: as on hardware it may not wait at all.
                        continue;
                    }
                    assert!(gone >= n && gone <= n + 40, "{gone} for {body_case}");
                }
                if !(body.contains("%end") && narrow) {
                    let took = times.longest_ps / 1000;
                    assert!(took >= n && took < n + 100, "{took} for {clock} {n}: {body}");
                }
            }
        }
    }
}

#[test]
fn warps_wait_at_the_same_time_and_blocks_add_up() {
    let text = waiting("%globaltimer", "64", LOOPS[0]);
    let (times, stored) = run(&text, 5_000_000, false, 7, 1024, 1000);
    assert!(
        stored
            .iter()
            .all(|(begun, ended)| *begun < 1100 && (5_001_000..5_001_200).contains(ended))
    );
    assert!((5_000_000_000..5_000_200_000).contains(&times.longest_ps));
    assert!((7 * 5_000_000_000..7 * 5_000_200_000).contains(&times.sum_ps));
}

#[test]
fn without_a_clock_instructions_take_the_time() {
    let text = waiting("%globaltimer", "64", "");
    let (times, _) = run(&text, 0, false, 1, 32, 0);
    assert!(
        (10 * INSTRUCTION_PS..16 * INSTRUCTION_PS).contains(&times.longest_ps),
        "{times:?}"
    );
}

/// A loop that does more than wait is left alone: it turns as often as the time it takes lets it.
#[test]
fn a_loop_that_counts_is_no_mere_wait() {
    let body = "mov.u32 %r1, 0;
        L: mov.u64 %now, CLOCK; add.u32 %r1, %r1, 1; sub.u64 %gone, %now, %start; setp.lt.u64 %p, %gone, %n; @%p bra L;
        cvt.u64.u32 %t, %r1; add.u64 %start, %start, %t;";
    let text = waiting("%globaltimer", "64", body);
    let (_, stored) = run(&text, 100_000, false, 1, 32, 0);
    let turns = stored[0].0;
    assert!(turns > 3, "{turns} turns");
}

#[test]
fn the_last_warp_at_a_barrier_says_when_it_opens() {
    let text = ".version 7.0\n.target sm_75\n.address_size 64
        .visible .entry wait(.param .u64 out, .param .u64 n) {
            .reg .pred %p<2>; .reg .b64 %start, %now, %gone, %n, %out, %t; .reg .b32 %r<4>;
            ld.param.u64 %out, [out];
            ld.param.u64 %n, [n];
            mov.u32 %r0, %tid.x;
            mul.wide.u32 %t, %r0, 16;
            add.u64 %out, %out, %t;
            mov.u64 %start, %globaltimer;
            setp.lt.u32 %p1, %r0, 32;
            @%p1 bra MEET;
            L: mov.u64 %now, %globaltimer; sub.u64 %gone, %now, %start; setp.lt.u64 %p0, %gone, %n; @%p0 bra L;
            MEET: bar.sync 0;
            mov.u64 %now, %globaltimer;
            st.global.u64 [%out], %start;
            st.global.u64 [%out+8], %now;
            ret;
        }";
    let (_, stored) = run(text, 3_000_000, false, 1, 128, 0);
    assert!(
        stored
            .iter()
            .all(|(_, ended)| (3_000_000..3_000_100).contains(ended)),
        "{stored:?}"
    );
}

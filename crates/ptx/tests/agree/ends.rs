//! How compiled kernels end that do not end by themselves, or may not be compiled; and loops whose lanes differ.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use divvy_ptx::{Fault, Timing};

use super::support::{Buffer, Loaded};

/// A kernel whose lanes go round loops of different lengths, or for ever.
fn rounds(end: &str) -> Loaded {
    Loaded::new(&format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry rounds(.param .u64 out)\n{{\n \
         .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p;\n mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 7; mov.u32 %r2, 0;\n\
         AGAIN:\n add.u32 %r2, %r2, 3;\n sub.s32 %r1, %r1, 1;\n {end}\n @%p bra AGAIN;\n \
         ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r0, 4; add.s64 %d0, %d0, %d1; st.global.u32 [%d0], %r2;\n ret;\n}}\n"
    ))
}

const ENDS: &str = "setp.ge.s32 %p, %r1, 0;";

#[test]
fn a_compiled_kernel_that_never_ends_is_stopped() {
    for never in [
        "setp.ne.s32 %p, 0, 1;",
        "setp.ne.s32 %p, %r1, -9;\n @!%p bra AGAIN;",
    ] {
        let (loaded, out, stop) = (rounds(never), Buffer::zeroed(256), AtomicBool::new(false));
        let run = loaded
            .kernel("rounds")
            .block(64)
            .buffer(&out)
            .cancel(&stop)
            .compile(true);
        let end = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                stop.store(true, Ordering::Relaxed);
            });
            run.end()
        });
        assert_eq!(end, Err(Fault::Cancelled));
    }
}

#[test]
fn the_model_of_time_counts_the_same_for_both() {
    let (loaded, out) = (rounds(ENDS), Buffer::zeroed(4 * 96));
    let times = [false, true].map(|compile| {
        let timing = Timing {
            start_ns: 1000,
            instruction_ps: 2500,
            cpu_ns: &|| 0,
            progress: &|_| (),
        };
        let run = loaded.kernel("rounds").block(96).buffer(&out);
        run.timing(timing).compile(compile).ok()
    });
    assert!(times[0].times.longest_ps > 2500 * 10);
    assert_eq!(times[0], times[1]);
    assert_eq!(out.u32s()[..9], [3, 6, 9, 12, 15, 18, 21, 24, 3]);
}

/// Names the test that runs in a child.
const CHILD: &str = "DIVVY_TEST_IN_CHILD";

/// Runs `test`, which has this name, in a process of its own.
fn in_child(name: &str, test: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return test();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

/// Whether a kernel that can be compiled is, and runs right either way.
fn is_compiled() -> bool {
    let (loaded, out) = (rounds(ENDS), Buffer::zeroed(128));
    loaded.kernel("rounds").buffer(&out).compile(true).ok();
    assert_eq!(out.u32s()[..3], [3, 6, 9]);
    loaded.module.interpreted_lines("rounds").is_some()
}

#[test]
fn where_no_memory_may_become_executable_kernels_are_interpreted() {
    in_child(
        "ends::where_no_memory_may_become_executable_kernels_are_interpreted",
        || {
            const PR_SET_MDWE: i32 = 65;
            const REFUSE_EXEC_GAIN: usize = 1;
            // SAFETY: plain numbers; from here on this process cannot make memory executable.
            let status = unsafe { libc::prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0usize, 0usize, 0usize) };
            if status != 0 {
                eprintln!("this kernel has no PR_SET_MDWE: not tested");
                return;
            }
            assert!(!is_compiled());
        },
    );
}

#[test]
fn without_avx2_kernels_are_interpreted() {
    in_child("ends::without_avx2_kernels_are_interpreted", || {
        divvy_ptx::without_vectors();
        assert!(!is_compiled());
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn beyond_the_limit_of_code_kernels_are_interpreted_until_code_is_freed() {
    in_child(
        "ends::beyond_the_limit_of_code_kernels_are_interpreted_until_code_is_freed",
        || {
            let first = rounds(ENDS);
            let Some(left) = first.module.interpreted_lines("rounds") else {
                eprintln!("this processor has no AVX-512: not tested");
                return;
            };
            assert_eq!(left, [0u32; 0], "every instruction of the kernel is compiled");
            // Room for the code of one such module.
            let one = executable_bytes();
            divvy_ptx::limit_code(one);
            assert!(!is_compiled());
            drop(first);
            assert!(is_compiled());
            assert_eq!(executable_bytes(), 0, "the code of modules that are gone is gone");
        },
    );
}

/// Bytes of memory without a file that this process may execute, but for the kernel's own.
#[cfg(target_arch = "x86_64")]
fn executable_bytes() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut sum = 0;
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert!(
            !(fields[1].contains('w') && fields[1].contains('x')),
            "no memory is both writable and executable: {line}"
        );
        if fields[1].contains('x') && fields.len() == 5 {
            let (from, to) = fields[0].split_once('-').unwrap();
            let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
            sum += number(to) - number(from);
        }
    }
    sum
}

#[test]
fn an_index_that_overflows_in_a_loop_does_so_in_its_own_lanes() {
    const START: i32 = i32::MAX - 47;
    let loaded = Loaded::new(&format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry beyond(.param .u64 out)\n{{\n \
         .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p;\n mov.u32 %r0, %tid.x; add.s32 %r1, %r0, {START}; mov.u32 %r2, 0; \
         mov.u64 %d3, 0;\nAGAIN:\n mul.wide.s32 %d1, %r1, 4; add.s64 %d3, %d3, %d1;\n add.s32 %r1, %r1, 8; \
         add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r2, 6;\n @%p bra AGAIN;\n \
         ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r0, 8; add.s64 %d0, %d0, %d1; st.global.u64 [%d0], %d3;\n ret;\n}}\n"
    ));
    let out = Buffer::zeroed(8 * 64);
    loaded.kernel("beyond").block(64).buffer(&out).ok();
    let lane = |n: i32| {
        (0..6)
            .map(|round| i64::from(START.wrapping_add(n + 8 * round)) * 4)
            .sum::<i64>()
    };
    let expected: Vec<u64> = (0..64).map(|n| lane(n) as u64).collect();
    assert_eq!(out.u64s(), expected);
}

#[test]
fn a_warp_does_not_reach_the_local_memory_of_the_one_before() {
    // Behind the barrier the last warp goes first, and finds its own local memory where the first may not look.
    let loaded = Loaded::new(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry foreign(.param .u64 out)\n{\n \
         .shared .align 8 .b64 whose; .local .align 8 .b8 own[8];\n \
         .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p;\n mov.u32 %r0, %tid.x; mov.u64 %d0, own; \
         cvta.local.u64 %d1, %d0; st.u32 [%d1], %r0;\n setp.eq.u32 %p, %r0, 32;\n \
         @%p st.shared.u64 [whose], %d1;\n bar.sync 0;\n ld.shared.u64 %d2, [whose];\n ld.u32 %r1, [%d2];\n \
         ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r0, 4; add.s64 %d0, %d0, %d1; st.global.u32 [%d0], %r1;\n \
         ret;\n}\n",
    );
    let out = Buffer::zeroed(4 * 64);
    let end = loaded.kernel("foreign").block(64).buffer(&out).end();
    assert!(matches!(end, Err(Fault::IllegalAddress { .. })), "{end:?}");
    // That warp did: both run in this order.
    assert_eq!(out.u32s()[32..], [32; 32]);
}

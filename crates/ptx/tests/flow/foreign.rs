//! What programs of others rely on, and no text of ours happened to have: each test is a defect that one of them met.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use divvy_ptx::{AddressSpace, Fault, Launch, Module};

use crate::probe::{attempt, block, module, module_with, run};
use crate::support::{Buffer, Loaded, Memory, engine};

/// A 32-bit address register plus an offset is 32 bits wide: a negative register comes back into the window.
#[test]
fn addresses_of_32_bits_wrap() {
    let shared = ".shared .align 16 .b8 cells[4096];";
    let fill = "mov.u32 %b, cells;\n mad.lo.u32 %b, %t, 4, %b;\n mul.lo.u32 %a, %t, 3;\n st.shared.u32 [%b], %a;\n bar.sync 0;\n";
    let own: Vec<u32> = (0..32).map(|t| t * 3).collect();
    for (address, offset, want) in [
        ("mad.lo.u32 %c, %t, 4, -60;", 60, own.clone()),
        ("mov.u32 %c, -60;", 64, vec![3; 32]),
        (
            "and.b32 %c, %t, 15;\n mad.lo.u32 %c, %c, 4, -60;",
            60,
            (0..32).map(|t| t % 16 * 3).collect(),
        ),
        (
            "mad.lo.u32 %c, %t, -4, 60;",
            64,
            own.iter().rev().copied().collect(),
        ),
    ] {
        for load in ["ld.shared", "ld.volatile.shared"] {
            let body = format!("{fill}{address}\n {load}.u32 %r, [%c+{offset}];");
            assert_eq!(
                run(&module_with(shared, &body), 1, 32, &Buffer::zeroed(4)),
                want,
                "{body}"
            );
        }
    }
    let text = module_with(
        shared,
        &format!(
            "{fill} mov.u32 %c, -64;\n ld.shared.v2.u32 {{%a, %b}}, [%c+72];\n st.shared.u32 [%c+64], 9;\n \
             bar.sync 0;\n atom.shared.add.u32 %k, [%c+64], 1;\n red.shared.add.u32 [%c+64], 1;\n bar.sync 0;\n \
             ld.shared.u32 %r, [%c+64];\n mad.lo.u32 %r, %r, 100, %a;\n mad.lo.u32 %r, %r, 100, %b;"
        ),
    );
    assert_eq!(
        run(&text, 1, 32, &Buffer::zeroed(4)),
        vec![(9 + 64) * 10000 + 609; 32]
    );
    let body = ".local .align 8 .b8 own[64];\n mov.u32 %c, -32;\n mov.u32 %a, own;\n st.local.u32 [%a+8], %t;\n \
                add.u32 %c, %c, %a;\n ld.local.u32 %r, [%c+40];";
    assert_eq!(block(body, 32), (0..32).collect::<Vec<_>>());
}

/// `array[n]` and `array[%r]` without brackets around them count in elements; `mov` gives the element's address.
#[test]
fn elements_of_arrays() {
    let before = ".shared .align 8 .b64 pairs[8];\n.global .align 4 .u32 table[4] = {10, 20, 30, 40};\n\
                  .func (.param .b32 out) own(.param .b32 in)\n{\n .reg .b32 %i, %v;\n .local .align 4 .b32 mine[4];\n \
                  ld.param.b32 %i, [in];\n st.local.b32 mine[%i], 7;\n st.local.b32 mine[3], 5;\n \
                  ld.local.b32 %v, mine[%i];\n ld.local.b32 %i, [mine+12];\n mad.lo.u32 %v, %v, 10, %i;\n \
                  st.param.b32 [out], %v;\n ret;\n}\n";
    let body = ".local .align 4 .b32 arr[32];\n mov.u32 %a, 0;\n FILL: mad.lo.u32 %b, %a, 5, %t;\n st.local.b32 arr[%a], %b;\n \
                add.u32 %a, %a, 1;\n setp.lt.u32 %p, %a, 32;\n @%p bra FILL;\n ld.local.b32 %r, arr[%t];\n \
                ld.local.b32 %b, arr[3];\n add.u32 %r, %r, %b;\n ld.local.b32 %b, arr[%t+-0];\n add.u32 %r, %r, %b;";
    let want: Vec<u32> = (0..32).map(|t| 2 * (t * 5 + t) + 15 + t).collect();
    assert_eq!(run(&module_with(before, body), 1, 32, &Buffer::zeroed(4)), want);

    let body = "and.b32 %a, %t, 7;\n cvt.u64.u32 %x, %t;\n st.shared.u64 pairs[%a], %x;\n bar.sync 0;\n \
                mov.u64 %y, pairs[2];\n ld.shared.u64 %x, [%y+8];\n cvt.u32.u64 %r, %x;\n mov.u32 %b, pairs[%a];\n \
                ld.shared.u64 %x, [%b];\n cvt.u32.u64 %b, %x;\n mad.lo.u32 %r, %r, 100, %b;\n \
                ld.global.u32 %b, table[2];\n add.u32 %r, %r, %b;\n mov.u64 %y, table[0];\n ld.global.u32 %b, [%y+4];\n \
                add.u32 %r, %r, %b;";
    let got = run(&module_with(before, body), 1, 8, &Buffer::zeroed(4));
    assert_eq!(got, (0..8).map(|t| 3 * 100 + t + 30 + 20).collect::<Vec<_>>());

    let body = ".param .b32 n;\n .param .b32 v;\n and.b32 %a, %t, 3;\n setp.eq.u32 %p, %a, 3;\n @%p mov.u32 %a, 0;\n \
                st.param.b32 [n], %a;\n call (v), own, (n);\n ld.param.b32 %r, [v];";
    assert_eq!(
        run(&module_with(before, body), 1, 32, &Buffer::zeroed(4)),
        vec![75; 32]
    );

    // An index that leads outside is a fault as any other address is.
    let body = ".local .align 4 .b32 arr[4];\n st.local.b32 arr[%t], 1;";
    let (_, end) = attempt(&module(body), 1, 32, &Buffer::zeroed(4));
    assert!(matches!(end, Err(Fault::IllegalAddress { .. })), "{end:?}");
    for wrong in [
        "mov.u64 %x, arr[;",
        "mov.u64 %x, arr[%f];",
        "mov.u64 %x, arr[%nothing];",
        "ld.local.u32 %r, arr;",
    ] {
        let text = module(&format!(".local .align 4 .b32 arr[4];\n {wrong}"));
        assert!(Module::parse(text.as_bytes()).is_err(), "{wrong}");
    }
}

/// CUDA C++'s `grid.sync()`: the address of the workspace is in two environment registers, and is null in a launch
/// that is not cooperative.
#[test]
fn the_grids_workspace() {
    let sync = "mov.b32 %a, %envreg1;\n mov.b32 %b, %envreg2;\n mov.b64 %x, {%b, %a};\n setp.eq.s64 %p, %x, 0;\n @%p trap;\n \
                mov.u32 %c, %nctaid.x;\n mov.u32 %k, %ctaid.x;\n barrier.sync 0;\n setp.ne.u32 %p, %t, 0;\n @%p bra DONE;\n \
                setp.eq.u32 %q, %k, 0;\n sub.u32 %a, 0x80000001, %c;\n selp.b32 %a, %a, 1, %q;\n fence.acq_rel.gpu;\n \
                atom.add.u32 %b, [%x+4], %a;\n SPIN: ld.volatile.u32 %a, [%x+4];\n xor.b32 %a, %a, %b;\n \
                setp.ge.s32 %p, %a, 0;\n @%p bra SPIN;\n DONE: barrier.sync 0;\n";
    let body = format!(
        "mul.wide.u32 %y, %i, 4;\n add.s64 %y, %in, %y;\n st.global.u32 [%y], %i;\n {sync}\
         xor.b32 %a, %i, 32;\n mul.wide.u32 %y, %a, 4;\n add.s64 %y, %in, %y;\n ld.global.u32 %r, [%y];"
    );
    let loaded = Loaded::new(&module(&body));
    let (out, cells) = (Buffer::zeroed(4 * 128 * 4), Buffer::zeroed(4 * 128 * 4));
    let go = || {
        loaded
            .kernel("probe")
            .grid(8)
            .block(64)
            .buffer(&out)
            .buffer(&cells)
    };
    go().cooperative().ok();
    assert_eq!(out.u32s(), (0..512).map(|i| i ^ 32).collect::<Vec<u32>>());
    assert!(matches!(go().end(), Err(Fault::Trap { .. })));
}

/// The shared memory that CUDA's own library has in each block is apart from the kernel's.
#[test]
fn shared_memory_of_the_system() {
    let shared = ".shared .align 4 .b32 cells[32];\n.extern .shared .align 4 .b32 rest[];";
    let body = "mov.u32 %a, %reserved_smem_offset_1;\n mad.lo.u32 %b, %t, 4, %a;\n mov.u32 %c, cells;\n \
                mad.lo.u32 %c, %t, 4, %c;\n st.shared.u32 [%c], 1;\n mov.u32 %k, rest;\n mad.lo.u32 %k, %t, 128, %k;\n \
                st.shared.u32 [%k+124], 2;\n mov.u32 %r, %reserved_smem_offset_begin;\n mad.lo.u32 %r, %t, 4, %r;\n \
                st.shared.u32 [%r], 3;\n st.shared.u32 [%b], %t;\n bar.sync 0;\n ld.shared.u32 %a, [%c];\n \
                ld.shared.u32 %n, [%k+124];\n ld.shared.u32 %r, [%r];\n ld.shared.u32 %b, [%b];\n \
                mad.lo.u32 %r, %r, 10, %n;\n mad.lo.u32 %r, %r, 10, %a;\n mad.lo.u32 %r, %r, 100, %b;";
    let got = run(&module_with(shared, body), 2, 32, &Buffer::zeroed(4));
    assert_eq!(got, (0..64).map(|i| 32100 + i % 32).collect::<Vec<_>>());
}

/// What linkers leave: weak definitions beside strong ones, and callers whose declaration is not the definition's.
#[test]
fn definitions_of_several_texts() {
    let weak = ".weak .global .align 4 .u32 shared_word = 1;\n.visible .global .align 4 .u32 shared_word = 2;\n\
                .weak .global .align 4 .u32 shared_word = 3;\n\
                .weak .func (.param .b32 out) pick() { st.param.b32 [out], 4; ret; }\n\
                .visible .func (.param .b32 out) pick() { st.param.b32 [out], 5; ret; }\n\
                .weak .func (.param .b32 out) pick() { st.param.b32 [out], 6; ret; }\n";
    let body = ".param .b32 v;\n call (v), pick, ();\n ld.param.b32 %r, [v];\n ld.global.u32 %a, [shared_word];\n \
                mad.lo.u32 %r, %r, 10, %a;";
    assert_eq!(run(&module_with(weak, body), 1, 1, &Buffer::zeroed(4)), [52]);

    let apart = ".extern .func (.param .b32 out) taker(.param .b32 one, .param .b32 two);\n\
                 .visible .func taker(.param .b32 one) { .reg .b32 %r1; .reg .b64 %x1; ld.param.b32 %r1, [one]; \
                 mov.u64 %x1, told; st.global.u32 [%x1], %r1; ret; }\n";
    let told = ".global .align 4 .u32 told;\n";
    let body = ".param .b32 a;\n .param .b32 b;\n .param .b32 v;\n st.param.b32 [a], 11;\n st.param.b32 [b], 12;\n \
                call (v), taker, (a, b);\n ld.global.u32 %r, [told];";
    let text = module_with(&format!("{told}{apart}"), body);
    assert_eq!(run(&text, 1, 1, &Buffer::zeroed(4)), [11]);
    // Without such a declaration the call is wrong, and two strong definitions are.
    let alone = apart.lines().skip(1).collect::<String>();
    assert!(Module::parse(module_with(&format!("{told}{alone}"), body).as_bytes()).is_err());
    for twice in [
        ".visible .global .u32 x = 1;\n.visible .global .u32 x = 2;",
        ".visible .func f() { ret; }\n.visible .func f() { ret; }",
    ] {
        assert!(
            Module::parse(module_with(twice, "").as_bytes()).is_err(),
            "{twice}"
        );
    }
}

/// A failed assertion names the block and thread of each thread that failed, and is a fault of its own.
#[test]
fn assertions() {
    let before = ".global .align 1 .b8 what[6] = {110, 32, 60, 32, 57, 0};\n.global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};\n\
                  .global .align 1 .b8 name[4] = {107, 40, 41, 0};\n\
                  .extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);";
    let body = "mov.u32 %b, %tid.y;\n add.u32 %b, %b, %i;\n setp.lt.u32 %p, %b, 31;\n @%p bra FINE;\n { .param .b64 m; .param .b64 f; .param .b32 l; .param .b64 n; .param .b64 s;\n \
                mov.u64 %x, what; st.param.b64 [m], %x; mov.u64 %x, file; st.param.b64 [f], %x; st.param.b32 [l], 47;\n \
                mov.u64 %x, name; st.param.b64 [n], %x; st.param.b64 [s], 1;\n call __assertfail, (m, f, l, n, s); }\n FINE:";
    let (out, input) = (Buffer::zeroed(64 * 4), Buffer::zeroed(4));
    let loaded = Loaded::new(&module_with(before, body));
    let run = loaded
        .kernel("probe")
        .grid(2)
        .block3([16, 2, 1])
        .buffer(&out)
        .buffer(&input);
    let (end, printed) = run.outcome();
    assert!(matches!(end, Err(Fault::Assert { .. })), "{end:?}");
    let text = String::from_utf8(printed.concat()).unwrap();
    assert_eq!(
        text,
        "a.cu:47: k(): block: [1,0,0], thread: [15,0,0] Assertion `n < 9` failed.\n\
         a.cu:47: k(): block: [1,0,0], thread: [14,1,0] Assertion `n < 9` failed.\n\
         a.cu:47: k(): block: [1,0,0], thread: [15,1,0] Assertion `n < 9` failed.\n"
    );
}

/// A kernel may declare 48 KiB of shared memory with its size, used or not, and no byte more.
#[test]
fn static_shared_memory() {
    for (bytes, fits) in [
        (49152u64, true),
        (49153, false),
        (4_000_000_000, false),
        (1 << 45, false),
    ] {
        let text = module(&format!(".shared .b8 s[{bytes}];"));
        assert_eq!(Module::parse(text.as_bytes()).is_ok(), fits, "{bytes}, unused");
        let text = module_with(&format!(".shared .b8 s[{bytes}];"), "mov.u32 %r, s;");
        assert_eq!(
            Module::parse(text.as_bytes()).is_ok(),
            fits,
            "{bytes}, of the module"
        );
    }
}

#[test]
fn the_texts_target() {
    for (line, target) in [
        (".target sm_75", 75),
        (".target sm_90a, debug", 90),
        (".target texmode_independent", 0),
    ] {
        let text = module("").replace(".target sm_90", line);
        assert_eq!(Module::parse(text.as_bytes()).unwrap().target(), target, "{line}");
    }
}

/// Memory that counts how often it is asked for a range.
struct Counted(Memory, AtomicU32);

impl AddressSpace for Counted {
    fn range(&self, address: u64) -> Option<Range<u64>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.range(address)
    }
}

/// A worker asks for a range of device memory once, however many instructions share a place to remember it in.
#[test]
fn ranges_are_asked_for_once() {
    let loads = "ld.global.u32 %a, [%x];\n ld.u32 %b, [%out];\n ".repeat(37);
    let text = module(&format!(
        "mov.u64 %x, %in;\n mov.u32 %k, 0;\n LOOP: {loads} add.u32 %k, %k, 1;\n \
                                setp.lt.u32 %p, %k, 50;\n @%p bra LOOP;"
    ));
    let loaded = Loaded::new(&text);
    let (out, input) = (Buffer::zeroed(64 * 4), Buffer::zeroed(64 * 4));
    let memory = Counted(
        Memory {
            ranges: vec![out.range(), input.range()],
            ..Memory::default()
        },
        AtomicU32::new(0),
    );
    let mut params = out.address().to_le_bytes().to_vec();
    params.extend(input.address().to_le_bytes());
    let launch = Launch {
        kernel: "probe",
        grid: [1; 3],
        block: [64, 1, 1],
        dynamic_shared_bytes: 0,
        params: &params,
        memory: &memory,
        cooperative: false,
        clock_ns: &|| 0,
        print: &|_| {},
        cancel: &AtomicBool::new(false),
        sm_count: 4,
        clock_khz: 1_000_000,
        timing: None,
        compile: false,
    };
    engine().run(&loaded.program, &launch).unwrap();
    let asked = memory.1.into_inner();
    // Two ranges; a launch that is put aside may be gone on with by another worker, which asks again.
    assert!(asked <= 8, "asked {asked} times");
}

//! Loads and stores: every width and vector, every space, generic addresses, cache hints and orderings.

use crate::probe::{block, module, module_with, run};
use crate::support::{Buffer, Loaded};

/// A narrow load fills its register by the type's own rule; a narrow store keeps the low bits.
#[test]
fn widths_and_extension() {
    let bytes: Vec<u8> = (0..256).map(|k| (k * 37 + 11) as u8).collect();
    let input = Buffer::of_bytes(&bytes);
    type Read = fn(&[u8]) -> u32;
    let loads: [(&str, u32, Read); 6] = [
        ("u8", 1, |b| u32::from(b[0])),
        ("s8", 1, |b| b[0] as i8 as u32),
        ("b8", 1, |b| u32::from(b[0])),
        ("u16", 2, |b| u32::from(u16::from_le_bytes([b[0], b[1]]))),
        ("s16", 2, |b| i16::from_le_bytes([b[0], b[1]]) as u32),
        ("u32", 4, |b| u32::from_le_bytes(b[..4].try_into().unwrap())),
    ];
    for (ty, size, read) in loads {
        let body = format!("mul.wide.u32 %x, %t, {size};\n add.s64 %x, %in, %x;\n ld.global.{ty} %r, [%x];");
        let want: Vec<u32> = (0..32).map(|t| read(&bytes[(t * size) as usize..])).collect();
        assert_eq!(run(&module(&body), 1, 32, &input), want, "{ty}");
    }
    let body = "mov.u64 %y, -1;\n add.s64 %x, %in, 3;\n ld.global.s8 %y, [%x];\n shr.u64 %y, %y, 32;\n cvt.u32.u64 %r, %y;";
    let sign = if bytes[3] >= 128 { u32::MAX } else { 0 };
    assert_eq!(run(&module(body), 1, 1, &input), [sign]);
    for (ty, size) in [("u8", 1u32), ("s8", 1), ("b16", 2), ("u32", 4)] {
        let space = Buffer::zeroed(128);
        let body = format!(
            "mul.wide.u32 %x, %t, {size};\n add.s64 %x, %in, %x;\n mad.lo.u32 %a, %t, 0x01030507, 0xf0e0d0c0;\n \
             st.global.{ty} [%x], %a;"
        );
        run(&module(&body), 1, 32, &space);
        let word = |t: u32| {
            t.wrapping_mul(0x0103_0507)
                .wrapping_add(0xf0e0_d0c0)
                .to_le_bytes()
        };
        let want: Vec<u8> = (0..32).flat_map(|t| word(t)[..size as usize].to_vec()).collect();
        assert_eq!(space.bytes()[..want.len()], want, "{ty}");
    }
}

/// Vectors of two and four, in words, doubles and bytes, through global and shared memory.
#[test]
fn vectors() {
    let words: Vec<u32> = (0..128).map(|k| k * k).collect();
    let input = Buffer::of_u32(&words);
    let body = "mul.wide.u32 %x, %t, 16;\n add.s64 %x, %in, %x;\n ld.global.v4.u32 {%a, %b, %c, %k}, [%x];\n\
         sub.u32 %r, %b, %a;\n mad.lo.u32 %r, %c, 3, %r;\n mad.lo.u32 %r, %k, 5, %r;";
    let at = |t: u32, k: u32| words[(t * 4 + k) as usize];
    let want: Vec<u32> = (0..32)
        .map(|t| at(t, 1) - at(t, 0) + 3 * at(t, 2) + 5 * at(t, 3))
        .collect();
    assert_eq!(run(&module(body), 1, 32, &input), want);

    let body = "mul.wide.u32 %x, %t, 16;\n add.s64 %x, %in, %x;\n ld.global.nc.v2.u64 {%y, %at}, [%x];\n\
         add.s64 %y, %y, %at;\n shr.u64 %at, %y, 32;\n cvt.u32.u64 %r, %y;\n cvt.u32.u64 %a, %at;\n add.u32 %r, %r, %a;";
    assert_eq!(
        run(&module(body), 1, 32, &input),
        (0..32)
            .map(|t| (0..4).map(|k| at(t, k)).sum())
            .collect::<Vec<u32>>()
    );

    let shared = ".shared .align 16 .b8 cells[2048];";
    let body = "mul.lo.u32 %a, %t, 16;\n mov.u32 %b, cells;\n add.u32 %b, %b, %a;\n add.u32 %c, %t, 1;\n\
         st.shared.v4.u32 [%b], {%t, %c, 7, %n};\n xor.b32 %a, %a, 16;\n bar.sync 0;\n mov.u32 %b, cells;\n\
         add.u32 %b, %b, %a;\n ld.shared.v2.u32 {%r, %a}, [%b+8];\n mad.lo.u32 %r, %r, 100, %a;\n\
         ld.shared.v2.u32 {%a, %c}, [%b];\n mad.lo.u32 %r, %c, 10000, %r;";
    let want: Vec<u32> = (0..64).map(|t: u32| ((t ^ 1) + 1) * 10000 + 764).collect();
    assert_eq!(run(&module_with(shared, body), 1, 64, &input), want);

    let body = "mul.wide.u32 %x, %t, 4;\n add.s64 %x, %in, %x;\n .reg .b16 %h<4>;\n \
         ld.global.v4.u8 {%h0, %h1, %h2, %h3}, [%x];\n\
         cvt.u32.u16 %a, %h1;\n cvt.u32.u16 %b, %h3;\n mad.lo.u32 %r, %a, 256, %b;\n st.global.v4.u8 [%x], {%h3, %h2, %h1, %h0};";
    let want: Vec<u32> = (0..32)
        .map(|t| words[t].to_le_bytes())
        .map(|b| u32::from(b[1]) * 256 + u32::from(b[3]))
        .collect();
    assert_eq!(run(&module(body), 1, 32, &input), want);
    assert_eq!(
        input.u32s()[..32],
        words[..32].iter().map(|w| w.swap_bytes()).collect::<Vec<_>>()
    );
}

/// Floats and doubles through memory keep their bits, NaN payloads too.
#[test]
fn floats_keep_their_bits() {
    let input = Buffer::of_u32(&[0x7f80_0001, 0xffc1_2345, 0x0000_0001, 0x8000_0000]);
    let body = "mul.wide.u32 %x, %t, 4;\n add.s64 %x, %in, %x;\n ld.global.f32 %f, [%x];\n mov.b32 %r, %f;";
    assert_eq!(run(&module(body), 1, 4, &input), input.u32s());
    let body = "mul.wide.u32 %x, %t, 8;\n add.s64 %x, %in, %x;\n .reg .f64 %d;\n ld.global.f64 %d, [%x];\n\
         st.global.f64 [%x], %d;\n mov.b64 {%r, %a}, %d;";
    assert_eq!(run(&module(body), 1, 2, &input), [0x7f80_0001, 1]);
    assert_eq!(input.u32s()[1], 0xffc1_2345);
}

/// What caches and memory models add to an opcode changes no value here.
#[test]
fn hints_and_orderings() {
    let input = Buffer::of_u32(&(0..32).map(|k| k + 100).collect::<Vec<_>>());
    for load in [
        "ld.global",
        "ld.global.ca",
        "ld.global.cg",
        "ld.global.cv",
        "ld.global.nc",
        "ld.volatile.global",
        "ld.relaxed.gpu.global",
        "ld.acquire.sys.global",
        "ld.weak.global",
        "ld.global.L1::no_allocate",
        "ld.global.nc.L1::no_allocate.L2::128B",
        "ld",
        "ld.volatile",
        "ld.acquire.gpu",
        "ldu.global",
    ] {
        let body = format!("mul.wide.u32 %x, %t, 4;\n add.s64 %x, %in, %x;\n {load}.u32 %r, [%x];");
        assert_eq!(run(&module(&body), 1, 32, &input), input.u32s(), "{load}");
    }
    for store in [
        "st.global",
        "st.global.wb",
        "st.global.cg",
        "st.global.cs",
        "st.global.wt",
        "st.volatile.global",
        "st.relaxed.sys.global",
        "st.release.gpu.global",
        "st.weak.global",
        "st",
        "st.volatile",
        "st.release.gpu",
    ] {
        let body = format!("mul.wide.u32 %x, %t, 4;\n add.s64 %x, %in, %x;\n {store}.u32 [%x], %t;");
        run(&module(&body), 1, 32, &input);
        assert_eq!(input.u32s(), (0..32).collect::<Vec<_>>(), "{store}");
        input.fill(&[0xff; 128]);
    }
    let fences = "membar.cta;\n membar.gl;\n membar.sys;\n fence.sc.cta;\n fence.acq_rel.gpu;\n fence.sc.sys;\n \
         prefetch.global.L2 [%in];\n nanosleep.u32 20;\n mov.u32 %r, 1;";
    assert_eq!(run(&module(fences), 1, 32, &input), vec![1; 32]);
}

/// Generic addresses of every space, told apart and taken back.
#[test]
fn generic_addresses() {
    let before = ".shared .align 8 .b8 cells[512];\n.global .align 4 .u32 word = 41;\n.const .align 4 .u32 fixed = 43;";
    let body = ".local .align 8 .b8 mine[16];\n\
         mul.wide.u32 %x, %t, 4;\n mov.u64 %y, cells;\n add.s64 %y, %y, %x;\n cvta.shared.u64 %y, %y;\n\
         st.u32 [%y], %t;\n bar.sync 0;\n cvta.to.shared.u64 %x, %y;\n ld.shared.u32 %r, [%x];\n\
         isspacep.shared %p, %y;\n @!%p add.u32 %r, %r, 1000000;\n isspacep.global %p, %y;\n @%p add.u32 %r, %r, 2000000;\n\
         mov.u64 %x, mine;\n cvta.local.u64 %y, %x;\n mul.lo.u32 %a, %t, 5;\n st.u32 [%y+4], %a;\n ld.local.u32 %b, [%x+4];\n\
         mad.lo.u32 %r, %b, 100, %r;\n isspacep.local %p, %y;\n @!%p add.u32 %r, %r, 4000000;\n\
         mov.u64 %x, word;\n cvta.global.u64 %y, %x;\n ld.u32 %b, [%y];\n mad.lo.u32 %r, %b, 100000, %r;\n\
         isspacep.global %p, %y;\n @!%p add.u32 %r, %r, 8000000;\n\
         mov.u64 %x, fixed;\n cvta.const.u64 %y, %x;\n ld.u32 %b, [%y];\n add.u32 %r, %r, %b;\n\
         cvta.to.const.u64 %x, %y;\n ld.const.u32 %b, [%x];\n add.u32 %r, %r, %b;\n\
         cvta.to.global.u64 %x, %in;\n ld.global.u32 %b, [%x];\n add.u32 %r, %r, %b;";
    let want: Vec<u32> = (0..64).map(|t| t + 500 * t + 4_100_000 + 86 + 9).collect();
    assert_eq!(
        run(&module_with(before, body), 1, 64, &Buffer::of_u32(&[9])),
        want
    );
}

/// Static and dynamic shared memory do not overlap; blocks do not see each other's.
#[test]
fn shared_memory_is_the_blocks_own() {
    let before = ".shared .align 4 .b8 fixed[256];\n.extern .shared .align 16 .b8 dynamic[];";
    let body = "mov.u32 %a, fixed;\n mad.lo.u32 %a, %t, 4, %a;\n mov.u32 %b, dynamic;\n mad.lo.u32 %b, %t, 4, %b;\n\
         ld.shared.u32 %c, [%b+512];\n st.shared.u32 [%a], %i;\n add.u32 %k, %i, 1000;\n st.shared.u32 [%b], %k;\n bar.sync 0;\n\
         ld.shared.u32 %r, [%a];\n ld.shared.u32 %c, [%b];\n mad.lo.u32 %r, %c, 10000, %r;\n\
         mov.u32 %k, %dynamic_smem_size;\n add.u32 %r, %r, %k;";
    let want: Vec<u32> = (0..8 * 64).map(|i| (i + 1000) * 10000 + i + 4096).collect();
    assert_eq!(run(&module_with(before, body), 8, 64, &Buffer::zeroed(4)), want);
}

/// Tables in constant and global memory, with every kind of initialiser.
#[test]
fn module_variables() {
    let text = module_with(
        ".const .align 4 .u32 squares[5] = {0, 1, 4, 9};\n.global .align 8 .b8 bytes[8] = {1, 2, 0xff};\n\
         .global .align 8 .u64 pointer = squares_copy;\n.global .align 8 .u64 inner = squares_copy+8;\n\
         .global .align 4 .s32 squares_copy[4] = {-1, 10, 20, 30};\n.global .align 4 .f32 reals[2] = {1.5, 0f40000000};\n\
         .global .align 4 .u32 grid[2][2] = {{1, 2}, {3, 4}};\n.visible .global .align 8 .u64 generic_pointer = generic(squares_copy);",
        "and.b32 %a, %t, 3;\n mul.wide.u32 %x, %a, 4;\n mov.u64 %y, squares;\n add.s64 %y, %y, %x;\n ld.const.u32 %r, [%y];\n\
         mad.lo.u32 %r, %r, 1, 0;\n ld.global.u64 %y, [pointer];\n ld.global.u32 %b, [%y+4];\n mad.lo.u32 %r, %b, 100, %r;\n\
         ld.global.u64 %y, [inner];\n ld.global.u32 %b, [%y];\n mad.lo.u32 %r, %b, 1000, %r;\n\
         ld.global.u8 %b, [bytes+2];\n mad.lo.u32 %r, %b, 100000, %r;\n ld.global.u32 %b, [grid+12];\n add.u32 %r, %r, %b;\n\
         ld.global.f32 %f, [reals+4];\n cvt.rzi.u32.f32 %b, %f;\n add.u32 %r, %r, %b;\n ld.const.u32 %b, [squares+16];\n add.u32 %r, %r, %b;\n\
         ld.global.u64 %y, [generic_pointer];\n ld.s32 %b, [%y];\n add.s32 %r, %r, %b;",
    );
    let want: Vec<u32> = (0..32)
        .map(|t| (t & 3) * (t & 3) + 1000 + 20_000 + 25_500_000 + 4 + 2 - 1)
        .collect();
    assert_eq!(run(&text, 1, 32, &Buffer::zeroed(4)), want);
}

/// Kernel parameters of every size, in order, with their padding.
#[test]
fn parameters() {
    let text = ".version 8.5\n.target sm_90\n.address_size 64\n\
        .visible .entry take(.param .u8 a, .param .u16 b, .param .u64 out, .param .f32 c, .param .s8 d, \
        .param .align 16 .b8 big[24], .param .f64 e)\n{\n\
        .reg .b32 %v; .reg .b64 %o; .reg .f32 %f; .reg .f64 %d; .reg .b16 %h;\n ld.param.u64 %o, [out];\n\
        ld.param.u8 %v, [a];\n st.global.u32 [%o], %v;\n ld.param.u16 %h, [b];\n cvt.u32.u16 %v, %h;\n st.global.u32 [%o+4], %v;\n\
        ld.param.f32 %f, [c];\n st.global.f32 [%o+8], %f;\n ld.param.s8 %v, [d];\n st.global.u32 [%o+12], %v;\n\
        ld.param.u32 %v, [big+20];\n st.global.u32 [%o+16], %v;\n ld.param.f64 %d, [e];\n st.global.f64 [%o+24], %d;\n\
        .reg .b64 %p; mov.b64 %p, big; ld.param.u32 %v, [%p+4]; st.global.u32 [%o+20], %v;\n ret;\n}\n";
    let loaded = Loaded::new(text);
    let out = Buffer::zeroed(32);
    let mut big = [0u8; 24];
    big[20] = 77;
    big[4] = 66;
    let run = loaded
        .kernel("take")
        .block(1)
        .bytes(&[200])
        .bytes(&50_000u16.to_le_bytes())
        .buffer(&out)
        .f32(2.5);
    run.bytes(&[0x80])
        .bytes(&big)
        .bytes(&(-0.25f64).to_le_bytes())
        .ok();
    assert_eq!(
        out.u32s()[..6],
        [200, 50_000, 2.5f32.to_bits(), 0xffff_ff80, 77, 66]
    );
    assert_eq!(out.f64s()[3], -0.25);
    let offsets: Vec<u32> = loaded
        .module
        .kernel("take")
        .unwrap()
        .params
        .iter()
        .map(|p| p.offset)
        .collect();
    assert_eq!(offsets, [0, 2, 8, 16, 20, 32, 56]);
}

/// Addresses that differ per lane, with holes and repeats; stores of guarded lanes stay away.
#[test]
fn scattered_and_guarded_access() {
    let input = Buffer::of_u32(&(0..64).map(|k| k * 3).collect::<Vec<_>>());
    let body = "mul.lo.u32 %a, %t, 29;\n and.b32 %a, %a, 63;\n mul.wide.u32 %x, %a, 4;\n add.s64 %x, %in, %x;\n\
         and.b32 %b, %t, 1;\n setp.eq.u32 %p, %b, 0;\n mov.u32 %r, 5;\n @%p ld.global.u32 %r, [%x];\n @!%p st.global.u32 [%x], %t;";
    let got = run(&module(body), 1, 32, &input);
    let place = |t: u32| (t * 29) & 63;
    assert_eq!(
        got,
        (0..32)
            .map(|t| if t % 2 == 0 { place(t) * 3 } else { 5 })
            .collect::<Vec<_>>()
    );
    let mut want: Vec<u32> = (0..64).map(|k| k * 3).collect();
    (1..32).step_by(2).for_each(|t| want[place(t) as usize] = t);
    assert_eq!(input.u32s(), want);
}

/// Local memory keeps each thread's own values across a barrier.
#[test]
fn local_memory() {
    let body = ".local .align 16 .b8 stack[64];\n .reg .b64 %sp; mov.u64 %sp, stack;\n and.b32 %a, %t, 15;\n\
         mul.wide.u32 %x, %a, 4;\n add.s64 %x, %sp, %x;\n mov.u32 %k, 0;\n CLEAR: mul.wide.u32 %y, %k, 4;\n add.s64 %y, %sp, %y;\n\
         st.local.u32 [%y], %k;\n add.u32 %k, %k, 1;\n setp.lt.u32 %p, %k, 16;\n @%p bra CLEAR;\n st.local.u32 [%x], %i;\n bar.sync 0;\n\
         mov.u32 %k, 0;\n SUM: mul.wide.u32 %y, %k, 4;\n add.s64 %y, %sp, %y;\n ld.local.u32 %b, [%y];\n add.u32 %r, %r, %b;\n\
         add.u32 %k, %k, 1;\n setp.lt.u32 %p, %k, 16;\n @%p bra SUM;";
    assert_eq!(
        block(body, 70),
        (0..70).map(|t: u32| 120 - t % 16 + t).collect::<Vec<_>>()
    );
}

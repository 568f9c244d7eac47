//! What is refused before anything runs: text that is not PTX, launches that do not fit, instructions we do not have.

use std::sync::Arc;

use divvy_ptx::{Fault, Module};

use crate::probe::module;
use crate::support::{Buffer, Loaded};

/// Each text and the subject that the message must name. The line is the one the fault is on.
#[test]
fn malformed_text() {
    let head = ".version 8.5\n.target sm_90\n.address_size 64\n";
    let entry = |body: &str| format!("{head}.visible .entry k()\n{{\n{body}\n ret;\n}}\n");
    let texts = [
        (String::new(), 0, ""),
        (String::from("\0\0\0"), 0, ""),
        (String::from("\x7fELF\x02\x01"), 1, ""),
        (String::from("int main() { return 0; }"), 1, ""),
        (format!("{head}.visible .entry k("), 4, ""),
        (format!("{head}.visible .entry k() {{ ret;"), 4, ""),
        (entry(" add.s32 %r1, %r2, %r3;"), 6, "%r1"),
        (entry(" .reg .b32 %r<4>;\n add.s32 %r1, %r2, ;"), 7, ""),
        (entry(" .reg .b32 %r<4>;\n add.s32 %r1, %r2, %r3"), 0, ""),
        (entry(" bra NOWHERE;"), 6, "NOWHERE"),
        (
            entry(" .reg .b32 %r<4>;\n ld.global.u32 %r1, [nothing];"),
            7,
            "nothing",
        ),
        (
            entry(" .reg .b32 %r<4>;\n L: mov.u32 %r1, 0;\n L: mov.u32 %r1, 0;"),
            8,
            "L",
        ),
        (entry(" .reg .b32 %r<4>;\n mov.u32 %r1, 0x;"), 7, ""),
        (entry(" call (), missing, ();"), 6, "missing"),
        (format!("{head}.global .align 3 .u32 x;"), 4, ""),
        (format!("{head}.global .u32 x[99999999999999999999];"), 4, ""),
        (format!("{head}.global .u32 x[2] = {{1, 2, 3}};"), 4, ""),
        (
            format!("{head}.entry a() {{ ret; }}\n.entry a() {{ ret; }}"),
            5,
            "a",
        ),
        (
            entry(&format!(
                " .reg .b32 %r<4>;\n mov.u32 %r1, {}1{};",
                "(".repeat(100_000),
                ")".repeat(100_000)
            )),
            7,
            "",
        ),
        (entry(&"{".repeat(100_000)), 0, ""),
    ];
    for (text, line, word) in texts {
        let shown = &text[..text.len().min(300)];
        let Err(error) = Module::parse(text.as_bytes()) else {
            panic!("parsed:\n{shown}")
        };
        assert!(
            line == 0 || error.line == line,
            "{error} (line {line} expected)\n{shown}"
        );
        let sentence = error.to_string();
        assert!(sentence.contains(word), "{sentence} should speak of {word}");
        assert!(!sentence.contains('\n') && sentence.len() < 500, "{sentence}");
    }
}

/// A trailing NUL is how drivers get their text; comments, blank lines and CR do no harm.
#[test]
fn tolerated_text() {
    let text = module("mov.u32 %r, 3;");
    assert!(Module::parse(format!("{text}\0").as_bytes()).is_ok());
    assert!(
        Module::parse(format!("// first\n/* second\n */\n{}", text.replace('\n', "\r\n")).as_bytes()).is_ok()
    );
    let debug = format!(
        "{}\n.file 1 \"a.cu\"\n.section .debug_str {{ .b8 1, 2 }}\n",
        text.replace(
            " mov.u32 %r, 3;",
            " .loc 1 2 3\n mov.u32 %r, 3;\n .pragma \"nounroll\";"
        )
    );
    if let Err(error) = Module::parse(debug.as_bytes()) {
        panic!("{error}");
    }
}

const MIXED: &str = ".version 8.5
.target sm_90
.address_size 64
.visible .entry good(.param .u64 out) { .reg .b64 %o; ld.param.u64 %o, [out]; st.global.u32 [%o], 5; ret; }
.visible .entry bad(.param .u64 out)
{
 .reg .b32 %r<10>; .reg .b64 %o;
 ld.param.u64 %o, [out];
 st.global.u32 [%o], 6;
 frobnicate.sync.b32 %r1, %r2, 7;
 ret;
}
.func helper() { .reg .b32 %r<10>; frobnicate.aligned.b32 %r1, %r2; ret; }
.visible .entry through_helper() { call helper, (); ret; }
";

/// A module with one unknown instruction parses; only the kernels that reach it refuse, naming it and its line.
#[test]
fn unsupported_instructions() {
    let loaded = Loaded::new(MIXED);
    let out = Buffer::zeroed(4);
    loaded.kernel("good").block(1).buffer(&out).ok();
    assert_eq!(out.u32s(), [5]);
    assert!(loaded.module.kernel("good").unwrap().unsupported.is_none());

    let end = loaded.kernel("bad").block(1).buffer(&out).end();
    let Err(Fault::Unsupported(named)) = &end else {
        panic!("{end:?}")
    };
    assert_eq!((named.kernel.as_str(), named.line), ("bad", 10));
    assert!(named.instruction.contains("frobnicate.sync.b32"), "{named:?}");
    assert_eq!(
        loaded.module.kernel("bad").unwrap().unsupported.as_ref(),
        Some(named)
    );
    let sentence = end.as_ref().unwrap_err().to_string();
    assert!(
        ["frobnicate", "bad", "10"]
            .iter()
            .all(|word| sentence.contains(word)),
        "{sentence}"
    );
    assert_eq!(out.u32s(), [5], "a refused kernel does nothing at all");

    let end = loaded.kernel("through_helper").block(1).end();
    let Err(Fault::Unsupported(named)) = &end else {
        panic!("{end:?}")
    };
    assert_eq!((named.kernel.as_str(), named.line), ("through_helper", 13));
}

/// One of each kind that docs/emulated-device.md lists: the kernel is refused at its launch, and the module is read.
#[test]
fn instructions_that_the_page_lists() {
    for text in [
        "add.f32.f16 %f1, %h1, %f2;",
        "fma.rn.oob.f16 %h1, %h2, %h3, %h4;",
        "cvt.rn.satfinite.f16.f32 %h1, %f1;",
        "cvt.rn.satfinite.e2m3x2.f32 %h1, %f1, %f2;",
        "ld.global.b128 %q1, [%d1];",
        "ld.global.v8.f32 {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, [%d1];",
        "lop3.or.b32 %r1|%p1, %r2, %r3, %r4, 0x96, %p2;",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%d1];",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r3, %r4}, {%f1, %f2, %f3, %f4}, %r5, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %d1, %d2, 1, 1, 1, 0, 0;",
        "wgmma.fence.sync.aligned;",
        "cp.async.bulk.commit_group;",
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2}], [%r3];",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r1], 16;",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, [%r3];",
        "barrier.cluster.arrive.aligned;",
        "mapa.shared::cluster.u32 %r1, %r2, %r3;",
        "tex.1d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%d1, {%f5}];",
        "sust.b.1d.b32.trap [%d1, {%r1}], {%r2};",
        "vabsdiff4.u32.u32.u32 %r1, %r2, %r3, %r4;",
        "stacksave.u64 %d1;",
        "createpolicy.fractional.L2::evict_last.b64 %d1, 1.0;",
    ] {
        let module = format!(
            ".version 8.8\n.target sm_100\n.address_size 64\n.visible .entry k()\n{{\n .reg .b16 %h<9>; .reg .b32 %r<9>; \
             .reg .f32 %f<9>; .reg .b64 %d<9>; .reg .b128 %q<9>; .reg .pred %p<9>;\n {text}\n ret;\n}}\n"
        );
        let module = Module::parse(module.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
        let named = module.kernel("k").unwrap().unsupported.as_ref();
        let named = named.unwrap_or_else(|| panic!("`{text}` is not refused: take it off the page"));
        assert_eq!(named.line, 7);
        assert!(text.starts_with(&named.instruction), "{text}: {named:?}");
    }
}

/// A function without a definition refuses the kernel by its name.
#[test]
fn calls_of_what_is_not_defined() {
    let text = ".version 8.5\n.target sm_90\n.address_size 64\n.extern .func (.param .b64 r) elsewhere(.param .b64 n);\n\
        .visible .entry k()\n{\n .reg .b64 %x;\n { .param .b64 a; .param .b64 r;\n st.param.b64 [a], 8;\n\
        call.uni (r), elsewhere, (a);\n }\n ret;\n}\n";
    let sentence = Loaded::new(text).kernel("k").end().unwrap_err().to_string();
    assert!(
        sentence.contains("call.uni elsewhere") && sentence.contains("line 10"),
        "{sentence}"
    );
}

#[test]
fn launches_that_do_not_fit() {
    let loaded = Loaded::new(MIXED);
    let out = Buffer::zeroed(4);
    let good = || loaded.kernel("good").buffer(&out);
    for (what, end) in [
        ("no blocks", good().grid(0).end()),
        ("no threads", good().block(0).end()),
        ("too many threads", good().block(1025).end()),
        ("more than a block holds", good().block3([32, 32, 2]).end()),
        ("no such kernel", loaded.kernel("absent").end()),
    ] {
        let Err(Fault::BadLaunch(sentence)) = &end else {
            panic!("{what}: {end:?}")
        };
        assert!(!sentence.is_empty());
    }
}

/// The questions that a launcher asks of a kernel before it runs it.
#[test]
fn facts_about_a_kernel() {
    let text = ".version 8.5\n.target sm_90\n.address_size 64\n.global .align 8 .b8 big[24];\n.extern .global .u32 other;\n\
        .const .f32 c[3];\n\
        .visible .entry k(.param .u64 a, .param .u32 b)\n.maxntid 128, 2, 1\n{\n .shared .align 16 .b8 s[100];\n\
        .local .align 8 .b8 l[40];\n .reg .b32 %r<40>;\n mov.u32 %r1, s;\n ret;\n}\n";
    let module = Arc::new(Module::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}")));
    assert_eq!(module.kernels().len(), 1);
    let kernel = module.kernel("k").unwrap();
    assert_eq!(kernel.param_bytes, 12);
    assert_eq!(
        kernel
            .params
            .iter()
            .map(|p| (p.offset, p.size, p.align))
            .collect::<Vec<_>>(),
        [(0, 8, 8), (8, 4, 4)]
    );
    assert!(
        (100..=128).contains(&kernel.static_shared_bytes),
        "{}",
        kernel.static_shared_bytes
    );
    assert!((40..=64).contains(&kernel.local_bytes), "{}", kernel.local_bytes);
    assert!((1..=255).contains(&kernel.registers));
    assert_eq!(kernel.max_threads, Some([128, 2, 1]));
    assert!(kernel.unsupported.is_none());
    let globals = module.globals();
    let facts: Vec<(&str, u64, bool)> = globals
        .iter()
        .map(|g| (g.name.as_str(), g.size, g.external))
        .collect();
    assert_eq!(facts, [("big", 24, false), ("other", 4, true), ("c", 12, false)]);
}

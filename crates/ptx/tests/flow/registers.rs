//! Special registers: places in grid, block and warp, sizes, clocks, what is left of the machine.

use std::collections::HashSet;

use crate::probe::block;
use crate::support::{Buffer, Loaded};

/// Every thread of a three-dimensional launch knows where it is.
#[test]
fn places_in_three_dimensions() {
    let names = [
        "tid.x", "tid.y", "tid.z", "ctaid.x", "ctaid.y", "ctaid.z", "ntid.x", "ntid.y", "ntid.z", "nctaid.x",
        "nctaid.y", "nctaid.z", "laneid", "warpid", "nwarpid", "smid", "nsmid",
    ];
    let stores: String = names
        .iter()
        .enumerate()
        .map(|(k, name)| format!(" mov.u32 %v, %{name};\n st.global.u32 [%o+{}], %v;\n", k * 4))
        .collect();
    let text = format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry places(.param .u64 out)\n{{\n\
         .reg .b32 %v, %i, %w; .reg .b64 %o, %at;\n ld.param.u64 %o, [out];\n\
         mov.u32 %i, %ctaid.z;\n mov.u32 %v, %nctaid.y;\n mov.u32 %w, %ctaid.y;\n mad.lo.u32 %i, %i, %v, %w;\n\
         mov.u32 %v, %nctaid.x;\n mov.u32 %w, %ctaid.x;\n mad.lo.u32 %i, %i, %v, %w;\n\
         mov.u32 %v, %ntid.z;\n mov.u32 %w, %tid.z;\n mad.lo.u32 %i, %i, %v, %w;\n\
         mov.u32 %v, %ntid.y;\n mov.u32 %w, %tid.y;\n mad.lo.u32 %i, %i, %v, %w;\n\
         mov.u32 %v, %ntid.x;\n mov.u32 %w, %tid.x;\n mad.lo.u32 %i, %i, %v, %w;\n\
         mul.wide.u32 %at, %i, 128;\n add.s64 %o, %o, %at;\n{stores} ret;\n}}\n"
    );
    let (grid, size) = ([3u32, 2, 2], [7u32, 3, 2]);
    let threads: u32 = size.iter().product();
    let out = Buffer::zeroed((threads * 12 * 128) as usize);
    Loaded::new(&text)
        .kernel("places")
        .grid3(grid)
        .block3(size)
        .buffer(&out)
        .ok();
    let words = out.u32s();
    for i in 0..threads * 12 {
        let row = &words[i as usize * 32..][..17];
        let (cta, t) = (i / threads, i % threads);
        let tid = [t % 7, t / 7 % 3, t / 21];
        let ctaid = [cta % 3, cta / 3 % 2, cta / 6];
        assert_eq!(
            [&row[..3], &row[3..6], &row[6..9], &row[9..12]],
            [&tid, &ctaid, &size, &grid],
            "thread {i}"
        );
        assert_eq!(
            (row[12], row[13]),
            (t % 32, t / 32),
            "lane and warp of thread {i}"
        );
        assert!(row[14] >= 2, "%nwarpid {}", row[14]);
        assert!(
            row[15] < row[16] && row[16] == 4,
            "%smid {} of {}",
            row[15],
            row[16]
        );
    }
}

#[test]
fn lane_masks() {
    let mask = |name: &str| block(&format!("mov.u32 %r, %lanemask_{name};"), 40);
    let lanes = |model: fn(u32) -> u32| (0..40).map(|t| model(t % 32)).collect::<Vec<_>>();
    assert_eq!(mask("eq"), lanes(|l| 1 << l));
    assert_eq!(mask("lt"), lanes(|l| (1 << l) - 1));
    assert_eq!(mask("le"), lanes(|l| ((1u64 << (l + 1)) - 1) as u32));
    assert_eq!(mask("gt"), lanes(|l| !((1u64 << (l + 1)) - 1) as u32));
    assert_eq!(mask("ge"), lanes(|l| !((1 << l) - 1)));
}

/// Clocks never run backwards, and the cycle counter counts something.
#[test]
fn clocks() {
    for (clock, size) in [("clock64", "u64"), ("globaltimer", "u64")] {
        let body = format!(
            "mov.{size} %x, %{clock};\n mov.u32 %k, 0;\n SPIN: add.u32 %k, %k, 1;\n setp.lt.u32 %p, %k, 3000;\n \
             @%p bra SPIN;\n mov.{size} %y, %{clock};\n setp.gt.u64 %p, %y, %x;\n selp.u32 %r, 1, 0, %p;"
        );
        assert_eq!(block(&body, 32), vec![1; 32], "{clock}");
    }
    let body = "mov.u32 %a, %clock;\n mov.u32 %k, 0;\n SPIN: add.u32 %k, %k, 1;\n setp.lt.u32 %p, %k, 3000;\n\
         @%p bra SPIN;\n mov.u32 %b, %clock;\n sub.u32 %r, %b, %a;\n setp.eq.u32 %p, %r, 0;\n selp.u32 %r, 0, 1, %p;";
    assert_eq!(block(body, 32), vec![1; 32]);
    assert_eq!(
        block(
            "mov.u32 %r, %globaltimer_hi;\n mov.u32 %a, %globaltimer_lo;\n mov.u32 %r, %clock_hi;\n mov.u32 %r, 4;",
            1
        ),
        [4]
    );
}

/// Grids are numbered, and the registers reserved for the environment read as something.
#[test]
fn grids_and_environment() {
    let numbers: HashSet<u32> = (0..3)
        .map(|_| block("mov.u64 %x, %gridid;\n cvt.u32.u64 %r, %x;", 1)[0])
        .collect();
    assert!(!numbers.is_empty());
    block("mov.b32 %r, %envreg1;\n mov.b32 %r, %envreg2;", 1);
    assert_eq!(block("mov.u32 %r, %dynamic_smem_size;", 32), vec![4096; 32]);
    assert!(block("mov.u32 %r, %total_smem_size;", 1)[0] >= 4096);
}

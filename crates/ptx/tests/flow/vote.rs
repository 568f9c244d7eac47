//! vote, match, activemask, redux and elect: what a warp agrees on.

use crate::probe::block;

const THREADS: u32 = 48;

/// The mask of lanes of `t`'s warp that exist and for which `holds`.
fn mask(t: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let warp = t & !31;
    (0..32)
        .filter(|lane| warp + lane < THREADS && holds(warp + lane))
        .map(|lane| 1 << lane)
        .sum()
}

fn check(body: &str, model: impl Fn(u32) -> u32) {
    assert_eq!(
        block(body, THREADS),
        (0..THREADS).map(model).collect::<Vec<_>>(),
        "{body}"
    );
}

#[test]
fn votes() {
    let odd = "and.b32 %a, %t, 1;\n setp.eq.u32 %p, %a, 1;\n activemask.b32 %k;\n";
    check(&format!("{odd} vote.sync.ballot.b32 %r, %p, %k;"), |t| {
        mask(t, |o| o % 2 == 1)
    });
    check(&format!("{odd} vote.sync.ballot.b32 %r, !%p, %k;"), |t| {
        mask(t, |o| o % 2 == 0)
    });
    let low = "setp.lt.u32 %p, %t, 32;\n activemask.b32 %k;\n";
    let say = "selp.u32 %r, 1, 0, %q;";
    check(&format!("{low} vote.sync.all.pred %q, %p, %k;\n {say}"), |t| {
        u32::from(t < 32)
    });
    check(&format!("{low} vote.sync.any.pred %q, %p, %k;\n {say}"), |t| {
        u32::from(t < 32)
    });
    check(&format!("{odd} vote.sync.all.pred %q, %p, %k;\n {say}"), |_| 0);
    check(&format!("{odd} vote.sync.any.pred %q, %p, %k;\n {say}"), |_| 1);
    check(&format!("{odd} vote.sync.uni.pred %q, %p, %k;\n {say}"), |_| 0);
    check(&format!("{low} vote.sync.uni.pred %q, %p, %k;\n {say}"), |_| 1);
    // Old compilers write the masked ballot this way round.
    check(&format!("{odd} vote.ballot.sync.b32 %r, %p, %k;"), |t| {
        mask(t, |o| o % 2 == 1)
    });
}

/// Inside a branch only its lanes are counted.
#[test]
fn votes_of_a_part() {
    let body = "rem.u32 %a, %t, 3;\n setp.eq.u32 %p, %a, 0;\n @!%p bra SKIP;\n activemask.b32 %k;\n\
         setp.gt.u32 %q, %t, 8;\n vote.sync.ballot.b32 %r, %q, %k;\n popc.b32 %c, %k;\n shl.b32 %c, %c, 26;\n \
         xor.b32 %r, %r, %c;\n SKIP:";
    check(body, |t| {
        let third = |o: u32| o.is_multiple_of(3);
        match third(t) {
            true => mask(t, |o| third(o) && o > 8) ^ mask(t, third).count_ones() << 26,
            false => 0,
        }
    });
}

#[test]
fn matches() {
    let value = |t: u32| t * 5 % 7;
    let body = "mul.lo.u32 %a, %t, 5;\n rem.u32 %a, %a, 7;\n activemask.b32 %k;\n";
    check(&format!("{body} match.any.sync.b32 %r, %a, %k;"), |t| {
        mask(t, |o| value(o) == value(t))
    });
    let wide = format!("{body} mov.b64 %x, {{ %k, %a }};\n match.any.sync.b64 %r, %x, %k;");
    check(&wide, |t| mask(t, |o| value(o) == value(t)));
    check(
        &format!("{body} match.all.sync.b32 %r|%p, %a, %k;\n @%p mov.u32 %r, 9;"),
        |_| 0,
    );
    let same =
        "shr.u32 %a, %t, 5;\n activemask.b32 %k;\n match.all.sync.b32 %r|%p, %a, %k;\n @!%p mov.u32 %r, 9;";
    check(same, |t| mask(t, |_| true));
}

#[test]
fn reductions() {
    type Fold = fn(u32, u32) -> u32;
    let folds: [(&str, Fold); 8] = [
        ("add.u32", u32::wrapping_add),
        ("add.s32", u32::wrapping_add),
        ("min.u32", u32::min),
        ("max.u32", u32::max),
        ("min.s32", |a, b| (a as i32).min(b as i32) as u32),
        ("max.s32", |a, b| (a as i32).max(b as i32) as u32),
        ("xor.b32", |a, b| a ^ b),
        ("and.b32", |a, b| a & b),
    ];
    let value = |t: u32| t.wrapping_mul(0x9e37_79b9) ^ 0x5555;
    let body = "mul.lo.u32 %a, %t, 0x9e3779b9;\n xor.b32 %a, %a, 0x5555;\n activemask.b32 %k;\n";
    for (name, fold) in folds {
        check(&format!("{body} redux.sync.{name} %r, %a, %k;"), |t| {
            (0..THREADS)
                .filter(|o| o / 32 == t / 32)
                .map(value)
                .reduce(fold)
                .unwrap()
        });
    }
    check(&format!("{body} redux.sync.or.b32 %r, %lane, %k;"), |t| {
        if t < 32 { 31 } else { 15 }
    });
}

#[test]
fn one_is_elected() {
    check(
        "activemask.b32 %k;\n elect.sync %a|%p, %k;\n selp.u32 %r, 1, 0, %p;\n mad.lo.u32 %r, %a, 100, %r;",
        |t| u32::from(t % 32 == 0),
    );
}

use divvy_model::{Code, Compute, ComputeTerms};

use super::*;
use crate::decide::record::share_of;

#[test]
fn a_device_is_seen_with_the_slices_on_it_alone() {
    let settings = settings();
    let tenants = Tenants(vec![
        tenant("a", ALICE, &[("GPU-0", 10), ("GPU-1", 20)]),
        tenant("b", BOB, &[("GPU-1", 30)]),
    ]);
    let free = |index| {
        rules(&settings)
            .view(&gpu(index), UsedOn::default(), &tenants)
            .free()
    };
    assert_eq!((free(0), free(1), free(2)), (gib(70), gib(30), gib(80)));
}

#[test]
fn a_share_of_compute_is_checked_against_others_and_the_own_quota() {
    let settings = Settings {
        user_compute: Some(Compute(5000)),
        ..settings()
    };
    let terms = |parts| ComputeTerms {
        share: Some(Compute(parts)),
        cap: divvy_model::Cap::Hard,
        ..ComputeTerms::default()
    };
    let mut own = tenant("a", ALICE, &[("GPU-0", 1)]);
    own.holds[0].1.compute = terms(3000);
    let mut other = tenant("b", BOB, &[("GPU-0", 1)]);
    other.holds[0].1.compute = terms(4000);
    let tenants = Tenants(vec![own, other]);
    let ask = |uid, parts, without| {
        let rules = rules(&settings);
        rules
            .check_compute(&tenants, uid, &gpu(0), &terms(parts), without)
            .map_err(|fault| fault.code)
    };
    assert_eq!(ask(ALICE, 2000, None), Ok(()));
    assert_eq!(ask(ALICE, 2001, None), Err(Code::QuotaFull));
    assert_eq!(ask(BOB, 1000, None), Ok(()), "another user's is another's");
    assert_eq!(ask(BOB, 1001, None), Err(Code::QuotaFull));
    assert_eq!(ask(ALICE, 3001, None), Err(Code::ComputeFull));
    assert_eq!(ask(ALICE, 5000, Some("a")), Ok(()), "in the place of what it has");
}

#[test]
fn a_share_says_what_may_lie_beyond_it_and_what_a_context_costs() {
    let settings = Settings {
        context: Some(gib(1)),
        ..settings()
    };
    let mut ask = request(8);
    ask.oversubscribe_percent = 150;
    let share = share_of(&settings, &ask, &gpu(0), gib(8));
    assert_eq!(
        (share.memory_limit_bytes, share.spill_limit_bytes),
        (gib(8), gib(4))
    );
    assert_eq!(share.context_bytes, gib(1));
    ask.oversubscribe_percent = 100;
    ask.terms.whole = true;
    let share = share_of(&settings, &ask, &gpu(0), gib(80));
    assert_eq!(
        (share.spill_limit_bytes, share.context_bytes),
        (Bytes(0), Bytes(0))
    );
    ask.oversubscribe_percent = 0;
    assert_eq!(
        share_of(&settings, &ask, &gpu(0), gib(8)).spill_limit_bytes,
        Bytes(0)
    );
}

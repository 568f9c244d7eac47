//! Memory beyond the share, and the sign that a slice thrashes.

use std::cell::Cell;

use divvy_abi::{CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUresult};

use crate::driver::{AT, Bench, FAILS, LIMIT, OOM, PAGE, fails, never, stream, works};

fn spilled(bench: &Bench) -> u64 {
    bench.ledgers[0].total_spilled() / PAGE
}

fn pressure(bench: &Bench) -> (u32, bool) {
    let thrash = bench.ledgers[0].thrash();
    (thrash.pressure, thrash.lasting.is_some())
}

fn at(page: u64) -> u64 {
    AT + page * PAGE
}

fn bench(pages_beyond: u64) -> Bench {
    let bench = Bench::new();
    bench.driver.spill_limit.set(pages_beyond * PAGE);
    bench
}

fn spill(
    bench: &Bench,
    (at, pages): (u64, u64),
    call: impl FnMut() -> CUresult,
    managed: impl FnMut() -> CUresult,
) -> CUresult {
    let charges = &bench.charges;
    charges.allocate_or_spill(bench.account(0), pages * PAGE, call, managed, || at)
}

#[test]
fn what_does_not_fit_lies_beyond_the_share() {
    let bench = bench(20);
    assert_eq!(spill(&bench, (at(0), 60), works, never), CUDA_SUCCESS);
    assert_eq!((bench.pages(), spilled(&bench)), (60, 0));
    assert_eq!(spill(&bench, (at(100), 20), never, works), CUDA_SUCCESS);
    assert_eq!((bench.pages(), spilled(&bench)), (60, 20));
    assert_eq!(*bench.driver.hosted.borrow(), [(at(100), 20 * PAGE)]);
    assert_eq!(pressure(&bench), (2500, false));
    assert_eq!(spill(&bench, (at(200), 5), never, never), OOM);
    assert!(bench.logged("10485760 bytes are refused: they fit neither in the share nor beyond it"));
    assert_eq!(bench.free(at(100)), CUDA_SUCCESS);
    assert_eq!((bench.pages(), spilled(&bench), pressure(&bench).0), (60, 0, 0));
    assert_eq!(spill(&bench, (at(100), 6), never, fails), FAILS);
    assert_eq!((bench.pages(), spilled(&bench)), (60, 0));
    assert_eq!(spill(&bench, (at(100), 4), fails, never), FAILS);
    assert_eq!(
        spill(&bench, (at(100), 4), || OOM, fails),
        FAILS,
        "the device lacks it"
    );
    assert_eq!((bench.pages(), spilled(&bench)), (60, 0));
    assert_eq!(spill(&bench, (at(100), 4), || OOM, works), CUDA_SUCCESS);
    assert_eq!((bench.pages(), spilled(&bench)), (60, 4));
    bench.driver.permitted.set(0);
    assert_eq!(spill(&bench, (at(200), 1), never, never), FAILS);
}

#[test]
fn without_such_terms_nothing_lies_beyond() {
    let bench = bench(0);
    assert_eq!(spill(&bench, (at(0), 64), works, never), CUDA_SUCCESS);
    assert_eq!(spill(&bench, (at(100), 1), never, never), OOM);
    assert_eq!((bench.pages(), spilled(&bench)), (64, 0));
}

#[test]
fn managed_memory_lies_within_the_share_where_it_fits() {
    let bench = bench(8);
    let charges = &bench.charges;
    let calls = Cell::new(0);
    let call = || {
        calls.set(calls.get() + 1);
        CUDA_SUCCESS
    };
    let managed = |bytes, at| charges.allocate_managed(bench.account(0), bytes, call, || at);
    assert_eq!(managed(62 * PAGE, at(0)), CUDA_SUCCESS);
    assert_eq!((bench.pages(), spilled(&bench)), (62, 0));
    assert_eq!(managed(3 * PAGE - 1, at(100)), CUDA_SUCCESS);
    assert_eq!((bench.pages(), spilled(&bench), calls.get()), (62, 3, 2));
    assert_eq!(bench.free(at(0)), CUDA_SUCCESS);
    assert_eq!((bench.pages(), spilled(&bench)), (0, 3));
    assert_eq!(bench.free(at(100)), CUDA_SUCCESS);
    assert_eq!((bench.pages(), spilled(&bench)), (0, 0));
}

#[test]
fn an_allocation_may_wait_for_its_share() {
    let bench = bench(1);
    let other = bench.another();
    other.allocate(AT, LIMIT);
    let slot = other.slot();
    bench.driver.pauses.set(3);
    let happens = move || slot.release(PAGE).expect("it has it");
    *bench.driver.at_pause.borrow_mut() = Some(Box::new(happens));
    assert_eq!(spill(&bench, (at(0), 2), works, never), CUDA_SUCCESS);
    assert_eq!(
        (bench.pages(), bench.own(), bench.driver.pauses.get()),
        (64, 2 * PAGE, 1)
    );
}

#[test]
fn frees_that_have_come_back_are_better_than_memory_on_the_host() {
    let bench = bench(20);
    bench.allocate(at(0), LIMIT);
    bench.free_in(1, at(0));
    bench.reaches(1);
    assert_eq!(spill(&bench, (at(0), 5), works, never), CUDA_SUCCESS);
    assert_eq!((bench.pages(), spilled(&bench)), (5, 0));
}

#[test]
fn a_driver_that_refuses_to_free_managed_memory_in_a_stream_frees_it_at_once() {
    let bench = bench(20);
    bench.allocate(at(0), LIMIT);
    assert_eq!(spill(&bench, (at(100), 2), never, works), CUDA_SUCCESS);
    let refuses = || CUDA_ERROR_INVALID_VALUE;
    bench.driver.free_answer.set(OOM);
    assert_eq!(bench.charges.free_in(stream(1), at(100), refuses), OOM);
    assert_eq!(spilled(&bench), 2);
    assert_eq!(bench.charges.free_in(stream(1), at(100), || OOM), OOM);
    assert_eq!((spilled(&bench), bench.driver.freed.borrow().len()), (2, 1));
    bench.driver.free_answer.set(CUDA_SUCCESS);
    assert_eq!(bench.charges.free_in(stream(1), at(100), refuses), CUDA_SUCCESS);
    assert_eq!((spilled(&bench), bench.pages()), (0, 64));
    assert_eq!(*bench.driver.freed.borrow(), [at(100), at(100)]);
    // Device memory that cannot be freed stays.
    assert_eq!(bench.charges.free_in(stream(1), at(0), refuses), FAILS);
    assert_eq!(bench.pages(), 64);
}

#[test]
fn launches_with_much_memory_beyond_the_share_are_thrashing() {
    let bench = bench(40);
    let launch = || bench.charges.kernel_launched(|| Some(bench.account(0)));
    launch();
    bench.allocate(at(0), 63 * PAGE);
    assert_eq!(spill(&bench, (at(100), 20), never, works), CUDA_SUCCESS);
    assert_eq!(pressure(&bench), (2409, false));
    launch();
    assert_eq!(pressure(&bench), (2409, false), "too little");
    assert_eq!(spill(&bench, (at(200), 2), never, works), CUDA_SUCCESS);
    assert_eq!(pressure(&bench), (2588, false), "no kernel runs");
    for _ in 0..63 {
        launch();
        assert!(!pressure(&bench).1);
    }
    assert!(!bench.logged("Thrashing"));
    bench.driver.ours.set(false);
    launch();
    assert!(!pressure(&bench).1);
    bench.driver.ours.set(true);
    (0..64).for_each(|_| launch());
    assert_eq!(pressure(&bench), (2588, true));
    assert!(bench.logged("Thrashing: 46137344 of 178257920 bytes lie beyond the share"));
    assert_eq!(bench.driver.logs.borrow().len(), 1);
    assert_eq!(spill(&bench, (at(300), 2), never, works), CUDA_SUCCESS);
    assert_eq!(pressure(&bench), (2758, true), "it lasts");
    (0..64).for_each(|_| launch());
    assert_eq!(bench.driver.logs.borrow().len(), 1);
    assert_eq!(bench.free(at(100)), CUDA_SUCCESS);
    assert_eq!(pressure(&bench), (597, false));
}

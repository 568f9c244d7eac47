//! Memory pools: charged for what they hold, and for what they may take during an allocation.

use std::cell::Cell;

use divvy_abi::{CUDA_SUCCESS, CUresult};

use crate::driver::{AT, Bench, FAILS, LIMIT, OOM, PAGE, fails, never, stream, works};

/// The pages that the driver is assumed to take at once before any growth was seen.
const STEP: u64 = 16;

/// Allocates pages from a pool that holds so many `after`wards. Returns the pages charged during the call.
fn from_pool(bench: &Bench, (pool, handle): (usize, usize), at: u64, pages: u64, after: u64) -> u64 {
    let during = Cell::new(0);
    let call = || {
        during.set(bench.pages());
        bench.pool_holds(pool, after);
        CUDA_SUCCESS
    };
    let from = (pool, stream(handle));
    let charges = &bench.charges;
    let result = charges.allocate_from_pool(bench.account(0), from, pages * PAGE, call, || at);
    assert_eq!(result, CUDA_SUCCESS);
    during.get()
}

fn refused(bench: &Bench, (pool, handle): (usize, usize), pages: u64) -> CUresult {
    let from = (pool, stream(handle));
    let charges = &bench.charges;
    charges.allocate_from_pool(bench.account(0), from, pages * PAGE, never, || AT)
}

fn at(page: u64) -> u64 {
    AT + page * PAGE
}

#[test]
fn a_pool_is_charged_for_what_it_holds_and_for_its_growth_during_a_call() {
    let bench = Bench::new();
    bench.pool_holds(7, 0);
    assert_eq!(from_pool(&bench, (7, 1), at(0), 1, 1), STEP);
    assert_eq!(bench.pages(), 1);
    assert_eq!(
        from_pool(&bench, (7, 1), at(1), 2, 3),
        1 + 2,
        "whole pages were seen"
    );
    assert_eq!(bench.pages(), 3);
    assert_eq!(from_pool(&bench, (8, 1), at(9), 1, 1), 3 + 1);
    assert_eq!(bench.pages(), 4);

    assert!(bench.free(at(1)).is_success());
    assert_eq!(bench.pages(), 4, "the pool keeps it");
    bench.charges.follow();
    assert_eq!(bench.pages(), 4);
    bench.pool_holds(7, 1);
    bench.charges.follow();
    assert_eq!(bench.pages(), 2);
    bench.pool_holds(7, 5);
    bench.charges.pool_changed(7);
    assert_eq!(bench.pages(), 6);
    bench.pool_holds(7, 0);
    bench.charges.pool_changed(7);
    assert_eq!(bench.pages(), 2, "one page is in use");
    assert!(bench.free(at(0)).is_success() && bench.free(at(9)).is_success());
    bench.pool_holds(8, 0);
    bench.charges.follow();
    assert_eq!(bench.pages(), 0);
    assert!(!bench.logged("Pool"));
}

#[test]
fn an_allocation_that_fails_returns_what_was_reserved_for_it() {
    let bench = Bench::new();
    bench.pool_holds(7, 0);
    from_pool(&bench, (7, 1), at(0), 1, 1);
    let from = (7, stream(1));
    let charges = &bench.charges;
    let result = charges.allocate_from_pool(bench.account(0), from, PAGE, fails, || AT);
    assert_eq!((result, bench.pages()), (FAILS, 1));
    assert!(bench.free(at(0)).is_success());
    bench.pool_holds(7, 0);
    bench.charges.follow();
    assert_eq!(bench.pages(), 0);
    bench.driver.permitted.set(PAGE - 1);
    assert_eq!(refused(&bench, (7, 1), 1), FAILS);
    assert_eq!(bench.pages(), 0);
}

#[test]
fn a_pool_that_grows_beyond_the_room_loses_the_allocation() {
    let bench = Bench::new();
    bench.pool_holds(7, 0);
    from_pool(&bench, (7, 1), at(0), 1, 1);
    bench.allocate(at(100), LIMIT - 2 * PAGE);
    let during = Cell::new(0);
    let call = || {
        during.set(bench.pages());
        bench.pool_holds(7, 3);
        CUDA_SUCCESS
    };
    let from = (7, stream(4));
    let charges = &bench.charges;
    let result = charges.allocate_from_pool(bench.account(0), from, PAGE, call, || at(1));
    assert_eq!((result, during.get(), bench.pages()), (OOM, 64, 64));
    assert_eq!(*bench.driver.freed_in.borrow(), [(at(1), 4)]);
    assert!(bench.logged("grown by 2097152 bytes more than there is room for"));
    assert_eq!(
        *bench.driver.recorded.borrow(),
        [(1, 4)],
        "it waits for the stream"
    );
    assert!(bench.free(at(100)).is_success());
    bench.charges.pool_changed(7);
    assert_eq!(bench.pages(), 3);
    bench.reaches(1);
    bench.pool_holds(7, 1);
    bench.charges.follow();
    assert_eq!(bench.pages(), 1);
}

#[test]
fn a_free_in_stream_order_leaves_the_pool_when_the_stream_gets_there() {
    let bench = Bench::new();
    bench.pool_holds(7, 0);
    from_pool(&bench, (7, 1), at(0), 2, 2);
    bench.free_in(1, at(0));
    assert_eq!(bench.pages(), 2);
    bench.charges.follow();
    assert_eq!(bench.pages(), 2);
    // A pool whose size the driver no longer tells keeps what is in use.
    bench.driver.pools.borrow_mut().clear();
    bench.charges.pool_changed(7);
    assert_eq!(bench.pages(), 2);
    bench.reaches(1);
    bench.charges.follow();
    assert_eq!(bench.pages(), 0);
    assert!(!bench.logged("pool"));
}

/// Rounds in which a page that was freed in a stream is handed out again before the stream has reached its free.
fn reuse(bench: &Bench, rounds: usize) {
    bench.pool_holds(7, 0);
    from_pool(bench, (7, 1), at(0), 1, 1);
    for _ in 0..rounds {
        bench.free_in(1, at(0));
        assert_eq!(from_pool(bench, (7, 1), at(0), 1, 1), 2);
        assert_eq!(bench.pages(), 1);
        bench.reaches(1);
        bench.charges.follow();
    }
    bench.allocate(at(100), LIMIT - PAGE);
    bench.free_in(1, at(0));
    assert_eq!(bench.pages(), 64);
}

#[test]
fn memory_that_waits_in_the_same_stream_is_relied_on_once_it_was_seen_often() {
    let bench = Bench::new();
    reuse(&bench, 8);
    assert_eq!(
        from_pool(&bench, (7, 1), at(0), 1, 1),
        64,
        "nothing more is reserved"
    );
    bench.free_in(1, at(0));
    bench.reaches(1);
    assert!(bench.driver.trims.borrow().is_empty());
    assert!(bench.free(at(100)).is_success());
    bench.pool_holds(7, 0);
    bench.charges.pool_changed(7);
    bench.reaches(2);
    bench.charges.follow();
    assert_eq!(bench.pages(), 0);
}

#[test]
fn memory_that_waits_in_another_stream_or_was_not_seen_often_is_not_relied_on() {
    let bench = Bench::new();
    reuse(&bench, 8);
    bench.driver.pool_floor.set(PAGE);
    assert_eq!(refused(&bench, (7, 2), 1), OOM, "another stream");
    assert_eq!(refused(&bench, (7, 1), 2), OOM, "less waits than that");
    assert_eq!(bench.pages(), 64);
    let other = Bench::new();
    reuse(&other, 7);
    other.driver.pool_floor.set(PAGE);
    assert_eq!(refused(&other, (7, 1), 1), OOM);
    assert_eq!(other.pages(), 64);
}

#[test]
fn a_pool_that_grew_after_all_has_reused_nothing() {
    let bench = Bench::new();
    bench.pool_holds(7, 0);
    from_pool(&bench, (7, 1), at(0), 1, 1);
    for round in 0..8 {
        bench.free_in(1, at(0));
        let after = if round == 7 { 2 } else { 1 };
        from_pool(&bench, (7, 1), at(0), 1, after);
        bench.reaches(1);
        bench.charges.follow();
        bench.pool_holds(7, 1);
        bench.charges.follow();
    }
    bench.allocate(at(100), LIMIT - PAGE);
    bench.free_in(1, at(0));
    bench.driver.pool_floor.set(PAGE);
    assert_eq!(refused(&bench, (7, 1), 1), OOM);
}

#[test]
fn the_rest_of_a_large_step_serves_an_allocation_without_room() {
    let bench = Bench::new();
    bench.pool_holds(7, 0);
    assert_eq!(from_pool(&bench, (7, 1), at(0), 1, 4), STEP);
    assert_eq!(bench.pages(), 4);
    bench.driver.pool_floor.set(4 * PAGE);
    bench.allocate(at(100), LIMIT - 4 * PAGE);
    assert_eq!(from_pool(&bench, (7, 1), at(1), 2, 4), 64);
    assert_eq!(bench.pages(), 64);
    assert_eq!(refused(&bench, (7, 1), 2), OOM, "one page of the step is left");
    assert_eq!(from_pool(&bench, (7, 1), at(3), 1, 4), 64);
    assert_eq!(refused(&bench, (7, 1), 1), OOM);
    assert_eq!(bench.pages(), 64);
    let trims = bench.driver.trims.borrow();
    assert!(!trims.is_empty() && trims.iter().all(|trim| trim.0 == 7));
}

#[test]
fn what_is_freed_in_a_step_is_not_idle_before_its_stream_has_reached_it() {
    let bench = Bench::new();
    bench.pool_holds(7, 0);
    from_pool(&bench, (7, 1), at(0), 2, 4);
    bench.free_in(2, at(0));
    bench.driver.pool_floor.set(4 * PAGE);
    bench.allocate(at(100), LIMIT - 4 * PAGE);
    assert_eq!(from_pool(&bench, (7, 1), at(2), 2, 4), 64);
    assert_eq!(refused(&bench, (7, 1), 1), OOM);
    bench.reaches(1);
    assert_eq!(from_pool(&bench, (7, 1), at(0), 2, 4), 64);
}

#[test]
fn pools_are_trimmed_by_as_much_as_is_missing() {
    let bench = Bench::new();
    bench.pool_holds(7, 0);
    bench.pool_holds(8, 0);
    from_pool(&bench, (7, 1), at(0), 1, 1);
    from_pool(&bench, (7, 1), at(1), 9, 10);
    from_pool(&bench, (8, 1), at(20), 10, 10);
    assert!(bench.free(at(1)).is_success() && bench.free(at(20)).is_success());
    assert_eq!(bench.pages(), 20);
    bench.allocate(at(100), LIMIT - 22 * PAGE);
    assert_eq!(from_pool(&bench, (7, 1), at(40), 5, 12), 64);
    assert_eq!(*bench.driver.trims.borrow(), [(7, 7)]);
    // An allocation takes all that is unused. The fake device releases what is in use as well.
    bench.driver.pool_floor.set(6 * PAGE);
    bench.allocate(at(300), PAGE);
    assert_eq!(*bench.driver.trims.borrow(), [(7, 7), (7, 0), (8, 0)]);
}

#[test]
fn another_devices_pools_are_left_alone() {
    let bench = Bench::new();
    bench.pool_holds(7, 0);
    let call = || {
        bench.pool_holds(7, 2);
        CUDA_SUCCESS
    };
    let charges = &bench.charges;
    let from = (7, stream(1));
    let result = charges.allocate_from_pool(bench.account(1), from, PAGE, call, || at(0));
    assert_eq!((result, bench.both()), (CUDA_SUCCESS, [0, 2 * PAGE]));
    bench.allocate(at(100), LIMIT);
    let refused = charges.allocate(bench.account(0), PAGE, never, || AT);
    assert_eq!((refused, bench.both()), (OOM, [LIMIT, 2 * PAGE]));
    assert!(bench.driver.trims.borrow().is_empty());
    bench.charges.device_reset(0);
    bench.pool_holds(7, 3);
    bench.charges.pool_changed(7);
    assert_eq!(bench.both(), [LIMIT, 3 * PAGE], "it was not reset");
}

#[test]
fn a_pool_that_is_destroyed_keeps_what_is_in_use() {
    let bench = Bench::new();
    bench.pool_holds(7, 0);
    from_pool(&bench, (7, 1), at(0), 1, 1);
    from_pool(&bench, (7, 1), at(1), 2, 6);
    assert_eq!(bench.charges.destroy_pool(7, fails), FAILS);
    bench.charges.follow();
    assert_eq!(bench.pages(), 6, "it lives");
    assert_eq!(bench.charges.destroy_pool(9, works), CUDA_SUCCESS);
    let during = Cell::new(0);
    let call = || {
        during.set(bench.pages());
        CUDA_SUCCESS
    };
    assert!(bench.charges.destroy_pool(7, call).is_success());
    assert_eq!((during.get(), bench.pages()), (6, 3));
    assert!(bench.free(at(0)).is_success());
    assert_eq!(bench.pages(), 2);
    // The handle may be another pool's by now.
    bench.pool_holds(7, 0);
    from_pool(&bench, (7, 1), at(9), 1, 1);
    assert_eq!(bench.pages(), 3);
    assert!(bench.free(at(1)).is_success());
    assert_eq!(bench.pages(), 1);
    bench.driver.ours.set(false);
    assert_eq!(bench.charges.destroy_pool(7, fails), FAILS);
}

#[test]
fn a_pool_is_known_again_after_a_reset_if_the_program_names_it() {
    let bench = Bench::new();
    bench.pool_holds(7, 0);
    from_pool(&bench, (7, 1), at(0), 1, 1);
    from_pool(&bench, (7, 1), at(1), 1, 5);
    bench.charges.device_reset(0);
    assert_eq!(bench.pages(), 2, "what is in use");
    bench.charges.pool_changed(7);
    bench.charges.device_reset(0);
    assert_eq!(bench.pages(), 2);
    bench.charges.pool_known(7, bench.account(0));
    bench.charges.pool_changed(7);
    assert_eq!(bench.pages(), 5);
    bench.charges.pool_known(7, bench.account(0));
    bench.charges.pool_known(8, bench.account(0));
    bench.pool_holds(8, 2);
    bench.charges.pool_changed(8);
    assert_eq!(bench.pages(), 7);
}

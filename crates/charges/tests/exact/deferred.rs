//! Frees in stream order, and allocations that wait for memory.

use std::cell::Cell;
use std::time::Duration;

use divvy_abi::{CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, CUcontext};
use divvy_charges::environment::{Progress, Stream};

use crate::driver::{AT, Bench, FAILS, LIMIT, OOM, PAGE, fails, never, stream, works};

fn at(page: u64) -> u64 {
    AT + page * PAGE
}

/// A process with pages at the first addresses.
fn with_pages(count: u64) -> Bench {
    let bench = Bench::new();
    bench.driver.limit.set(count.max(64) * PAGE);
    for page in 0..count {
        bench.allocate(at(page), PAGE);
    }
    bench.driver.limit.set(LIMIT);
    bench
}

#[test]
fn a_stream_has_four_marks_and_the_newest_moves_along() {
    let bench = with_pages(7);
    (0..5).for_each(|page| bench.free_in(3, at(page)));
    bench.free_in(4, at(5));
    let recorded = [(1, 3), (2, 3), (3, 3), (4, 3), (4, 3), (5, 4)];
    assert_eq!(*bench.driver.recorded.borrow(), recorded);
    assert_eq!(bench.pages(), 7);
    bench.reaches(2);
    bench.charges.follow();
    assert_eq!(bench.pages(), 7, "the first comes first");
    bench.reaches(5);
    bench.reaches(1);
    bench.charges.follow();
    assert_eq!(bench.pages(), 4);
    bench.reaches(4);
    bench.charges.follow();
    assert_eq!(bench.pages(), 4, "the third is pending");
    bench.reaches(3);
    bench.charges.follow();
    assert_eq!(bench.pages(), 1);
    assert!(bench.driver.destroyed.borrow().is_empty());
    bench.free_in(9, at(6));
    assert_eq!(bench.driver.events.get().0, 5, "events are used again");
}

#[test]
fn a_stream_is_another_one_in_another_context_or_thread_or_for_another_owner() {
    let bench = with_pages(8);
    (0..4).for_each(|page| bench.free_in(3, at(page)));
    bench.driver.context.set(2);
    bench.free_in(3, at(4));
    bench.driver.context.set(1);
    let per_thread = Stream {
        handle: 3,
        per_thread: true,
    };
    assert!(bench.charges.free_in(per_thread, at(5), works).is_success());
    let charges = &bench.charges;
    let managed = charges.allocate_managed(bench.account(0), PAGE, works, || at(20));
    assert!(managed.is_success());
    bench.free_in(3, at(20));
    assert_eq!(bench.driver.events.get().0, 7);
    bench.reaches(6);
    bench.charges.follow();
    assert_eq!(bench.pages(), 8);
}

#[test]
fn spare_events_are_used_in_their_context_only_and_few_are_kept() {
    let bench = with_pages(70);
    (0..68).for_each(|page| bench.free_in(page as usize / 4, at(page)));
    assert_eq!(bench.driver.events.get().0, 68);
    bench.driver.query_limit.set(0);
    bench.charges.follow();
    assert_eq!(bench.pages(), 2);
    assert_eq!(*bench.driver.destroyed.borrow(), [1, 2, 3, 4]);
    bench.driver.context.set(2);
    bench.free_in(1, at(68));
    assert_eq!(bench.driver.events.get().0, 69);
    bench.driver.context.set(1);
    bench.free_in(1, at(69));
    assert_eq!(bench.driver.events.get().0, 69);
}

#[test]
fn exactly_as_many_spare_events_as_are_kept_are_kept() {
    let bench = with_pages(64);
    (0..64).for_each(|page| bench.free_in(page as usize / 4, at(page)));
    bench.driver.query_limit.set(0);
    bench.charges.follow();
    assert_eq!(bench.pages(), 0);
    assert!(bench.driver.destroyed.borrow().is_empty());
}

#[test]
fn without_events_a_free_counts_at_once_or_when_the_context_is_synchronised() {
    let bench = with_pages(5);
    bench.driver.events.set((0, CUDA_ERROR_NOT_SUPPORTED));
    bench.free_in(1, at(0));
    assert_eq!(bench.pages(), 4);
    bench.driver.events.set((0, CUDA_ERROR_UNKNOWN));
    bench.free_in(1, at(1));
    bench.driver.context.set(2);
    bench.free_in(1, at(2));
    bench.charges.follow();
    assert_eq!((bench.pages(), bench.driver.queries.get()), (4, 0));
    bench.charges.context_synchronized();
    assert_eq!(bench.pages(), 3);
    bench.driver.context.set(3);
    bench.charges.context_synchronized();
    assert_eq!(bench.pages(), 3);
    bench.driver.context.set(1);
    bench.driver.events.set((0, CUDA_SUCCESS));
    bench.free_in(1, at(3));
    bench.charges.context_synchronized();
    assert_eq!(bench.pages(), 2, "the one with an event is asked for");
    bench.driver.records.set(false);
    bench.free_in(1, at(4));
    bench.free_in(1, at(0));
    bench.charges.follow();
    assert_eq!(bench.driver.queries.get(), 1);
    bench.reaches(1);
    bench.charges.follow();
    assert_eq!(bench.pages(), 1);
    bench.charges.context_synchronized();
    assert_eq!((bench.pages(), bench.driver.events.get().0), (0, 2));
}

#[test]
fn an_event_that_was_not_recorded_is_used_again() {
    let bench = with_pages(2);
    bench.driver.records.set(false);
    bench.free_in(1, at(0));
    bench.driver.records.set(true);
    bench.free_in(1, at(1));
    assert_eq!(*bench.driver.recorded.borrow(), [(1, 1), (1, 1)]);
    bench.reaches(1);
    bench.charges.follow();
    assert_eq!(bench.pages(), 1);
}

#[test]
fn a_new_stream_with_the_handle_of_a_destroyed_one_has_marks_of_its_own() {
    let bench = with_pages(10);
    (0..4).for_each(|page| bench.free_in(3, at(page)));
    bench.free_in(2, at(4));
    bench.charges.stream_ends(3);
    bench.charges.stream_ends(3);
    bench.free_in(3, at(5));
    assert_eq!(bench.driver.events.get().0, 6);
    (6..9).for_each(|page| bench.free_in(2, at(page)));
    bench.free_in(2, at(9));
    assert_eq!(bench.driver.events.get().0, 9, "the other stream goes on");
}

#[test]
fn what_a_context_frees_in_its_streams_is_free_when_it_ends() {
    let bench = with_pages(6);
    bench.free_in(1, at(0));
    bench.driver.context.set(2);
    bench.free_in(1, at(1));
    bench.free_in(2, at(2));
    bench.reaches(3);
    bench.charges.follow();
    assert_eq!(bench.pages(), 5);
    let ended = bench.charges.destroy_context(2 as CUcontext, works);
    assert_eq!((ended, bench.pages()), ((CUDA_SUCCESS, true), 4));
    bench.free_in(2, at(3));
    assert_eq!(bench.driver.events.get().0, 4, "its spare events are gone");
    bench
        .driver
        .progress
        .borrow_mut()
        .extend([(1, Progress::Gone), (4, Progress::Reached)]);
    bench.charges.follow();
    assert_eq!(bench.pages(), 2);
    bench.driver.context.set(1);
    bench.free_in(1, at(4));
    assert_eq!(
        bench.driver.events.get().0,
        5,
        "an event that is gone is not used again"
    );
    bench.driver.context.set(2);
    bench.free_in(1, at(5));
    assert_eq!(bench.driver.events.get().0, 5);
}

#[test]
fn spare_events_outlive_another_context() {
    let bench = with_pages(2);
    bench.free_in(1, at(0));
    bench.reaches(1);
    bench.charges.follow();
    assert!(bench.charges.destroy_context(2 as CUcontext, works).1);
    bench.free_in(1, at(1));
    assert_eq!(bench.driver.events.get().0, 1);
}

#[test]
fn a_free_that_is_refused_changes_nothing() {
    let bench = with_pages(2);
    assert_eq!(bench.charges.free_in(stream(1), at(0), fails), FAILS);
    assert_eq!(bench.charges.free(at(1), fails), FAILS);
    assert_eq!((bench.pages(), bench.driver.events.get().0), (2, 0));
    assert!(bench.free(at(0)).is_success() && bench.free(at(1)).is_success());
    assert_eq!(bench.pages(), 0);
    bench.free_in(1, at(1));
    assert!(bench.free(at(1)).is_success());
    assert_eq!(
        (bench.pages(), bench.driver.events.get().0),
        (0, 0),
        "an unknown one"
    );
}

#[test]
fn an_allocation_waits_for_frees_that_suffice() {
    let bench = with_pages(64);
    bench.free_in(1, at(0));
    bench.free_in(2, at(1));
    bench.driver.query_limit.set(25);
    assert_eq!(bench.allocate(at(80), 2 * PAGE), LIMIT);
    assert_eq!(bench.pages(), 64);
    assert!((25..29).contains(&bench.driver.queries.get()));
}

#[test]
fn an_allocation_waits_a_moment_for_other_processes_and_no_longer() {
    let bench = with_pages(64);
    bench.free_in(1, at(0));
    let charges = &bench.charges;
    let refused = charges.allocate(bench.account(0), 3 * PAGE, never, || AT);
    assert_eq!((refused, bench.driver.queries.get()), (OOM, 5));
    assert_eq!(bench.driver.afresh.get(), (false, 1));
    bench.driver.queries.set(0);
    bench.driver.afresh.set((true, 0));
    let refused = charges.allocate(bench.account(0), 3 * PAGE, never, || AT);
    assert_eq!((refused, bench.driver.queries.get()), (OOM, 6));
    assert_eq!(bench.driver.afresh.get(), (true, 1));
    bench.driver.queries.set(0);
    bench.driver.afresh.set((false, 0));
    let refused = charges.allocate(bench.account(0), LIMIT + 1, never, || AT);
    assert_eq!((refused, bench.driver.queries.get()), (OOM, 1), "it never fits");
    assert!(bench.logged("6291456 bytes for an allocation are refused: Does not fit"));
    assert_eq!(bench.pages(), 64);
}

#[test]
fn an_allocation_waits_as_long_as_the_terms_say() {
    let bench = with_pages(62);
    let other = bench.another();
    other.allocate(AT, 2 * PAGE);
    let charges = &bench.charges;
    bench.driver.pauses.set(5);
    let slot = other.slot();
    let mut left = 3;
    let happens = move || {
        left -= 1;
        if left == 0 {
            slot.release(PAGE).expect("it has it");
        }
    };
    *bench.driver.at_pause.borrow_mut() = Some(Box::new(happens));
    bench.allocate(at(80), PAGE);
    assert_eq!((bench.pages(), bench.driver.pauses.get()), (64, 2));
    *bench.driver.at_pause.borrow_mut() = None;
    let refused = charges.allocate(bench.account(0), PAGE, never, || AT);
    assert_eq!((refused, bench.driver.pauses.get(), bench.pages()), (OOM, 0, 64));
}

#[test]
fn a_driver_without_memory_is_asked_again_for_a_moment_after_a_death() {
    let bench = Bench::new();
    let charges = &bench.charges;
    let calls = Cell::new(0);
    let short_until = |fits: u32| {
        calls.set(0);
        let call = || {
            calls.set(calls.get() + 1);
            assert_eq!(bench.pages(), 2);
            if calls.get() == fits { CUDA_SUCCESS } else { OOM }
        };
        charges.allocate(bench.account(0), 2 * PAGE, call, || AT)
    };
    assert_eq!((short_until(2), calls.get(), bench.pages()), (OOM, 1, 0));
    bench.driver.returned.set(Some(Duration::from_millis(101)));
    assert_eq!((short_until(2), calls.get(), bench.pages()), (OOM, 1, 0));
    bench.driver.returned.set(Some(Duration::from_millis(100)));
    assert_eq!((short_until(12), calls.get(), bench.pages()), (OOM, 11, 0));
    bench.driver.pauses.set(3);
    assert_eq!((short_until(0), calls.get(), bench.pages()), (OOM, 14, 0));
    assert_eq!((short_until(3), calls.get(), bench.pages()), (CUDA_SUCCESS, 3, 2));
    assert!(bench.free(AT).is_success());
    bench.driver.returned.set(None);
    bench.driver.pauses.set(3);
    assert_eq!((short_until(4), calls.get(), bench.pages()), (CUDA_SUCCESS, 4, 2));
    assert!(bench.free(AT).is_success());
    bench.driver.pauses.set(9);
    let call = || {
        calls.set(calls.get() + 1);
        if calls.get() == 6 { FAILS } else { OOM }
    };
    let result = charges.allocate(bench.account(0), PAGE, call, || AT);
    assert_eq!((result, calls.get(), bench.pages()), (FAILS, 6, 0));
}

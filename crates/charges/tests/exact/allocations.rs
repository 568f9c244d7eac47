//! Allocations by their pages, rows, managed memory, and what ends with a context.

use std::cell::Cell;

use divvy_abi::{CUDA_SUCCESS, CUcontext};

use crate::driver::{AT, Bench, FAILS, LIMIT, OOM, PAGE, fails, never, stream, works};

#[test]
fn an_allocation_is_charged_for_the_pages_that_it_lies_in() {
    let bench = Bench::new();
    assert_eq!(bench.allocate(AT, 3), PAGE);
    assert_eq!(bench.allocate(AT + 512, PAGE - 512), 2 * PAGE);
    assert_eq!(bench.pages(), 1);
    assert_eq!(bench.allocate(AT + PAGE, PAGE), 2 * PAGE);
    assert_eq!(bench.allocate(AT + 3 * PAGE - 512, PAGE + 1024), 4 * PAGE);
    assert_eq!(bench.pages(), 5, "a page at each end and one between");
    assert!(bench.free(AT).is_success());
    assert_eq!(bench.pages(), 5);
    assert!(bench.free(AT + 512).is_success());
    assert_eq!(bench.pages(), 4);
    assert!(bench.free(AT + 3 * PAGE - 512).is_success());
    assert_eq!(bench.pages(), 1);
    assert!(bench.free(AT + PAGE).is_success());
    assert_eq!(bench.pages(), 0);
}

#[test]
fn an_allocation_with_more_pages_than_there_is_room_for_is_undone() {
    let bench = Bench::new();
    bench.driver.limit.set(3 * PAGE);
    bench.allocate(AT, 512);
    bench.allocate(AT + 2 * PAGE, 512);
    let charges = &bench.charges;
    let wide = |at: u64| charges.allocate(bench.account(0), 1024, works, || at);
    assert_eq!((wide(AT + PAGE - 512), bench.pages()), (CUDA_SUCCESS, 3));
    assert!(bench.free(AT + PAGE - 512).is_success());
    assert_eq!((wide(AT + 4 * PAGE - 512), bench.pages()), (OOM, 2));
    assert_eq!(*bench.driver.freed.borrow(), [AT + 4 * PAGE - 512]);
    assert!(bench.logged("1024 bytes took 4194304 of pages, with 2097152 reserved: undone"));
    assert!(bench.free(AT + 4 * PAGE - 512).is_success());
    assert_eq!(bench.pages(), 2, "it has no charge");
    bench.driver.limit.set(4 * PAGE);
    assert_eq!((wide(AT + 4 * PAGE - 512), bench.pages()), (CUDA_SUCCESS, 4));
}

#[test]
fn an_address_that_is_handed_out_again_ends_the_old_charge() {
    let bench = Bench::new();
    bench.allocate(AT, 3 * PAGE);
    bench.allocate(AT, PAGE);
    assert_eq!(bench.pages(), 1);
    assert!(bench.free(AT).is_success());
    assert_eq!(bench.pages(), 0);
}

#[test]
fn what_is_not_permitted_or_fails_is_not_charged() {
    let bench = Bench::new();
    let charges = &bench.charges;
    let account = bench.account(0);
    assert_eq!(charges.allocate(account, PAGE, fails, || AT), FAILS);
    assert_eq!(
        charges.allocate_rows(account, (PAGE, 2), fails, || (AT, 0)),
        FAILS
    );
    assert_eq!(charges.allocate_managed(account, PAGE, fails, || AT), FAILS);
    bench.driver.permitted.set(PAGE - 1);
    assert_eq!(charges.allocate(account, PAGE, never, || AT), FAILS);
    assert_eq!(
        charges.allocate_rows(account, (PAGE / 2, 2), never, || (AT, 0)),
        FAILS
    );
    assert_eq!(charges.allocate_managed(account, PAGE, never, || AT), FAILS);
    assert_eq!(bench.used(), 0);
}

#[test]
fn rows_are_charged_at_the_drivers_pitch() {
    let bench = Bench::new();
    let during = Cell::new(0);
    let call = || {
        during.set(bench.pages());
        CUDA_SUCCESS
    };
    let charges = &bench.charges;
    let rows = |shape, at, pitch| charges.allocate_rows(bench.account(0), shape, call, || (at, pitch));
    assert!(rows((100, 4), AT, 512).is_success());
    assert_eq!((during.get(), bench.pages()), (1, 1));
    assert!(rows((100, 4), AT + PAGE, PAGE).is_success());
    assert_eq!((during.get(), bench.pages()), (2, 5));
    assert!(rows((PAGE - 100, 3), AT + 8 * PAGE, PAGE).is_success());
    assert_eq!((during.get(), bench.pages()), (8, 8));
    assert!(bench.free(AT + PAGE).is_success());
    assert_eq!(bench.pages(), 4);
}

#[test]
fn managed_memory_is_charged_by_its_size() {
    let bench = Bench::new();
    let charges = &bench.charges;
    let managed = |bytes, at| charges.allocate_managed(bench.account(0), bytes, works, || at);
    assert!(managed(1000, AT).is_success());
    assert_eq!(bench.used(), 1024);
    assert!(managed(PAGE / 2, AT + PAGE).is_success());
    assert_eq!(bench.used(), 1024 + PAGE / 2);
    assert!(managed(PAGE / 2 + 1, AT + 2 * PAGE).is_success());
    assert_eq!(bench.used(), 1024 + PAGE / 2 + PAGE);
    assert!(bench.free(AT).is_success());
    assert!(bench.free(AT + PAGE).is_success());
    assert_eq!(bench.used(), PAGE);
    bench.free_in(1, AT + 2 * PAGE);
    bench.reaches(1);
    bench.charges.follow();
    assert_eq!(bench.used(), 0);
}

#[test]
fn a_device_without_pages_is_charged_by_size() {
    let bench = Bench::new();
    bench.driver.page.set(Some(512));
    assert_eq!(bench.allocate(AT, 1000), 1024);
    assert_eq!(bench.allocate(AT + 1024, 512), 1536);
    assert!(bench.free(AT).is_success());
    assert_eq!(bench.used(), 512);
    for odd in [Some(0), Some(3 * PAGE), Some(2048), None] {
        let bench = Bench::new();
        bench.driver.page.set(odd);
        assert_eq!(bench.allocate(AT, 700), 1024);
        bench.driver.page.set(Some(PAGE));
        assert_eq!(bench.allocate(AT + 4096, 1), 1536, "it is settled");
        assert!(bench.free(AT).is_success() && bench.free(AT + 4096).is_success());
        assert_eq!(bench.used(), 0);
    }
    let bench = Bench::new();
    bench.driver.page.set(Some(4096));
    assert_eq!(bench.allocate(AT, 700), 4096);
}

#[test]
fn a_process_without_charges_calls_the_driver_and_nothing_else() {
    let bench = Bench::new();
    bench.allocate(AT, PAGE);
    bench.driver.ours.set(false);
    let charges = &bench.charges;
    assert_eq!(charges.free(AT, works), CUDA_SUCCESS);
    assert_eq!(charges.free_in(stream(1), AT, fails), FAILS);
    assert_eq!(charges.close(AT, fails), FAILS);
    assert_eq!(charges.release_physical(1, fails), FAILS);
    assert_eq!(charges.map_physical(1, (0, 0, 0), fails), FAILS);
    assert_eq!(charges.unmap_physical(1, 1, fails), FAILS);
    assert_eq!(charges.destroy_external(1, fails), FAILS);
    assert_eq!(
        charges.destroy_context(1 as CUcontext, works),
        (CUDA_SUCCESS, false)
    );
    charges.follow();
    charges.context_synchronized();
    charges.stream_ends(1);
    assert_eq!((bench.pages(), bench.driver.events.get().0), (1, 0));
    bench.driver.ours.set(true);
    assert!(bench.free(AT).is_success());
    assert_eq!(bench.pages(), 0);
}

#[test]
fn what_lies_in_a_context_ends_with_it() {
    let bench = Bench::new();
    for page in 0..3 {
        bench.allocate(AT + page * PAGE, PAGE);
    }
    bench
        .driver
        .contexts
        .borrow_mut()
        .extend([(AT, 1), (AT + PAGE, 2)]);
    let one = 1 as CUcontext;
    assert_eq!(bench.charges.destroy_context(one, fails), (FAILS, false));
    assert_eq!(bench.pages(), 3);
    assert_eq!(bench.charges.destroy_context(one, works), (CUDA_SUCCESS, true));
    assert_eq!(bench.pages(), 2);
    bench.driver.gone.borrow_mut().insert(AT + 2 * PAGE);
    assert_eq!(bench.charges.destroy_context(one, works), (CUDA_SUCCESS, true));
    assert_eq!(bench.pages(), 1, "the driver no longer knows it");
    bench.driver.contexts.borrow_mut().clear();
    bench.driver.gone.borrow_mut().insert(AT + PAGE);
    bench.charges.device_reset(0);
    assert_eq!(bench.pages(), 0);
}

#[test]
fn many_allocations_are_found_again_when_their_context_ends() {
    let bench = Bench::new();
    bench.driver.limit.set(4 * LIMIT);
    let count: u64 = 3000;
    for at in 0..count {
        bench.allocate(AT + at * 4096, 4096);
        bench.driver.contexts.borrow_mut().insert(AT + at * 4096, 5);
    }
    assert_eq!(bench.used(), (count * 4096).next_multiple_of(PAGE));
    assert!(bench.charges.destroy_context(5 as CUcontext, works).1);
    assert_eq!(bench.used(), 0);
}

#[test]
fn every_allocation_ends_once() {
    let bench = Bench::new();
    bench.allocate(AT, LIMIT);
    let refused = bench.charges.allocate(bench.account(0), 1, never, || AT);
    assert_eq!(refused, OOM);
    assert!(bench.free(AT).is_success() && bench.free(AT).is_success());
    assert_eq!(bench.pages(), 0);
}

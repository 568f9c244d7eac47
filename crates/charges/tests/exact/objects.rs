//! Arrays, modules and other objects without an address: whole pages, or shared ones if they are small.

use std::cell::Cell;

use divvy_abi::{CUDA_SUCCESS, CUcontext};
use divvy_charges::Kind;

use crate::driver::{AT, Bench, FAILS, LIMIT, OOM, PAGE, fails, never, works};

/// Makes an object, and returns the bytes charged during the call.
fn make(bench: &Bench, kind: Kind, handle: usize, (bytes, allocations): (u64, u64)) -> u64 {
    let during = Cell::new(0);
    let call = || {
        during.set(bench.used());
        CUDA_SUCCESS
    };
    let charges = &bench.charges;
    let result = charges.make_object(kind, bench.account(0), (bytes, allocations), call, || handle);
    assert_eq!(result, CUDA_SUCCESS);
    during.get() / PAGE
}

fn end(bench: &Bench, kind: Kind, handle: usize) -> u64 {
    assert_eq!(bench.charges.end_object(kind, handle, works), CUDA_SUCCESS);
    bench.pages()
}

#[test]
fn a_large_object_is_charged_for_whole_pages() {
    let bench = Bench::new();
    assert_eq!(make(&bench, Kind::Array, 1, (PAGE / 2 + 1, 1)), 1);
    assert_eq!(make(&bench, Kind::Mipmap, 1, (2 * PAGE + 1, 1)), 4);
    assert_eq!(make(&bench, Kind::Module, 1, (PAGE, 1)), 5);
    assert_eq!(make(&bench, Kind::Library, 1, (PAGE, 1)), 6);
    let charges = &bench.charges;
    assert_eq!(charges.end_object(Kind::Mipmap, 1, fails), FAILS);
    assert_eq!(end(&bench, Kind::Mipmap, 2), 6);
    assert_eq!(end(&bench, Kind::Mipmap, 1), 3);
    assert_eq!(end(&bench, Kind::Mipmap, 1), 3);
    assert_eq!(end(&bench, Kind::Array, 1), 2);
    bench.driver.ours.set(false);
    assert_eq!(charges.end_object(Kind::Module, 1, works), CUDA_SUCCESS);
    assert_eq!(bench.pages(), 2);
    bench.driver.ours.set(true);
    assert_eq!(
        (end(&bench, Kind::Module, 1), end(&bench, Kind::Library, 1)),
        (1, 0)
    );
    let failed = charges.make_object(Kind::Array, bench.account(0), (PAGE, 1), fails, || 1);
    assert_eq!((failed, bench.pages()), (FAILS, 0));
    let refused = charges.make_object(Kind::Array, bench.account(0), (LIMIT + 1, 1), never, || 1);
    assert_eq!((refused, bench.pages()), (OOM, 0));
    assert!(bench.logged("bytes for an array are refused"));
    assert_eq!(charges.refuse(bench.account(0), PAGE, "a huge thing"), OOM);
    assert!(bench.logged(&format!(
        "{PAGE} bytes for a huge thing are refused: Does not fit: 0 of {LIMIT}"
    )));
}

#[test]
fn objects_end_with_their_context() {
    let bench = Bench::new();
    make(&bench, Kind::Array, 1, (PAGE, 1));
    make(&bench, Kind::Mipmap, 1, (PAGE, 1));
    make(&bench, Kind::Module, 1, (PAGE, 1));
    make(&bench, Kind::Library, 1, (PAGE, 1));
    bench.driver.context.set(2);
    make(&bench, Kind::Array, 2, (PAGE, 1));
    bench.driver.context.set(0);
    make(&bench, Kind::Array, 3, (PAGE, 1));
    assert!(bench.charges.destroy_context(std::ptr::null_mut(), works).1);
    assert_eq!(bench.pages(), 6);
    assert!(bench.charges.destroy_context(1 as CUcontext, works).1);
    assert_eq!(bench.pages(), 3, "a library outlives it");
    // A handle that is handed out again ends the old object.
    make(&bench, Kind::Array, 3, (2 * PAGE, 1));
    assert_eq!(bench.pages(), 4);
    assert!(bench.charges.destroy_context(2 as CUcontext, works).1);
    assert_eq!((bench.pages(), end(&bench, Kind::Array, 3)), (3, 1));
}

#[test]
fn small_objects_share_pages() {
    let bench = Bench::new();
    let half = (PAGE / 2, 1);
    assert_eq!(make(&bench, Kind::Array, 1, half), 1);
    // The free half may be in two gaps.
    assert_eq!(make(&bench, Kind::Array, 2, half), 2);
    assert_eq!(make(&bench, Kind::Array, 3, (512, 1)), 2);
    assert_eq!(end(&bench, Kind::Array, 1), 2);
    assert_eq!(end(&bench, Kind::Array, 2), 1);
    assert_eq!(end(&bench, Kind::Array, 3), 0);
    let quarter = (PAGE / 4, 1);
    assert_eq!(make(&bench, Kind::Array, 1, quarter), 1);
    assert_eq!(make(&bench, Kind::Array, 2, quarter), 1);
    assert_eq!(make(&bench, Kind::Array, 3, quarter), 2);
    assert_eq!(make(&bench, Kind::Array, 4, quarter), 2);
    assert_eq!(bench.charges.end_object(Kind::Array, 1, fails), FAILS);
    assert_eq!(end(&bench, Kind::Array, 1), 2);
    assert_eq!(end(&bench, Kind::Array, 2), 2);
    assert_eq!(end(&bench, Kind::Array, 3), 1);
    assert_eq!(end(&bench, Kind::Array, 4), 0);
    assert_eq!(make(&bench, Kind::Array, 1, (0, 1)), 0);
    assert_eq!(end(&bench, Kind::Array, 1), 0);
    let charges = &bench.charges;
    let failed = charges.make_object(Kind::Array, bench.account(0), (512, 1), fails, || 1);
    assert_eq!((failed, bench.pages()), (FAILS, 0));
}

#[test]
fn an_object_of_several_allocations_may_lie_in_several_pages() {
    let bench = Bench::new();
    make(&bench, Kind::Module, 1, (PAGE / 4, 2));
    make(&bench, Kind::Module, 2, (PAGE / 4, 0));
    make(&bench, Kind::Module, 3, (PAGE / 4, 9));
    make(&bench, Kind::Module, 4, (1024, u64::MAX));
    assert_eq!(bench.pages(), 2);
    make(&bench, Kind::Module, 5, (PAGE / 2, 1));
    make(&bench, Kind::Module, 6, (PAGE / 2, 1));
    assert_eq!(bench.pages(), 4);
    assert_eq!(
        end(&bench, Kind::Module, 3),
        4,
        "14 allocations less 9 may be in five"
    );
    assert_eq!(end(&bench, Kind::Module, 6), 4);
    assert_eq!(end(&bench, Kind::Module, 5), 4);
    assert_eq!(end(&bench, Kind::Module, 1), 3);
    assert_eq!(end(&bench, Kind::Module, 2), 2);
    assert_eq!(end(&bench, Kind::Module, 4), 0);
}

#[test]
fn a_small_object_may_hold_the_page_that_an_allocation_leaves() {
    let bench = Bench::new();
    bench.allocate(AT, 512);
    bench.allocate(AT + PAGE, PAGE);
    make(&bench, Kind::Module, 1, (4096, 3));
    assert_eq!(bench.pages(), 3);
    assert!(bench.free(AT + PAGE).is_success());
    assert_eq!(bench.pages(), 2, "no small one was in that");
    assert!(bench.free(AT).is_success());
    assert_eq!(bench.pages(), 2, "it may be in there");
    bench.allocate(AT + 8 * PAGE - 512, 1024);
    assert_eq!(bench.pages(), 4);
    assert!(bench.free(AT + 8 * PAGE - 512).is_success());
    assert_eq!(bench.pages(), 3, "three allocations are in three pages at most");
    assert_eq!(end(&bench, Kind::Module, 1), 0);
    bench.allocate(AT, 512);
    assert!(bench.free(AT).is_success());
    assert_eq!(bench.pages(), 0);
}

#[test]
fn a_small_object_waits_for_room_as_well() {
    let bench = Bench::new();
    bench.allocate(AT, LIMIT);
    bench.free_in(1, AT);
    bench.driver.query_limit.set(3);
    assert_eq!(make(&bench, Kind::Module, 1, (512, 1)), 1);
    assert_eq!(end(&bench, Kind::Module, 1), 0);
    bench.allocate(AT, LIMIT);
    let charges = &bench.charges;
    let refused = charges.make_object(Kind::Module, bench.account(0), (512, 1), never, || 1);
    assert_eq!((refused, bench.pages()), (OOM, 64));
}

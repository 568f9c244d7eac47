//! Physical memory: its handles, mappings and bindings, and its imports.

use std::cell::Cell;

use divvy_abi::{CUDA_SUCCESS, CUresult};
use divvy_charges::Identity;

use crate::driver::{AT, Bench, FAILS, LIMIT, OOM, PAGE, fails, key, never, works};

fn create(bench: &Bench, handle: u64, bytes: u64) {
    let charges = &bench.charges;
    let result = charges.create_physical(bench.account(0), bytes, works, || handle);
    assert_eq!(result, CUDA_SUCCESS);
}

fn release(bench: &Bench, handle: u64) -> u64 {
    assert_eq!(bench.charges.release_physical(handle, works), CUDA_SUCCESS);
    bench.pages()
}

fn map(bench: &Bench, handle: u64, at: u64, (offset, pages): (u64, u64)) -> u64 {
    let range = (at, offset * PAGE, pages * PAGE);
    assert_eq!(bench.charges.map_physical(handle, range, works), CUDA_SUCCESS);
    bench.pages()
}

fn unmap(bench: &Bench, at: u64, pages: u64) -> u64 {
    assert_eq!(
        bench.charges.unmap_physical(at, pages * PAGE, works),
        CUDA_SUCCESS
    );
    bench.pages()
}

fn identity(name: &str, pages: Option<u64>) -> Option<Identity> {
    Some(Identity {
        key: key(name),
        bytes: pages.map(|pages| pages * PAGE),
    })
}

/// Imports a handle by what is known before and after the call. Returns the pages charged on each device during the
/// call.
fn import(
    bench: &Bench,
    handle: u64,
    before: Option<Identity>,
    (account, after): (Option<u8>, Option<Identity>),
) -> (CUresult, [u64; 2]) {
    let during = Cell::new([0; 2]);
    let call = || {
        during.set(bench.both().map(|bytes| bytes / PAGE));
        CUDA_SUCCESS
    };
    let given_up = Cell::new(0);
    let give_up = |handle| {
        given_up.set(handle);
        CUDA_SUCCESS
    };
    let account = account.map(|account| bench.account(account));
    let charges = &bench.charges;
    let result = charges.import_physical(before, call, || (handle, account, after), give_up);
    assert_eq!(given_up.get(), if result.is_success() { 0 } else { handle });
    (result, during.get())
}

#[test]
fn it_is_charged_until_its_last_handle_and_mapping_are_gone() {
    let bench = Bench::new();
    create(&bench, 1, PAGE + 1);
    assert_eq!(bench.used(), PAGE + 512);
    assert_eq!(bench.charges.release_physical(1, fails), FAILS);
    assert_eq!(bench.used(), PAGE + 512);
    assert_eq!(release(&bench, 1), 0);
    assert_eq!(release(&bench, 1), 0);
    let charges = &bench.charges;
    let failed = charges.create_physical(bench.account(0), PAGE, fails, || 1);
    assert_eq!((failed, bench.used()), (FAILS, 0));
    let refused = charges.create_physical(bench.account(0), LIMIT + 1, never, || 1);
    assert_eq!((refused, bench.used()), (OOM, 0));

    create(&bench, 2, 3 * PAGE);
    assert_eq!(charges.map_physical(2, (AT, 0, PAGE), fails), FAILS);
    assert_eq!(map(&bench, 2, AT, (0, 3)), 3);
    assert_eq!(map(&bench, 2, AT + 8 * PAGE, (0, 3)), 3);
    assert_eq!(release(&bench, 2), 3);
    assert_eq!(unmap(&bench, AT + PAGE, 7), 3, "no mapping begins there");
    assert_eq!(bench.charges.unmap_physical(AT, 9 * PAGE, fails), FAILS);
    assert_eq!(unmap(&bench, AT, 8), 3);
    assert_eq!(unmap(&bench, AT, 8), 3);
    assert_eq!(unmap(&bench, AT + 8 * PAGE, 1), 0);
}

#[test]
fn a_handle_that_is_retained_by_an_address_counts_as_another_one() {
    let bench = Bench::new();
    create(&bench, 1, 2 * PAGE);
    map(&bench, 1, AT, (0, 2));
    create(&bench, 9, PAGE);
    map(&bench, 9, AT + 2 * PAGE, (0, 1));
    bench.charges.physical_retained(2, AT + 2 * PAGE - 1);
    bench.charges.physical_retained(2, AT);
    bench.charges.physical_retained(3, AT + 3 * PAGE);
    bench.charges.physical_retained(4, AT - 1);
    assert_eq!((release(&bench, 1), unmap(&bench, AT, 2)), (3, 3));
    assert_eq!((release(&bench, 2), release(&bench, 2)), (3, 1));
    bench.charges.physical_retained(5, AT + 2 * PAGE);
    assert_eq!((release(&bench, 9), unmap(&bench, AT + 2 * PAGE, 1)), (1, 1));
    assert_eq!((release(&bench, 3), release(&bench, 4)), (1, 1));
    assert_eq!(release(&bench, 5), 0);
}

#[test]
fn a_handle_that_is_handed_out_again_ends_the_old_block() {
    let bench = Bench::new();
    create(&bench, 1, 2 * PAGE);
    map(&bench, 1, AT, (0, 2));
    bench.charges.physical_retained(1, AT);
    create(&bench, 1, PAGE);
    assert_eq!(bench.pages(), 3, "it is mapped");
    assert_eq!(unmap(&bench, AT, 2), 1);
    create(&bench, 1, 5 * PAGE);
    assert_eq!(bench.pages(), 5);
    assert_eq!(release(&bench, 1), 0);
}

#[test]
fn what_is_bound_to_an_array_or_a_multicast_object_stays_with_it() {
    let bench = Bench::new();
    create(&bench, 1, PAGE);
    bench.charges.bind_physical(1, 70);
    bench.charges.bind_physical(1, 70);
    bench.charges.bind_physical(1, 71);
    bench.charges.bind_physical(2, 70);
    assert_eq!(release(&bench, 1), 1);
    bench.charges.array_ended(70);
    assert_eq!(bench.pages(), 1);
    bench.charges.array_ended(71);
    assert_eq!(bench.pages(), 0);
    // A multicast object has a handle of its own.
    create(&bench, 2, PAGE);
    create(&bench, 3, 2 * PAGE);
    map(&bench, 2, AT, (0, 1));
    map(&bench, 3, AT + PAGE, (0, 2));
    bench.charges.bind_physical_at(AT + PAGE - 1, 80);
    bench.charges.bind_physical_at(AT + 3 * PAGE, 80);
    assert_eq!((release(&bench, 2), release(&bench, 3)), (3, 3));
    assert_eq!(unmap(&bench, AT, 3), 1);
    assert_eq!(bench.charges.release_physical(80, fails), FAILS);
    assert_eq!(bench.pages(), 1);
    assert_eq!(release(&bench, 80), 0);
    create(&bench, 4, PAGE);
    bench.charges.bind_physical(4, 90);
    release(&bench, 4);
    bench.driver.ours.set(false);
    bench.charges.array_ended(90);
    bench.charges.bind_physical(4, 90);
    bench.charges.bind_physical_at(AT, 90);
    bench.charges.physical_exported(4, None);
    bench.charges.physical_retained(4, AT);
    assert_eq!(bench.pages(), 1);
}

#[test]
fn an_import_of_a_known_size_is_charged_before_the_call_wherever_it_may_be() {
    let bench = Bench::new();
    let a = || identity("a", Some(2));
    let (result, during) = import(&bench, 1, a(), (Some(1), a()));
    assert_eq!((result, during), (CUDA_SUCCESS, [2, 2]));
    assert_eq!(bench.both(), [0, 2 * PAGE]);
    let failed = bench
        .charges
        .import_physical(identity("b", Some(1)), fails, || unreachable!(), |_| never());
    assert_eq!((failed, bench.both()), (FAILS, [0, 2 * PAGE]));
    bench.allocate(AT, LIMIT - PAGE);
    let (mut before, charges) = (identity("c", Some(2)), &bench.charges);
    let refused = charges.import_physical(before, never, || unreachable!(), |_| never());
    assert_eq!((refused, bench.both()), (OOM, [LIMIT - PAGE, 2 * PAGE]));
    before = identity("c", Some(1));
    assert_eq!(import(&bench, 2, before, (None, before)), (CUDA_SUCCESS, [64, 3]));
    assert_eq!(bench.both(), [LIMIT - PAGE, 2 * PAGE], "it is elsewhere");
    assert_eq!(map(&bench, 2, AT + LIMIT, (0, 1)), 63);
    release(&bench, 1);
    assert_eq!(bench.both(), [LIMIT - PAGE, 0]);
}

#[test]
fn an_import_of_another_size_than_was_told_is_charged_for_what_it_is() {
    let bench = Bench::new();
    let told = identity("a", Some(4));
    assert_eq!(
        import(&bench, 1, told, (Some(0), identity("a", Some(1)))),
        (CUDA_SUCCESS, [4, 4])
    );
    assert_eq!(bench.both(), [PAGE, 0]);
    let told = identity("b", Some(1));
    assert_eq!(
        import(&bench, 2, told, (Some(0), identity("b", Some(3)))),
        (CUDA_SUCCESS, [2, 1])
    );
    assert_eq!(bench.both(), [4 * PAGE, 0]);
    assert_eq!(
        import(&bench, 3, None, (Some(1), identity("c", Some(3)))),
        (CUDA_SUCCESS, [4, 0])
    );
    assert_eq!(bench.both(), [4 * PAGE, 3 * PAGE]);
    assert_eq!(
        import(&bench, 4, None, (Some(1), identity("d", Some(62)))),
        (OOM, [4, 3])
    );
    assert_eq!(bench.both(), [4 * PAGE, 3 * PAGE]);
    let whole = Some(Identity {
        key: key("e"),
        bytes: Some(3 * PAGE - 1),
    });
    assert_eq!(
        import(&bench, 5, whole, (Some(0), identity("e", Some(2)))).1,
        [6, 5]
    );
    assert_eq!(bench.both(), [6 * PAGE, 3 * PAGE]);
}

#[test]
fn an_import_that_this_process_has_already_is_another_reference() {
    let bench = Bench::new();
    let a = || identity("a", Some(2));
    assert_eq!(import(&bench, 1, a(), (Some(0), a())).1, [2, 2]);
    assert_eq!(import(&bench, 1, a(), (Some(0), a())).1, [2, 0]);
    assert_eq!(import(&bench, 5, a(), (Some(0), a())).1, [2, 0]);
    assert_eq!(bench.pages(), 2);
    let failed = bench
        .charges
        .import_physical(a(), fails, || unreachable!(), |_| never());
    assert_eq!((failed, bench.pages()), (FAILS, 2));
    assert_eq!(
        (release(&bench, 1), release(&bench, 5), release(&bench, 1)),
        (2, 2, 0)
    );
    // Without its identity the handle alone tells.
    assert_eq!(import(&bench, 1, a(), (Some(0), a())).1, [2, 2]);
    assert_eq!(import(&bench, 1, None, (Some(0), None)).1, [2, 0]);
    assert_eq!((bench.pages(), release(&bench, 1), release(&bench, 1)), (2, 2, 0));
    // A handle that stands for another allocation now.
    assert_eq!(import(&bench, 1, a(), (Some(0), a())).1, [2, 2]);
    let b = || identity("b", Some(3));
    assert_eq!(import(&bench, 1, b(), (Some(0), b())).1, [5, 3]);
    assert_eq!((bench.pages(), release(&bench, 1)), (3, 0));
}

#[test]
fn the_block_stays_while_it_is_imported_again() {
    let bench = Bench::new();
    let a = || identity("a", Some(2));
    import(&bench, 1, a(), (Some(0), a()));
    let call = || {
        assert_eq!(release(&bench, 1), 2);
        CUDA_SUCCESS
    };
    let imported = || (2, Some(bench.account(0)), a());
    let charges = &bench.charges;
    assert!(
        charges
            .import_physical(a(), call, imported, |_| never())
            .is_success()
    );
    assert_eq!((bench.pages(), release(&bench, 2)), (2, 0));
}

#[test]
fn an_import_of_unknown_size_is_charged_for_the_largest_part_that_was_mapped() {
    let bench = Bench::new();
    assert_eq!(import(&bench, 1, None, (Some(0), None)), (CUDA_SUCCESS, [0, 0]));
    let during = Cell::new(0);
    let call = || {
        during.set(bench.pages());
        CUDA_SUCCESS
    };
    let charges = &bench.charges;
    assert!(charges.map_physical(1, (AT, PAGE, 2 * PAGE), call).is_success());
    assert_eq!((during.get(), bench.pages()), (3, 3));
    assert_eq!(map(&bench, 1, AT + 10 * PAGE, (0, 3)), 3);
    assert_eq!(map(&bench, 1, AT + 20 * PAGE, (0, 2)), 3);
    assert_eq!(map(&bench, 1, AT + 30 * PAGE, (4, 1)), 5);
    let refused = charges.map_physical(1, (AT + 40 * PAGE, LIMIT, PAGE), never);
    assert_eq!((refused, bench.pages()), (OOM, 5));
    let refused = charges.map_physical(1, (AT + 40 * PAGE, u64::MAX, PAGE), never);
    assert_eq!((refused, bench.pages()), (OOM, 5));
    assert_eq!(release(&bench, 1), 5);
    assert_eq!(unmap(&bench, AT, 40), 0);
    assert_eq!(
        import(&bench, 2, identity("a", None), (Some(0), identity("a", None))),
        (CUDA_SUCCESS, [0, 0])
    );
    assert_eq!(map(&bench, 2, AT, (0, 1)), 1);
    assert_eq!(unmap(&bench, AT, 1), 1);
    assert_eq!(release(&bench, 2), 0);
}

#[test]
fn one_of_the_processes_that_share_it_is_charged() {
    let bench = Bench::new();
    let other = bench.another();
    create(&bench, 1, 2 * PAGE);
    bench.charges.physical_exported(1, Some(key("a")));
    bench.charges.physical_exported(1, Some(key("b")));
    bench.charges.physical_exported(9, Some(key("c")));
    let a = || identity("a", Some(2));
    assert_eq!(import(&other, 5, a(), (Some(0), a())), (CUDA_SUCCESS, [2, 0]));
    assert_eq!((bench.pages(), other.own()), (2, 0));
    assert_eq!(release(&bench, 1), 2);
    assert_eq!(release(&other, 5), 2);
    bench.charges.follow();
    assert_eq!(bench.pages(), 0);
    // The same without a key: known by its size.
    create(&bench, 1, 2 * PAGE);
    bench.charges.physical_exported(1, None);
    assert_eq!(import(&other, 5, None, (Some(0), None)), (CUDA_SUCCESS, [2, 0]));
    assert_eq!((map(&other, 5, AT, (0, 2)), other.own()), (2, 0));
    assert_eq!((release(&other, 5), unmap(&other, AT, 2)), (2, 2));
    assert_eq!(release(&bench, 1), 0);
}

#[test]
fn an_import_that_joins_on_one_device_and_lies_on_the_other_is_charged_there() {
    let bench = Bench::new();
    let other = bench.another();
    create(&bench, 1, 2 * PAGE);
    bench.charges.physical_exported(1, Some(key("a")));
    let a = || identity("a", Some(2));
    assert_eq!(import(&other, 5, a(), (Some(1), a())), (CUDA_SUCCESS, [2, 0]));
    assert_eq!(bench.both(), [2 * PAGE, 2 * PAGE]);
    release(&bench, 1);
    release(&other, 5);
    assert_eq!(bench.both(), [0, 0]);
}

#[test]
fn a_failed_import_of_a_joined_block_leaves_its_owner_alone() {
    let bench = Bench::new();
    let other = bench.another();
    create(&bench, 1, 2 * PAGE);
    bench.charges.physical_exported(1, Some(key("a")));
    let charges = &other.charges;
    let failed = charges.import_physical(identity("a", Some(2)), fails, || unreachable!(), |_| never());
    assert_eq!((failed, release(&bench, 1)), (FAILS, 0));
}

//! Exported pointers, their imports, and external memory.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use divvy_abi::{CUDA_ERROR_INVALID_DEVICE, CUDA_SUCCESS, CUcontext, CUresult};
use divvy_charges::Key;

use crate::driver::{
    AT, Bench, FAILS, FOREIGN_DEVICE, FREE_DEVICE, LIMIT, OOM, PAGE, claim, fails, key, never, works,
};

/// Where another process maps what it opens.
const THERE: u64 = AT << 1;

fn two() -> (Bench, Bench) {
    let bench = Bench::new();
    let other = bench.another();
    (bench, other)
}

/// Opens an allocation of so many bytes, without which the other process could not.
fn open(bench: &Bench, name: &str, (at, bytes): (u64, u64), context: usize) -> CUresult {
    bench.driver.ranges.borrow_mut().insert(at, (at, bytes));
    let close = |_| unreachable!("it is paid for");
    bench
        .charges
        .open(bench.account(0), (key(name), context), works, || at, close)
}

fn close(bench: &Bench, at: u64) {
    assert_eq!(bench.charges.close(at, works), CUDA_SUCCESS);
}

fn settled(both: [&Bench; 2]) {
    both.iter().for_each(|bench| bench.charges.follow_residuals());
}

/// An entry's word in the table of shared allocations, and its holders.
fn words(bench: &Bench) -> Vec<(usize, u64)> {
    let words = bench.slot().shared().expect("a table");
    let words = words.iter().map(|word| word.load(Ordering::SeqCst));
    words.enumerate().filter(|(_, word)| *word != 0).collect()
}

fn holders(bench: &Bench) -> Vec<u64> {
    words(bench).iter().map(|(_, word)| word & 0x1fff).collect()
}

#[test]
fn an_importer_is_not_charged_and_keeps_the_owners_charge() {
    let (owner, importer) = two();
    owner.allocate(AT, 2 * PAGE);
    owner.driver.ranges.borrow_mut().insert(AT + 512, (AT, 2 * PAGE));
    owner.charges.exported(AT + 512, key("a"));
    assert_eq!(holders(&owner), [1]);
    owner.charges.exported(AT, key("a"));
    assert_eq!(holders(&owner), [1], "it is known");
    assert!(open(&importer, "a", (THERE, 2 * PAGE), 1).is_success());
    assert_eq!((owner.pages(), importer.own(), holders(&owner)), (2, 0, vec![2]));
    assert!(owner.free(AT).is_success());
    assert_eq!((owner.pages(), owner.own()), (2, 2 * PAGE));
    assert_eq!(owner.driver.watch.get(), (true, 1));
    settled([&owner, &importer]);
    assert_eq!(owner.pages(), 2);
    assert!(!owner.charges.watch_ends(0, false) && owner.charges.watch_ends(1, false));
    assert_eq!(importer.charges.close(THERE, fails), FAILS);
    settled([&owner, &importer]);
    assert_eq!((owner.pages(), holders(&owner)), (2, vec![2]));
    close(&importer, THERE);
    assert_eq!(owner.pages(), 2, "its owner has to look");
    owner.charges.follow();
    assert_eq!((owner.pages(), holders(&owner)), (0, vec![]));
    assert!(owner.charges.watch_ends(0, false));
}

#[test]
fn a_residual_is_watched_until_it_ends_and_again() {
    let (owner, importer) = two();
    let round = |name: &str| {
        owner.allocate(AT, PAGE);
        owner.charges.exported(AT, key(name));
        assert!(open(&importer, name, (THERE, PAGE), 0).is_success());
        assert!(owner.free(AT).is_success());
    };
    owner.driver.watch.set((false, 0));
    round("a");
    assert_eq!(owner.driver.watch.get().1, 1);
    close(&importer, THERE);
    owner.driver.watch.set((true, 1));
    round("b");
    assert_eq!(owner.driver.watch.get().1, 2, "it could not be started before");
    close(&importer, THERE);
    round("c");
    assert_eq!(owner.driver.watch.get().1, 2, "it still sleeps");
    assert!(owner.charges.watch_ends(0, true));
    close(&importer, THERE);
    round("d");
    assert_eq!(owner.driver.watch.get().1, 3);
    close(&importer, THERE);
    settled([&owner, &importer]);
    assert_eq!(owner.pages(), 0);
}

#[test]
fn an_allocation_that_is_exported_and_freed_without_importers_is_free() {
    let (owner, importer) = two();
    owner.allocate(AT, 700 << 10);
    owner.allocate(AT + (1 << 20), 512);
    owner.charges.exported(AT, key("a"));
    owner.charges.exported(AT + 4096, key("nothing there"));
    assert_eq!(holders(&owner), [1]);
    assert_eq!(owner.charges.free(AT, fails), FAILS);
    assert_eq!((owner.pages(), holders(&owner)), (1, vec![1]));
    assert!(open(&importer, "a", (THERE, 700 << 10), 0).is_success());
    assert_eq!(importer.own(), 0);
    close(&importer, THERE);
    assert!(owner.free(AT).is_success());
    assert_eq!(
        (owner.pages(), holders(&owner)),
        (1, vec![]),
        "the page has another"
    );
    assert!(owner.free(AT + (1 << 20)).is_success());
    assert_eq!(owner.pages(), 0);
}

#[test]
fn an_address_of_another_allocation_has_another_key() {
    let (owner, importer) = two();
    owner.allocate(AT, PAGE);
    owner.charges.exported(AT, key("a"));
    owner.allocate(AT, PAGE);
    owner.charges.exported(AT, key("b"));
    assert_eq!((owner.pages(), holders(&owner)), (1, vec![1]));
    assert!(open(&importer, "b", (THERE, PAGE), 0).is_success());
    assert_eq!((importer.own(), holders(&owner)), (0, vec![2]));
    assert!(open(&importer, "a", (THERE + PAGE, PAGE), 0).is_success());
    assert_eq!(importer.own(), PAGE);
}

#[test]
fn the_first_of_two_importers_is_charged_for_memory_from_outside() {
    let (first, second) = two();
    assert!(open(&first, "a", (THERE, 3 * PAGE - 1), 1).is_success());
    assert_eq!((first.own(), first.pages()), (3 * PAGE, 3));
    assert!(open(&second, "a", (THERE, 3 * PAGE), 1).is_success());
    assert_eq!((second.own(), first.pages(), holders(&first)), (0, 3, vec![2]));
    close(&first, THERE);
    assert_eq!((first.own(), first.pages()), (3 * PAGE, 3));
    close(&second, THERE);
    settled([&first, &second]);
    assert_eq!((first.pages(), holders(&first)), (0, vec![]));
}

#[test]
fn an_import_that_is_opened_often_is_closed_as_often() {
    let (bench, other) = two();
    for _ in 0..3 {
        assert!(open(&bench, "a", (THERE, PAGE), 1).is_success());
        assert_eq!((bench.pages(), holders(&bench)), (1, vec![1]));
    }
    assert_eq!(bench.charges.close(THERE, fails), FAILS);
    close(&bench, THERE);
    close(&bench, THERE);
    assert_eq!(bench.pages(), 1);
    assert_eq!(bench.charges.close(THERE, fails), FAILS);
    assert_eq!(bench.pages(), 1);
    close(&bench, THERE);
    assert_eq!(bench.pages(), 0);
    close(&bench, THERE);
    assert_eq!(bench.pages(), 0);
    // The same by an importer.
    other.allocate(AT, PAGE);
    other.charges.exported(AT, key("a"));
    for _ in 0..2 {
        assert!(open(&bench, "a", (THERE, PAGE), 1).is_success());
        assert_eq!(holders(&bench), [2]);
    }
    close(&bench, THERE);
    assert_eq!(holders(&bench), [2]);
    assert!(other.free(AT).is_success());
    assert_eq!(other.pages(), 1);
    close(&bench, THERE);
    settled([&bench, &other]);
    assert_eq!(other.pages(), 0);
}

#[test]
fn the_same_address_with_another_key_or_context_is_another_import() {
    let bench = Bench::new();
    assert!(open(&bench, "a", (THERE, PAGE), 1).is_success());
    assert!(open(&bench, "b", (THERE, 2 * PAGE), 1).is_success());
    assert_eq!((bench.pages(), holders(&bench)), (2, vec![1]));
    assert!(open(&bench, "b", (THERE, 2 * PAGE), 2).is_success());
    assert_eq!(bench.pages(), 2);
    close(&bench, THERE);
    bench.charges.follow();
    assert_eq!(bench.pages(), 0);
}

#[test]
fn an_import_that_does_not_fit_is_closed_again() {
    let bench = Bench::new();
    bench.driver.ranges.borrow_mut().insert(THERE, (THERE, LIMIT + 1));
    let closed = Cell::new(0);
    let close = |at| {
        closed.set(at);
        CUDA_SUCCESS
    };
    let charges = &bench.charges;
    let of = (key("a"), 0);
    let result = charges.open(bench.account(0), of, works, || THERE, close);
    assert_eq!((result, closed.get(), bench.pages()), (OOM, THERE, 0));
    assert_eq!(
        charges.open(bench.account(0), of, fails, || 0, |_| never()),
        FAILS
    );
    assert_eq!((bench.pages(), holders(&bench)), (0, vec![]));
    bench
        .driver
        .devices
        .borrow_mut()
        .insert(THERE, Some(FOREIGN_DEVICE));
    closed.set(0);
    let result = charges.open(bench.account(0), of, works, || THERE, close);
    assert_eq!((result, closed.get()), (CUDA_ERROR_INVALID_DEVICE, THERE));
    bench.driver.devices.borrow_mut().insert(THERE, Some(FREE_DEVICE));
    let result = charges.open(bench.account(0), of, works, || THERE, |_| never());
    assert_eq!((result, bench.both()), (CUDA_SUCCESS, [0, 0]));
}

#[test]
fn a_failed_open_leaves_the_owners_entry_as_it_was() {
    let (owner, importer) = two();
    owner.allocate(AT, PAGE);
    owner.charges.exported(AT, key("a"));
    let of = (key("a"), 0);
    let charges = &importer.charges;
    assert_eq!(
        charges.open(importer.account(0), of, fails, || 0, |_| never()),
        FAILS
    );
    assert_eq!(holders(&owner), [1]);
    importer
        .driver
        .devices
        .borrow_mut()
        .insert(THERE, Some(FREE_DEVICE));
    assert!(
        charges
            .open(importer.account(0), of, works, || THERE, |_| never())
            .is_success()
    );
    assert_eq!(holders(&owner), [1]);
    assert!(owner.free(AT).is_success());
    assert_eq!(owner.pages(), 0);
}

#[test]
fn an_import_is_charged_on_its_own_device() {
    let bench = Bench::new();
    bench
        .driver
        .devices
        .borrow_mut()
        .extend([(THERE, Some(1)), (THERE + LIMIT, None)]);
    assert!(open(&bench, "a", (THERE, PAGE), 0).is_success());
    assert_eq!(bench.both(), [0, PAGE]);
    assert!(open(&bench, "b", (THERE + LIMIT, 2 * PAGE), 0).is_success());
    assert_eq!(bench.both(), [2 * PAGE, PAGE], "the device is not known");
    close(&bench, THERE);
    assert_eq!(bench.both(), [2 * PAGE, 0]);
}

#[test]
fn imports_end_with_their_context() {
    let (bench, other) = two();
    for (at, name, context) in [(0, "a", 1), (1, "b", 2), (2, "c", 0), (3, "d", 0)] {
        assert!(open(&bench, name, (THERE + at * PAGE, PAGE), context).is_success());
    }
    let external = |handle| {
        let charges = &bench.charges;
        charges.import_external(bench.account(0), PAGE, Some((key("e"), PAGE)), works, || handle)
    };
    assert!(external(5).is_success());
    assert_eq!(bench.pages(), 5);
    bench.driver.gone.borrow_mut().insert(THERE + 3 * PAGE);
    assert!(bench.charges.destroy_context(7 as CUcontext, works).1);
    assert_eq!(bench.pages(), 4, "one is no longer valid");
    assert!(bench.charges.destroy_context(1 as CUcontext, works).1);
    assert_eq!(bench.pages(), 2);
    assert!(bench.charges.destroy_context(std::ptr::null_mut(), works).1);
    assert_eq!(bench.pages(), 2);
    assert!(bench.charges.destroy_context(2 as CUcontext, works).1);
    assert_eq!(bench.pages(), 1);
    close(&bench, THERE + 2 * PAGE);
    assert_eq!((bench.pages(), other.own(), holders(&bench)), (0, 0, vec![]));
}

#[test]
fn a_process_that_holds_its_own_freed_memory_as_an_importer_keeps_it() {
    let bench = Bench::new();
    bench.allocate(AT, PAGE);
    bench.charges.exported(AT, key("a"));
    assert!(open(&bench, "a", (THERE, PAGE), 0).is_success());
    assert_eq!(holders(&bench), [2]);
    assert!(bench.free(AT).is_success());
    bench.charges.follow();
    assert_eq!(bench.pages(), 1);
    close(&bench, THERE);
    assert_eq!((bench.pages(), holders(&bench)), (0, vec![]), "at once");
}

#[test]
fn external_memory_is_charged_until_its_handle_and_all_its_parts_are_gone() {
    let bench = Bench::new();
    let charges = &bench.charges;
    let during = Cell::new(0);
    let call = || {
        during.set(bench.used());
        CUDA_SUCCESS
    };
    let import = |bytes, handle| charges.import_external(bench.account(0), bytes, None, call, || handle);
    assert!(import(1000, 5).is_success());
    assert_eq!((during.get(), bench.used()), (1024, 1024));
    charges.external_mapped(5, THERE);
    charges.external_mapped(5, THERE + PAGE);
    charges.external_mapped(6, THERE + 2 * PAGE);
    assert_eq!(charges.destroy_external(5, fails), FAILS);
    close(&bench, THERE);
    assert_eq!(bench.used(), 1024);
    assert_eq!(charges.destroy_external(5, works), CUDA_SUCCESS);
    assert_eq!(bench.used(), 1024);
    assert_eq!(charges.destroy_external(0, works), CUDA_SUCCESS);
    assert_eq!(charges.close(THERE + PAGE, fails), FAILS);
    assert_eq!(bench.used(), 1024);
    close(&bench, THERE + PAGE);
    assert_eq!(bench.used(), 0);

    assert!(import(512, 5).is_success());
    charges.external_mapped(5, THERE);
    assert!(charges.free(THERE, works).is_success());
    assert_eq!(bench.used(), 512, "the handle lives");
    assert_eq!(charges.destroy_external(5, works), CUDA_SUCCESS);
    assert_eq!((bench.used(), holders(&bench)), (0, vec![]));
    let failed = charges.import_external(bench.account(0), 512, None, fails, || 0);
    assert_eq!((failed, bench.used()), (FAILS, 0));
    let refused = charges.import_external(bench.account(0), LIMIT + 1, None, never, || 0);
    assert_eq!((refused, bench.used()), (OOM, 0));
}

#[test]
fn a_part_of_external_memory_that_is_being_released_keeps_it() {
    let bench = Bench::new();
    let charges = &bench.charges;
    let import = || charges.import_external(bench.account(0), 512, None, works, || 5);
    assert!(import().is_success());
    charges.external_mapped(5, THERE);
    let result = charges.close(THERE, || {
        assert_eq!(charges.destroy_external(5, works), CUDA_SUCCESS);
        assert_eq!(bench.used(), 512);
        FAILS
    });
    assert_eq!((result, bench.used()), (FAILS, 512));
    close(&bench, THERE);
    assert_eq!(bench.used(), 0);
}

#[test]
fn external_memory_is_known_by_its_file_and_else_by_its_size() {
    let (bench, other) = two();
    let import = |bench: &Bench, account, bytes, file: Option<(Key, u64)>, handle| {
        let account = bench.account(account);
        let charges = &bench.charges;
        assert!(
            charges
                .import_external(account, bytes, file, works, || handle)
                .is_success()
        );
        bench.both()
    };
    let file = || Some((key("file"), 3 * PAGE + 5));
    assert_eq!(import(&bench, 0, 100, file(), 1), [3 * PAGE, 0], "the whole file");
    assert_eq!(
        import(&other, 1, 100, file(), 1),
        [3 * PAGE, 0],
        "on the other device already"
    );
    assert_eq!(import(&other, 0, 4 * PAGE, None, 2), [7 * PAGE, 0]);
    assert_eq!(
        import(&bench, 0, 4 * PAGE, None, 2),
        [7 * PAGE, 0],
        "the same size"
    );
    assert_eq!(
        import(&bench, 1, 4 * PAGE, None, 3),
        [7 * PAGE, 4 * PAGE],
        "another device"
    );
    assert_eq!(import(&bench, 0, PAGE, None, 4), [8 * PAGE, 4 * PAGE]);
    assert_eq!(holders(&bench).iter().sum::<u64>(), 5);
}

#[test]
fn memory_of_a_pool_has_importers_as_well() {
    let (owner, importer) = two();
    let call = || {
        owner.pool_holds(7, 2);
        CUDA_SUCCESS
    };
    let charges = &owner.charges;
    let from = (7, crate::driver::stream(1));
    let result = charges.allocate_from_pool(owner.account(0), from, 2 * PAGE, call, || AT);
    assert_eq!((result, owner.pages()), (CUDA_SUCCESS, 2));
    owner.charges.exported(AT, key("a"));
    assert!(open(&importer, "a", (THERE, 2 * PAGE), 0).is_success());
    assert_eq!((owner.pages(), importer.own()), (2, 0));
    assert!(owner.free(AT).is_success());
    assert_eq!(owner.pages(), 2);
    assert!(owner.charges.destroy_pool(7, works).is_success());
    assert_eq!(owner.pages(), 2, "the importer has it");
    close(&importer, THERE);
    owner.charges.follow();
    assert_eq!(owner.pages(), 0);
}

#[test]
fn an_exported_allocation_that_is_freed_in_a_stream_is_charged_until_then() {
    let (owner, importer) = two();
    owner.allocate(AT, PAGE);
    owner.charges.exported(AT, key("a"));
    assert!(open(&importer, "a", (THERE, PAGE), 0).is_success());
    assert_eq!(owner.charges.free_in(crate::driver::stream(1), AT, fails), FAILS);
    owner.free_in(1, AT);
    close(&importer, THERE);
    owner.charges.follow();
    assert_eq!(owner.pages(), 1);
    owner.reaches(1);
    owner.charges.follow();
    assert_eq!((owner.pages(), holders(&owner)), (0, vec![]));
}

#[test]
fn small_allocations_in_a_page_with_a_residual_end_with_their_page() {
    let (owner, importer) = two();
    let (one, two) = (AT, AT + (1 << 20));
    owner.allocate(one, 512);
    owner.allocate(two, 512);
    owner.charges.exported(one, key("a"));
    assert!(open(&importer, "a", (THERE, 512), 0).is_success());
    assert!(owner.free(one).is_success());
    assert_eq!(owner.pages(), 1);
    assert_eq!(owner.charges.free(two, fails), FAILS);
    assert_eq!(owner.pages(), 1);
    assert!(owner.free(two).is_success());
    assert_eq!(owner.pages(), 1, "the residual has the page");
    assert_eq!(owner.allocate(two, 512), 2 * PAGE);
    assert_eq!(owner.pages(), 2, "the address is another page's");
    close(&importer, THERE);
    owner.charges.follow();
    assert_eq!(owner.pages(), 1);
    assert!(owner.free(two).is_success());
    assert_eq!(owner.pages(), 0);
}

#[test]
fn exported_memory_that_ends_with_its_context_stays_for_its_importers() {
    let (owner, importer) = two();
    owner.allocate(AT, 512);
    owner.allocate(AT + 512, 512);
    owner
        .driver
        .contexts
        .borrow_mut()
        .extend([(AT, 1), (AT + 512, 1)]);
    owner.charges.exported(AT + 512, key("a"));
    assert!(open(&importer, "a", (THERE, 512), 0).is_success());
    assert_eq!(
        owner.charges.destroy_context(1 as CUcontext, fails),
        (FAILS, false)
    );
    assert_eq!(owner.pages(), 1);
    assert!(owner.charges.destroy_context(1 as CUcontext, works).1);
    assert_eq!(owner.pages(), 1);
    close(&importer, THERE);
    owner.charges.follow();
    assert_eq!((owner.pages(), holders(&owner)), (0, vec![]));
}

/// Makes the only entry of the table that of another owner, which then dies.
fn owner_dies(bench: &Bench, bytes: u64) {
    let dead = claim(&bench.ledgers[0]);
    dead.reserve(bytes, LIMIT).expect("it fits");
    let (place, word) = words(bench)[0];
    let slot = 0x7ff << 13;
    let table = bench.slot().shared().expect("a table");
    table[place].store(word & !slot | (dead.index() as u64) << 13, Ordering::SeqCst);
    drop(dead);
}

#[test]
fn an_importer_takes_over_when_the_owner_dies() {
    let (owner, importer) = two();
    owner.allocate(AT, 2 * PAGE);
    owner.charges.exported(AT, key("a"));
    assert!(open(&importer, "a", (THERE, 2 * PAGE), 0).is_success());
    importer.allocate(AT, LIMIT - 5 * PAGE);
    owner_dies(&importer, PAGE);
    let reclaim = || {
        let charges = &importer.charges;
        assert_eq!(
            charges.allocate(importer.account(0), LIMIT + 1, never, || AT),
            OOM
        );
        importer.own() / PAGE
    };
    assert_eq!(
        (reclaim(), holders(&owner)),
        (59, vec![2]),
        "its remains are charged"
    );
    // The importer's slot notes that it has it open, so the remains stay until that is no longer so.
    let place = words(&importer)[0].0;
    importer.slot().note_open(place, false);
    importer.ledgers[0].reap_all().expect("a reap");
    let words = words(&importer);
    if words.is_empty() {
        assert_eq!(reclaim(), 59, "the entry is gone as well");
    }
}

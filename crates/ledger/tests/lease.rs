//! The gate words: the agent's decision reaches every process of the slice, and a process's report reaches the agent.

mod support;

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use divvy_ledger::{Gate, Grant, GrantView, Lease};
use support::{MIB, Slice};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_decision_wakes_who_waits_at_the_gate() {
    let slice = Slice::new(MIB);
    let tenant = slice.attach();
    let first = tenant.gate();
    assert_eq!(first.gate(), Gate::Open, "no decision was made yet");

    let closed = slice.pages.grant.close_gate();
    assert_eq!(tenant.gate(), closed);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| tenant.grant().wait_gate(closed, LONG));
        let lease = Lease {
            epoch: 7,
            until_ns: 11,
            in_flight_ns: 13,
        };
        let leased = slice.pages.grant.lease(lease);
        assert_eq!(waiter.join().expect("it woke"), leased);
        assert_eq!(leased.gate(), Gate::Leased);
        assert_eq!(tenant.grant().lease(), lease);
    });
    assert_eq!(slice.pages.grant.open_gate().gate(), Gate::Open);
    assert_eq!(tenant.gate().gate(), Gate::Open);
}

#[test]
fn what_a_process_says_rings_the_doorbell_and_goes_with_it() {
    let slice = Slice::new(MIB);
    let ledger = &slice.pages.ledger;
    let tenant = slice.attach();
    let silent = ledger.activities().next().expect("it is there");
    assert!(!silent.wants && !silent.busy && silent.launched == 0);

    let rings = ledger.rings();
    thread::scope(|scope| {
        let woken = scope.spawn(|| ledger.wait_doorbell(rings, LONG));
        let line = tenant.slot().activity().expect("ours");
        assert!(line.set(true, true), "news");
        assert!(!line.set(true, true), "none");
        line.report(1, 2, 3);
        line.count(5, 4);
        line.acknowledge(slice.pages.grant.close_gate());
        tenant.slot().ring();
        assert_ne!(woken.join().expect("it woke"), rings);
    });
    let said = ledger.activities().next().expect("it is there");
    assert!(said.wants && said.busy);
    assert_eq!((said.in_flight_ns, said.busy_ns, said.kernel_ns), (1, 2, 3));
    assert_eq!((said.launched, said.completed), (5, 4));
    assert_eq!(said.acknowledged, slice.pages.grant.gate());

    drop(tenant);
    slice.expect_empty();
    assert_eq!(ledger.activities().count(), 0);
    let _next = slice.attach();
    let fresh = ledger.activities().next().expect("the next in its place");
    assert!(!fresh.wants && !fresh.busy && fresh.launched == 0);
}

#[test]
fn a_waiter_gives_up_in_time_and_a_beat_is_seen() {
    let slice = Slice::new(MIB);
    let tenant = slice.attach();
    let word = tenant.gate();
    assert_eq!(tenant.grant().wait_gate(word, Duration::from_millis(1)), word);
    assert_eq!(
        (tenant.grant().beat_ns(), tenant.grant().fallback_share()),
        (0, 0)
    );
    slice.pages.grant.beat();
    slice.pages.grant.set_fallback_share(2500);
    assert!(tenant.grant().beat_ns() > 0);
    assert_eq!(tenant.grant().fallback_share(), 2500);
}

#[test]
fn a_successor_goes_on_from_where_the_gate_stood() {
    let mib = Slice::new(MIB);
    let grant = &mib.pages.grant;
    let view = || {
        let shared = grant.share().expect("shared");
        GrantView::map(shared.as_fd()).expect("mapped")
    };
    let open = Grant::succeed(&view()).expect("made");
    assert_eq!(open.gate().gate(), Gate::Open, "an open gate stays open");
    assert!(view().beat_ns() == 0 && beat_of(&open) == 0, "none leases here");

    grant.beat();
    grant.set_fallback_share(2500);
    let leased = grant.lease(Lease {
        epoch: 7,
        until_ns: u64::MAX,
        in_flight_ns: 1,
    });
    let heir = Grant::succeed(&view()).expect("made");
    assert_eq!(heir.gate().gate(), Gate::Closed, "until an agent decides");
    assert!(heir.gate().is_since(leased) && heir.gate() != leased);
    assert!(beat_of(&heir) > 0, "an agent is there");
    let shared = heir.share().expect("shared");
    let tenant = GrantView::map(shared.as_fd()).expect("mapped");
    assert_eq!((tenant.fallback_share(), tenant.lease().epoch), (2500, 7));
}

fn beat_of(grant: &Grant) -> u64 {
    let shared = grant.share().expect("shared");
    GrantView::map(shared.as_fd()).expect("mapped").beat_ns()
}

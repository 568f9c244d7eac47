//! The device's clock, as slices are told of it.

use divvy_arbiter::Terms;

use super::world::{Load, World, share};

fn told(world: &World) -> Vec<u32> {
    let grants = world.tenants.iter().map(|tenant| &tenant.pages[0].grant);
    grants
        .map(|grant| {
            use std::os::fd::AsFd;
            let shared = grant.share().expect("shared");
            divvy_ledger::GrantView::map(shared.as_fd())
                .expect("mapped")
                .clock_mhz()
        })
        .collect()
}

#[test]
fn the_clock_under_load_is_told_once_two_looks_agree() {
    let mut world = World::new();
    world.add(Terms::soft(share(50)), Load::Nothing);
    world.add(Terms::soft(share(50)), Load::Nothing);
    world.state.note_clock(0, Some(1980));
    assert_eq!(told(&world), [0, 0], "it may have been rising");
    world.state.note_clock(0, Some(1965));
    assert_eq!(told(&world), [1965, 1965]);
    // It idles, and works again.
    world.state.note_clock(0, None);
    world.state.note_clock(0, Some(345));
    world.state.note_clock(0, Some(1980));
    world.state.note_clock(1, Some(990));
    world.state.note_clock(1, Some(990));
    assert_eq!(told(&world), [1965, 1965], "another device's is not its own");
    // It is throttled.
    world.state.note_clock(0, Some(1000));
    world.state.note_clock(0, Some(990));
    assert_eq!(told(&world), [990, 990]);
}

//! Streams, contexts and processes that end, and processes that share a lease.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::time::Duration;

use divvy_abi::*;
use divvy_ledger::attach::connect;
use divvy_limiter::{TABLE, below};

use crate::ROLE;
use crate::device::{CLOCK, with};
use crate::kit::{
    activity, again, alone, beating, context, ends_with, kernels, launch, lease, stream, wait_for,
};

#[test]
fn streams_and_contexts_end_with_work_in_flight() {
    alone("streams_and_contexts_end_with_work_in_flight", |slice| {
        slice.pages.grant.close_gate();
        beating(slice, || {
            lease(slice, 1, 0, 0);
            let mut last = with(|device| device.any_context()) as CUcontext;
            for round in 0..10 {
                for us in [100, 5_000, 200] {
                    let stream = stream();
                    launch(stream, us);
                    launch(stream, us);
                    // SAFETY: a stream of ours.
                    assert!(unsafe { (TABLE.cuStreamDestroy_v2)(stream) }.is_success());
                }
                launch(null_mut(), 3_000);
                if round % 2 == 0 {
                    // Ends while a thread waits at the gate.
                    let word = slice.pages.grant.close_gate();
                    std::thread::scope(|scope| {
                        let waits = scope.spawn(|| launch(stream(), 10));
                        wait_for("it wants", || activity(slice).wants);
                        // SAFETY: a context of ours.
                        assert!(unsafe { (TABLE.cuCtxDestroy_v2)(last) }.is_success());
                        wait_for("released", || {
                            let said = activity(slice);
                            said.acknowledged == word && !said.busy
                        });
                        last = context();
                        lease(slice, 2, 0, 0);
                        waits.join().expect("it launched");
                    });
                } else {
                    // SAFETY: a context of ours.
                    assert!(unsafe { (TABLE.cuCtxDestroy_v2)(last) }.is_success());
                    last = context();
                }
            }
            wait_for("idle", || !activity(slice).busy);
            let said = activity(slice);
            assert_eq!(said.launched, said.completed);
        });
    });
}

extern "C" fn the_driver_ends() {
    crate::device::ENDED.store(true, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn the_process_ends_as_it_likes() {
    const NAME: &str = "the_process_ends_as_it_likes";
    if std::env::var_os(ROLE).is_none() {
        return ends_with(NAME, 7);
    }
    alone(NAME, |slice| {
        // SAFETY: a function that may be called at the end.
        assert_eq!(unsafe { libc::atexit(the_driver_ends) }, 0);
        slice.pages.grant.close_gate();
        lease(slice, 1, 0, 0);
        for _ in 0..50 {
            launch(null_mut(), 1_000);
        }
        std::process::exit(7);
    });
}

#[test]
fn a_forked_child_has_no_gate() {
    alone("a_forked_child_has_no_gate", |slice| {
        slice.pages.grant.close_gate();
        beating(slice, || {
            lease(slice, 1, 0, 0);
            launch(null_mut(), 20_000);
            let word = slice.pages.grant.close_gate();
            // With the device locked, so that the child finds it unlocked.
            // SAFETY: the child launches, which takes no lock but the device's, and ends.
            let child = with(|_| unsafe { libc::fork() });
            if child == 0 {
                launch(null_mut(), 1);
                let counted = kernels();
                // SAFETY: ends the child, handlers of the process's end included in the one below.
                unsafe { libc::_exit(if counted == 2 { 5 } else { 6 }) };
            }
            let mut status = 0;
            // SAFETY: our own child; a valid out-parameter.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(
                libc::WEXITSTATUS(status),
                5,
                "CUDA's own answer is the driver's to give"
            );
            wait_for("the parent goes on", || {
                let said = activity(slice);
                said.acknowledged == word && !said.busy
            });
        });
    });
}

#[test]
fn processes_of_a_slice_share_its_lease() {
    const NAME: &str = "processes_of_a_slice_share_its_lease";
    const SOCKET: &str = "DIVVY_TEST_SOCKET";
    if let Some(socket) = std::env::var_os(SOCKET) {
        below::stand_on(&CLOCK);
        let account = connect(std::path::Path::new(&socket), 0).expect("the server answers");
        divvy_limiter::tenant::enter(vec![account]);
        context();
        for _ in 0..200 {
            launch(null_mut(), 1_000);
        }
        return;
    }
    alone(NAME, |slice| {
        beating(slice, || {
            slice.pages.grant.close_gate();
            let mut children: Vec<_> = (0..3)
                .map(|_| again(NAME).env(SOCKET, &slice.socket).spawn().expect("it starts"))
                .collect();
            let theirs = || {
                slice
                    .pages
                    .ledger
                    .activities()
                    .filter(|said| said.slot != activity(slice).slot)
            };
            wait_for("all want", || theirs().filter(|said| said.wants).count() == 3);
            assert!(theirs().all(|said| said.launched == 0));
            let mut epoch = 0;
            wait_for("all launch", || {
                epoch += 1;
                lease(slice, epoch, 20, 1);
                std::thread::sleep(Duration::from_millis(20));
                let word = slice.pages.grant.close_gate();
                wait_for("all let go", || {
                    theirs().all(|said| said.launched == 0 || (said.acknowledged == word && !said.busy))
                });
                let launched: Vec<u64> = theirs().map(|said| said.launched).collect();
                std::thread::sleep(Duration::from_millis(5));
                assert_eq!(launched, theirs().map(|said| said.launched).collect::<Vec<_>>());
                launched.iter().all(|launched| *launched > 20)
            });
            slice.pages.grant.open_gate();
            for child in &mut children {
                assert!(child.wait().expect("it ends").success());
            }
        });
    });
}

//! A network that fails in each state of a client: what ends, and that nothing is left of it.

use std::sync::atomic::Ordering;

use divvy_abi::*;
use divvy_model::Code;
use divvy_tunnel::Wanted;
use divvy_tunnel::near::{Session, devices};

use super::{Site, Wire, allocate, alone, free, start, until};

/// Each message of the greeting, of TLS and of the first question is cut somewhere.
#[test]
fn a_cut_behind_any_count_of_bytes_is_told_and_leaves_nothing() {
    let site = Site::new();
    let identity = site.invite();
    let mut opened = 0;
    for most in (0..8000).step_by(97) {
        let wire = Wire::cutting(&site.address, most);
        match Session::open(&wire.address, &identity, &Wanted::default(), || {}) {
            Ok(session) => {
                opened += 1;
                drop(session);
            }
            Err(fault) => {
                assert!(fault.hint.is_some(), "behind {most} bytes: {fault:?}");
                assert!(
                    matches!(fault.code, Code::RemoteUnreachable | Code::RemoteIdentity),
                    "behind {most} bytes: {fault:?}"
                );
            }
        }
        wire.cut();
    }
    assert!(opened > 0, "in the end it is long enough");
    // A client that heard nothing of its slice has none: made and ended are the same.
    until(|| {
        let (made, ended) = (*site.here.made.lock().unwrap(), *site.here.ended.lock().unwrap());
        made >= opened && made == ended
    });
    assert!(devices(&site.address, &identity).is_ok());
}

#[test]
fn a_cut_in_the_queue_takes_the_client_out_of_it() {
    let site = Site::new();
    let identity = site.invite();
    let wire = Wire::to(&site.address);
    let wanted = Wanted {
        device: "queue".into(),
        ..Wanted::default()
    };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| Session::open(&wire.address, &identity, &wanted, || {}).map(drop));
        until(|| site.here.queueing.load(Ordering::SeqCst) == 1);
        wire.cut();
        let fault = waits.join().unwrap().expect_err("the network is cut");
        assert!(fault.hint.is_some(), "{fault:?}");
    });
    until(|| site.here.queueing.load(Ordering::SeqCst) == 0);
    assert_eq!(*site.here.made.lock().unwrap(), 0);
}

/// A client that takes no answers holds up itself: others are served, and what it has goes with its connection.
#[test]
fn a_client_that_stops_reading_holds_up_itself() {
    alone("cuts::a_client_that_stops_reading_holds_up_itself", || {
        let site = Site::new();
        let identity = site.invite();
        let wire = Wire::to(&site.address);
        let relay = site.connect_as(&identity, &wire.address);
        start();
        let bytes = 1 << 22;
        let memory = allocate(bytes);
        wire.stall();
        std::thread::scope(|scope| {
            let copies = scope.spawn(|| {
                let mut to = vec![0_u8; bytes];
                loop {
                    let code = code!(cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), memory, bytes));
                    if code != CUDA_SUCCESS {
                        return code;
                    }
                }
            });
            for _ in 0..3 {
                assert!(devices(&site.address, &identity).is_ok(), "another connection");
            }
            assert!(!copies.is_finished(), "nothing arrives");
            assert_eq!(*site.here.ended.lock().unwrap(), 0, "it may go on");
            wire.cut();
            assert_eq!(copies.join().unwrap(), CUDA_ERROR_DEVICE_UNAVAILABLE);
        });
        until(|| relay.is_cut());
        until(|| *site.here.ended.lock().unwrap() == 1);
        assert_eq!(free(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    });
}

//! Forked children: they have no device where their parent had one, and never wait for a thread that they do not have.

mod common;

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use common::{alone, code, connect, cu, get, start};
use divvy_abi::*;
use divvy_remote::LocalConnector;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Runs `body` in a forked child, which is ended if it hangs. Gives its exit status, or none where it was ended. The first
/// process of a namespace ignores its own alarm.
fn in_child(body: impl FnOnce() -> u8) -> Option<u8> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    // SAFETY: the child has one thread, and ends itself.
    unsafe {
        match libc::fork() {
            0 => {
                libc::_exit(body().into());
            }
            child => {
                let known = pidfd_open(Pid::from_raw(child).unwrap(), PidfdFlags::empty()).unwrap();
                let limit = Timespec {
                    tv_sec: 60,
                    tv_nsec: 0,
                };
                if poll(&mut [PollFd::new(&known, PollFlags::IN)], Some(&limit)).unwrap() == 0 {
                    pidfd_send_signal(&known, Signal::KILL).unwrap();
                }
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) as u8)
            }
        }
    }
}

/// What a child finds with the calls of a program that goes on.
fn calls_of_a_child() -> u8 {
    let mut count = 7;
    let mut memory: CUdeviceptr = 0;
    let mut host: *mut c_void = std::ptr::null_mut();
    let codes = [
        code!(cuInit(0)),
        code!(cuDeviceGetCount(&raw mut count)),
        code!(cuMemAlloc_v2(&raw mut memory, 4096)),
        code!(cuMemHostAlloc(&raw mut host, 4096, 0)),
        code!(cuMemAllocManaged(&raw mut memory, 4096, 1)),
        code!(cuCtxSynchronize()),
    ];
    let refused = codes.iter().all(|code| *code == CUDA_ERROR_NOT_INITIALIZED);
    if refused && count == 7 { 0 } else { 1 }
}

#[test]
fn a_child_has_no_device_of_its_parents() {
    alone("a_child_has_no_device_of_its_parents", || {
        connect(1 << 16);
        start(0);
        assert_eq!(in_child(calls_of_a_child), Some(0));
        let _memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
    });
}

#[test]
fn a_child_with_its_parents_number_has_no_device_of_its_parents() {
    alone(
        "a_child_with_its_parents_number_has_no_device_of_its_parents",
        || {
            // SAFETY: none of these has to do with memory. Where a test may make no namespaces, there is nothing to see.
            let may =
                in_child(|| unsafe { (libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) != 0).into() });
            if may != Some(0) {
                eprintln!("skipped: this user may make no pid namespaces");
                return;
            }
            // The first process of a namespace connects. Its child is the first of another one: both have number 1.
            let parent = in_child(|| {
                // SAFETY: as above; this process has one thread.
                if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) } != 0 {
                    return 2;
                }
                let first = in_child(|| {
                    connect(1 << 16);
                    start(0);
                    let own = std::process::id();
                    // SAFETY: as above.
                    if own != 1 || unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
                        return 3;
                    }
                    in_child(|| {
                        if std::process::id() == own {
                            calls_of_a_child()
                        } else {
                            4
                        }
                    })
                    .unwrap_or(5)
                });
                first.unwrap_or(6)
            });
            assert_eq!(parent, Some(0));
        },
    );
}

/// A socket that takes connections; nothing greets.
fn silent(path: &PathBuf) -> OwnedFd {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 8).unwrap();
    socket
}

#[test]
fn a_child_does_not_wait_for_a_thread_that_it_does_not_have() {
    alone("a_child_does_not_wait_for_a_thread_that_it_does_not_have", || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.sock");
        let socket = silent(&path);
        assert!(divvy_remote::client::connect(
            Box::new(LocalConnector::new(path)),
            |_| {}
        ));
        // A thread waits for the greeting, and has the connector's lock.
        let asks = std::thread::spawn(|| {
            let mut version = 0;
            code!(cuDriverGetVersion(&raw mut version))
        });
        let greeted = rustix::net::accept(&socket).unwrap();
        // The child's connection is taken and closed.
        let closes = std::thread::spawn(move || drop(rustix::net::accept(&socket).unwrap()));
        let child = in_child(|| {
            let mut version = 0;
            let code = code!(cuDriverGetVersion(&raw mut version));
            u8::from(code != CUDA_ERROR_DEVICE_UNAVAILABLE)
        });
        assert_eq!(child, Some(0), "it has a connection of its own, or none");
        closes.join().unwrap();
        drop(greeted);
        assert_eq!(asks.join().unwrap(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    });
}

//! `divvy-worker`: holds a device for the programs of one slice, which have none themselves.
//!
//! Under `--isolation enforced` root starts it as `divvy-worker --slice ID`, as a user that no other slice has.
//! `divvy-worker SOCKET` is the same without a boundary: it listens at the socket for programs of its own user.
//!
//! It starts itself again for each program that connects and says that it begins: `divvy-worker --serve PID:START`, with the connection as its
//! standard input. The argument names the program, by what the kernel says of the connection. That process opens the
//! device, locks itself up, and makes the program's CUDA calls, through the limiter, over the driver below. Its environment is a tenant's: `DIVVY_SLICE`, `DIVVY_DRIVER`.
//!
//! For a program that asks NVML it is `divvy-worker --query PID:START`, which opens no device.

mod doors;
mod ended;
mod listen;
mod newcomers;
mod programs;

use std::os::fd::BorrowedFd;
use std::process::ExitCode;

use anyhow::bail;
use divvy_privileged::jail::{Asks, Below, Lack, forbid_tracing, lock_up};
use divvy_remote::local::serve::{End, serve};
use divvy_remote::server::{Quota, Server};
use rustix::io::Errno;

/// The driver that the calls go to.
static DRIVER: divvy_abi::Table = divvy_limiter::TABLE;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [serve, _program] if serve == "--serve" => serve_one(),
        [query, _program] if query == "--query" => answer_one(),
        [slice, _id] if slice == "--slice" => listen::listen_for_slice(),
        [socket] => listen::listen(socket.as_ref()),
        _ => Err(anyhow::anyhow!(
            "It takes one argument, the path of a socket that is not there yet: `divvy-worker /run/divvy/worker.sock`"
        )),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("divvy-worker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The program's connection, which is the standard input, and the driver that lies below.
fn begin() -> anyhow::Result<(BorrowedFd<'static>, Below)> {
    let socket: BorrowedFd<'static> = rustix::stdio::stdin();
    if !listen::is_connection(socket) {
        bail!("standard input is no connection of a program; `divvy-worker SOCKET` makes one for each");
    }
    forbid_tracing().map_err(|fault| anyhow::anyhow!("{fault}"))?;
    divvy_limiter::capture_environment();
    let below = match std::env::var_os("DIVVY_EMULATED") {
        Some(devices) if !devices.is_empty() => Below::Emulated,
        _ => Below::Native,
    };
    Ok((socket, below))
}

/// Locks this process up.
fn close(below: Below, asks: Asks) -> anyhow::Result<()> {
    match lock_up(below, asks) {
        Ok(None) => {}
        // Said once for each program: an administrator can switch it on.
        Ok(Some(Lack::Landlock)) => eprintln!(
            "divvy-worker: this kernel has no Landlock: the filter of system calls and the user's rights hold alone"
        ),
        Err(fault) => bail!("{fault}: {}", fault.causes.join(": ")),
    }
    Ok(())
}

/// Answers a program's queries. It joins no slice and opens no device, so it has no place in the ledger.
fn answer_one() -> anyhow::Result<()> {
    let (socket, below) = begin()?;
    programs::name_workers(socket);
    // The library below is loaded here: no code comes into the process any more after this.
    let server = divvy_remote::nvml::server::Server::new(&divvy_limiter::nvml::TABLE);
    close(below, Asks::Queries)?;
    match server.serve(socket) {
        Ok(()) => Ok(()),
        Err(Errno::PROTO) => bail!("a program sent what is no query of NVML"),
        Err(errno) => bail!("a program's queries were not served: {errno}"),
    }
}

fn serve_one() -> anyhow::Result<()> {
    let (socket, below) = begin()?;
    open_devices(below);
    close(below, Asks::Calls)?;
    let count = divvy_limiter::tenant::count_copied;
    let server = Server::with_listeners(&DRIVER, Quota::default(), |_| {}, count);
    serve(socket, &server, |end| {
        if let End::System(errno) = end {
            eprintln!("divvy-worker: a connection was not served: {errno}");
        }
        // At once: a call that never ends must not keep the device, and the kernel frees all that is held.
        // SAFETY: the process ends here; no code of it runs any more.
        unsafe { libc::_exit(i32::from(end != End::Closed)) }
    })
}

/// Joins the slice and opens the driver and the devices, before the program can say a word. A driver that refuses refuses
/// again when the program asks, and tells it why.
fn open_devices(below: Below) {
    let mut count = 0;
    // SAFETY: the driver's own entry points, called in the order that CUDA asks for, with places for their answers.
    unsafe {
        let _code = (DRIVER.cuInit)(0);
        let _code = (DRIVER.cuDeviceGetCount)(&mut count);
    }
    if below == Below::Native {
        // NVIDIA's driver opens its nodes when it needs them, as Landlock allows.
        return;
    }
    // The emulated driver asks for a device's pages with the first context, by a socket. It keeps them.
    for ordinal in 0..count {
        let (mut device, mut context) = (0, core::ptr::null_mut());
        // SAFETY: as above; the context is released only where it was retained.
        unsafe {
            let _code = (DRIVER.cuDeviceGet)(&mut device, ordinal);
            if (DRIVER.cuDevicePrimaryCtxRetain)(&mut context, device) == divvy_abi::CUDA_SUCCESS {
                let _code = (DRIVER.cuDevicePrimaryCtxRelease_v2)(device);
            }
        }
    }
}

//! `divvy-worker SOCKET`: holds a device for the programs of one slice, which have none themselves.
//!
//! It listens at the socket, and starts itself again for each program that connects: `divvy-worker --serve`, with the
//! connection as its standard input. That process makes the program's CUDA calls, through the limiter, over the driver
//! below. Its environment is a tenant's: `DIVVY_SLICE`, `DIVVY_DRIVER`.

mod listen;

use std::os::fd::BorrowedFd;
use std::process::ExitCode;

use anyhow::bail;
use divvy_remote::local::serve::{End, serve};
use divvy_remote::server::{Quota, Server};

/// The driver that the calls go to.
static DRIVER: divvy_abi::Table = divvy_limiter::TABLE;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [serve] if serve == "--serve" => serve_one(),
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

fn serve_one() -> anyhow::Result<()> {
    let socket: BorrowedFd<'static> = rustix::stdio::stdin();
    if rustix::net::sockopt::socket_type(socket) != Ok(rustix::net::SocketType::SEQPACKET) {
        bail!("standard input is no connection of a program; `divvy-worker SOCKET` makes one for each");
    }
    divvy_limiter::capture_environment();
    let server = Server::new(&DRIVER, Quota::default());
    serve(socket, &server, |end| {
        if let End::System(errno) = end {
            eprintln!("divvy-worker: a connection was not served: {errno}");
        }
        // At once: a call that never ends must not keep the device, and the kernel frees all that is held.
        // SAFETY: the process ends here; no code of it runs any more.
        unsafe { libc::_exit(i32::from(end != End::Closed)) }
    })
}

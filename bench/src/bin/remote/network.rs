//! The same program with its worker further away: an emulated delay of 5, 20 and 100 us, and TCP with TLS over the
//! loopback interface, through both relays.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::anyhow;
use divvy_model::{Code, Fault};
use divvy_tunnel::far::{Host, Slot};
use divvy_tunnel::near::Session;
use divvy_tunnel::{Allowance, Authority, Wanted, a_year, far, tls};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::Args;
use crate::calls::program_with;
use crate::place::{Place, Way};
use crate::program::Figures;

const DELAYS: [&str; 3] = ["5us", "20us", "100us"];

/// Each client gets a worker behind this socket.
#[derive(Clone)]
struct Here(PathBuf);

impl Host for Here {
    fn devices(&self) -> Result<serde_json::Value, Fault> {
        Ok(serde_json::json!([]))
    }

    fn open(
        &self,
        _: &str,
        _: &(dyn Fn() -> Result<Allowance, Fault> + Sync),
        _: &Wanted,
        _: &(dyn Fn() -> bool + Sync),
    ) -> Result<Box<dyn Slot>, Fault> {
        Ok(Box::new(self.clone()))
    }

    fn log(&self, text: &str) {
        eprintln!("{text}");
    }
}

impl Slot for Here {
    fn connect(&self) -> Result<OwnedFd, Fault> {
        let connected = || -> Result<OwnedFd, Errno> {
            let socket = rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(&self.0)?)?;
            Ok(socket)
        };
        connected().map_err(|errno| Fault::new(Code::Internal, "no worker").because(&errno))
    }
}

/// Measures all, and prints them beside each other.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let place = Place::new()?;
    let over = |socket: PathBuf, delay: Option<&str>| {
        program_with(args, &place, Way::Worker, |command| {
            command.env("DIVVY_REMOTE", socket);
            if let Some(delay) = delay {
                command.env("DIVVY_REMOTE_DELAY", delay);
            }
        })
    };
    let mut all = vec![("shared memory".to_owned(), over(place.socket(), None)?)];
    for delay in DELAYS {
        all.push((format!("delay {delay}"), over(place.socket(), Some(delay))?));
    }
    let folder = tempfile::tempdir()?;
    let fault = |fault: Fault| anyhow!("{fault}: {}", fault.causes.join(": "));
    let authority = Authority::open(folder.path()).map_err(fault)?;
    let config = tls::server(&authority.server(a_year()).map_err(fault)?).map_err(fault)?;
    let identity = authority.invite("bench", a_year()).map_err(fault)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let host = Box::new(Here(place.socket()));
    std::thread::spawn(move || far::serve(&listener, config, authority, host));
    let session = Session::open(&address, &identity, &Wanted::default(), || {}).map_err(fault)?;
    let relay = session.relay(folder.path()).map_err(fault)?;
    all.push(("TCP, TLS".to_owned(), over(relay.socket().to_owned(), None)?));
    print(&all);
    Ok(())
}

fn print(all: &[(String, Figures)]) {
    print!("\n{:<44}", "over a network");
    for (name, _) in all {
        print!("{name:>16}");
    }
    println!();
    let line = |name: &str, unit: &str, of: &dyn Fn(&Figures) -> f64| {
        print!("{name:<44}");
        for (_, figures) in all {
            print!("{:>16}", format!("{:.1} {unit}", of(figures)));
        }
        println!();
    };
    line("start to the end of the first kernel", "ms", &|of| {
        of.first_kernel_ms
    });
    line("a call that waits (cuStreamQuery)", "us", &|of| of.call_ns / 1e3);
    line("a launch, submitted", "us", &|of| of.launch_ns / 1e3);
    line("1000 launches and a synchronisation", "us", &|of| of.batch_us);
    for (index, copied) in all[0].1.copies.iter().enumerate() {
        line(&copied.name, "GB/s", &|of| of.copies[index].gigabytes);
    }
}

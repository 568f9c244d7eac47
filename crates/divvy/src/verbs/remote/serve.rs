//! `divvy remote serve`: this host's devices for invited hosts.

use std::net::TcpListener;
use std::path::PathBuf;

use divvy_model::{Bytes, Code, Compute, Fault, Isolation, MemoryAmount, Selector};
use divvy_tunnel::allowance::NoShares;
use divvy_tunnel::{Allowance, Authority, Shares, a_year, far, tls};

use super::host::ThisHost;
use crate::context::Context;
use crate::flags::{parse, word};
use crate::output;
use crate::report::remark;

/// Flags of `divvy remote serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to listen
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4815")]
    listen: String,
    /// The only device that is served [default: the one that a client names]
    #[arg(long, value_name = "SEL", value_parser = parse::<Selector>)]
    device: Option<Selector>,
    /// The most memory of one run of a client's, and what a client gets that names none [default: what the client asks for]
    #[arg(short, long, value_name = "SIZE", value_parser = parse::<MemoryAmount>)]
    memory: Option<MemoryAmount>,
    /// The most compute share of one run of a client's, and what a client gets that names none [default: as the client asks]
    #[arg(long, value_name = "SHARE", value_parser = parse::<Compute>)]
    compute: Option<Compute>,
    /// How clients' programs are kept from the device. Each level but enforced is for tests alone
    #[arg(long, value_name = "LEVEL", value_parser = word::<Isolation>, default_value = "enforced", hide = true)]
    isolation: Isolation,
    #[command(flatten)]
    state: State,
}

#[derive(Debug, clap::Args)]
struct State {
    /// Where certificates are kept [default: $XDG_STATE_HOME/divvy/remote]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

impl State {
    fn authority(&self) -> Result<Authority, Fault> {
        let folder = match &self.state {
            Some(folder) => folder.clone(),
            None => super::home("XDG_STATE_HOME", ".local/state", "remote")?,
        };
        Authority::open(&folder)
    }
}

/// Flags of `divvy remote invite`.
#[derive(Debug, clap::Args)]
pub struct Invite {
    /// The host's name: lower-case letters, digits and `-`
    name: String,
    /// Write it to this file, which its user alone can read [default: print it]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The most memory of all its runs together [default: only each run is bounded]
    #[arg(short, long, value_name = "SIZE", value_parser = parse::<Bytes>)]
    memory: Option<Bytes>,
    /// The most compute share of all its runs together; a whole device is 100% [default: only each run is bounded]
    #[arg(long, value_name = "SHARE", value_parser = shares)]
    compute: Option<Shares>,
    #[command(flatten)]
    state: State,
}

fn shares(text: &str) -> Result<Shares, NoShares> {
    text.parse()
}

/// Flags of `divvy remote forget`.
#[derive(Debug, clap::Args)]
pub struct Forget {
    /// The host's name, as it was invited
    name: String,
    #[command(flatten)]
    state: State,
}

/// Serves until it is ended.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let authority = args.state.authority()?;
    let config = tls::server(&authority.server(a_year())?)?;
    let cannot = |error: std::io::Error| {
        Fault::new(
            Code::RemoteUnreachable,
            format!("cannot listen at {}", args.listen),
        )
        .because(&error)
        .hint("an address of this host and a port that is free, as `--listen 0.0.0.0:4815`")
    };
    let listener = TcpListener::bind(&args.listen).map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let host = ThisHost::new(
        context.run_dir()?.path().to_owned(),
        args.device.clone(),
        args.memory,
        args.compute,
        args.isolation,
    );
    remark(&format!("serving at {address}"));
    far::serve(&listener, config, authority, Box::new(host)).map_err(cannot)?;
    Ok(0)
}

/// Prints an invitation.
pub fn invite(args: &Invite) -> Result<u8, Fault> {
    let authority = args.state.authority()?;
    let identity = authority.draft(&args.name, a_year())?;
    remark("this holds a private key: bring it to its host by a way that others cannot read, as by ssh");
    match &args.out {
        Some(file) => identity.write(file)?,
        None => output::print(identity.text())?,
    }
    let allowance = Allowance {
        memory: args.memory,
        compute: args.compute,
    };
    // An earlier one counts until this one has been given out.
    authority.admit(&args.name, &identity, &allowance)?;
    Ok(0)
}

/// Takes an invitation back.
pub fn forget(args: &Forget) -> Result<u8, Fault> {
    if args.state.authority()?.forget(&args.name)? {
        return Ok(0);
    }
    Err(Fault::new(
        Code::RemoteIdentity,
        format!("no host was invited as `{}`", args.name),
    )
    .hint("the names are those of `divvy remote invite`"))
}

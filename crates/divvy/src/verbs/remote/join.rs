//! `divvy remote join`: the invitations that this host's user holds.

use std::fs;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use divvy_model::{Code, Fault};
use divvy_tunnel::Identity;

use crate::report::remark;

/// Bytes of the longest invitation.
const MOST: u64 = 1 << 16;

/// Flags of `divvy remote join`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The server, as HOST:PORT
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// The invitation that `divvy remote invite` printed; `-` reads it from the standard input
    #[arg(default_value = "-")]
    file: PathBuf,
}

fn folder() -> Result<PathBuf, Fault> {
    super::home("XDG_CONFIG_HOME", ".config", "remotes")
}

/// Where the invitation of a server is kept.
fn file(server: &str) -> Result<PathBuf, Fault> {
    let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
    if host.is_empty() || port.parse::<u16>().is_err() || !host.bytes().all(plain) || host.starts_with('.') {
        return Err(
            Fault::new(Code::Usage, format!("`{server}` is no server")).hint("write HOST:PORT, as gpu7:4815")
        );
    }
    Ok(folder()?.join(format!("{server}.pem")))
}

/// The invitation for a server.
pub fn identity(server: &str) -> Result<Identity, Fault> {
    let path = file(server)?;
    if !path.exists() {
        return Err(
            Fault::new(Code::RemoteIdentity, format!("this user has no invitation of {server}")).hint(format!(
                "`divvy remote invite NAME` on the GPU's host prints one; `divvy remote join {server} FILE` stores it"
            )),
        );
    }
    Identity::load(&path)
}

/// The servers with an invitation.
pub fn joined() -> Result<Vec<String>, Fault> {
    let Ok(entries) = fs::read_dir(folder()?) else {
        return Ok(Vec::new());
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut servers: Vec<String> = names
        .filter_map(|name| name.strip_suffix(".pem").map(str::to_owned))
        .collect();
    servers.sort_unstable();
    Ok(servers)
}

/// Stores an invitation.
pub fn run(args: &Args) -> Result<u8, Fault> {
    let mut text = String::new();
    let read = if args.file.as_os_str() == "-" {
        std::io::stdin().take(MOST).read_to_string(&mut text)
    } else {
        // Another user who read the key could be this host.
        if args.file.is_file() {
            Identity::load(&args.file)?;
        }
        fs::File::options()
            .read(true)
            .open(&args.file)
            .and_then(|file| file.take(MOST).read_to_string(&mut text))
    };
    read.map_err(|error| {
        Fault::new(
            Code::RemoteIdentity,
            format!("`{}` cannot be read", args.file.display()),
        )
        .because(&error)
        .hint("the file is what `divvy remote invite NAME --out FILE` wrote on the GPU's host; `-` reads it from standard input")
    })?;
    let identity = Identity::read(&text)?;
    let path = file(&args.server)?;
    let folder = folder()?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|error| {
            Fault::new(
                Code::RemoteIdentity,
                format!("`{}` cannot be made", folder.display()),
            )
            .because(&error)
        })?;
    identity.write(&path)?;
    remark(&format!(
        "joined {}: `divvy remote list {0}` shows its devices",
        args.server
    ));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_and_a_port() {
        for good in ["gpu7:4815", "10.0.0.1:1", "[::1]:4815"] {
            assert!(file(good).is_ok(), "{good}");
        }
        for wrong in [
            "",
            "gpu7",
            ":4815",
            "gpu7:",
            "gpu7:99999",
            "../x:1",
            "a/b:1",
            ".x:1",
        ] {
            assert_eq!(
                file(wrong).map_err(|fault| fault.code),
                Err(Code::Usage),
                "{wrong}"
            );
        }
    }
}

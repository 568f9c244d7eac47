//! `divvy guest kit`: what a machine needs, with the sums of what is written.

use std::fs;
use std::path::{Path, PathBuf};

use divvy_guest::kit::{Parts, sha256};
use divvy_model::{Code, Fault};

use crate::output;

/// Flags of `divvy guest kit`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder, which is made if it is not there
    folder: PathBuf,
}

/// The drop-in and the broker, as they are built.
const PARTS: [&str; 2] = ["libdivvy_remote_cuda.so", "divvy-guest"];

/// Writes it.
pub fn run(args: &Args) -> Result<u8, Fault> {
    let [library, broker] = PARTS.map(part);
    let (library, broker) = (library?, broker?);
    let parts = Parts {
        library: &library,
        broker: &broker,
        version: env!("CARGO_PKG_VERSION"),
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        },
    };
    let write = |name: &str, bytes: &[u8]| -> std::io::Result<PathBuf> {
        fs::create_dir_all(&args.folder)?;
        let path = args.folder.join(name);
        fs::write(&path, bytes)?;
        Ok(path)
    };
    let mut text = String::new();
    let files = [
        (format!("{}.tar.gz", parts.name()), parts.tarball()),
        (parts.package(), parts.deb()),
    ];
    let sums: String = files
        .iter()
        .map(|(name, bytes)| format!("{}  {name}\n", sha256::sum(bytes)))
        .collect();
    for (name, bytes) in files
        .into_iter()
        .chain([("SHA256SUMS".to_owned(), sums.into_bytes())])
    {
        let path = write(&name, &bytes).map_err(|error| {
            let path = args.folder.join(&name);
            Fault::new(Code::RunDir, format!("cannot write `{}`", path.display()))
                .because(&error)
                .hint("name a folder that you can write: `divvy guest kit DIR`")
        })?;
        text.push_str(&format!("{}\n", path.display()));
    }
    output::print(&text)?;
    Ok(0)
}

/// A file beside this program, or where packages put it.
fn part(name: &str) -> Result<Vec<u8>, Fault> {
    fs::read(place(name)?).map_err(|error| missing(name).because(&error))
}

fn missing(name: &str) -> Fault {
    Fault::new(
        Code::DropIn,
        format!("{name} is not where this installation has its libraries"),
    )
    .hint("install all of Divvy's archive: what machines need is packed from its parts")
}

/// Where such a file is.
pub(super) fn place(name: &str) -> Result<PathBuf, Fault> {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.parent().unwrap_or(Path::new("/"));
    let mut places = [beside.join(name), beside.join("../lib/divvy").join(name)].into_iter();
    places.find(|path| path.is_file()).ok_or_else(|| missing(name))
}

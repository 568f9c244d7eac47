//! `divvy k8s grant-key`: the key by which the extender signs grants, as objects for `kubectl apply`.

use std::path::PathBuf;

use divvy_kube::grants::Signer;
use divvy_model::{Code, Fault};
use serde_json::json;

/// Flags of `divvy k8s grant-key`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy k8s grant-key | kubectl apply -f -
  divvy k8s grant-key --files /etc/divvy      # grant.key and grant.pub

It makes a new key each time. The Secret is for the extender, the ConfigMap with the public key for the nodes' device plugins.")]
pub struct Args {
    /// The namespace of both objects
    #[arg(long, value_name = "NAME", default_value = "divvy-system")]
    namespace: String,
    /// Write the files grant.key and grant.pub into this directory, and print nothing
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
}

/// Makes it.
pub fn run(args: &Args) -> Result<u8, Fault> {
    let (private, public) = Signer::make()?;
    let Some(folder) = &args.files else {
        let metadata = |name: &str| json!({"name": name, "namespace": args.namespace});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("divvy-grant-key"),
            "type": "Opaque", "stringData": {"grant.key": private}});
        let shown = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("divvy-grant-public"),
            "data": {"grant.pub": public}});
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [secret, shown]});
        let text = serde_json::to_string_pretty(&list)
            .map_err(|error| Fault::new(Code::Internal, "the objects are no JSON").because(&error))?;
        crate::output::print(&text)?;
        return Ok(0);
    };
    for (name, text, mode) in [("grant.key", private, 0o600), ("grant.pub", public, 0o644)] {
        write(&folder.join(name), &text, mode)?;
    }
    Ok(0)
}

/// A new file: a key that is in use is not written over.
fn write(path: &std::path::Path, text: &str, mode: u32) -> Result<(), Fault> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    let made = std::fs::File::options()
        .create_new(true)
        .write(true)
        .mode(mode)
        .open(path);
    made.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| {
            Fault::new(Code::Usage, format!("cannot write `{}`", path.display()))
                .because(&error)
                .hint("name a directory that is there and has no key yet")
        })
}

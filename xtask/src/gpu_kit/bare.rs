//! Tries the archive where a user would: in a bare root of Debian or another system, as a user without rights, over the emulated device.
//!
//! Debian's has its essential packages: no Rust, no Python. There is no network. The disk has 2 GiB, and the folder of the
//! archive can only be read. It is run twice, the second time without /dev/shm.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::Value;

/// The device, and how long the kit may take over it, in seconds: SPECIFICATION.md, "On hardware".
const DEVICE: &str = "emulated:h100";
const LONGEST: u64 = 300;

/// A user that the root does not know.
const USER: u32 = 4242;

/// Whether the root has /dev/shm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SharedMemory {
    Mounted,
    Missing,
}

/// Runs the archive in a root, which is an archive too: without /dev/shm, and before that with it unless `only_without`.
///
/// # Errors
/// What is missing on this machine, or what the kit found.
pub fn run(archive: &Path, root: &Path, only_without: bool) -> anyhow::Result<()> {
    let all = [SharedMemory::Mounted, SharedMemory::Missing];
    for &memory in &all[usize::from(only_without)..] {
        let begun = Instant::now();
        let report = run_once(root, archive, memory)?;
        judge(&report, memory)?;
        println!(
            "gpu-kit: all parts in {}, /dev/shm {memory:?}: {:.0} s",
            root.file_name().unwrap_or_default().display(),
            begun.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

fn run_once(root: &Path, archive: &Path, memory: SharedMemory) -> anyhow::Result<Value> {
    let results = tempfile::tempdir().context("Cannot make a folder for the results")?;
    std::os::unix::fs::chown(results.path(), Some(USER), Some(USER))
        .context("The results' folder cannot be given to another user: this needs root")?;
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--ipc",
            "--net",
            "--",
        ])
        .args(["/bin/sh", "-c", ENTER, "sh"])
        .args([root, archive, results.path()])
        .args([DEVICE, &LONGEST.to_string(), &USER.to_string()])
        .arg(match memory {
            SharedMemory::Mounted => "shm",
            SharedMemory::Missing => "none",
        })
        .stdin(Stdio::null());
    let output = command.output().context("Cannot start unshare")?;
    let said = || {
        let text = [output.stdout.clone(), output.stderr.clone()].concat();
        String::from_utf8_lossy(&text).into_owned()
    };
    let file = results.path().join("report.json");
    let text = fs::read_to_string(file).with_context(|| format!("The kit has no report: {}", said()))?;
    if !output.status.success() {
        let page = fs::read_to_string(results.path().join("report.md")).unwrap_or_default();
        bail!("The kit ended with {}: {}\n{page}", output.status, said());
    }
    serde_json::from_str(&text).context("The report is no JSON")
}

/// What needs nothing but the kit and a device.
const MUST_HOLD: [&str; 3] = ["memory.plain.limit", "deaths.slices", "differences.isa"];

/// Each part ended by itself, and what needs no Python was tried.
fn judge(report: &Value, memory: SharedMemory) -> anyhow::Result<()> {
    let parts = report["parts"].as_array().context("The report has no parts")?;
    for part in parts {
        let (name, ending) = (&part["name"], &part["outcome"]["ending"]);
        if ending != "done" {
            bail!(
                "{memory:?}: the part {name} ended as {ending}: {}",
                part["outcome"]
            );
        }
        let findings = part["findings"].as_array().map_or(0, Vec::len);
        if findings == 0 {
            bail!("{memory:?}: the part {name} found nothing");
        }
    }
    // A part of which all was skipped is done as well.
    let findings: Vec<&Value> = parts
        .iter()
        .filter_map(|part| part["findings"].as_array())
        .flatten()
        .collect();
    let holds = |check: &str| {
        let mut of_it = findings.iter().filter(|finding| finding["check"] == check);
        of_it.any(|finding| finding["verdict"] == "holds")
    };
    match MUST_HOLD.iter().find(|check| !holds(check)) {
        Some(missing) => bail!("{memory:?}: {missing} does not hold, or was not tried"),
        None => Ok(()),
    }
}

/// `$1` is the root's archive, `$2` the kit's, `$3` the folder of results, `$4` the device, `$5` the seconds, `$6` the user,
/// `$7` tells whether there is shared memory. All mounts go with the namespace.
const ENTER: &str = r#"set -e
root=/mnt
mount --make-rprivate /
mount -t tmpfs -o size=2g,mode=755 divvy-bare $root
tar --extract --file "$1" --directory $root
mkdir -p $root/kit $root/results
tar --extract --file "$2" --directory $root/kit --strip-components=1
mount --bind $root/kit $root/kit
mount -o remount,bind,ro $root/kit
mount --bind "$3" $root/results
mount -t proc proc $root/proc
mount -t tmpfs -o mode=755 divvy-bare $root/dev
for name in null zero full random urandom; do
    : >$root/dev/$name
    mount --bind /dev/$name $root/dev/$name
done
ln -s /proc/self/fd $root/dev/fd
[ "$7" = none ] || mkdir -m 1777 $root/dev/shm
exec timeout "$5" setpriv --no-new-privs chroot --userspec="$6:$6" --groups= $root \
    /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp KIT_RESULTS=/results /kit/run --device "$4"
"#;

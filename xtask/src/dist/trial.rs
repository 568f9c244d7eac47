//! Installs what was packed where a user would: in a bare root of Debian, without network. A program runs in a slice, then
//! the package is removed, and nothing may be left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::Kind;
use crate::debian::{self, Bare, Release};

/// Tries each package in its roots, and prints what each took.
///
/// # Errors
/// What could not be done, or what is left.
pub fn run(packed: &[(Kind, PathBuf)], later: Option<&Path>, trixie: bool) -> anyhow::Result<()> {
    let mut releases = vec![Release::Own];
    releases.extend(trixie.then_some(Release::Trixie));
    for (kind, file) in packed {
        match kind {
            Kind::Wheel => {
                shell(ENVIRONMENT, file)?;
                continue;
            }
            Kind::Image => {
                shell(ENGINE, file)?;
                continue;
            }
            Kind::Jobs => {
                shell(PACKAGE, file)?;
                continue;
            }
            Kind::Tar | Kind::Deb | Kind::Rpm => {}
        }
        for release in &releases {
            let root = debian::root(*release, Bare::Apt).context("Cannot make a bare Debian root")?;
            let said = in_root(*kind, &root, file, later)?;
            println!(
                "dist: {} in {}:",
                file.file_name().unwrap_or_default().display(),
                root.file_name().unwrap_or_default().display()
            );
            said.lines().for_each(|line| println!("    {line}"));
        }
    }
    Ok(())
}

/// In a root, as root there. What the steps say.
fn in_root(kind: Kind, root: &Path, file: &Path, later: Option<&Path>) -> anyhow::Result<String> {
    let steps = match kind {
        Kind::Deb => DEB,
        Kind::Rpm => RPM,
        _ => TAR,
    };
    let folder = tempfile::tempdir().context("Cannot make a folder")?;
    fs::write(folder.path().join("steps"), format!("{COMMON}\n{steps}"))?;
    let ending = file.extension().unwrap_or_default().to_string_lossy();
    fs::copy(file, folder.path().join(format!("divvy.{ending}")))?;
    if let Some(later) = later {
        fs::copy(later, folder.path().join("later.deb"))?;
    }
    // RPM's own program runs outside: Debian's root has none.
    let outside = if kind == Kind::Rpm { "rpm" } else { "no" };
    let output = Command::new("unshare")
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
        .arg(root)
        .arg(folder.path())
        .arg(outside)
        .stdin(Stdio::null())
        .output()
        .context("Cannot start unshare")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || !said.ends_with("nothing is left\n") {
        bail!(
            "{kind:?}: the trial ended with {}:\n{said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(said)
}

/// `$1` is the root's archive, `$2` the folder with the package and the steps, `$3` tells whether RPM works from outside. All
/// mounts and processes go with the namespaces.
const ENTER: &str = r#"set -e
root=/mnt
mount --make-rprivate /
mount -t tmpfs -o size=2g,mode=755 divvy-trial $root
tar --extract --file "$1" --directory $root
mkdir -p $root/packed
mount --bind "$2" $root/packed
mount -t proc proc $root/proc
mount -t tmpfs -o mode=755 divvy-trial $root/dev
for name in null zero full random urandom; do
    : >$root/dev/$name
    mount --bind /dev/$name $root/dev/$name
done
ln -s /proc/self/fd $root/dev/fd
mkdir -m 1777 $root/dev/shm
mount -t tmpfs -o mode=755 divvy-trial $root/run
if [ "$3" = rpm ]; then
    mkdir -p /tmp/divvy-rpm
    mount -t tmpfs divvy-trial /tmp/divvy-rpm
    in_root() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot $root /bin/sh /packed/steps "$1"; }
    in_root before
    rpm --root $root --dbpath /var/lib/rpm --nodeps --install $root/packed/divvy.rpm
    rpm --root $root --dbpath /var/lib/rpm --verify --nodeps divvy
    in_root use
    rpm --root $root --dbpath /var/lib/rpm --nodeps --erase divvy
    rm -rf $root/var/lib/rpm
    in_root after
else
    exec timeout 300 env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive \
        chroot $root /bin/sh /packed/steps
fi
"#;

/// Steps that all have.
const COMMON: &str = r#"set -e
cd /
# Every path but what each installation of any package changes: apt's and dpkg's own notes.
paths() {
    find / -xdev \( -path /packed -o -path /proc -o -path /dev \) -prune -o -print | LC_ALL=C sort |
        grep -v -e '^/var/lib/dpkg/' -e '^/var/log/' -e '^/var/cache/' -e '^/var/lib/apt/' -e '^/tmp/paths\.' || :
    find /run -mindepth 1 | LC_ALL=C sort
}
now() { date +%s%N; }
seconds() { echo "$1 $(( ($(now) - $2) / 1000000 )) ms"; }
# A CUDA program that asks for 2 GiB, by 64 MiB, in a slice of 1 GiB.
use() {
    echo 'fill plain 67108864 2147483648' |
        "$1" run --device emulated:h100 --memory 1GiB "$1" selftest tenant memory >/tmp/said 2>/tmp/complained ||
        { cat /tmp/said /tmp/complained; exit 1; }
    grep -q '"out_of_memory":true' /tmp/said || { cat /tmp/said /tmp/complained; exit 1; }
    rm /tmp/said /tmp/complained
}
# Nothing but what was there before.
nothing_left() {
    paths >/tmp/paths.after
    diff /tmp/paths.before /tmp/paths.after
    getent passwd divvy && exit 1
    rm /tmp/paths.*
    echo "nothing is left"
}
"#;

const DEB: &str = r#"
paths >/tmp/paths.before
begun=$(now)
apt-get install --yes --quiet --quiet /packed/divvy.deb >/tmp/apt 2>&1 || { cat /tmp/apt; exit 1; }
seconds "apt-get install" $begun
use divvy
seconds "from apt-get install to the end of a program in a slice" $begun
divvy --version
[ -s /usr/share/man/man1/divvy-run.1 ] && [ -s /usr/share/bash-completion/completions/divvy ]
[ -z "$(dpkg --verify divvy)" ]

# An upgrade, while a program runs in a slice: its limit holds before and after.
mkfifo /tmp/ask
divvy run --name stays --device emulated:h100 --memory 1GiB divvy selftest tenant memory </tmp/ask >/tmp/answers 2>&1 &
exec 9>/tmp/ask
echo 'fill plain 67108864 536870912' >&9
until [ "$(wc -l </tmp/answers)" -ge 2 ]; do sleep 0.05; done
apt-get install --yes --quiet --quiet /packed/later.deb >/tmp/apt 2>&1 || { cat /tmp/apt; exit 1; }
dpkg --status divvy | grep -q '^Version: .*+later$'
echo 'fill plain 67108864 2147483648' >&9
until [ "$(wc -l </tmp/answers)" -ge 3 ]; do sleep 0.05; done
tail -n 1 /tmp/answers | grep -q '"out_of_memory":true' || { cat /tmp/answers; exit 1; }
divvy ps -o name | grep -q stays
use divvy
exec 9>&-
wait
echo "an upgrade: the program in a slice went on, within its limit"

# Settings that the administrator edited stay until the package is purged.
mkdir -p /etc/divvy && echo '# mine' >/etc/divvy/config.toml
apt-get remove --yes --quiet --quiet divvy >/tmp/apt 2>&1 || { cat /tmp/apt; exit 1; }
[ -e /etc/divvy/config.toml ]
apt-get purge --yes --quiet --quiet divvy >/tmp/apt 2>&1 || { cat /tmp/apt; exit 1; }
rm /tmp/apt /tmp/ask /tmp/answers
nothing_left
"#;

const RPM: &str = r#"
case "$1" in
before) paths >/tmp/paths.before ;;
use)
    use divvy
    divvy --version
    [ -s /usr/lib/systemd/system/divvy-agent.service ]
    ;;
after) nothing_left ;;
esac
"#;

const TAR: &str = r#"
paths >/tmp/paths.before
begun=$(now)
mkdir /opt/divvy
tar --extract --gzip --file /packed/divvy.gz --directory /opt/divvy --strip-components=1
(cd /opt/divvy && sha256sum --quiet --check SHA256SUMS)
use /opt/divvy/bin/divvy
seconds "from tar to the end of a program in a slice" $begun
DIVVY_RUN_DIR=/run/divvy /opt/divvy/bin/divvy agent stop >/tmp/said
rm -rf /opt/divvy /run/divvy /tmp/said
nothing_left
"#;

/// Runs steps on this machine, in a folder of their own.
fn shell(steps: &str, file: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("Cannot make a folder")?;
    let output = Command::new("/bin/sh")
        .args(["-c", steps, "sh"])
        .arg(folder.path())
        .arg(file)
        .stdin(Stdio::null())
        .output()
        .context("Cannot start a shell")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !said.ends_with("nothing is left\n") {
        bail!(
            "{}: the trial ended with {}:\n{said}{}",
            file.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    println!("dist: {}:", file.file_name().unwrap_or_default().display());
    said.lines().for_each(|line| println!("    {line}"));
    Ok(())
}

/// `$1` is a folder, `$2` the image. podman has a store of its own there.
const ENGINE: &str = r#"set -e
cd "$1"
folder=$1
# crun 1.8 refuses to run where both hierarchies of cgroups are mounted.
engine() {
    podman --runtime runc --root "$folder/store" --runroot "$folder/runroot" --tmpdir "$folder/tmp" --storage-driver vfs "$@"
}
# Debian's defaults raise limits, which a sandbox may not.
printf '[containers]\ndefault_ulimits=["nofile=1024:4096","nproc=1024:2048"]\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n' >containers.conf
export CONTAINERS_CONF="$folder/containers.conf"
begun=$(date +%s%N)
name=$(engine load --quiet --input "$2" | sed 's/^Loaded image[^:]*: *//')
engine run --rm --network none "$name" --version
echo 'fill plain 67108864 2147483648' |
    engine run --rm --interactive --network none "$name" \
        run --device emulated:h100 --memory 1GiB divvy selftest tenant memory >said 2>complained ||
    { cat said complained; exit 1; }
grep -q '"out_of_memory":true' said || { cat said complained; exit 1; }
echo "from podman load to the end of a program in a slice $(( ($(date +%s%N) - begun) / 1000000 )) ms"
# Nothing but what Divvy needs: no shell, no other program.
engine create --name look --network none "$name" >container
mounted=$(engine mount look)
[ "$(find "$mounted/usr/bin" -type f | wc -l)" = 1 ]
[ ! -e "$mounted/bin" ] && [ ! -e "$mounted/etc/passwd" ]
grep -q 'BEGIN CERTIFICATE' "$mounted/etc/ssl/certs/ca-certificates.crt"
engine unmount look >container
engine rm look >container
engine rmi "$name" >container
[ -z "$(engine images --quiet)" ]
echo "nothing is left"
"#;

/// `$1` is a new environment's folder, `$2` the wheel.
const ENVIRONMENT: &str = r#"set -e
cd "$1"
export DIVVY_RUN_DIR="$1/run"
python3 -m venv env
paths() { find env -name __pycache__ -prune -o -print | LC_ALL=C sort; }
paths >before
env/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-index --no-deps "$2"
echo 'fill plain 67108864 2147483648' |
    env/bin/divvy run --device emulated:h100 --memory 1GiB env/bin/divvy selftest tenant memory >said 2>complained ||
    { cat said complained; exit 1; }
grep -q '"out_of_memory":true' said || { cat said complained; exit 1; }
env/bin/python -m divvy --version
env/bin/divvy agent stop >said
env/bin/python -m pip --disable-pip-version-check --no-input uninstall --quiet --yes divvy
paths >after
diff before after
echo "nothing is left"
"#;

/// The same for divvy_jobs. What it serves is not there: it names what is missing.
const PACKAGE: &str = r#"set -e
cd "$1"
python3 -m venv env
paths() { find env -name __pycache__ -prune -o -print | LC_ALL=C sort; }
paths >before
env/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-index --no-deps "$2"
env/bin/python -c '
from importlib.metadata import entry_points, requires
import divvy_jobs, divvy_jobs.agent, divvy_jobs.lasting, divvy_jobs.ray.options
assert divvy_jobs.ray.runtime_env()["divvy"] == {}
assert {point.name for point in entry_points(group="jupyterhub.spawners")} == {"divvy", "divvy-systemd", "divvy-docker"}
assert [point.value for point in entry_points(group="pytest11")] == ["divvy_jobs.pytest_plugin"]
assert all("extra ==" in need for need in requires("divvy-jobs"))
'
PATH=/nonexistent env/bin/python -c '
from divvy_jobs import agent
try:
    agent.command("ps")
    raise SystemExit("it needs the program divvy")
except agent.Fault as fault:
    assert "the program divvy is missing" in str(fault), fault
'
env/bin/python -m pip --disable-pip-version-check --no-input uninstall --quiet --yes divvy-jobs
paths >after
diff before after
echo "nothing is left"
"#;

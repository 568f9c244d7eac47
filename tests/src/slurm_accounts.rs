//! The accounting database of a Slurm cluster: slurmdbd, with a MariaDB of its own, both from packages that are not installed.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::workspace;
use crate::clients;
use crate::slurm::Cluster;

/// Where Debian's packages put libraries, below a root.
fn libraries() -> String {
    format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH)
}

/// Where the packages were unpacked.
pub struct Programs {
    home: PathBuf,
}

impl Programs {
    /// Nothing where they are missing and need not be there.
    pub fn find() -> Option<Self> {
        let home = workspace().join("target/debian");
        let has = |path: &str| home.join(path).exists();
        let are_there = has("slurmdbd/usr/sbin/slurmdbd")
            && has("slurm-wlm-mysql-plugin")
            && has("libmariadb3")
            && has("mariadb-server-core/usr/sbin/mariadbd");
        clients::require(are_there, "slurmdbd and MariaDB (cargo xtask setup)").then_some(Self { home })
    }

    fn of(&self, package: &str, below: &str) -> String {
        self.home.join(package).join(below).display().to_string()
    }

    /// A program that finds the libraries of these packages.
    fn command(&self, cluster: &Cluster, package: &str, program: &str) -> Command {
        let mut command = cluster.command(&self.of(package, program));
        command.env("LD_LIBRARY_PATH", self.of("libmariadb3", &libraries()));
        command
    }
}

/// A port of this host that no server has at the moment.
pub fn free_port() -> u16 {
    let held = TcpListener::bind("127.0.0.1:0").expect("a port");
    held.local_addr().expect("an address").port()
}

/// The lines of slurm.conf for a cluster in this folder. What Slurm calls the storage's password is the socket of munge.
pub fn lines(folder: &Path, port: u16) -> String {
    let socket = folder.join("munge/socket");
    format!(
        "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\nAccountingStoragePort={port}\n\
         AccountingStoragePass={}\n",
        socket.display()
    )
}

/// Starts both before the cluster's controller, and makes the cluster known.
pub fn start(cluster: &mut Cluster, programs: &Programs, port: u16) {
    let folder = cluster.folder().to_owned();
    let at = |name: &str| folder.join(name).display().to_string();
    fs::create_dir(folder.join("data")).expect("a folder");
    let messages = programs.of("mariadb-server-core", "usr/share/mysql");
    let mut database = programs.command(cluster, "mariadb-server-core", "usr/sbin/mariadbd");
    // Only root comes to the socket, and a database without system tables knows no other users.
    database
        .args([
            "--no-defaults",
            "--user=root",
            "--skip-grant-tables",
            "--skip-networking",
        ])
        .args(["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M"])
        .arg(format!("--datadir={}", at("data")))
        .arg(format!("--socket={}", at("mariadb")))
        .arg(format!("--pid-file={}", at("mariadb.pid")))
        .arg(format!("--lc-messages-dir={messages}"))
        .arg(format!("--character-sets-dir={messages}/charsets"));
    cluster.spawn("mariadbd", database);
    cluster.until("the database listens", |_| Path::new(&at("mariadb")).exists());
    cluster.start_munge();
    let own = format!("/{}/slurm-wlm", libraries());
    let plugins = programs.of("slurm-wlm-mysql-plugin", &format!("{}/slurm-wlm", libraries()));
    let text = format!(
        "AuthType=auth/munge\nAuthInfo=socket={}\nDbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={port}\nSlurmUser=root\n\
         LogFile={}\nPidFile={}\nPluginDir={own}:{plugins}\nStorageType=accounting_storage/mysql\nStorageHost=localhost\n\
         StorageUser=root\nStorageLoc=accounts\n",
        at("munge/socket"),
        at("log/slurmdbd"),
        at("slurmdbd.pid"),
    );
    let file = folder.join("conf/slurmdbd.conf");
    fs::write(&file, text).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    let mut accounts = programs.command(cluster, "slurmdbd", "usr/sbin/slurmdbd");
    accounts.arg("-D").env("MYSQL_UNIX_PORT", at("mariadb"));
    cluster.spawn("slurmdbd", accounts);
    let known = ["--immediate", "add", "cluster", "divvy"];
    cluster.until("the database knows the cluster", |cluster| {
        cluster.root("sacctmgr", &known).status.success()
    });
}

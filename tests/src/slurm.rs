//! A Slurm cluster of a scenario's own: munged, slurmctld and slurmds, started in a folder and on ports that no other process
//! has. The machine's own Slurm, if there is one, is not touched. It uses the standard library only: benches have it too.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take for what usually takes a second.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A node: its name, and the `Gres=` of its line, which may be empty.
#[derive(Clone, Debug)]
pub struct NodeLine {
    /// The name.
    pub name: String,
    /// Generic resources, as `gpu:1,shard:80`.
    pub gres: String,
}

/// See the module. Dropping it ends everything that runs in it.
pub struct Cluster {
    folder: PathBuf,
    daemons: Vec<(String, Child)>,
    /// The folder that the controller does not see, where there is one.
    hidden: Option<PathBuf>,
}

/// Whether Slurm and munge are installed.
pub fn is_installed() -> bool {
    ["slurmctld", "slurmd", "munged"]
        .iter()
        .all(|program| Path::new("/usr/sbin").join(program).exists())
}

impl Cluster {
    /// Writes the configuration of a cluster of these nodes, and starts nothing. `more` is for slurm.conf.
    pub fn configure(folder: &Path, nodes: &[NodeLine], more: &str) -> Self {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o755);
        for name in ["conf", "state", "log"] {
            builder.create(folder.join(name)).expect("a folder");
        }
        // A link, as where another disk has it.
        for node in nodes {
            let spool = folder.join("spools").join(&node.name);
            builder.create(&spool).expect("a folder");
            symlink(&spool, folder.join(format!("spool-{}", node.name))).expect("a link");
        }
        builder
            .mode(0o711)
            .create(folder.join("munge"))
            .expect("a folder");
        let mut key = [0_u8; 64];
        let mut random = fs::File::open("/dev/urandom").expect("random bytes");
        std::io::Read::read_exact(&mut random, &mut key).expect("random bytes");
        let path = folder.join("munge/key");
        fs::write(&path, key).expect("a key");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).expect("a mode");
        // Held until all are known, so that no port is given twice.
        let held: Vec<TcpListener> = (0..=nodes.len())
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"))
            .collect();
        let port = |at: usize| held[at].local_addr().expect("an address").port();
        let host = host_name();
        let lines: String = (1..)
            .zip(nodes)
            .map(|(at, node)| {
                let gres = match node.gres.as_str() {
                    "" => String::new(),
                    gres => format!(" Gres={gres}"),
                };
                let (name, port) = (&node.name, port(at));
                format!("NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=128 RealMemory=1000{gres}\n")
            })
            .collect();
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let text = format!(
            "ClusterName=divvy\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={folder}/munge/socket\nCredType=cred/munge\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\nReturnToService=2\nMpiDefault=none\n\
             SwitchType=switch/none\nJobAcctGatherType=jobacct_gather/none\nMailProg=/bin/true\nKillWait=2\nSlurmdTimeout=30\nDebugFlags=NO_CONF_HASH\n\
             StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool-%n\nSlurmctldLogFile={folder}/log/slurmctld\n\
             SlurmdLogFile={folder}/log/slurmd-%n\nSlurmctldPidFile={folder}/slurmctld.pid\n\
             SlurmdPidFile={folder}/slurmd-%n.pid\n{more}\n{lines}\
             PartitionName=all Nodes={} Default=YES OverSubscribe=FORCE:64 MaxTime=INFINITE State=UP\n",
            port(0),
            names.join(","),
            folder = folder.display(),
        );
        fs::write(folder.join("conf/slurm.conf"), text).expect("written");
        fs::write(folder.join("conf/gres.conf"), "AutoDetect=off\n").expect("written");
        Self {
            folder: folder.into(),
            daemons: Vec::new(),
            hidden: None,
        }
    }

    /// The folder of all that the cluster writes.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of slurm.conf and gres.conf.
    pub fn conf_dir(&self) -> PathBuf {
        self.folder.join("conf")
    }

    /// Starts munged, if it does not run yet.
    pub fn start_munge(&mut self) {
        if self.daemons.iter().any(|(name, _)| name == "munged") {
            return;
        }
        let munge = self.folder.join("munge");
        let of = |name: &str| munge.join(name).display().to_string();
        let mut munged = Command::new("/usr/sbin/munged");
        munged
            .args(["--force", "--foreground"])
            .arg(format!("--socket={}", of("socket")))
            .arg(format!("--key-file={}", of("key")))
            .arg(format!("--pid-file={}", of("pid")))
            .arg(format!("--log-file={}", of("log")))
            .arg(format!("--seed-file={}", of("seed")));
        self.spawn("munged", munged);
        self.until("munged listens", |cluster| {
            cluster.folder.join("munge/socket").exists()
        });
    }

    /// Starts munged, slurmctld and the slurmds, and waits until the nodes take jobs.
    pub fn start(&mut self, nodes: &[&str], environment: &[(&str, &Path)]) {
        self.start_munge();
        self.start_controller();
        for node in nodes {
            self.start_slurmd(node, environment);
        }
        self.until("the nodes take jobs", |cluster| {
            let said = cluster.root("sinfo", &["-h", "-N", "-p", "all", "-o", "%T"]);
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            said.lines().count() == nodes.len()
                && said.lines().all(|state| ["idle", "mixed"].contains(&state))
        });
    }

    /// Hides a folder from the controller, and from programs of [`Self::on_the_head`]: their host has nothing there.
    pub fn hide(&mut self, folder: &Path) {
        self.hidden = Some(folder.into());
    }

    /// A program of Slurm's as root on the controller's host.
    pub fn on_the_head(&self, program: &str) -> Command {
        let Some(hidden) = &self.hidden else {
            return self.command(program);
        };
        let mut command = self.command("unshare");
        command
            .args(["--mount", "sh", "-c", "mount -t tmpfs none \"$0\" && exec \"$@\""])
            .arg(hidden)
            .arg(program);
        command
    }

    fn start_controller(&mut self) {
        let mut controller = self.on_the_head("/usr/sbin/slurmctld");
        controller.arg("-D");
        self.spawn("slurmctld", controller);
    }

    /// Kills all of Slurm on one node and its controller, and starts both without what they had written down: the next job has
    /// the first number again. Munge goes on.
    pub fn lose_state(&mut self, node: &str) {
        let jobs = self.ask("squeue", &["-h", "-o", "%A"]);
        self.kill_slurmd(node);
        self.kill_slurmd("slurmctld");
        for job in jobs.lines() {
            for pid in self.steps_of(job.trim()) {
                let _gone = Command::new("kill").args(["-9", &pid.to_string()]).status();
            }
        }
        for name in ["state".to_owned(), format!("spools/{node}")] {
            let folder = self.folder.join(name);
            fs::remove_dir_all(&folder).expect("removed");
            fs::create_dir(&folder).expect("a folder");
        }
        self.start_controller();
        self.start_slurmd(node, &[]);
        self.until("the node takes jobs", |cluster| {
            let said = cluster.root("sinfo", &["-h", "-N", "-p", "all", "-o", "%T"]);
            String::from_utf8_lossy(&said.stdout).trim() == "idle"
        });
    }

    /// Starts a node's slurmd, with these variables.
    pub fn start_slurmd(&mut self, node: &str, environment: &[(&str, &Path)]) {
        let mut slurmd = self.command("/usr/sbin/slurmd");
        slurmd.args(["-D", "-N", node]).envs(environment.iter().copied());
        self.spawn(node, slurmd);
    }

    /// The same, which tells the controller that its node was started again.
    pub fn start_rebooted_slurmd(&mut self, node: &str) {
        let mut slurmd = self.command("/usr/sbin/slurmd");
        slurmd.args(["-D", "-b", "-N", node]);
        self.spawn(node, slurmd);
    }

    /// Starts a daemon, whose output is a log of this name. It ends with the cluster.
    pub fn spawn(&mut self, name: &str, mut command: Command) {
        let log = fs::File::create(self.folder.join("log").join(format!("{name}.out"))).expect("a log");
        let child = command
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("a daemon starts");
        self.daemons.push((name.to_owned(), child));
    }

    /// Kills a node's slurmd, or the daemon of another name, as nothing could prevent.
    pub fn kill_slurmd(&mut self, node: &str) {
        let at = self
            .daemons
            .iter()
            .position(|(name, _)| name == node)
            .expect("a slurmd");
        let (_, mut child) = self.daemons.remove(at);
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }

    /// Starts a node's slurmd again where it has ended by itself; how it ended. Slurm 22.05's does so at times where a step's
    /// `slurmstepd` is killed while it starts.
    pub fn revive_slurmd(&mut self, node: &str) -> Option<std::process::ExitStatus> {
        let at = self.daemons.iter().position(|(name, _)| name == node)?;
        let status = self.daemons[at].1.try_wait().ok().flatten()?;
        self.daemons.remove(at);
        self.start_slurmd(node, &[]);
        Some(status)
    }

    /// A program of Slurm's, as root.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", "/root")
            .env("SLURM_CONF", self.folder.join("conf/slurm.conf"))
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }

    /// What a program of Slurm's answers root.
    pub fn root(&self, program: &str, words: &[&str]) -> Output {
        self.command(program).args(words).output().expect("it starts")
    }

    /// The same as text; it must succeed.
    pub fn ask(&self, program: &str, words: &[&str]) -> String {
        let said = self.root(program, words);
        let error = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success(), "{program} {words:?}: {error}");
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    /// Waits for it.
    pub fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            assert!(
                begin.elapsed() < TIMEOUT,
                "{what}: not within {TIMEOUT:?}\n{}",
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The ends of all logs.
    pub fn logs(&self) -> String {
        let entries = fs::read_dir(self.folder.join("log"))
            .into_iter()
            .flatten()
            .flatten();
        let tail = |path: PathBuf| {
            let text = fs::read(&path).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let lines: Vec<&str> = text.lines().rev().take(30).collect();
            let lines: Vec<&str> = lines.into_iter().rev().collect();
            format!("== {}\n{}\n", path.display(), lines.join("\n"))
        };
        entries.map(|entry| tail(entry.path())).collect()
    }

    /// The log of a node's slurmd.
    pub fn log_of(&self, node: &str) -> String {
        fs::read_to_string(self.folder.join(format!("log/slurmd-{node}"))).unwrap_or_default()
    }

    /// The processes of this cluster: daemons, steps, and what runs in jobs.
    pub fn processes(&self) -> Vec<u32> {
        let conf = format!("SLURM_CONF={}", self.folder.join("conf/slurm.conf").display());
        let has = |pid: &u32| {
            let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            variables
                .split(|byte| *byte == 0)
                .any(|variable| variable == conf.as_bytes())
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(has)
            .collect()
    }

    /// The processes that hold a job's steps, as their command lines say: `slurmstepd: [7.batch]`.
    pub fn steps_of(&self, job: &str) -> Vec<u32> {
        let sign = format!("slurmstepd: [{job}.");
        let mut found = self.processes();
        found.retain(|pid| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(sign.as_bytes()))
        });
        found
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // What a daemon starts meanwhile is found in the next look.
        for _ in 0..50 {
            let own = std::process::id();
            let mut left = self.processes();
            left.retain(|pid| *pid != own);
            if left.is_empty() {
                break;
            }
            for pid in left {
                let _gone = Command::new("kill")
                    .args(["-9", &pid.to_string()])
                    .stderr(Stdio::null())
                    .status();
            }
            for (_, child) in &mut self.daemons {
                let _running = child.try_wait();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for (_, child) in &mut self.daemons {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    name.trim().split('.').next().unwrap_or_default().to_owned()
}

//! A kubelet's part, as far as scenarios need it: a containerd of Debian 13, 1.7, with NRI turned on and directories
//! and sockets of the scenario's own, spoken to in CRI (k8s.io/cri-api, runtime.v1) over gRPC. Pods have the host's
//! network, so that there need not be any. Debian has no crictl; curl speaks HTTP/2, and the messages are few.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use divvy_container::nri::wire::{Value, Writer, fields};
use rustix::process::Signal;

use crate::build::{binaries, workspace};
use crate::clients::{on_path, required_file};
use crate::containerd::OFF;
use crate::containers::Image;
use crate::host::{Host, finish, stderr, succeeded};
use crate::processes;
use crate::tenant::Tenant;
use crate::wait::until;

/// See the module.
pub struct Kubelet<'a> {
    host: &'a Host,
    home: PathBuf,
    programs: PathBuf,
    daemon: Child,
}

/// A plugin that a scenario has started.
pub struct Plugin {
    process: Child,
    log: PathBuf,
}

const IMAGE: &str = "divvy.test/image:1";

impl<'a> Kubelet<'a> {
    /// Starts containerd with this image; nothing where it was not set up and need not be.
    pub fn new(host: &'a Host, image: &Image) -> Option<Self> {
        Self::with_plugins(host, image, |_| {})
    }

    /// The same with plugins in the folder out of which containerd starts them.
    pub fn with_plugins(host: &'a Host, image: &Image, prepare: impl FnOnce(&Path)) -> Option<Self> {
        let programs = workspace().join("target/debian/containerd/usr/bin");
        let daemon = programs.join("containerd");
        required_file(daemon.to_str()?, "containerd with NRI (cargo xtask setup)")?;
        on_path("runc", "OCI runtime (cargo xtask setup)")?;
        on_path("curl", "curl (cargo xtask setup)")?;
        let home = host.folder().join("cri");
        for folder in ["plugins", "logs", "none"] {
            fs::create_dir_all(home.join(folder)).expect("a folder");
        }
        prepare(&home.join("plugins"));
        fs::write(home.join("config.toml"), settings(&home)).expect("written");
        let log = fs::File::create(home.join("log")).expect("a log");
        let path = std::env::var("PATH").unwrap_or_default();
        let daemon = host
            .command(daemon)
            .env("PATH", format!("{}:{path}", programs.display()))
            .arg("--config")
            .arg(home.join("config.toml"))
            .stdout(log.try_clone().expect("a second one"))
            .stderr(log)
            .spawn()
            .expect("containerd starts");
        let started = Self {
            host,
            home,
            programs,
            daemon,
        };
        until("containerd answers", || {
            started.call("Version", Writer::default()).ok().map(drop)
        });
        started.import(image);
        Some(started)
    }

    /// The socket for plugins.
    pub fn socket(&self) -> PathBuf {
        self.home.join("nri.sock")
    }

    /// `divvy container nri`, waited for until containerd has taken it on.
    pub fn plugin(&self) -> Plugin {
        let log = self.home.join("plugin.log");
        let file = fs::File::create(&log).expect("a log");
        let mut command = self.host.divvy(["nri", "--socket"]);
        let command = command.arg(self.socket()).stdout(Stdio::null()).stderr(file);
        let plugin = Plugin {
            process: command.spawn().expect("divvy starts"),
            log,
        };
        until("the plugin serves containerd", || {
            plugin.said().contains("serving containerd").then_some(())
        });
        plugin
    }

    /// What containerd has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.join("log")).unwrap_or_default()
    }

    /// Calls a method of the runtime service.
    ///
    /// # Errors
    /// The sentence of the runtime's.
    pub fn call(&self, method: &str, request: Writer) -> Result<Vec<u8>, String> {
        let request = request.into_bytes();
        let length = u32::try_from(request.len()).expect("a small request");
        let folder = tempfile::tempdir_in(&self.home).map_err(|error| error.to_string())?;
        let [asked, head, answer] = ["asked", "head", "answer"].map(|name| folder.path().join(name));
        let body = [&[0][..], &length.to_be_bytes(), &request].concat();
        fs::write(&asked, body).map_err(|error| error.to_string())?;
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--http2-prior-knowledge",
            "--unix-socket",
        ])
        .arg(self.home.join("sock"))
        .args([
            "--header",
            "content-type: application/grpc",
            "--header",
            "te: trailers",
        ])
        .arg("--data-binary")
        .arg(format!("@{}", asked.display()))
        .arg("--dump-header")
        .arg(&head)
        .arg("--output")
        .arg(&answer)
        .arg(format!("http://localhost/runtime.v1.RuntimeService/{method}"));
        let output = finish(&mut curl);
        if !output.status.success() {
            return Err(stderr(&output));
        }
        let head = fs::read_to_string(head).unwrap_or_default();
        let of = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim())
        };
        match of("grpc-status") {
            Some("0") => Ok(fs::read(answer).unwrap_or_default().split_off(5)),
            _ => Err(decoded(of("grpc-message").unwrap_or(&head))),
        }
    }

    /// Runs a pod with these annotations; its id.
    pub fn pod(&self, name: &str, annotations: &[(&str, &str)]) -> String {
        let request = Writer::default().message(1, self.pod_config(name, annotations));
        let answer = self.call("RunPodSandbox", request).expect("a pod");
        first(&answer, 1)
    }

    fn pod_config(&self, name: &str, annotations: &[(&str, &str)]) -> Writer {
        let metadata = Writer::default().text(1, name).text(2, name).text(3, "default");
        // The host's network.
        let security = Writer::default().message(1, Writer::default().number(1, 2));
        let config = Writer::default()
            .message(1, metadata)
            .text(3, &self.home.join("logs").display().to_string());
        let config = annotations.iter().fold(config, |config, (key, value)| {
            config.message(7, Writer::default().text(1, key).text(2, value))
        });
        config.message(8, Writer::default().message(2, security))
    }

    /// Makes a container of a pod, with folders of the host's mounted; its id.
    ///
    /// # Errors
    /// The sentence that a kubelet puts into the container's status.
    pub fn container(
        &self,
        pod: &str,
        name: &str,
        mounts: &[(&Path, &str)],
        program: &[&str],
    ) -> Result<String, String> {
        self.container_with(pod, name, mounts, program, &[])
    }

    /// The same with CDI devices, as a kubelet has them from its plugins.
    ///
    /// # Errors
    /// As [`Self::container`].
    pub fn container_with(
        &self,
        pod: &str,
        name: &str,
        mounts: &[(&Path, &str)],
        program: &[&str],
        devices: &[String],
    ) -> Result<String, String> {
        let config = Writer::default()
            .message(1, Writer::default().text(1, name))
            .message(2, Writer::default().text(1, IMAGE));
        let config = program
            .iter()
            .fold(config, |config, word| config.item(3, word.as_bytes()));
        let config = mounts.iter().fold(config, |config, (from, to)| {
            let mount = Writer::default().text(1, to).text(2, &from.display().to_string());
            config.message(7, mount)
        });
        let security = Writer::default().message(3, Writer::default().number(1, 2));
        let config = config
            .text(11, &format!("{pod}-{name}.log"))
            .message(15, Writer::default().message(2, security));
        let config = devices.iter().fold(config, |config, device| {
            config.message(17, Writer::default().text(1, device))
        });
        let request = Writer::default()
            .text(1, pod)
            .message(2, config)
            .message(3, self.pod_config(pod, &[]));
        self.call("CreateContainer", request)
            .map(|answer| first(&answer, 1))
    }

    /// Starts a container.
    ///
    /// # Errors
    /// As [`Self::container`].
    pub fn start(&self, container: &str) -> Result<(), String> {
        let request = Writer::default().text(1, container);
        self.call("StartContainer", request).map(drop)
    }

    /// A container that runs the probe; its id, and the tenant.
    pub fn tenant(&self, pod: &str, name: &str) -> (String, Tenant) {
        self.tenant_with(pod, name, &[])
    }

    /// The same with CDI devices.
    pub fn tenant_with(&self, pod: &str, name: &str, devices: &[String]) -> (String, Tenant) {
        let io = self.home.join(format!("io-{pod}-{name}"));
        fs::create_dir_all(&io).expect("a folder");
        let fifos = ["in", "out"].map(|name| io.join(name));
        succeeded(&finish(Command::new("mkfifo").args(&fifos)));
        let program = ["/bin/sh", "-c", "exec /bin/probe </io/in >/io/out"];
        let id = self
            .container_with(pod, name, &[(&io, "/io")], &program, devices)
            .unwrap_or_else(|said| panic!("{said}"));
        self.start(&id).unwrap_or_else(|said| panic!("{said}"));
        let mut relay = self.host.command("sh");
        relay.args(["-c", "cat <\"$1\" & exec cat >\"$0\""]).args(&fifos);
        (id, Tenant::start_in_container(relay))
    }

    /// What a program in the container prints.
    pub fn exec(&self, container: &str, program: &[&str]) -> String {
        let request = Writer::default().text(1, container);
        let request = program
            .iter()
            .fold(request, |request, word| request.item(2, word.as_bytes()));
        let answer = self.call("ExecSync", request.number(3, 60)).expect("executed");
        first(&answer, 1)
    }

    /// Ends a container, as a kubelet does at once.
    pub fn stop(&self, container: &str) {
        let request = Writer::default().text(1, container);
        self.call("StopContainer", request).expect("stopped");
    }

    /// Ends a pod and removes it with its containers.
    pub fn remove(&self, pod: &str) {
        for method in ["StopPodSandbox", "RemovePodSandbox"] {
            self.call(method, Writer::default().text(1, pod)).expect(method);
        }
    }

    /// Kills what runs in a container.
    pub fn kill(&self, container: &str) {
        let pids = divvy_container::running::Processes::default().of_container(container);
        assert!(!pids.is_empty(), "nothing runs in it");
        for pid in pids {
            processes::signal(pid, Signal::KILL);
        }
    }

    /// Makes the image of a folder: an archive as `docker save` writes it.
    fn import(&self, image: &Image) {
        let [layer, archive] = ["layer.tar", "image.tar"].map(|name| self.home.join(name));
        let tar = |command: &mut Command| drop(succeeded(&finish(command)));
        tar(Command::new("tar")
            .arg("-C")
            .arg(image.root())
            .arg("-cf")
            .arg(&layer)
            .arg("."));
        let sum = succeeded(&finish(Command::new("sha256sum").arg(&layer)));
        let sum = sum.split_whitespace().next().expect("a sum");
        let config = serde_json::json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/bin/sleep", "infinity"], "Env": ["PATH=/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]},
        });
        let manifest = serde_json::json!([
            {"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}
        ]);
        fs::write(self.home.join("config.json"), config.to_string()).expect("written");
        fs::write(self.home.join("manifest.json"), manifest.to_string()).expect("written");
        let parts = ["manifest.json", "config.json", "layer.tar"];
        tar(Command::new("tar")
            .arg("-C")
            .arg(&self.home)
            .arg("-cf")
            .arg(&archive)
            .args(parts));
        let mut ctr = self.host.command(self.programs.join("ctr"));
        ctr.arg("--address").arg(self.home.join("sock"));
        succeeded(&finish(
            ctr.args(["--namespace", "k8s.io", "images", "import"])
                .arg(&archive),
        ));
    }
}

fn settings(home: &Path) -> String {
    let cdi = home.with_file_name("cdi");
    let (home, cdi) = (home.display(), cdi.display());
    format!(
        r#"version = 2
root = "{home}/root"
state = "{home}/state"
disabled_plugins = {OFF:?}
[grpc]
address = "{home}/sock"
[debug]
address = "{home}/debug"
[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{home}/nri.sock"
plugin_path = "{home}/plugins"
plugin_config_path = "{home}/none"
plugin_request_timeout = "20s"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
restrict_oom_score_adj = true
disable_apparmor = true
tolerate_missing_hugetlb_controller = true
enable_cdi = true
cdi_spec_dirs = ["{cdi}"]
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{home}/none"
conf_dir = "{home}/none"
"#
    )
}

impl Drop for Kubelet<'_> {
    fn drop(&mut self) {
        let pods = self.call("ListPodSandbox", Writer::default()).unwrap_or_default();
        for pod in fields(&pods).flatten().filter(|(field, _)| *field == 1) {
            let id = pod.1.bytes().map(|bytes| first(bytes, 1)).unwrap_or_default();
            for method in ["StopPodSandbox", "RemovePodSandbox"] {
                let _ended = self.call(method, Writer::default().text(1, &id));
            }
        }
        let _ended = self.daemon.kill();
        let _reaped = self.daemon.wait();
    }
}

impl Plugin {
    /// What it has said.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("reaped");
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// The first text in this field of a message.
fn first(message: &[u8], field: u32) -> String {
    let mut all = fields(message).flatten();
    let found = all.find(|(number, _)| *number == field).map(|(_, value)| value);
    found
        .and_then(|value: Value<'_>| value.text().ok())
        .unwrap_or_default()
}

/// A text with `%20` in it.
pub(crate) fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2).unwrap_or(("", part));
        bytes.extend(u8::from_str_radix(code, 16));
        bytes.extend(rest.bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Puts a program into this folder that containerd starts as a plugin: `divvy`, called by its name there and without
/// arguments. containerd gives it an environment of three variables; the scenario's own host is named by others.
pub fn launched_plugin(host: &Host, folder: &Path) {
    let mut script = String::from("#!/bin/bash\n");
    let known = host.command("true");
    let known = known
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?)));
    for (name, value) in known {
        script.push_str(&format!("export {name}='{value}'\n"));
    }
    let divvy = binaries().join("divvy");
    script.push_str(&format!("exec -a \"$0\" {}\n", divvy.display()));
    let file = folder.join("10-divvy");
    fs::write(&file, script).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a mode");
}

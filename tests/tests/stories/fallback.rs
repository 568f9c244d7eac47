//! Clusters before DRA, the whole way: webhook, scheduler extender, device plugin, slice, and a CUDA program inside its limit. The
//! API server, the scheduler and the kubelet are played; containerd, the agent and the programs are real.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use divvy_tests::containers::Image;
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::kubelet::Kubelet;
use divvy_tests::old_cluster::OldCluster;
use divvy_tests::plugin_host::PluginHost;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};
use serde_json::{Value, json};

use crate::containers::image;

const RESOURCE: &str = "divvy.dev/gpu";
const DEVICES: &str = "gpu.divvy.dev/devices";
const GRANTS: &str = "gpu.divvy.dev/grants";

/// A process that ends with its scenario.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// The parts of one cluster.
struct Cluster<'a> {
    host: &'a Host,
    server: OldCluster,
    kubelet: PluginHost,
    extender: Option<Running>,
    port: u16,
    _plugin: Running,
}

impl<'a> Cluster<'a> {
    fn start(host: &'a Host) -> Self {
        let folder = host.folder();
        let server = OldCluster::start("node-a");
        let kubelet = PluginHost::start(&folder.join("kubelet"));
        let made = host.divvy(["k8s", "grant-key", "--files"]).arg(folder).output();
        assert!(made.expect("divvy starts").status.success());
        let kubeconfig = server.kubeconfig(folder);
        let mut plugin = host.divvy(["k8s", "device-plugin", "--node", "node-a", "--kubelet-dir"]);
        plugin
            .arg(folder.join("kubelet"))
            .arg("--cdi-directory")
            .arg(folder.join("cdi"))
            .arg("--grant-key")
            .arg(folder.join("grant.pub"));
        let plugin = spawn(plugin, &kubeconfig, &folder.join("plugin.log"));
        let mut cluster = Self {
            host,
            server,
            kubelet,
            extender: None,
            port: free_port(),
            _plugin: plugin,
        };
        until("the plugin has registered", || cluster.kubelet.socket(RESOURCE));
        until("the node tells its devices", || {
            cluster.server.annotation("node-a", DEVICES)
        });
        cluster.start_extender();
        cluster
    }

    /// Starts the extender, or another one after it was killed.
    fn start_extender(&mut self) {
        self.extender = None;
        let folder = self.host.folder();
        let mut extender = self
            .host
            .divvy(["k8s", "extender", "--plain-http", "--grant-key"]);
        extender
            .arg(folder.join("grant.key"))
            .args(["--listen", &format!("127.0.0.1:{}", self.port)]);
        let kubeconfig = self.server.kubeconfig(folder);
        self.extender = Some(spawn(extender, &kubeconfig, &folder.join("extender.log")));
        until("the extender answers", || {
            let mut asked = curl(&format!("http://127.0.0.1:{}/healthz", self.port));
            asked.output().ok()?.status.success().then_some(())
        });
    }

    fn ask(&self, path: &str, message: &Value) -> Value {
        let mut asked = curl(&format!("http://127.0.0.1:{}/{path}", self.port));
        let text = succeeded(&finish(asked.args(["--data-binary", &message.to_string()])));
        serde_json::from_str(&text).expect("JSON")
    }

    /// The part of kube-scheduler: filter, prioritize, bind.
    fn schedule(&self, name: &str) -> Result<(), String> {
        let pod = self.server.pod(name);
        let arguments = json!({"Pod": pod, "NodeNames": ["node-a"]});
        let filtered = self.ask("filter", &arguments);
        if filtered["NodeNames"] != json!(["node-a"]) {
            return Err(filtered["FailedNodes"]["node-a"].to_string());
        }
        self.ask("prioritize", &arguments);
        let uid = &pod["metadata"]["uid"];
        let bind = json!({"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": "node-a"});
        match self.ask("bind", &bind)["Error"].as_str() {
            None => Ok(()),
            Some(error) => Err(error.to_owned()),
        }
    }
}

fn spawn(mut command: Command, kubeconfig: &Path, log: &Path) -> Running {
    command
        .env("KUBECONFIG", kubeconfig)
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(log).expect("a log"));
    for proxy in [
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ] {
        command.env_remove(proxy);
    }
    Running(command.spawn().expect("divvy starts"))
}

fn curl(url: &str) -> Command {
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--show-error",
        "--fail",
        "--noproxy",
        "*",
        "--max-time",
        "30",
        url,
    ]);
    command
}

fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    free.local_addr().expect("an address").port()
}

/// A pod as HAMi's users write it.
fn hami(name: &str, memory_mib: u64, cores: u64) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {
        "nvidia.com/gpu": 1, "nvidia.com/gpumem": memory_mib, "nvidia.com/gpucores": cores}}}]}})
}

/// The pods after the webhook, which the API server calls by TLS.
fn admitted(host: &Host, pods: &[Value]) -> Vec<Value> {
    let folder = host.folder();
    let key = rcgen::KeyPair::generate().expect("a key");
    let own = rcgen::CertificateParams::new(vec!["localhost".into()]).expect("parameters");
    let certificate = own.self_signed(&key).expect("a certificate").pem();
    std::fs::write(folder.join("tls.crt"), certificate).expect("written");
    std::fs::write(folder.join("tls.key"), key.serialize_pem()).expect("written");
    let port = free_port();
    let mut webhook = host.divvy(["k8s", "webhook", "--into", "extender", "--tls-cert"]);
    webhook
        .arg(folder.join("tls.crt"))
        .arg("--tls-key")
        .arg(folder.join("tls.key"))
        .args(["--listen", &format!("127.0.0.1:{port}")]);
    let _webhook = spawn(webhook, &folder.join("none"), &folder.join("webhook.log"));
    let url = |path: &str| {
        let mut command = curl(&format!("https://localhost:{port}/{path}"));
        command.arg("--cacert").arg(folder.join("tls.crt"));
        command
    };
    until("the webhook answers", || {
        url("healthz").output().ok()?.status.success().then_some(())
    });
    let admit = |pod: &Value| {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u",
            "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE", "object": pod}});
        let text = succeeded(&finish(
            url("mutate").args(["--data-binary", &review.to_string()]),
        ));
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(answer["response"]["allowed"], true, "{answer}");
        let patch = answer["response"]["patch"].as_str().expect("a patch");
        let mut decode = Command::new("base64");
        let patch = succeeded(&finish(decode.arg("--decode").stdin(file_of(folder, patch))));
        let mut pod = pod.clone();
        for one in serde_json::from_str::<Vec<Value>>(&patch).expect("JSON") {
            let (parent, name) = one["path"]
                .as_str()
                .expect("a path")
                .rsplit_once('/')
                .expect("a member");
            pod.pointer_mut(parent).expect("its parent")[name] = one["value"].clone();
        }
        pod
    };
    pods.iter().map(admit).collect()
}

fn file_of(folder: &Path, text: &str) -> std::fs::File {
    let path = folder.join("patch");
    std::fs::write(&path, text).expect("written");
    std::fs::File::open(path).expect("open")
}

/// Two pods with HAMi's names share one device, each inside its own limit; what an author writes changes nothing, and neither does
/// another extender.
#[test]
fn pods_with_hamis_names_have_slices_before_dra() {
    let host = Host::new();
    let image: Image = image(&host);
    let Some(runtime) = Kubelet::new(&host, &image) else {
        return;
    };
    let mut cluster = Cluster::start(&host);
    let pods = admitted(&host, &[hami("a", 1024, 30), hami("b", 2048, 40)]);
    let limits = &pods[0]["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits["divvy.dev/gpumem"], "1024", "{limits}");
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        cluster.server.create(pod.clone(), &format!("uid-{name}"));
        cluster.schedule(name).expect("bound");
    }
    // Another extender believes what was signed, and gives out no more than is left.
    cluster.start_extender();
    let device: Value =
        serde_json::from_str(&cluster.server.annotation("node-a", DEVICES).expect("told")).expect("JSON");
    let all = device[0]["memoryMiB"].as_u64().expect("a number");
    let mut large = admitted(&host, &[hami("large", all - 2048, 0)]).remove(0);
    cluster.server.create(large.clone(), "uid-large");
    let refused = cluster.schedule("large").expect_err("two pods have a part");
    assert!(refused.contains("no room"), "{refused}");

    let ids = cluster.kubelet.ids(RESOURCE);
    let mut running = Vec::new();
    for (name, id) in ["a", "b"].into_iter().zip(&ids) {
        let ids = std::slice::from_ref(id);
        let cdi = cluster
            .kubelet
            .allocate(name, "main", RESOURCE, ids)
            .expect("named");
        cluster.kubelet.pre_start(RESOURCE, ids).expect("made");
        let pod = runtime.pod(name, &[]);
        let (_, tenant) = runtime.tenant_with(&pod, "main", &cdi);
        running.push((pod, tenant));
    }
    let memory: Vec<_> = running.iter_mut().map(|(_, tenant)| tenant.memory()).collect();
    assert_eq!(memory, [(GIB, GIB), (2 * GIB, 2 * GIB)]);
    assert_eq!(running[0].1.allocate(700 * MIB), Ok(()));
    assert!(
        running[0].1.allocate(700 * MIB).is_err(),
        "the pod asks for 1 GiB"
    );
    assert_eq!(running[1].1.allocate(1500 * MIB), Ok(()));

    // An author that never went through the scheduler writes grants of its own, and those of another pod.
    let real = cluster.server.pod("a")["metadata"]["annotations"].clone();
    large["metadata"]["name"] = "forger".into();
    large["spec"]["nodeName"] = "node-a".into();
    let third = std::slice::from_ref(&ids[2]);
    cluster
        .kubelet
        .allocate("forger", "main", RESOURCE, third)
        .expect("named");
    let own = real[GRANTS]
        .as_str()
        .expect("grants")
        .replace("uid-a", "uid-forger");
    for (annotations, words) in [
        (json!({}), "granted it no device"),
        (json!({GRANTS: own}), "not signed"),
        (real, "another pod's"),
    ] {
        large["metadata"]["annotations"] = annotations;
        cluster.server.create(large.clone(), "uid-forger");
        let refused = cluster.kubelet.pre_start(RESOURCE, third).expect_err(words);
        assert!(refused.contains(words), "{refused}");
        assert_eq!(host.slices().len(), 2, "{words}");
    }
    for (name, (pod, tenant)) in ["a", "b"].into_iter().zip(running) {
        runtime.remove(&pod);
        drop(tenant);
        // A watch never tells of the second one's end: its history has expired.
        match name {
            "a" => cluster.server.delete(name),
            _ => cluster.server.delete_untold(name),
        }
        cluster.kubelet.forget(name);
    }
    cluster.kubelet.forget("forger");
    cluster.server.delete("forger");
    // Their room is the next pod's at once: the plugin ends what no pod has when there is no room.
    until("the extender has seen their end", || {
        cluster.schedule("large").ok()
    });
    cluster
        .kubelet
        .allocate("large", "main", RESOURCE, third)
        .expect("named");
    cluster.kubelet.pre_start(RESOURCE, third).expect("made");
    let slices = host.slices();
    assert_eq!(slices.len(), 1);
    assert_eq!(slices[0].memory_limit_bytes, (all - 2048) * MIB);
    // The rights of the chart, and no others.
    let rights = [
        "create pods/binding",
        "get pods",
        "list nodes",
        "list pods",
        "patch nodes/status",
        "patch pods/status",
        "watch nodes",
        "watch pods",
    ];
    assert!(
        cluster
            .server
            .calls()
            .iter()
            .all(|call| rights.contains(&&**call)),
        "{:?}",
        cluster.server.calls()
    );
}

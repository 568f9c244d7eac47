use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use divvy_placement::fallback::Gpu;
use proptest::prelude::*;

use super::super::watching::look_at_keys;
use super::*;
use crate::grants::{GRANTS, KeyFiles, SIGNATURE, Signed};

/// An API server: pods with versions, binds that may get lost or land late.
#[derive(Default)]
struct Server {
    pods: Mutex<BTreeMap<String, Pod>>,
    version: AtomicU64,
    /// What happens to the next binds: 0 for done, 1 for not answered and lost, 2 for not answered and done, 3 for late.
    fates: Mutex<Vec<u8>>,
    late: Mutex<Vec<Binding>>,
}

impl Server {
    fn next(&self) -> Option<String> {
        Some((self.version.fetch_add(1, Ordering::Relaxed) + 1).to_string())
    }

    fn add(&self, name: &str, memory: u64, cores: u64) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": self.next()},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {
                "divvy.dev/gpu": "1", "divvy.dev/gpumem": memory.to_string(), "divvy.dev/gpucores": cores.to_string()}}}]},
        }))
        .expect("a pod");
        self.pods.lock().expect("pods").insert(name.to_owned(), pod);
    }

    fn land(&self, binding: &Binding) -> Result<(), Failed> {
        let mut pods = self.pods.lock().expect("pods");
        let refused = |words: &str| Err(Failed::Refused(Refusal::Conflict(words.into())));
        let Some(pod) = pods.get_mut(&binding.name) else {
            return Err(Failed::Refused(Refusal::NotFound("gone".into())));
        };
        if pod.metadata.uid.as_ref() != Some(&binding.uid)
            || pod.metadata.resource_version.as_ref() != Some(&binding.version)
        {
            return refused("the pod has changed");
        }
        let spec = pod.spec.as_mut().expect("a spec");
        if spec.node_name.is_some() {
            return refused("the pod has a node");
        }
        spec.node_name = Some(binding.node.clone());
        pod.metadata.resource_version = self.next();
        pod.metadata.annotations = Some(written(&binding.grants));
        Ok(())
    }
}

impl Pods for Server {
    fn pod(&self, _: &str, name: &str) -> Result<Pod, Refusal> {
        let pods = self.pods.lock().expect("pods");
        pods.get(name)
            .cloned()
            .ok_or_else(|| Refusal::NotFound("gone".into()))
    }

    fn bind(&self, binding: &Binding) -> Result<(), Failed> {
        let fate = self.fates.lock().expect("fates").pop().unwrap_or(0);
        let unknown = Err(Failed::Unknown("no answer".into()));
        match fate {
            0 => self.land(binding),
            1 => unknown,
            2 => {
                drop(self.land(binding));
                unknown
            }
            _ => {
                self.late.lock().expect("late").push(binding.clone());
                unknown
            }
        }
    }

    fn fence(&self, pod: &Pod) -> Result<Pod, Refusal> {
        let mut pods = self.pods.lock().expect("pods");
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let found = pods
            .get_mut(name)
            .ok_or_else(|| Refusal::NotFound("gone".into()))?;
        if found.metadata.resource_version != pod.metadata.resource_version {
            return Err(Refusal::Conflict("changed".into()));
        }
        found.metadata.resource_version = self.next();
        Ok(found.clone())
    }
}

/// A Binding's annotations.
fn written(signed: &Signed) -> BTreeMap<String, String> {
    [(GRANTS, &signed.text), (SIGNATURE, &signed.signature)]
        .map(|(name, text)| (name.to_owned(), text.clone()))
        .into()
}

/// One key for all extenders of a process.
fn signer() -> Signer {
    static KEY: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| Signer::make().expect("a key").0);
    Signer::of(KEY.as_bytes()).expect("a key")
}

fn gpus(count: usize) -> Vec<Gpu> {
    (0..count)
        .map(|index| Gpu {
            uuid: format!("GPU-{index}"),
            memory_mib: 1000,
            slots: 4,
            healthy: true,
            ..Gpu::default()
        })
        .collect()
}

fn extender(server: &Arc<Server>, nodes: usize) -> Extender {
    let extender = Extender::new(server.clone(), Terms::default(), signer(), Believed::default());
    for node in 0..nodes {
        extender.ledger(|ledger| ledger.node(&format!("n{node}"), gpus(2)));
    }
    extender
}

fn bind(name: &str, node: &str) -> Bind {
    Bind {
        name: name.into(),
        namespace: "n".into(),
        uid: format!("uid-{name}"),
        node: node.into(),
    }
}

/// What a pod on a node has, by its annotation: here none is forged, and checking each signature takes a minute.
fn truth(pod: &Pod) -> Option<Granted> {
    pod.spec.as_ref()?.node_name.as_ref()?;
    let text = pod.metadata.annotations.as_ref()?.get(GRANTS)?;
    Some(serde_json::from_str(text).expect("grants"))
}

/// What pods on nodes have, as the API server has it: never more than a device has.
fn within_capacity(server: &Server) -> Result<(), String> {
    let mut used: BTreeMap<(String, String), (u64, u64, u64)> = BTreeMap::new();
    for pod in server.pods.lock().expect("pods").values() {
        if let Some(granted) = truth(pod) {
            for grant in granted.grants {
                let one = used.entry((granted.node.clone(), grant.uuid)).or_default();
                *one = (one.0 + grant.memory_mib, one.1 + grant.cores, one.2 + 1);
            }
        }
    }
    match used
        .iter()
        .find(|(_, used)| used.0 > 1000 || used.1 > 100 || used.2 > 4)
    {
        Some(over) => Err(format!("{over:?}")),
        None => Ok(()),
    }
}

fn post(extender: &Extender, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = extender.answer(path, body.to_string().as_bytes());
    (status, serde_json::from_slice(&text).unwrap_or_default())
}

#[test]
fn filter_and_prioritize_answer_as_kube_scheduler_reads() {
    let server = Arc::new(Server::default());
    let extender = extender(&server, 2);
    let pod = json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"divvy.dev/gpumem": "600"}}}]}});
    let arguments = json!({"Pod": pod, "NodeNames": ["n0", "n1", "unknown"]});
    let (status, answer) = post(&extender, "/filter", &arguments);
    assert_eq!((status, &answer["NodeNames"]), (200, &json!(["n0", "n1"])));
    assert!(
        answer["FailedNodes"]["unknown"]
            .as_str()
            .expect("a reason")
            .contains("no devices")
    );
    server.add("a", 600, 0);
    extender.bind(&bind("a", "n1")).expect("bound");
    let (_, scores) = post(&extender, "/prioritize", &arguments);
    assert!(
        scores[1]["Score"].as_i64() > scores[0]["Score"].as_i64(),
        "binpack: {scores}"
    );
    assert_eq!(scores[2], json!({"Host": "unknown", "Score": 0}));
    let nodes =
        json!({"pod": pod, "nodes": {"items": [{"metadata": {"name": "n0"}}, {"metadata": {"name": "x"}}]}});
    let (_, answer) = post(&extender, "/filter", &nodes);
    assert_eq!(answer["Nodes"]["items"].as_array().map(Vec::len), Some(1));
    // A name with a letter by its number does not lie in the message as it is.
    let by_number = arguments.to_string().replace("n0", "n\\u0030");
    let (_, text) = extender.answer("/filter", by_number.as_bytes());
    let answer: Value = serde_json::from_slice(&text).expect("an answer");
    assert_eq!(answer["NodeNames"], json!(["n0", "n1"]));
    let none = json!({"Pod": {"spec": {"containers": []}}, "NodeNames": ["unknown"]});
    assert_eq!(
        post(&extender, "/filter", &none).1["NodeNames"],
        json!(["unknown"])
    );
}

/// kube-scheduler asks for pods that it never binds, and for one pod many times: a question takes nothing and forgets nothing.
#[test]
fn questions_change_nothing() {
    let server = Arc::new(Server::default());
    let extender = extender(&server, 3);
    for (name, fate) in [("bound", 0), ("in-doubt", 3)] {
        server.add(name, 600, 40);
        server.fates.lock().expect("fates").push(fate);
        let _in_doubt = extender.bind(&bind(name, "n0"));
    }
    let before = extender.look(|ledger| format!("{ledger:?}"));
    assert!(
        before.contains("uid-in-doubt"),
        "the ledger is told in whole: {before}"
    );
    let calls = server.version.load(Ordering::Relaxed);
    server.add("asked", 900, 90);
    let names: Vec<String> = (0..4).map(|node| format!("n{node}")).collect();
    let mut answers = std::collections::BTreeSet::new();
    for uid in ["uid-asked", "uid-bound", "uid-in-doubt", "uid-unknown"] {
        for (memory, gpus) in [("900", "1"), ("900", "2"), ("5000", "1"), ("x", "1")] {
            let limits =
                json!({"divvy.dev/gpu": gpus, "divvy.dev/gpumem": memory, "divvy.dev/gpucores": "90"});
            let pod = json!({"metadata": {"name": "asked", "namespace": "n", "uid": uid},
                "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}});
            let arguments = json!({"Pod": pod, "NodeNames": names});
            for path in ["/filter", "/prioritize", "/filter"] {
                answers.insert(format!(
                    "{path} {uid} {memory} {gpus} {}",
                    post(&extender, path, &arguments).1
                ));
            }
        }
    }
    // The second question of each kind had the answer of the first.
    assert_eq!(answers.len(), 32, "{answers:?}");
    assert_eq!(extender.look(|ledger| format!("{ledger:?}")), before);
    assert_eq!(
        server.version.load(Ordering::Relaxed),
        calls + 1,
        "no pod was written"
    );
}

/// Keys are read again while it runs: what it signs next has the new key, and files that are no keys change nothing.
#[test]
fn a_changed_key_signs_the_next_bind() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("key");
    let put = |text: &str| {
        let new = folder.path().join("new");
        std::fs::write(&new, text).expect("written");
        std::fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
        std::fs::rename(&new, &path).expect("in place");
    };
    let ((one, one_public), (two, two_public)) =
        (Signer::make().expect("a key"), Signer::make().expect("a key"));
    let believed = |public: &str| Believed::of(public.as_bytes()).expect("a key");
    put(&one);
    let mut files = KeyFiles::new(path.clone(), None);
    let (signer, earlier) = files.changed().expect("new").expect("a key");
    let server = Arc::new(Server::default());
    let extender = Extender::new(server.clone(), Terms::default(), signer, earlier);
    extender.ledger(|ledger| ledger.node("n0", gpus(2)));
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    let remark: crate::https::Remark =
        Arc::new(move |line| heard.lock().expect("lines").push(line.to_owned()));
    let mut signed_by = |name: &str, public: &str| {
        look_at_keys(&mut files, &extender, &remark);
        server.add(name, 100, 10);
        extender.bind(&bind(name, "n0")).expect("bound");
        let pod = server.pods.lock().expect("pods")[name].clone();
        believed(public).granted(&pod).is_ok_and(|found| found.is_some())
    };
    assert!(signed_by("a", &one_public));
    put(&two);
    assert!(signed_by("b", &two_public));
    put("no key");
    assert!(signed_by("c", &two_public), "the key of before stays");
    assert!(signed_by("d", &two_public));
    put(&one);
    assert!(signed_by("e", &one_public));
    let said = said.lock().expect("lines").clone();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said[1].contains("not read again"), "{said:?}");
}

#[test]
fn malformed_messages_are_refused() {
    let server = Arc::new(Server::default());
    let extender = extender(&server, 1);
    for (path, body) in [
        ("/filter", json!([])),
        ("/filter", json!({})),
        ("/prioritize", json!(1)),
        ("/bind", json!({"PodName": 1})),
    ] {
        assert_eq!(post(&extender, path, &body).0, 400, "{path} {body}");
    }
    assert_eq!(post(&extender, "/preempt", &json!({})).0, 404);
    let strange = json!({"Pod": {"spec": {"containers": [{"resources": {"limits": {"divvy.dev/gpumem": "x"}}}]}}, "NodeNames": ["n0"]});
    let (status, answer) = post(&extender, "/filter", &strange);
    assert!(
        status == 200
            && answer["Error"]
                .as_str()
                .expect("an error")
                .contains("no whole number")
    );
    let gone = json!({"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "n0"});
    assert_eq!(post(&extender, "/bind", &gone).1["Error"], "gone");
}

#[test]
fn a_bind_that_was_not_answered_keeps_its_devices_until_it_is_known() {
    let server = Arc::new(Server::default());
    let extender = extender(&server, 1);
    for name in ["a", "b", "c"] {
        server.add(name, 1000, 100);
    }
    *server.fates.lock().expect("fates") = vec![3];
    assert!(
        extender
            .bind(&bind("a", "n0"))
            .expect_err("no answer")
            .contains("did not answer")
    );
    assert!(
        extender
            .bind(&bind("a", "n0"))
            .expect_err("in doubt")
            .contains("not been answered")
    );
    extender.bind(&bind("b", "n0")).expect("the other device");
    assert!(
        extender
            .bind(&bind("c", "n0"))
            .expect_err("full")
            .contains("no room")
    );
    // It is fenced off first: then it cannot land any more, and its device is free.
    assert_eq!(extender.settle(), 2);
    let late = server.late.lock().expect("late").pop().expect("one");
    assert!(matches!(server.land(&late), Err(Failed::Refused(_))));
    extender.bind(&bind("c", "n0")).expect("bound");
    within_capacity(&server).expect("within capacity");
}

/// An author writes what it likes into its pod's annotations, before and after the bind.
#[test]
fn grants_that_an_author_wrote_count_for_nothing() {
    let server = Arc::new(Server::default());
    let extender = extender(&server, 1);
    let write = |name: &str, node: Option<&str>, annotations: BTreeMap<String, String>| {
        let mut pods = server.pods.lock().expect("pods");
        let pod = pods.get_mut(name).expect("there");
        if let Some(node) = node {
            pod.spec.as_mut().expect("a spec").node_name = Some(node.into());
        }
        pod.metadata.annotations = Some(annotations);
        pod.clone()
    };
    let used = || -> u64 {
        let of_node = extender.look(|ledger| ledger.used("n0"));
        of_node.iter().map(|(_, used)| used.memory_mib).sum()
    };
    server.add("a", 600, 0);
    extender.bind(&bind("a", "n0")).expect("bound");
    let bound = server.pods.lock().expect("pods")["a"].clone();
    extender.pod(&bound).expect("understood");
    let real = bound.metadata.annotations.clone().expect("some");
    // Its own word, another pod's grants, a key of its own: none blocks a device.
    server.add("forger", 10, 0);
    let own = Signer::of(Signer::make().expect("a key").0.as_bytes()).expect("a key");
    let text = real[GRANTS].replace("uid-a", "uid-forger");
    let granted: Granted = serde_json::from_str(&text).expect("grants");
    let unsigned: BTreeMap<String, String> = [(GRANTS.to_owned(), text)].into();
    for forged in [unsigned, real, written(&own.sign(&granted).expect("signed"))] {
        let said = extender.pod(&write("forger", Some("n0"), forged));
        assert!(said.expect_err("a remark").contains("count for nothing"));
        assert_eq!(used(), 600, "it blocks nothing");
    }
    for later in ["[]", "x", "{}"] {
        let later = [(GRANTS.to_owned(), later.to_owned())].into();
        extender.pod(&write("a", None, later)).expect("no matter");
        assert_eq!(used(), 600, "it gives nothing back");
    }
}

/// The bind landed, no answer came, and the author wrote over the grants before the extender looked.
#[test]
fn an_author_that_writes_over_a_bind_in_doubt_frees_nothing() {
    for settles in [false, true] {
        let server = Arc::new(Server::default());
        let extender = extender(&server, 1);
        server.add("a", 600, 0);
        *server.fates.lock().expect("fates") = vec![2];
        extender.bind(&bind("a", "n0")).expect_err("no answer");
        let pod = {
            let mut pods = server.pods.lock().expect("pods");
            let pod = pods.get_mut("a").expect("there");
            pod.metadata.annotations = Some([(GRANTS.to_owned(), "[]".to_owned())].into());
            pod.clone()
        };
        match settles {
            true => assert_eq!(extender.settle(), 1),
            false => extender.pod(&pod).expect("what was assumed"),
        }
        let of_node = extender.look(|ledger| ledger.used("n0"));
        assert_eq!(of_node.iter().map(|(_, used)| used.memory_mib).sum::<u64>(), 600);
        assert!(extender.look(|ledger| ledger.is_confirmed("uid-a")));
    }
}

/// A caller of /bind names another pod's UID beside a name of its own.
#[test]
fn a_bind_that_names_another_pods_uid_drops_nothing_of_that_pod() {
    let server = Arc::new(Server::default());
    let extender = extender(&server, 1);
    server.add("a", 600, 0);
    server.add("b", 10, 0);
    // In doubt: it may land yet.
    *server.fates.lock().expect("fates") = vec![3];
    extender.bind(&bind("a", "n0")).expect_err("no answer");
    let mut other = bind("b", "n0");
    other.uid = "uid-a".into();
    extender.bind(&other).expect_err("another");
    let used = extender.look(|ledger| ledger.used("n0"));
    assert_eq!(used.iter().map(|(_, used)| used.memory_mib).sum::<u64>(), 600);
}

#[test]
fn a_pod_that_was_made_again_is_another() {
    let server = Arc::new(Server::default());
    let extender = extender(&server, 1);
    server.add("a", 10, 0);
    let mut old = bind("a", "n0");
    old.uid = "uid-of-the-first".into();
    assert!(extender.bind(&old).expect_err("another").contains("again"));
    extender.bind(&bind("a", "n0")).expect("bound");
    assert_eq!(
        extender.bind(&bind("a", "n0")),
        Ok(()),
        "the same bind again is done"
    );
    assert!(
        extender
            .bind(&bind("a", "n1"))
            .expect_err("elsewhere")
            .contains("already")
    );
}

#[test]
fn concurrent_binds_stay_within_capacity() {
    let server = Arc::new(Server::default());
    let extender = extender(&server, 3);
    for pod in 0..60 {
        server.add(&format!("p{pod}"), 300, 30);
    }
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let extender = &extender;
            scope.spawn(move || {
                for pod in 0..60 {
                    drop(extender.bind(&bind(&format!("p{pod}"), &format!("n{}", (pod + thread) % 3))));
                }
            });
        }
    });
    within_capacity(&server).expect("within capacity");
    let pods = server.pods.lock().expect("pods");
    let bound = pods
        .values()
        .filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()));
    assert_eq!(bound.count(), 18, "three on each of six devices");
}

proptest! {
    /// Binds, deletions, late and lost answers, crashes: no device ever has more than it has, and in the end the ledger has what
    /// the API server has.
    #[test]
    fn crash_and_replay_never_oversell(
        steps in prop::collection::vec((0_u8..8, 0_usize..10, 0_usize..2, 0_u8..4), 1..80),
    ) {
        let server = Arc::new(Server::default());
        for pod in 0..10_u64 {
            server.add(&format!("p{pod}"), 200 + 100 * (pod % 5), 20 * (pod % 4));
        }
        let mut extender = extender(&server, 2);
        for (step, pod, node, fate) in steps {
            let name = format!("p{pod}");
            match step {
                0..=3 => {
                    *server.fates.lock().expect("fates") = vec![fate];
                    drop(extender.bind(&bind(&name, &format!("n{node}"))));
                }
                4 => {
                    extender.settle();
                }
                5 => {
                    let gone = server.pods.lock().expect("pods").remove(&name);
                    if gone.is_some() {
                        extender.gone(&format!("uid-{name}"));
                    }
                }
                6 => {
                    // What was under way lands now, if it still can.
                    let late = std::mem::take(&mut *server.late.lock().expect("late"));
                    late.iter().for_each(|binding| drop(server.land(binding)));
                }
                _ => {
                    // A crash: all that was known is lost. The next one fences, then lists.
                    extender = super::tests::extender(&server, 2);
                    let pods: Vec<Pod> = server.pods.lock().expect("pods").values().cloned().collect();
                    for pod in &pods {
                        extender.fence_before(pod).expect("fenced");
                    }
                    let pods: Vec<Pod> = server.pods.lock().expect("pods").values().cloned().collect();
                    for pod in &pods {
                        extender.pod(pod).expect("understood");
                    }
                }
            }
            prop_assert_eq!(within_capacity(&server), Ok(()));
        }
        extender.settle();
        for node in ["n0", "n1"] {
            for (gpu, used) in extender.ledger(|ledger| ledger.used(node)) {
                let pods = server.pods.lock().expect("pods");
                let truth: u64 = pods.values().filter_map(truth)
                    .filter(|granted| granted.node == node)
                    .flat_map(|granted| granted.grants)
                    .filter(|grant| grant.uuid == gpu.uuid)
                    .map(|grant| grant.memory_mib)
                    .sum();
                prop_assert_eq!(used.memory_mib, truth);
            }
        }
    }
}

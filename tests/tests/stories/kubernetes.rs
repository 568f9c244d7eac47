//! `divvy k8s dra-plugin`, spoken to as a kubelet does, beside a stand-in for the API server and a real agent.

use std::collections::BTreeSet;

use divvy_tests::api_server::ApiServer;
use divvy_tests::clients::probe;
use divvy_tests::dra::Driver;
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::kubelet::Kubelet;
use divvy_tests::pod_resources::PodResources;
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};
use serde_json::{Value, json};

use crate::containers::image;

/// What the scheduler says of one request.
fn result(device: &str, share: &str, memory: &str, cores: u32) -> Value {
    json!({"request": "gpu", "driver": "gpu.divvy.dev", "pool": "node-a", "device": device, "shareID": share,
        "consumedCapacity": {"memory": memory, "cores": cores.to_string(), "slots": "1"}})
}

/// The name of the device that is given out in shares, once it is published.
fn shared(server: &ApiServer) -> String {
    until("the devices are published", || {
        let devices = server.devices();
        let mut names = devices.iter().filter_map(|device| device["name"].as_str());
        names.find(|name| name.ends_with("-shared")).map(str::to_owned)
    })
}

fn cdi_files(host: &Host) -> usize {
    std::fs::read_dir(host.folder().join("cdi")).map_or(0, |entries| entries.flatten().count())
}

#[test]
fn a_kubelet_registers_the_driver_and_has_claims_prepared() {
    let (host, server) = (Host::new(), ApiServer::start(false));
    let driver = Driver::start(&host, &server);
    let (endpoint, versions) = driver.register();
    assert_eq!(
        endpoint,
        host.folder().join("kubelet/plugins/gpu.divvy.dev/dra.sock")
    );
    assert_eq!(
        versions,
        ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
    );
    until("it has noted that", || {
        driver
            .said()
            .contains("registered with the kubelet")
            .then_some(())
    });
    let device = shared(&server);
    assert_eq!(server.devices().len(), 2, "whole and shared");
    assert_eq!(server.resource_slices().len(), 2, "counters and devices");

    let parameters =
        json!({"apiVersion": "gpu.divvy.dev/v1alpha1", "kind": "SliceParameters", "cap": "hard"});
    let config =
        json!([{"source": "FromClaim", "opaque": {"driver": "gpu.divvy.dev", "parameters": parameters}}]);
    server.allocate(
        "train",
        "u-1",
        &json!([result(&device, "s-1", "4Gi", 30)]),
        &config,
    );
    let prepared = driver.prepare("v1", "train", "u-1").expect("prepared");
    assert_eq!((&*prepared[0].device, &*prepared[0].share_id), (&*device, "s-1"));
    let slice = host.slices().remove(0);
    assert_eq!(slice.memory_limit_bytes, 4 * GIB);
    assert_eq!(prepared[0].cdi, [format!("divvy.dev/slice={}", slice.name)]);
    let shown = host.json(["inspect", &slice.name]);
    assert_eq!(
        (&shown["compute_cap"], &shown["compute"]),
        (&json!("hard"), &json!(3000))
    );
    assert_eq!(cdi_files(&host), 1);
    assert_eq!(
        driver.prepare("v1beta1", "train", "u-1").expect("again"),
        prepared
    );

    // What cannot be given is the pod's event, and nothing is left of it.
    let misspelt = json!([{"source": "FromClaim", "opaque": {"driver": "gpu.divvy.dev",
        "parameters": {"apiVersion": "gpu.divvy.dev/v1alpha1", "kind": "SliceParameters", "memroy": "1Gi"}}}]);
    for (uid, results, config, part) in [
        (
            "u-2",
            json!([result(&device, "s-1", "1Gi", 0)]),
            json!([]),
            "default/train",
        ),
        (
            "u-3",
            json!([result(&device, "s-2", "1Gi", 0)]),
            misspelt,
            "memroy",
        ),
        (
            "u-4",
            json!([result(&device, "s-3", "1Gi", 80)]),
            json!([]),
            "more of device",
        ),
        (
            "u-5",
            json!([result("gpu-none", "s-4", "1Gi", 0)]),
            json!([]),
            "no device",
        ),
    ] {
        server.allocate("other", uid, &results, &config);
        let refused = driver.prepare("v1", "other", uid).expect_err("refused");
        assert!(refused.contains("D0068") && refused.contains(part), "{refused}");
        assert_eq!((host.slices().len(), cdi_files(&host)), (1, 1));
    }
    driver.unprepare("v1beta1", "train", "u-1").expect("taken back");
    driver.unprepare("v1", "train", "u-1").expect("again");
    assert!(host.slices().is_empty() && cdi_files(&host) == 0);
    // A kubelet that starts again finds the socket and registers the driver once more, and the driver serves it.
    assert_eq!(driver.register(), (endpoint, versions));
    driver.prepare("v1", "train", "u-1").expect("prepared");
    driver.unprepare("v1", "train", "u-1").expect("taken back");
    // The rights that docs/kubernetes.md lists, and no others.
    let rights = [
        "get nodes",
        "get resourceclaims",
        "get pods",
        "list resourceslices",
        "create resourceslices",
        "update resourceslices",
        "delete resourceslices",
    ];
    assert!(
        server.calls().iter().all(|call| rights.contains(&&**call)),
        "{:?}",
        server.calls()
    );
}

/// The driver looks every ten seconds, so this takes two looks.
#[test]
fn a_pod_whose_limit_bites_has_an_event() {
    let (host, server) = (Host::new(), ApiServer::start(false));
    let driver = Driver::start(&host, &server);
    let list = PodResources::start(&host.folder().join("kubelet"));
    server.pod(
        json!({"metadata": {"name": "p", "namespace": "default", "uid": "p-1"}, "spec": {"nodeName": "node-a",
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}],
        "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]}}),
    );
    let device = shared(&server);
    server.allocate(
        "train",
        "u-1",
        &json!([result(&device, "s-1", "1Gi", 30)]),
        &json!([]),
    );
    let prepared = driver.prepare("v1", "train", "u-1").expect("prepared");
    list.add("p", "main", "train", &prepared[0].cdi[0]);
    let slice = host.slices().remove(0).name;
    let mut command = host.divvy(["run", "--slice", &slice, "--"]);
    command.arg(probe());
    let mut tenant = Tenant::start(command);
    assert!(server.events().is_empty());
    let event = until("an event is written", || {
        tenant.allocate(2 * GIB).expect_err("the claim has 1 GiB");
        server.events().pop()
    });
    let (reason, message) = (&event["reason"], event["message"].as_str().expect("a sentence"));
    assert_eq!(
        (reason, &event["type"]),
        (&json!("SliceOutOfMemory"), &json!("Warning"))
    );
    assert!(message.contains(&slice) && message.contains("1 GiB"), "{message}");
    assert!(event["count"].as_u64() > Some(0), "{event}");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "default", "uid": "p-1",
        "fieldPath": "spec.containers{main}"});
    assert_eq!(event["involvedObject"], pod);
    assert_eq!(
        event["source"],
        json!({"component": "gpu.divvy.dev", "host": "node-a"})
    );
    assert!(server.calls().contains(&"create events".to_owned()));
}

/// Two pods by containerd with the driver's CDI devices: each program is inside its own limit, a driver that is killed
/// disturbs neither, and nothing is left of either.
#[test]
fn two_pods_have_slices_of_one_device() {
    let host = Host::new();
    let image = image(&host);
    let Some(kubelet) = Kubelet::new(&host, &image) else {
        return;
    };
    let server = ApiServer::start(false);
    let mut driver = Driver::start(&host, &server);
    let device = shared(&server);
    let claims = [("a", "u-a", "1Gi"), ("b", "u-b", "2Gi")];
    let mut pods: Vec<_> = claims
        .into_iter()
        .map(|(name, uid, memory)| {
            server.allocate(name, uid, &json!([result(&device, uid, memory, 30)]), &json!([]));
            let prepared = driver.prepare("v1", name, uid).expect("prepared");
            let pod = kubelet.pod(name, &[]);
            let (_, tenant) = kubelet.tenant_with(&pod, "main", &prepared[0].cdi);
            (pod, tenant)
        })
        .collect();
    assert_eq!(
        (pods[0].1.memory(), pods[1].1.memory()),
        ((GIB, GIB), (2 * GIB, 2 * GIB))
    );
    driver.kill();
    driver = Driver::start(&host, &server);
    assert_eq!(pods[0].1.allocate(700 * MIB), Ok(()));
    assert!(pods[0].1.allocate(700 * MIB).is_err(), "the claim has 1 GiB");
    assert_eq!(pods[1].1.allocate(1500 * MIB), Ok(()));
    // Programs run: the claim stays, and the kubelet asks again.
    driver
        .unprepare("v1", "a", "u-a")
        .expect_err("a program runs in it");
    for (pod, tenant) in pods {
        kubelet.remove(&pod);
        drop(tenant);
    }
    for (name, uid, _) in claims {
        driver.unprepare("v1", name, uid).expect("taken back");
    }
    assert!(host.slices().is_empty() && cdi_files(&host) == 0);
}

/// The same on a GPU that is divided: a pod has a whole instance, and another one a part of the instance beside it.
#[test]
fn two_pods_have_instances_of_one_gpu() {
    let host = Host::new();
    let image = image(&host);
    let Some(kubelet) = Kubelet::new(&host, &image) else {
        return;
    };
    let instances = "3g.40gb,1g.10gb:6";
    let divided = ["mig", "apply", "--device", "0", "--yes", "--instances", instances];
    succeeded(&finish(&mut host.divvy(divided)));
    let server = ApiServer::start(false);
    let driver = Driver::start(&host, &server);
    let named = |kind: &str, profile: &str| -> String {
        let of = |one: &Value, name: &str| one["attributes"][name]["string"].as_str().map(str::to_owned);
        until("the instances are published", || {
            let offered = server.devices();
            let found = offered.iter().find(|one| {
                of(one, "type").as_deref() == Some(kind) && of(one, "profile").as_deref() == Some(profile)
            })?;
            Some(found["name"].as_str()?.to_owned())
        })
    };
    let mut whole = result(&named("mig", "3g.40gb"), "unused", "1Gi", 0);
    let whole_has = whole.as_object_mut().expect("a result");
    whole_has.remove("shareID");
    whole_has.remove("consumedCapacity");
    let part = result(&named("mig-shared", "1g.10gb"), "s-b", "1Gi", 0);
    let mut pods: Vec<_> = [("a", "u-a", whole), ("b", "u-b", part)]
        .into_iter()
        .map(|(name, uid, result)| {
            server.allocate(name, uid, &json!([result]), &json!([]));
            let prepared = driver.prepare("v1", name, uid).expect("prepared");
            let pod = kubelet.pod(name, &[]);
            let (_, tenant) = kubelet.tenant_with(&pod, "main", &prepared[0].cdi);
            (pod, tenant)
        })
        .collect();
    let (_, all) = pods[0].1.memory();
    assert!((39 * GIB..41 * GIB).contains(&all), "{all}");
    assert_eq!(pods[1].1.memory(), (GIB, GIB));
    for (_, tenant) in &mut pods {
        assert_eq!(tenant.allocate(700 * MIB), Ok(()));
        assert!(tenant.copies());
    }
    assert!(pods[1].1.allocate(700 * MIB).is_err(), "the claim has 1 GiB");
    assert_eq!(pods[0].1.allocate(GIB), Ok(()));
    // Nothing is divided again under them.
    let again = ["mig", "apply", "--device", "0", "--yes", "--instances", "7g.80gb"];
    assert!(!finish(&mut host.divvy(again)).status.success());
    for (pod, tenant) in pods {
        kubelet.remove(&pod);
        drop(tenant);
    }
    for (name, uid) in [("a", "u-a"), ("b", "u-b")] {
        driver.unprepare("v1", name, uid).expect("taken back");
    }
    assert!(host.slices().is_empty() && cdi_files(&host) == 0);
}

/// A claim of two requests that one container would get both of.
#[test]
fn a_container_of_two_slices_is_refused() {
    let (host, server) = (Host::new(), ApiServer::start(false));
    let driver = Driver::start(&host, &server);
    let device = shared(&server);
    let mut results = [result(&device, "s-1", "1Gi", 0), result(&device, "s-2", "1Gi", 0)];
    results[1]["request"] = "other".into();
    server.allocate("two", "u-1", &json!(results), &json!([]));
    let claims = json!([{"name": "x"}]);
    server.pod(
        json!({"metadata": {"name": "p", "namespace": "default", "uid": "p-1"},
        "spec": {"nodeName": "node-a", "resourceClaims": [{"name": "x", "resourceClaimName": "two"}],
            "containers": [{"name": "main", "resources": {"claims": claims}}]}}),
    );
    let refused = driver.prepare("v1", "two", "u-1").expect_err("refused");
    assert!(
        refused.contains("container `main`") && refused.contains("two/other"),
        "{refused}"
    );
    assert!(host.slices().is_empty() && cdi_files(&host) == 0);
}

/// A typo in the directory must not leave a driver that no kubelet finds.
#[test]
fn a_directory_that_is_no_kubelets_is_refused() {
    let (host, server) = (Host::new(), ApiServer::start(false));
    let wrong = host.folder().join("kubelt");
    let mut command = host.divvy(["k8s", "dra-plugin", "--node", "node-a", "--kubelet-dir"]);
    let output = finish(
        command
            .arg(&wrong)
            .env("KUBECONFIG", server.kubeconfig(host.folder())),
    );
    let said = stderr(&output);
    assert!(
        !output.status.success() && said.contains("--kubelet-dir"),
        "{said}"
    );
    assert!(!wrong.exists());
}

/// Modes of files are the first bar. Behind them the kernel says which user a peer is.
#[test]
fn other_users_are_not_served() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (host, server) = (Host::new(), ApiServer::start(false));
    let driver = Driver::start(&host, &server);
    let (endpoint, _) = driver.register();
    for socket in [driver.registration(), endpoint] {
        let folders = socket
            .ancestors()
            .take_while(|folder| folder.starts_with(host.folder()));
        for path in folders {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("changed");
        }
        let status = |uid: u32| {
            let mut curl = std::process::Command::new("curl");
            curl.args([
                "--silent",
                "--max-time",
                "20",
                "--http2-prior-knowledge",
                "--output",
                "/dev/null",
            ])
            .args([
                "--write-out",
                "%{http_code}",
                "http://localhost/x",
                "--unix-socket",
            ])
            .arg(&socket)
            .uid(uid)
            .gid(uid);
            String::from_utf8(curl.output().expect("curl").stdout).expect("text")
        };
        assert_eq!(
            (status(0), status(65_534)),
            ("200".into(), "000".into()),
            "{}",
            socket.display()
        );
    }
}

#[test]
fn an_api_server_that_drops_fields_has_whole_devices_published() {
    let (host, server) = (Host::new(), ApiServer::start(true));
    let driver = Driver::start(&host, &server);
    until("it says so", || {
        driver.said().contains("whole devices only").then_some(())
    });
    let devices = server.devices();
    assert_eq!(devices.len(), 1);
    assert!(!devices[0]["name"].as_str().expect("a name").ends_with("-shared"));
}

/// Prepares, unprepares, kills of the driver in the middle of a call, kills of the agent: at each moment of rest the
/// agent's slices are those of the claims that are prepared. DIVVY_TEST_CLAIM_CALLS says how many calls.
#[test]
fn slices_are_those_of_the_claims_that_are_prepared() {
    const CLAIMS: usize = 6;
    let calls = std::env::var("DIVVY_TEST_CLAIM_CALLS").map_or(14, |count| count.parse().expect("a number"));
    let (host, server) = (Host::new(), ApiServer::start(false));
    let mut driver = Driver::start(&host, &server);
    let device = shared(&server);
    let claims: Vec<(String, String)> = (0..CLAIMS)
        .map(|number| (format!("c-{number}"), format!("u-{number}")))
        .collect();
    for (number, (name, uid)) in claims.iter().enumerate() {
        let results = json!([result(&device, &format!("s-{number}"), "1Gi", 10)]);
        server.allocate(name, uid, &results, &json!([]));
    }
    let mut prepared = BTreeSet::new();
    let mut dice: u64 = 0x2545_f491_4f6c_dd1d;
    let mut roll = |end: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % end
    };
    for turn in 0..calls {
        let which = usize::try_from(roll(CLAIMS as u64)).expect("small");
        let (name, uid) = &claims[which];
        let version = if roll(2) == 0 { "v1" } else { "v1beta1" };
        match roll(12) {
            0..=4 => {
                driver
                    .prepare(version, name, uid)
                    .unwrap_or_else(|said| panic!("{turn}: {said}"));
                prepared.insert(which);
            }
            5..=8 => {
                driver
                    .unprepare(version, name, uid)
                    .unwrap_or_else(|said| panic!("{turn}: {said}"));
                prepared.remove(&which);
            }
            // The next call starts one.
            9 if host.agents().len() == 1 => host.kill_agent(),
            9 => {}
            kill => {
                if kill == 10 {
                    driver.begin_prepare(name, uid);
                    std::thread::sleep(std::time::Duration::from_millis(roll(40)));
                }
                driver.kill();
                driver = Driver::start(&host, &server);
                if kill == 10 {
                    // The kubelet asks again, as it does of every call without an answer.
                    driver
                        .prepare(version, name, uid)
                        .unwrap_or_else(|said| panic!("{turn}: {said}"));
                    prepared.insert(which);
                }
            }
        }
        let found: BTreeSet<String> = host.slices().into_iter().map(|slice| slice.name).collect();
        assert_eq!(found.len(), prepared.len(), "{turn}: {found:?} for {prepared:?}");
        for which in &prepared {
            assert!(
                found
                    .iter()
                    .any(|slice| slice.starts_with(&format!("c-{which}-"))),
                "{turn}: {found:?}"
            );
        }
    }
    for (name, uid) in &claims {
        driver.unprepare("v1", name, uid).expect("taken back");
    }
    assert!(host.slices().is_empty() && cdi_files(&host) == 0);
}

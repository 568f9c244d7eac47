//! What the stock scheduler does with the devices that the driver publishes: each row of what was seen on a 1.36.2 cluster is a case. They
//! run against the cluster that DIVVY_TEST_KUBECONFIG names, and by default against a stand-in that is led to in the same way.

use std::collections::BTreeSet;

use divvy_placement::quantity::whole;
use divvy_tests::cluster::{Cluster, SWITCH};
use divvy_tests::dra::Driver;
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::wait::until;
use serde_json::{Value, json};

const DRIVER: &str = "gpu.divvy.dev";

fn slice(class: &str, memory: &str, cores: u32) -> Value {
    json!({"deviceClassName": class, "capacity": {"requests": {"memory": memory, "cores": cores.to_string()}}})
}

fn one(exactly: &Value) -> Value {
    json!({"requests": [{"name": "gpu", "exactly": exactly}]})
}

fn device(result: &Value) -> String {
    result["device"].as_str().expect("a device").to_owned()
}

fn devices(results: &[Value]) -> Vec<String> {
    results.iter().map(device).collect()
}

/// What is consumed of a device, in bytes or percent.
fn consumed(result: &Value, name: &str) -> Option<u64> {
    whole(result["consumedCapacity"][name].as_str()?)
}

/// A cluster, and a node in it whose driver publishes these emulated devices.
struct Bench {
    cluster: Cluster,
    host: Host,
    driver: Driver,
    slice: String,
    whole: String,
}

impl Bench {
    fn new(specification: &str) -> Self {
        Self::on(Host::with_devices(specification))
    }

    fn on(host: Host) -> Self {
        let cluster = Cluster::start();
        let driver = Driver::start_at(&host, cluster.kubeconfig(), &cluster.node, &cluster.namespace);
        let ours = format!("device.driver == '{DRIVER}'");
        let slice = cluster.class(
            "slice",
            &format!("{ours} && device.allowMultipleAllocations == true"),
            None,
        );
        let whole = cluster.class(
            "whole",
            &format!("{ours} && device.attributes['{DRIVER}'].type == 'gpu'"),
            None,
        );
        until("both forms of all devices are published", || {
            let published = cluster.published(DRIVER);
            let shared = published
                .iter()
                .filter(|one| one["allowMultipleAllocations"] == true)
                .count();
            (shared > 0 && published.len() == 2 * shared).then_some(())
        });
        Self {
            cluster,
            host,
            driver,
            slice,
            whole,
        }
    }

    /// A claim for one request, and a pod that has it.
    fn asks(&self, name: &str, exactly: &Value) {
        self.cluster.claim(name, &one(exactly)).expect("a claim");
        self.cluster.pod(name, &[name], &json!({}));
    }

    fn uid(&self, claim: &str) -> String {
        self.cluster.find_claim(claim)["metadata"]["uid"]
            .as_str()
            .expect("a UID")
            .to_owned()
    }

    fn prepare(&self, claim: &str) -> Result<(), String> {
        self.driver.prepare("v1", claim, &self.uid(claim)).map(drop)
    }

    fn delete(&self, pod: &str) {
        let uid = self.uid(pod);
        self.cluster.delete_pod(pod);
        self.driver.unprepare("v1", pod, &uid).expect("taken back");
    }
}

/// Rows: two slices share a GPU, memory is rounded up; a third goes elsewhere; a whole GPU waits for slices to leave; more than there is.
#[test]
fn slices_fill_a_device_and_a_whole_one_waits_for_them() {
    let bench = Bench::new("h100*2");
    bench.asks("a", &slice(&bench.slice, "4Gi", 30));
    let a = bench.cluster.allocated("a");
    bench.asks("b", &slice(&bench.slice, "8300Mi", 60));
    let b = bench.cluster.allocated("b");
    assert_eq!(device(&a[0]), device(&b[0]));
    assert!(a[0]["shareID"].is_string() && a[0]["shareID"] != b[0]["shareID"]);
    assert_eq!(consumed(&b[0], "memory"), Some(8448 << 20), "in steps of 256 MiB");
    bench.asks("c", &slice(&bench.slice, "4Gi", 30));
    let c = bench.cluster.allocated("c");
    assert_ne!(device(&c[0]), device(&a[0]));
    for claim in ["a", "b", "c"] {
        bench.prepare(claim).expect("prepared");
    }
    assert_eq!(bench.host.slices().len(), 3);

    let whole = json!({"deviceClassName": bench.whole});
    bench.asks("w", &whole);
    bench.cluster.pending("w", "w");
    bench.asks("big", &slice(&bench.slice, "140Gi", 0));
    bench.cluster.pending("big", "big");
    bench.delete("c");
    let w = bench.cluster.allocated("w");
    assert_eq!(format!("{}-shared", device(&w[0])), device(&c[0]));
    bench.prepare("w").expect("prepared");
    bench.asks("late", &slice(&bench.slice, "1Gi", 30));
    bench.cluster.pending("late", "late");
    for pod in ["a", "b", "w"] {
        bench.delete(pod);
    }
    assert!(bench.host.slices().is_empty());
    let late = bench.cluster.allocated("late");
    assert_eq!(late.len(), 1);
}

/// Rows: a count is of different devices; two requests of one claim are on one device unless a constraint keeps them apart; the first
/// alternative that is free is taken.
#[test]
fn counts_requests_and_alternatives_get_their_devices() {
    let bench = Bench::new("h100*2");
    let cluster = &bench.cluster;
    let mut two = slice(&bench.slice, "1Gi", 1);
    two["count"] = 2.into();
    bench.asks("count", &two);
    let found: BTreeSet<String> = devices(&cluster.allocated("count")).into_iter().collect();
    assert_eq!(found.len(), 2);
    let requests = json!([{"name": "a", "exactly": slice(&bench.slice, "2Gi", 1)},
        {"name": "b", "exactly": slice(&bench.slice, "3Gi", 2)}]);
    cluster
        .claim("same", &json!({"requests": requests}))
        .expect("a claim");
    let distinct = json!([{"requests": ["a", "b"], "distinctAttribute": format!("{DRIVER}/uuid")}]);
    cluster
        .claim("apart", &json!({"requests": requests, "constraints": distinct}))
        .expect("a claim");
    for claim in ["same", "apart"] {
        cluster.pod(claim, &[claim], &json!({}));
    }
    let same = devices(&cluster.allocated("same"));
    assert_eq!(same[0], same[1]);
    let apart = devices(&cluster.allocated("apart"));
    assert_ne!(apart[0], apart[1]);

    let first = json!({"requests": [{"name": "gpu", "firstAvailable": [
        {"name": "whole", "deviceClassName": bench.whole},
        {"name": "half", "deviceClassName": bench.slice, "capacity": {"requests": {"memory": "40Gi", "cores": "40"}}}]}]});
    cluster.claim("busy", &first).expect("a claim");
    cluster.pod("busy", &["busy"], &json!({}));
    assert_eq!(cluster.allocated("busy")[0]["request"], "gpu/half");
    for pod in ["count", "same", "apart", "busy"] {
        bench.delete(pod);
    }
    cluster.claim("free", &first).expect("a claim");
    cluster.pod("free", &["free"], &json!({}));
    assert_eq!(cluster.allocated("free")[0]["request"], "gpu/whole");
}

/// Rows: the name of an extended resource needs no claim and gets the policy's defaults; a quota counts devices by class and nothing else.
#[test]
fn extended_resources_get_defaults_and_quotas_count_devices() {
    let bench = Bench::new("h100");
    let cluster = &bench.cluster;
    cluster.quota(&bench.slice, 2);
    for (name, memory) in [("small", "256Mi"), ("large", "70Gi")] {
        cluster
            .claim(name, &one(&slice(&bench.slice, memory, 100)))
            .expect("devices are counted, not memory");
    }
    let over = cluster.claim("third", &one(&slice(&bench.slice, "256Mi", 0)));
    assert!(
        over.as_ref().is_err_and(|why| why.contains("exceeded quota")),
        "{over:?}"
    );

    let resource = format!("{}.example/gpu-slice", cluster.namespace);
    let selector = format!("device.driver == '{DRIVER}' && device.allowMultipleAllocations == true");
    cluster.class("named", &selector, Some(&resource));
    let containers =
        json!([{"name": "main", "image": "none.invalid/none", "resources": {"limits": {resource: "1"}}}]);
    cluster.pod("named", &[], &json!({"containers": containers}));
    let claim = until("the scheduler has made a claim", || {
        let pod = cluster.find_pod("named")?;
        pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
            .as_str()
            .map(str::to_owned)
    });
    let got = cluster.allocated(&claim);
    let published = cluster.published(DRIVER);
    let shared = published
        .iter()
        .find(|one| one["name"] == got[0]["device"])
        .expect("it is published");
    let all = shared["capacity"]["memory"]["requestPolicy"]["default"]
        .as_str()
        .and_then(whole);
    assert_eq!(consumed(&got[0], "memory"), all);
    assert_eq!(
        (consumed(&got[0], "cores"), consumed(&got[0], "slots")),
        (Some(0), Some(1))
    );
}

/// Rows: taints keep pods away or evict them; the order of devices in a pool is the order in which they are taken.
#[test]
fn taints_and_the_order_of_devices_count() {
    const OWN: &str = "case.divvy.dev";
    let cluster = Cluster::start();
    let class = cluster.class("case", &format!("device.driver == '{OWN}'"), None);
    let asks = |name: &str| {
        cluster
            .claim(name, &one(&json!({"deviceClassName": class})))
            .expect("a claim");
        cluster.pod(name, &[name], &json!({}));
    };
    let plain = |name: &str| json!({"name": name});
    let tainted = |name: &str, effect: &str| json!({"name": name, "taints": [{"key": "case.divvy.dev/ill", "effect": effect}]});
    cluster.publish(OWN, 1, &json!([plain("one"), plain("two"), plain("three")]));
    asks("first");
    assert_eq!(devices(&cluster.allocated("first")), ["one"]);
    cluster.publish(OWN, 2, &json!([plain("three"), plain("two"), plain("one")]));
    asks("second");
    assert_eq!(devices(&cluster.allocated("second")), ["three"]);
    cluster.publish(
        OWN,
        3,
        &json!([plain("three"), tainted("two", "NoSchedule"), plain("one")]),
    );
    asks("third");
    cluster.pending("third", "third");
    cluster.publish(
        OWN,
        4,
        &json!([tainted("three", "NoExecute"), plain("two"), plain("one")]),
    );
    assert_eq!(devices(&cluster.allocated("third")), ["two"]);
    until("the pod of the tainted device is evicted", || {
        let gone = cluster
            .find_pod("second")
            .is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
        gone.then_some(())
    });
    assert!(cluster.find_pod("first").is_some());
}

/// The instances of a divided GPU are given out at once, each in one form: they take their parts of its counters.
#[test]
fn mig_instances_of_one_gpu_are_given_out_beside_each_other() {
    let host = Host::new();
    let instances = "3g.40gb,2g.20gb,1g.10gb:6";
    let divided = ["mig", "apply", "--device", "0", "--yes", "--instances", instances];
    succeeded(&finish(&mut host.divvy(divided)));
    let bench = Bench::on(host);
    let published = bench.cluster.published(DRIVER);
    let takes = |kind: &str, profile: &str| -> Vec<String> {
        let of = |one: &&Value, name: &str| one["attributes"][name]["string"].as_str().map(str::to_owned);
        let found = published.iter().find(|one| {
            of(one, "type").as_deref() == Some(kind) && of(one, "profile").as_deref() == Some(profile)
        });
        let consumed = found.expect("it is published")["consumesCounters"][0]["counters"].clone();
        consumed.as_object().expect("counters").keys().cloned().collect()
    };
    for (profile, slices) in [("3g.40gb", 4), ("2g.20gb", 2), ("1g.10gb", 1)] {
        let names = takes("mig", profile);
        assert_eq!(
            names
                .iter()
                .filter(|name| name.starts_with("memory-slice-"))
                .count(),
            slices,
            "{names:?}"
        );
        assert!(names.contains(&"memory".to_owned()) && names.contains(&"multiprocessors".to_owned()));
        assert_eq!(takes("mig-shared", profile), names);
    }
    let class = bench
        .cluster
        .class("mig", &format!("device.driver == '{DRIVER}'"), None);
    let of = |kind: &str, profile: &str| {
        let here = format!("device.attributes['{DRIVER}']");
        let expression = format!("{here}.type == '{kind}' && {here}.profile == '{profile}'");
        json!({"deviceClassName": class, "selectors": [{"cel": {"expression": expression}}]})
    };
    bench.asks("large", &of("mig", "3g.40gb"));
    bench.asks("middle", &of("mig", "2g.20gb"));
    let mut part = of("mig-shared", "1g.10gb");
    part["capacity"] = json!({"requests": {"memory": "2Gi", "cores": "20"}});
    for name in ["small", "beside"] {
        bench.asks(name, &part);
    }
    for claim in ["large", "middle", "small", "beside"] {
        assert_eq!(bench.cluster.allocated(claim).len(), 1);
        bench.prepare(claim).expect("an instance, or a part of one");
    }
    // Each slice is on its own instance, and the two parts are on one.
    let on: std::collections::BTreeMap<String, usize> =
        bench
            .host
            .slices()
            .iter()
            .fold(std::collections::BTreeMap::new(), |mut on, slice| {
                assert!(slice.device_uuid.starts_with("MIG-"), "{slice:?}");
                *on.entry(slice.device_uuid.clone()).or_default() += 1;
                on
            });
    let mut counts: Vec<usize> = on.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 2]);
    // The other form of each, and the same one again.
    let mut half = of("mig-shared", "3g.40gb");
    half["capacity"] = json!({"requests": {"memory": "1Gi"}});
    for (name, exactly) in [
        ("half", &half),
        ("whole", &of("mig", "1g.10gb")),
        ("again", &of("mig", "2g.20gb")),
    ] {
        bench.asks(name, exactly);
        bench.cluster.pending(name, name);
    }
    bench.delete("large");
    assert_eq!(bench.cluster.allocated("half").len(), 1);
}

/// Row: a pod whose author chose the node has claims that no scheduler allocates, and the driver says so to the kubelet.
#[test]
fn a_pod_with_a_node_name_has_claims_that_are_never_allocated() {
    let bench = Bench::new("h100");
    let devices = one(&slice(&bench.slice, "1Gi", 0));
    bench.cluster.claim("pinned", &devices).expect("a claim");
    bench
        .cluster
        .pod("pinned", &["pinned"], &json!({"nodeName": bench.cluster.node}));
    // A pod that came later has its device: the scheduler has been past the other.
    bench.asks("later", &slice(&bench.slice, "1Gi", 0));
    bench.cluster.allocated("later");
    assert!(bench.cluster.find_claim("pinned")["status"]["allocation"].is_null());
    let refused = bench.prepare("pinned").expect_err("not allocated");
    assert!(refused.contains("allocated"), "{refused}");
    assert!(bench.host.slices().is_empty());
}

/// Row: many pods of 5 % each are all placed, and devices fill in their order. DIVVY_TEST_CLUSTER_PODS says how many.
#[test]
fn many_small_pods_fill_devices_in_their_order() {
    const EACH: usize = 20;
    let pods: usize =
        std::env::var("DIVVY_TEST_CLUSTER_PODS").map_or(24, |count| count.parse().expect("a number"));
    let bench = Bench::new(&format!("h100*{}", pods.div_ceil(EACH)));
    let order: Vec<String> = bench
        .cluster
        .published(DRIVER)
        .iter()
        .filter(|one| one["allowMultipleAllocations"] == true)
        .map(|one| one["name"].as_str().expect("a name").to_owned())
        .collect();
    for pod in 0..pods {
        bench.asks(&format!("p{pod}"), &slice(&bench.slice, "256Mi", 5));
    }
    let mut found = vec![0; order.len()];
    for pod in 0..pods {
        let device = device(&bench.cluster.allocated(&format!("p{pod}"))[0]);
        found[order
            .iter()
            .position(|one| *one == device)
            .expect("it is published")] += 1;
    }
    let full: Vec<usize> = (0..order.len())
        .map(|place| (pods - place * EACH).min(EACH))
        .collect();
    assert_eq!(found, full);
}

/// The variable leads the same cases to whatever cluster it names: here the one of another stand-in.
#[test]
fn a_kubeconfig_leads_the_cases_to_its_cluster() {
    const CASE: &str = "cluster::taints_and_the_order_of_devices_count";
    // A case that this one starts runs where it was led to.
    if std::env::var_os(SWITCH).is_some() {
        return;
    }
    let cluster = Cluster::start();
    let led = |kubeconfig: &std::path::Path| {
        let mut case = std::process::Command::new(std::env::current_exe().expect("this suite"));
        case.args([CASE, "--exact"]).env(SWITCH, kubeconfig);
        case.output().expect("the suite runs")
    };
    let done = led(cluster.kubeconfig());
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success() && said.contains("1 passed"),
        "{said}{}",
        stderr(&done)
    );
    let left = cluster
        .ask("GET", "/apis/resource.k8s.io/v1/resourceslices", None)
        .expect("a list");
    let writes: u64 = left["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("a version");
    assert!(writes >= 4, "its four generations were published there: {left}");
    let nowhere = led(std::path::Path::new("/nowhere/kubeconfig"));
    assert!(!nowhere.status.success());
}

use super::*;
use crate::plan::{Options, plan};

/// Two GPUs of 139Gi on one node, whole and in shares, and the two classes.
pub const NODE: &str = r#"
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: slice.gpu.divvy.dev}
spec:
  selectors: [{cel: {expression: "device.driver == 'gpu.divvy.dev' && device.allowMultipleAllocations == true"}}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: whole.gpu.divvy.dev}
spec:
  extendedResourceName: divvy.dev/whole-gpu
  selectors: [{cel: {expression: "device.driver == 'gpu.divvy.dev' && device.attributes['gpu.divvy.dev'].type == 'gpu'"}}]
---
apiVersion: v1
kind: Node
metadata: {name: a, labels: {zone: x}}
status: {allocatable: {cpu: "8", memory: 64Gi, pods: "110"}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: a-counters}
spec:
  driver: gpu.divvy.dev
  nodeName: a
  pool: {name: a, generation: 2, resourceSliceCount: 2}
  sharedCounters:
  - {name: gpu-0, counters: {owner: {value: "1"}}}
  - {name: gpu-1, counters: {owner: {value: "1"}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: a-devices}
spec:
  driver: gpu.divvy.dev
  nodeName: a
  pool: {name: a, generation: 2, resourceSliceCount: 2}
  devices:
  - name: gpu-0-shared
    allowMultipleAllocations: true
    attributes: {type: {string: gpu-shared}, uuid: {string: GPU-0}}
    capacity: &shares
      memory: {value: 139Gi, requestPolicy: {default: 139Gi, validRange: {min: 256Mi, max: 139Gi, step: 256Mi}}}
      cores: {value: "100", requestPolicy: {default: "0", validRange: {min: "0", max: "100", step: "1"}}}
      slots: {value: "16", requestPolicy: {default: "1", validValues: ["1"]}}
    consumesCounters: [{counterSet: gpu-0, counters: {owner: {value: "1"}}}]
  - name: gpu-1-shared
    allowMultipleAllocations: true
    attributes: {type: {string: gpu-shared}, uuid: {string: GPU-1}}
    capacity: *shares
    consumesCounters: [{counterSet: gpu-1, counters: {owner: {value: "1"}}}]
  - name: gpu-0
    attributes: {type: {string: gpu}, uuid: {string: GPU-0}}
    capacity: {memory: {value: 139Gi}, cores: {value: "100"}}
    consumesCounters: [{counterSet: gpu-0, counters: {owner: {value: "1"}}}]
  - name: gpu-1
    attributes: {type: {string: gpu}, uuid: {string: GPU-1}}
    capacity: {memory: {value: 139Gi}, cores: {value: "100"}}
    consumesCounters: [{counterSet: gpu-1, counters: {owner: {value: "1"}}}]
"#;

fn claim(name: &str, requests: &str, more: &str) -> String {
    format!(
        "---\nkind: ResourceClaim\nmetadata: {{name: {name}}}\nspec: {{devices: {{requests: {requests}{more}}}}}\n"
    )
}

fn slice(name: &str, memory: &str, cores: u32) -> String {
    let exactly = format!(
        "{{deviceClassName: slice.gpu.divvy.dev, capacity: {{requests: {{memory: {memory}, cores: \"{cores}\"}}}}}}"
    );
    claim(name, &format!("[{{name: gpu, exactly: {exactly}}}]"), "")
}

fn files(texts: &[&str]) -> Vec<(String, String)> {
    texts
        .iter()
        .map(|text| ("file".to_owned(), (*text).to_owned()))
        .collect()
}

/// What each got, as `name=device,device`; those without a place as `name=-`.
fn placed(objects: &str) -> Vec<String> {
    let cluster = read(&files(&[NODE, objects])).expect("understood");
    let plan = plan(
        &cluster,
        Options {
            seed: 1,
            try_others: false,
        },
    );
    let mut all: Vec<String> = plan
        .placements
        .iter()
        .map(|one| {
            let devices: Vec<_> = one
                .devices
                .iter()
                .map(|name| name.trim_start_matches("a/"))
                .collect();
            format!("{}={}", one.pod.trim_start_matches("default/"), devices.join(","))
        })
        .collect();
    for pending in &plan.pending {
        all.extend(
            pending
                .examples
                .iter()
                .map(|name| format!("{}={}", name.trim_start_matches("default/"), pending.reason)),
        );
    }
    all
}

#[test]
fn rows_that_were_seen_on_a_cluster_come_out_alike() {
    let two = slice("a", "4Gi", 30) + &slice("b", "8300Mi", 60);
    assert_eq!(placed(&two), ["a=gpu-0-shared", "b=gpu-0-shared"]);
    let third = two.clone() + &slice("c", "4Gi", 30);
    assert_eq!(placed(&third)[2], "c=gpu-1-shared");
    let whole = claim(
        "w",
        "[{name: gpu, exactly: {deviceClassName: whole.gpu.divvy.dev}}]",
        "",
    );
    assert_eq!(placed(&(third.clone() + &whole))[3], "w=devices");
    assert_eq!(placed(&(two.clone() + &whole))[2], "w=gpu-1");
    assert_eq!(placed(&slice("big", "140Gi", 0)), ["big=devices"]);
    let count = "[{name: gpu, exactly: {deviceClassName: slice.gpu.divvy.dev, count: 2, capacity: {requests: {memory: 1Gi}}}}]";
    assert_eq!(placed(&claim("n", count, "")), ["n=gpu-0-shared,gpu-1-shared"]);
    let requests = "[{name: a, exactly: {deviceClassName: slice.gpu.divvy.dev, capacity: {requests: {memory: 2Gi}}}}, \
                    {name: b, exactly: {deviceClassName: slice.gpu.divvy.dev, capacity: {requests: {memory: 3Gi}}}}]";
    assert_eq!(placed(&claim("r", requests, "")), ["r=gpu-0-shared,gpu-0-shared"]);
    let distinct = ", constraints: [{requests: [a, b], distinctAttribute: gpu.divvy.dev/uuid}]";
    assert_eq!(
        placed(&claim("d", requests, distinct)),
        ["d=gpu-0-shared,gpu-1-shared"]
    );
    let same = ", constraints: [{matchAttribute: gpu.divvy.dev/uuid}]";
    assert_eq!(
        placed(&claim("m", requests, same)),
        ["m=gpu-0-shared,gpu-0-shared"]
    );
    let first = "[{name: gpu, firstAvailable: [{name: whole, deviceClassName: whole.gpu.divvy.dev}, \
                 {name: half, deviceClassName: slice.gpu.divvy.dev, capacity: {requests: {memory: 64Gi, cores: \"40\"}}}]}]";
    assert_eq!(placed(&claim("f", first, "")), ["f=gpu-0"]);
    assert_eq!(
        placed(&(third + &claim("f", first, "")))[3],
        "f=gpu-0-shared".replace('0', "1")
    );
}

#[test]
fn pods_bring_claims_templates_and_names_of_extended_resources() {
    let template = "---\nkind: ResourceClaimTemplate\nmetadata: {name: t}\nspec: {spec: {devices: {requests: \
                    [{name: gpu, exactly: {deviceClassName: slice.gpu.divvy.dev, capacity: {requests: {memory: 70Gi}}}}]}}}\n";
    let pod =
        |name: &str, spec: &str| format!("---\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n");
    let by_template = "resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]";
    let objects = [
        template.to_owned(),
        pod("p", by_template),
        pod("q", by_template),
        pod(
            "r",
            "containers: [{resources: {limits: {divvy.dev/whole-gpu: 1}}}]",
        ),
        pod("s", &format!("{by_template}, nodeName: a")),
        pod("u", "nodeSelector: {zone: y}"),
        pod("v", "containers: [{resources: {requests: {cpu: 9}}}]"),
    ]
    .concat();
    assert_eq!(
        placed(&objects),
        [
            "p=gpu-0-shared",
            "q=gpu-1-shared",
            "r=devices",
            "u=node",
            "v=node",
            "s=pinned"
        ]
    );
}

#[test]
fn what_claims_have_is_taken() {
    let held = "---\nkind: ResourceClaim\nmetadata: {name: old}\nspec: {}\nstatus: {allocation: {devices: {results: [\
                {request: gpu, driver: gpu.divvy.dev, pool: a, device: gpu-0-shared, shareID: x, \
                consumedCapacity: {memory: 100Gi, cores: 90, slots: 1}}]}}}\n";
    assert_eq!(
        placed(&(held.to_owned() + &slice("n", "4Gi", 20))),
        ["n=gpu-1-shared"]
    );
    assert_eq!(
        placed(&(held.to_owned() + &slice("n", "4Gi", 10))),
        ["n=gpu-0-shared"]
    );
}

#[test]
fn an_incomplete_pool_is_passed_over_and_said() {
    let half = NODE.replace("resourceSliceCount: 2", "resourceSliceCount: 3");
    let cluster = read(&files(&[&half])).expect("understood");
    assert!(cluster.nodes[0].devices.is_empty());
    assert!(cluster.remarks[0].contains("incomplete"), "{:?}", cluster.remarks);
}

#[test]
fn a_small_file_is_a_cluster() {
    let text = "# what we might buy\nformat: divvy/plan\nnodes:\n- {name: n, count: 3, gpus: 2, memory: 80Gi}\n\
                claims:\n- {name: half, count: 4, memory: 40Gi, cores: 50}\n- {name: all, count: 2, whole: true}\n";
    let cluster = read(&files(&[text])).expect("understood");
    assert_eq!((cluster.nodes.len(), cluster.nodes[2].devices.len()), (3, 4));
    let plan = plan(
        &cluster,
        Options {
            seed: 3,
            try_others: true,
        },
    );
    assert_eq!((plan.asked, plan.devices), (6, 6));
    assert!(plan.placed >= 5);
}

#[test]
fn files_that_make_no_sense_are_refused_with_the_reason() {
    for (text, named) in [
        ("{", "EOF"),
        ("kind: [", "file"),
        ("metadata: {name: x}", "kind"),
        (
            "kind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name: r, exactly: {deviceClassName: lost}}]}}",
            "DeviceClass lost",
        ),
        (
            "kind: DeviceClass\nmetadata: {name: c}\nspec: {selectors: [{cel: {expression: 'device.'}}]}",
            "selector",
        ),
        (
            "kind: Node\nmetadata: {name: n}\nstatus: {allocatable: {cpu: many}}",
            "many",
        ),
        (
            "format: divvy/plan\nnodes: [{name: n, gpus: 8, memory: lots}]",
            "lots",
        ),
        (
            "format: divvy/plan2\nclaims: [{name: n}]",
            "write `format: divvy/plan`",
        ),
        (
            "format: divvy/plan\nclaims: [{name: n, count: 99999999999}]",
            "at most",
        ),
        ("format: divvy/plan\nclaims: [{name: n, devices: 33}]", "32"),
        (
            "format: divvy/plan\nclaims: [{name: n, whole: true, cores: 3}]",
            "whole",
        ),
        ("format: divvy/plan\nsurprise: 1", "surprise"),
    ] {
        let refused = read(&files(&[text])).expect_err(text);
        assert!(refused.contains(named), "{text}: {refused}");
    }
}

#[test]
fn quantities_and_lists_of_devices_are_read_in_json_and_in_yaml() {
    let node = r#"{"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": CPU, "memory": "2Gi"}}}"#;
    let of = |cpu: &str| {
        let cluster = read(&files(&[&node.replace("CPU", cpu)])).map(|cluster| cluster.nodes[0].cpu);
        let yaml = format!("# not JSON\n{}", node.replace("CPU", cpu));
        let again = read(&files(&[&yaml])).map(|cluster| cluster.nodes[0].cpu);
        assert_eq!(cluster.as_ref().ok(), again.as_ref().ok(), "{cpu}");
        cluster
    };
    for (text, thousandths) in [("4", 4000), ("0.5", 500), ("\"1500m\"", 1500)] {
        assert_eq!(of(text), Ok(thousandths), "{text}");
    }
    assert!(of("-1").is_err_and(|error| error.contains("-1")));
    assert!(of("[]").is_err_and(|error| error.contains("a quantity")));
    // A claim's `devices` is a map, a ResourceSlice's a list.
    for (kind, devices, refused) in [
        ("ResourceClaim", "[{name: gpu-0}]", "its `devices` is a list"),
        ("ResourceClaim", "7", "a list of devices, or requests for devices"),
    ] {
        let text = format!("kind: {kind}\nmetadata: {{name: c}}\nspec: {{devices: {devices}}}");
        let error = read(&files(&[&text])).expect_err(&text);
        assert!(error.contains(refused), "{text}: {error}");
    }
}

/// NodeResourcesFit: a name that no DeviceClass declares is the node's to count.
#[test]
fn extended_resources_are_what_nodes_have_of_them() {
    let node = |name: &str, allocatable: &str| {
        format!(
            "---\nkind: Node\nmetadata: {{name: {name}}}\nstatus: {{allocatable: {{pods: 110, {allocatable}}}}}\n"
        )
    };
    let pod = |name: &str, more: &str, limits: &str| {
        format!(
            "---\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{more} containers: [{{resources: {{limits: {{{limits}}}}}}}]}}\n"
        )
    };
    let of = |text: &str| {
        let cluster = read(&files(&[text])).expect("understood");
        let options = Options {
            seed: 1,
            try_others: false,
        };
        let plan = plan(&cluster, options);
        let waiting = plan.pending.iter();
        let waiting =
            waiting.flat_map(|one| one.examples.iter().map(|name| (name.clone(), one.reason.clone())));
        let waiting: Vec<String> = waiting
            .map(|(name, why)| format!("{}={why}", name.trim_start_matches("default/")))
            .collect();
        (plan.placed, waiting, plan.remarks.join("; "))
    };
    let two = node("a", "cpu: 8, nvidia.com/gpu: 2, ephemeral-storage: 10Gi") + &node("b", "cpu: 8");
    // One of the two GPUs is a running pod's; the other is free once.
    let asks = [
        pod("old", "nodeName: a,", "nvidia.com/gpu: 1"),
        pod("one", "", "nvidia.com/gpu: 1"),
        pod("late", "", "nvidia.com/gpu: 1"),
        pod("plain", "", "cpu: 1"),
        pod("large", "", "ephemeral-storage: 20Gi"),
        pod("nowhere", "nodeSelector: {zone: x},", "nvidia.com/gpu: 1"),
    ];
    let (placed, waiting, remarks) = of(&(two.clone() + &asks.concat()));
    assert_eq!(
        (placed, waiting),
        (
            2,
            vec![
                "late=resources".into(),
                "large=resources".into(),
                "nowhere=node".into()
            ]
        )
    );
    assert!(!remarks.contains("allocatable"), "{remarks}");
    // What containers ask for adds up; what comes first of an init container is the most of both.
    let many = "---\nkind: Pod\nmetadata: {name: many}\nspec: {containers: [{resources: {requests: {x/nic: 1}, limits: {x/nic: 1}}}, \
                {resources: {limits: {x/nic: 1}}}], initContainers: [{resources: {limits: {x/nic: INIT}}}]}\n";
    let nics = node("n", "x/nic: 3");
    assert_eq!(of(&(nics.clone() + &many.replace("INIT", "3"))).0, 1);
    assert_eq!(of(&(nics + &many.replace("INIT", "4"))).1, ["many=resources"]);
    // A name that is nowhere is said.
    let (placed, waiting, remarks) = of(&(two + &pod("odd", "", "nvidia.com/gpuu: 1")));
    assert_eq!((placed, waiting), (0, vec!["odd=resources".into()]));
    assert!(remarks.contains("no node has nvidia.com/gpuu"), "{remarks}");
    // A node that only its ResourceSlices tell of has nothing that could be compared.
    let (placed, _, remarks) =
        of(&(NODE.replace("kind: Node", "kind: Knot") + &pod("p", "", "nvidia.com/gpu: 1")));
    assert_eq!(placed, 1);
    assert!(remarks.contains("1 nodes are without"), "{remarks}");
}

#[test]
fn an_object_that_is_in_two_files_counts_once() {
    let claims = slice("a", "100Gi", 0) + &slice("b", "100Gi", 0);
    let cluster = read(&files(&[NODE, &claims, &slice("a", "1Gi", 0), NODE])).expect("understood");
    let options = Options {
        seed: 1,
        try_others: false,
    };
    let plan = plan(&cluster, options);
    assert_eq!((plan.nodes, plan.devices, plan.asked), (1, 2, 2));
    assert_eq!(
        plan.fragmentation.free_memory_bytes,
        78 << 30,
        "the first one counts"
    );
    let said = plan.remarks.join("; ");
    assert!(said.contains("ResourceClaim default/a is there twice"), "{said}");
    // The same name elsewhere is another claim.
    let other = slice("a", "1Gi", 0).replace("name: a", "name: a, namespace: other");
    let cluster = read(&files(&[NODE, &claims, &other])).expect("understood");
    assert_eq!(cluster.pods.len(), 3);
    let small = "format: divvy/plan\nnodes: [{name: n, gpus: 1, memory: 80Gi}]\nclaims: [{name: c}]";
    let refused = read(&files(&[small, "format: divvy/plan\nclaims: [{name: c}]"])).expect_err("twice");
    assert!(refused.contains("claims c"), "{refused}");
}

#[test]
fn files_of_nothing_and_files_of_too_much_are_refused_with_the_reason() {
    for empty in ["", " \n", "# nothing\n", "---\n---\n"] {
        let refused = read(&files(&[NODE, empty])).expect_err("nothing");
        assert!(refused.starts_with("file: it is empty"), "{empty:?}: {refused}");
    }
    for nothing in [
        "kind: List\nitems: []",
        "{\"kind\": \"List\", \"items\": []}",
        "format: divvy/plan",
    ] {
        let refused = read(&files(&[nothing])).expect_err("nothing");
        assert!(
            refused.contains("neither a node nor a claim"),
            "{nothing}: {refused}"
        );
    }
    let refused = read(&files(&["kind: Service\nmetadata: {name: s}"])).expect_err("nothing of ours");
    assert!(refused.contains("Service were passed over"), "{refused}");
    let many = format!(
        "kind: Node\nmetadata: {{name: n}}\nother: [{}]",
        "1,".repeat(250_001)
    );
    let documents = "kind: Node\nmetadata: {name: n}\n---\n".repeat(1100);
    let deep = format!(
        "kind: Node\nmetadata: {{name: n}}\nother: {}{}",
        "[".repeat(70),
        "]".repeat(70)
    );
    for large in [many, documents, deep] {
        let refused = read(&files(&[&large])).expect_err("too much");
        assert!(
            refused.contains("too large or too deep for YAML") && refused.contains("-o json"),
            "{refused}"
        );
    }
    // JSON has no such bounds but that of its depth, which no object comes near.
    let deep = format!(
        "{{\"kind\": \"List\", \"items\": {}",
        "[{\"items\": ".repeat(100_000)
    );
    let refused = read(&files(&[&deep])).expect_err("too deep");
    assert!(refused.contains("recursion limit"), "{refused}");
}

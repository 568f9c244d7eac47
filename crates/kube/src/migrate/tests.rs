use super::*;

const DEPLOYMENT: &str = "# our model server
apiVersion: apps/v1
kind: Deployment
metadata:
  name: serve  # the name
spec:
  template:
    metadata:
      labels: {app: serve}
    spec:
      # two containers
      containers:
      - name: main
        image: serve:1
        resources:
          limits:
            cpu: \"2\"
            nvidia.com/gpu: 1
            nvidia.com/gpumem: 4096   # MiB
            nvidia.com/gpucores: 30
      - name: side
        image: side:1
      # the end
      restartPolicy: Always
---
# left as it is
kind: Service
metadata: {name: serve}
";

#[test]
fn comments_stay_where_the_text_can_be_edited() {
    let done = migrate(DEPLOYMENT, &Terms::default(), Target::Claims).expect("kept");
    assert_eq!(done.rewritten, 1);
    for comment in [
        "# our model server",
        "# the name",
        "# two containers",
        "# the end",
        "# left as it is",
    ] {
        assert!(done.text.contains(comment), "{comment}: {}", done.text);
    }
    assert!(!done.text.contains("nvidia.com"), "{}", done.text);
    assert!(
        !done.remarks.iter().any(|remark| remark.contains("afresh")),
        "{:?}",
        done.remarks
    );
    let documents: Vec<Value> = serde_saphyr::from_multiple(&done.text).expect("YAML");
    assert_eq!(documents.len(), 3);
    let spec = &documents[0]["spec"]["template"]["spec"];
    assert_eq!(spec["containers"][0]["resources"]["limits"], json!({"cpu": "2"}));
    assert_eq!(
        spec["resourceClaims"][0]["resourceClaimTemplateName"],
        documents[2]["metadata"]["name"]
    );
    assert_eq!(documents[2]["kind"], "ResourceClaimTemplate");
    let again = migrate(&done.text, &Terms::default(), Target::Claims).expect("kept");
    assert_eq!(
        (again.rewritten, again.text),
        (0, done.text),
        "a second time changes nothing"
    );
}

#[test]
fn a_document_that_cannot_be_edited_is_written_afresh_and_that_is_said() {
    let flow = "# lost\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: {aliyun.com/gpu-mem: 3}}}]}\n";
    let done = migrate(flow, &Terms::default(), Target::Extender).expect("kept");
    assert!(
        done.remarks
            .iter()
            .any(|remark| remark.contains("without its comments")),
        "{:?}",
        done.remarks
    );
    let pod: Value = serde_saphyr::from_str(&done.text).expect("YAML");
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["limits"]["divvy.dev/gpumem"],
        "3072"
    );
}

#[test]
fn pods_are_found_whatever_they_lie_in() {
    let limits = json!({"limits": {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 8}});
    let pod = json!({"spec": {"containers": [{"name": "c", "resources": limits}]}});
    for object in [
        json!({"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": pod}}}}),
        json!({"kind": "List", "items": [pod, pod]}),
        json!({"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Worker": {"template": pod}}}}),
    ] {
        let done = migrate(&object.to_string(), &Terms::default(), Target::Claims).expect("kept");
        assert!(
            done.rewritten >= 1 && !done.text.contains("tencent"),
            "{}",
            done.text
        );
    }
}

#[test]
fn nvidias_replicas_become_slices() {
    let config = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 4\n";
    assert_eq!(replicas(config), Ok(4));
    for text in [
        "",
        "version: v1",
        "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}",
        "[",
    ] {
        assert!(replicas(text).is_err(), "{text}");
    }
    let done = migrate(config, &Terms::default(), Target::Claims).expect("read");
    assert!(done.remarks[0].contains("--plugin-config"), "{:?}", done.remarks);
    let pod = "kind: Pod\nspec:\n  containers:\n  - name: c\n    resources: {limits: {nvidia.com/gpu: 1}}\n";
    let terms = Terms {
        device_mib: Some(81_920),
        replicas: Some(4),
        ..Terms::default()
    };
    let done = migrate(pod, &terms, Target::Claims).expect("kept");
    assert!(done.text.contains("20480Mi"), "{}", done.text);
}

#[test]
fn what_cannot_be_kept_names_its_document() {
    let text = "kind: Service\n---\nkind: Pod\nmetadata: {name: pinned}\nspec: {nodeName: a, containers: [{resources: {limits: {nvidia.com/gpumem: 1}}}]}\n";
    let refused = migrate(text, &Terms::default(), Target::Claims).expect_err("pinned");
    assert!(refused.starts_with("document 2: Pod pinned:"), "{refused}");
    assert!(migrate("a: [", &Terms::default(), Target::Claims).is_err());
}

#[test]
fn a_quota_that_would_count_nothing_is_named() {
    let text = "kind: ResourceQuota\nmetadata: {name: q}\nspec:\n  hard:\n    requests.nvidia.com/gpumem: 1000\n    pods: 5\n";
    for (target, words) in [
        (Target::Claims, "deviceclass.resource.k8s.io/devices"),
        (Target::Extender, "requests.divvy.dev/gpumem"),
    ] {
        let done = migrate(text, &Terms::default(), target).expect("understood");
        assert_eq!((done.text.as_str(), done.rewritten), (text, 0));
        assert!(
            done.remarks.len() == 1
                && done.remarks[0].contains("ResourceQuota q: its limits of requests.nvidia.com/gpumem")
                && done.remarks[0].contains(words),
            "{:?}",
            done.remarks
        );
    }
    // As `kubectl get -o yaml` prints it.
    let list = "kind: List\nitems:\n- kind: ResourceQuota\n  metadata: {name: q}\n  spec: {hard: {requests.nvidia.com/gpumem: 1000}}\n";
    let done = migrate(list, &Terms::default(), Target::Claims).expect("understood");
    assert!(
        done.remarks.len() == 1
            && done.remarks[0].contains("ResourceQuota q: its limits of requests.nvidia.com/gpumem"),
        "{:?}",
        done.remarks
    );
    let ours = text.replace("nvidia.com/gpumem", "divvy.dev/gpumem");
    let done = migrate(&ours, &Terms::default(), Target::Claims).expect("understood");
    assert!(done.remarks.is_empty());
}

/// A pod finds templates of its own namespace only.
#[test]
fn templates_are_in_the_namespaces_of_their_pods() {
    let limits = json!({"limits": {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 8}});
    let pod = json!({"spec": {"containers": [{"name": "c", "resources": limits}]}});
    let job = |metadata| json!({"kind": "Job", "metadata": metadata, "spec": {"template": pod}});
    let all = json!({"kind": "List", "items": [
        job(json!({"name": "a", "namespace": "ml"})),
        job(json!({"name": "b", "namespace": "ml"})),
        job(json!({"name": "c", "namespace": "web"})),
        job(json!({"name": "d"})),
    ]});
    let done = migrate(&all.to_string(), &Terms::default(), Target::Claims).expect("rewritten");
    let documents = done.text.split("---\n").skip(1);
    let found: Vec<Value> = documents
        .map(|text| serde_saphyr::from_str::<Value>(text).expect("YAML")["metadata"]["namespace"].clone())
        .collect();
    assert_eq!(found, [json!("ml"), json!("web"), Value::Null]);
}

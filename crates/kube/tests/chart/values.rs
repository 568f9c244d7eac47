//! Values of the chart: each reaches the flag that it is for, and those that cannot are refused.

use serde_json::{Value, json};

use super::{nvidias_file, rendered, tried};

/// The object of a kind and a name.
fn named(objects: &[Value], kind: &str, name: &str) -> Value {
    let found = objects
        .iter()
        .find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("{kind} {name}")).clone()
}

/// The arguments of a container of the DaemonSet.
fn arguments(objects: &[Value], container: &str) -> Vec<String> {
    let node = named(objects, "DaemonSet", "divvy-node");
    let all = node["spec"]["template"]["spec"]["containers"].as_array();
    let mut all = all.expect("containers").iter();
    let found = all.find(|one| one["name"] == container);
    let words = found.and_then(|one| one["args"].as_array()).into_iter().flatten();
    words
        .map(|word| word.as_str().expect("a word").to_owned())
        .collect()
}

/// Those of a Deployment's first container.
fn of_deployment(objects: &[Value], name: &str) -> String {
    named(objects, "Deployment", name)["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
}

/// Whether these follow each other.
fn has(arguments: &[String], words: &[&str]) -> bool {
    arguments.windows(words.len()).any(|some| some == words)
}

#[test]
fn nvidias_file_reaches_the_device_plugin_or_is_refused() {
    let plugin = json!({"mode": "fallback", "extender": {"enabled": false}, "devices": ["GPU-1"],
        "devicePlugin": {"config": nvidias_file(), "allocation": "packed"}});
    let objects = rendered(&plugin);
    let words = arguments(&objects, "plugin");
    let flags = [
        "--allocation",
        "packed",
        "--config",
        "/config/config.yaml",
        "--device",
        "GPU-1",
    ];
    assert!(has(&words, &flags), "{words:?}");
    let map = named(&objects, "ConfigMap", "divvy-device-plugin");
    let text = map["data"]["config.yaml"].as_str().expect("text");
    // What the plugin reads is what was given.
    let read = divvy_kube::device_plugin::config::Config::read(text).expect("understood");
    assert_eq!(read.sharing.expect("shared").resources[0].replicas, 4);
    assert_eq!(serde_json::from_str::<Value>(text).expect("JSON"), nvidias_file());
    // Where it would not be read it is refused.
    for mut values in [json!({}), json!({"mode": "fallback"})] {
        values["devicePlugin"] = plugin["devicePlugin"].clone();
        let refused = tried(&values).expect_err("not read");
        assert!(refused.contains("extender.enabled=false"), "{refused}");
    }
}

#[test]
fn other_values_reach_their_flags() {
    let over = rendered(&json!({"overcommitCores": 150}));
    assert!(has(&arguments(&over, "plugin"), &["--overcommit-cores", "150"]));
    let plain = rendered(&json!({"mode": "fallback"}));
    let flags = ["--gpushare-mib", "--bare-gpu-is-slice", "--client-ca=/tls/ca.crt"];
    let before = of_deployment(&plain, "divvy-webhook");
    assert!(flags.iter().all(|flag| !before.contains(flag)), "{before}");
    let webhook = json!({"gpushareMib": true, "bareGpuIsSlice": true, "clientNames": ["apiserver"]});
    let all = rendered(&json!({"mode": "fallback", "webhook": webhook}));
    let after = of_deployment(&all, "divvy-webhook");
    assert!(flags.iter().all(|flag| after.contains(flag)), "{after}");
    assert!(after.contains("--client-name=apiserver"), "{after}");
    // Both count gpushare's memory alike.
    let extenders =
        [&plain, &all].map(|objects| of_deployment(objects, "divvy-extender").contains("--gpushare-mib"));
    assert_eq!(extenders, [false, true]);
}

/// Metrics are a container's of their own, which may do nothing else, and are reached from the addresses that were given.
#[test]
fn metrics_need_a_token_and_an_address() {
    let off = rendered(&json!({}));
    assert!(arguments(&off, "metrics").is_empty());
    assert!(!off.iter().any(|one| one["metadata"]["name"] == "divvy-metrics"));
    let other_port = json!({"mode": "fallback", "metrics": {"enabled": true, "port": 9500}});
    for values in [json!({"metrics": {"enabled": true}}), other_port] {
        let port = values["metrics"]["port"].as_i64().unwrap_or(9445);
        let objects = rendered(&values);
        let words = arguments(&objects, "metrics");
        let listen = format!("0.0.0.0:{port}");
        assert!(
            has(&words, &["--listen", &listen, "--token-file", "/token"]),
            "{words:?}"
        );
        let pod = named(&objects, "DaemonSet", "divvy-node")["spec"]["template"].clone();
        let containers = pod["spec"]["containers"].as_array().expect("containers");
        let container = containers
            .iter()
            .find(|one| one["name"] == "metrics")
            .expect("one");
        assert_eq!(
            container["ports"][0],
            json!({"name": "metrics", "containerPort": port})
        );
        let rights = &container["securityContext"];
        assert!(rights["privileged"].is_null() && rights["capabilities"]["drop"] == json!(["ALL"]));
        let mounts = container["volumeMounts"].as_array().expect("mounts");
        assert!(mounts.iter().all(|mount| mount["readOnly"] == true), "{mounts:?}");
        // A file of mode 0400, and no link as in the folder of a Secret.
        let token = mounts
            .iter()
            .find(|mount| mount["name"] == "token")
            .expect("a token");
        assert_eq!(token["subPath"], "token");
        let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
        let secret = volumes
            .iter()
            .find(|one| one["name"] == "token")
            .expect("a Secret");
        let expected = json!({"secretName": "divvy-metrics-token", "defaultMode": 0o400});
        assert_eq!(secret["secret"], expected);
        let service = named(&objects, "Service", "divvy-metrics");
        assert_eq!(service["spec"]["ports"][0]["port"], port);
        for (name, value) in service["spec"]["selector"].as_object().expect("a selector") {
            assert_eq!(&pod["metadata"]["labels"][name], value);
        }
        let policy = named(&objects, "NetworkPolicy", "divvy-node");
        assert_eq!(
            policy["spec"]["podSelector"]["matchLabels"],
            service["spec"]["selector"]
        );
        assert_eq!(policy["spec"]["ingress"], json!([]), "no address was given");
    }
    let open = rendered(&json!({"metrics": {"enabled": true, "scraperCIDRs": ["10.0.0.3/32"]}}));
    let policy = named(&open, "NetworkPolicy", "divvy-node");
    let from = json!([{"from": [{"ipBlock": {"cidr": "10.0.0.3/32"}}], "ports": [{"port": 9445}]}]);
    assert_eq!(policy["spec"]["ingress"], from);
}

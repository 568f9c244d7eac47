//! The files in examples/containers do what they say: their own commands are run, and their devices given to containers.

use std::path::Path;

use divvy_container::nri::{Container, Pod, asks};
use divvy_tests::containers::{Image, Podman};
use divvy_tests::host::{Host, finish, stderr, succeeded};
use serde_json::Value;

use crate::containers::image;

fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/containers");
    std::fs::read_to_string(folder.join(name)).expect("an example")
}

fn of_systemd(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd");
    std::fs::read_to_string(folder.join(name)).expect("a unit")
}

/// Runs what stands behind `divvy` in a line. Where it writes a CDI file it writes it for this podman.
fn does(host: &Host, podman: &Podman<'_>, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut divvy = host.divvy(words.iter().copied());
    if words.iter().take(2).any(|word| *word == "cdi") {
        divvy.arg("--directory").arg(podman.cdi());
    }
    let output = finish(&mut divvy);
    assert!(output.status.success(), "{line}: {}", stderr(&output));
}

/// A container with this device is in the slice that it names.
fn has(host: &Host, podman: &Podman<'_>, image: &Image, device: &str) {
    let (_, slice) = device
        .split_once("divvy.dev/slice=")
        .expect("a device of a slice's");
    assert!(host.slices().iter().any(|known| known.name == slice), "{slice}");
    let ran = finish(&mut podman.run(&["--device", device], image, &["/bin/sleep", "0"]));
    assert!(ran.status.success(), "{device}: {}", stderr(&ran));
}

#[test]
fn compose_gives_each_service_a_slice() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let text = file("compose.yaml");
    let makes = text.lines().filter_map(|line| line.strip_prefix("#     divvy "));
    makes.for_each(|line| does(&host, &podman, line));
    let parsed: Value = serde_saphyr::from_str(&text).expect("YAML");
    let services = parsed["services"].as_object().expect("services");
    assert_eq!(services.len(), host.slices().len());
    for (name, service) in services {
        for field in service.as_object().expect("fields").keys() {
            let known = ["image", "command", "devices", "restart"];
            assert!(known.contains(&field.as_str()), "{name}: {field}");
        }
        assert!(
            service["image"].is_string() && service["command"].is_string(),
            "{name}"
        );
        for device in service["devices"].as_array().expect("devices") {
            has(&host, &podman, &image, device.as_str().expect("a name"));
        }
    }
    let ends = text.split("after `down`: divvy ").nth(1).expect("a command");
    does(&host, &podman, ends.lines().next().expect("a line"));
    assert!(host.slices().is_empty());
}

/// The values of a field of a unit's section.
fn unit<'a>(text: &'a str, section: &str, field: &str) -> Vec<&'a str> {
    let begin = format!("[{section}]\n");
    let body = text.split(&begin).nth(1).unwrap_or_default();
    let lines = body.lines().take_while(|line| !line.starts_with('['));
    lines
        .filter_map(|line| line.split_once('='))
        .filter_map(|(name, value)| (name == field).then_some(value))
        .collect()
}

#[test]
fn quadlet_and_units_make_a_slice_give_it_and_end_it() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let (container, slice) = (file("trainer.container"), of_systemd("divvy-slice@.service"));
    let needs = unit(&container, "Unit", "Requires");
    assert_eq!(
        needs,
        unit(&container, "Unit", "After"),
        "made before it is given"
    );
    let instance = needs[0]
        .strip_prefix("divvy-slice@")
        .and_then(|rest| rest.strip_suffix(".service"))
        .expect("an instance of the other unit");
    let environment = unit(&slice, "Service", "EnvironmentFile")[0].replace("%i", instance);
    assert!(slice.contains(&environment), "the file is told of");
    let arguments = slice.split("ARGUMENTS=").nth(1).expect("an example of it");
    let arguments = arguments.lines().next().expect("a line");
    let command = |field: &str| {
        let line = unit(&slice, "Service", field)[0];
        let line = line.strip_prefix("/usr/bin/divvy ").expect("divvy's own path");
        line.replace("%i", instance).replace("$ARGUMENTS", arguments)
    };
    does(&host, &podman, &command("ExecStart"));
    for field in ["Image", "Exec"] {
        assert_eq!(unit(&container, "Container", field).len(), 1, "{field}");
    }
    has(
        &host,
        &podman,
        &image,
        unit(&container, "Container", "AddDevice")[0],
    );
    does(&host, &podman, &command("ExecStop"));
    assert!(host.slices().is_empty());

    let service = of_systemd("divvy-nri.service");
    let line = unit(&service, "Service", "ExecStart")[0];
    let line = line.strip_prefix("/usr/bin/divvy ").expect("divvy's own path");
    let words: Vec<&str> = line.split_whitespace().chain(["--help"]).collect();
    succeeded(&finish(&mut host.divvy(words.iter().copied())));
}

#[test]
fn the_pods_annotations_are_understood() {
    let parsed: Value = serde_saphyr::from_str(&file("pod.yaml")).expect("YAML");
    let annotations = parsed["metadata"]["annotations"]
        .as_object()
        .expect("annotations");
    let pod = Pod {
        annotations: annotations
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().expect("a text").to_owned()))
            .collect(),
        ..Pod::default()
    };
    let asked = |name: &str| {
        let container = Container {
            name: name.into(),
            ..Container::default()
        };
        let asks = asks(&pod, &container).expect("understood");
        let memory = asks.container.annotations.get("divvy.dev/memory").cloned();
        (asks.of_pod, memory)
    };
    let containers = parsed["spec"]["containers"].as_array().expect("containers");
    let names: Vec<&str> = containers
        .iter()
        .filter_map(|container| container["name"].as_str())
        .collect();
    assert_eq!(names, ["trainer", "monitor"]);
    assert_eq!(asked(names[0]), (false, Some("8GiB".into())));
    assert_eq!(asked(names[1]), (true, Some("4GiB".into())));
}

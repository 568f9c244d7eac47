//! Injects CDI devices into containers' configurations with the crate container-device-interface. It compares the
//! result with that of `divvy_container::oci::apply`, field by field. `cargo xtask oracle` calls it with the folder of
//! golden files, which the tests keep true. It reads all our CDI files, too, and reports which version carries each.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use container_device_interface::cache::{Cache, with_auto_refresh};
use container_device_interface::spec::parse_spec;
use container_device_interface::spec_dirs::with_spec_dirs;
use container_device_interface::version::minimum_required_version;
use oci_spec::runtime::Spec;
use serde_json::{Map, Value};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let golden = std::env::args_os().nth(1).ok_or("no folder was named")?;
    let (mut requests, mut differ) = (0, 0);
    for file in files(&Path::new(&golden).join("cdi"))? {
        let lowest = minimum_required_version(&parse_spec(&file)?)?.to_string();
        let spec: Value = serde_json::from_slice(&fs::read(&file)?)?;
        if spec["cdiVersion"] != lowest.as_str() {
            println!("{}: {lowest} carries it", file.display());
            differ += 1;
        }
    }
    for file in files(&Path::new(&golden).join("oci"))? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let case: Value = serde_json::from_slice(&fs::read(&file)?)?;
        for (devices, wrong) in compared(&case).map_err(|error| format!("{name}: {error}"))? {
            requests += 1;
            differ += usize::from(!wrong.is_empty());
            for line in &wrong {
                println!("{name}: {devices}: {line}");
            }
        }
    }
    println!("{requests} requests injected by container-device-interface 1.1.1: {differ} differences");
    match (requests, differ) {
        (0, _) => Err("there is nothing to compare".into()),
        (_, 0) => Ok(()),
        _ => Err("they differ".into()),
    }
}

fn files(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let mut files: Vec<_> = fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    Ok(files)
}

/// The differences of each request of a golden file.
fn compared(case: &Value) -> Outcome<Vec<(String, Vec<String>)>> {
    let folder = std::env::temp_dir().join(format!("divvy-oracle-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let file = folder.join("divvy.json");
    fs::write(&file, case["cdi"].to_string())?;
    let outcome = requests(case, &folder);
    fs::remove_dir_all(&folder)?;
    outcome
}

fn requests(case: &Value, folder: &Path) -> Outcome<Vec<(String, Vec<String>)>> {
    let mut cache = Cache::default();
    cache.configure(vec![
        with_spec_dirs(&[folder.to_str().ok_or("a path that is not UTF-8")?]),
        with_auto_refresh(false),
    ]);
    cache.refresh().map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for request in case["requests"].as_array().ok_or("no requests")? {
        let devices: Vec<String> = serde_json::from_value(request["devices"].clone())?;
        let mut spec: Spec = serde_json::from_value(case["before"].clone())?;
        cache.inject_devices(Some(&mut spec), devices.clone())?;
        let mut wrong = Vec::new();
        // Through its own reader and back, which leaves out what is empty.
        let ours: Spec = serde_json::from_value(request["after"].clone())?;
        let (ours, mut theirs) = (serde_json::to_value(ours)?, serde_json::to_value(spec)?);
        leave_to_the_runtime(&ours, &mut theirs);
        compare("", &ours, &theirs, &mut wrong);
        all.push((devices.join(" "), wrong));
    }
    Ok(all)
}

/// Settings that we write and the crate does not, and that are the same to runtimes. A node's mode and owner, where the
/// file does not give them: we write the host's, without which the runtime makes the node 0666 and root's. The type of
/// a mount that has the option `bind`.
fn leave_to_the_runtime(ours: &Value, theirs: &mut Value) {
    both(ours, theirs, "/linux/devices", |own, other| {
        for field in ["fileMode", "uid", "gid"] {
            if !other.contains_key(field) {
                other.insert(field.into(), own[field].clone());
            }
        }
    });
    both(ours, theirs, "/mounts", |own, other| {
        let options = other.get("options").and_then(Value::as_array);
        let binds = options.is_some_and(|options| options.iter().any(|option| option == "bind"));
        if binds && own["type"] == "bind" && !other.contains_key("type") {
            other.insert("type".into(), own["type"].clone());
        }
    });
}

fn both(ours: &Value, theirs: &mut Value, place: &str, repair: impl Fn(&Value, &mut Map<String, Value>)) {
    let own = ours.pointer(place).and_then(Value::as_array);
    let other = theirs.pointer_mut(place).and_then(Value::as_array_mut);
    for (own, other) in own.into_iter().flatten().zip(other.into_iter().flatten()) {
        if let Some(other) = other.as_object_mut() {
            repair(own, other);
        }
    }
}

/// All in its order, but variables by their names. The crate leaves an earlier variable before its own of the same
/// name, and the last one counts. Empty fields are left out.
fn compare(place: &str, ours: &Value, theirs: &Value, wrong: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(one), Value::Object(other)) => {
            let names = |map: &Map<String, Value>| map.keys().cloned().collect::<BTreeSet<_>>();
            for name in &names(one) | &names(other) {
                let of = |map: &Map<String, Value>| map.get(&name).cloned().unwrap_or_default();
                compare(&format!("{place}/{name}"), &of(one), &of(other), wrong);
            }
        }
        (Value::Array(one), Value::Array(other)) if place == "/process/env" => {
            if variables(one) != variables(other) {
                wrong.push(format!("{place}: ours {ours}, theirs {theirs}"));
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (at, (one, other)) in one.iter().zip(other).enumerate() {
                compare(&format!("{place}/{at}"), one, other, wrong);
            }
        }
        (Value::Array(one), Value::Null) if one.is_empty() => {}
        _ if ours == theirs => {}
        _ => wrong.push(format!("{place}: ours {ours}, theirs {theirs}")),
    }
}

fn variables(list: &[Value]) -> BTreeMap<&str, &str> {
    let lines = list.iter().filter_map(Value::as_str);
    lines
        .map(|line| line.split_once('=').unwrap_or((line, "")))
        .collect()
}

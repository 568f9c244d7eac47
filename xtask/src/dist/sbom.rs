//! The bill of materials: every crate of the shipped binaries, in CycloneDX 1.5 (cyclonedx.org), as JSON.
//!
//! It has no time and no serial number: the same tree gives the same bytes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::jobs::Project;

/// What cargo and the compiler say.
pub struct Sources<'a> {
    pub version: &'a str,
    /// The packages whose binaries are shipped.
    pub shipped: &'a [&'a str],
    /// `cargo tree` of what is linked: `name v1.2.3`.
    pub linked: &'a str,
    /// The same with what runs while building.
    pub built_with: &'a str,
    /// `cargo metadata`: licences and arrows.
    pub metadata: &'a str,
    /// Cargo.lock: checksums.
    pub lock: &'a str,
    /// `rustc --version`.
    pub compiler: &'a str,
    /// The package in pure Python, which is shipped too.
    pub python: &'a Project,
}

/// A package's name and version: in one build no two of the same come from different places.
type Key = (String, String);

/// The document's text.
pub fn write(sources: &Sources<'_>) -> anyhow::Result<String> {
    let linked = packages(sources.linked)?;
    let mut all = packages(sources.built_with)?;
    all.extend(linked.iter().cloned());
    let metadata: Value = serde_json::from_str(sources.metadata).context("cargo metadata prints no JSON")?;
    let mut described = BTreeMap::new();
    for package in list(&metadata, "/packages")? {
        described.insert(key(package)?, package);
    }
    let checksums = checksums(sources.lock)?;

    let mut components = vec![standard_library(sources.compiler)?];
    for key in &all {
        let package = described
            .get(key)
            .with_context(|| format!("cargo metadata knows no {} {}", key.0, key.1))?;
        let scope = if linked.contains(key) {
            "required"
        } else {
            "excluded"
        };
        components.push(component(key, package, checksums.get(key), scope)?);
    }
    components.push(python(sources.python));
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "cargo xtask dist", "version": sources.version}]},
            "component": {
                "type": "application",
                "bom-ref": "divvy",
                "name": "divvy",
                "version": sources.version,
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": components,
        "dependencies": arrows(sources.shipped, &metadata, &all)?,
    });
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

/// The lines of `cargo tree`: `name v1.2.3 (proc-macro)`, `name v1.2.3 (/path) (*)`.
fn packages(tree: &str) -> anyhow::Result<BTreeSet<Key>> {
    let mut found = BTreeSet::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        match (words.next(), words.next().and_then(|word| word.strip_prefix('v'))) {
            (Some(name), Some(version)) => found.insert((name.to_owned(), version.to_owned())),
            _ => bail!("cargo tree prints `{line}`"),
        };
    }
    Ok(found)
}

/// The checksums in Cargo.lock; ours have none.
fn checksums(lock: &str) -> anyhow::Result<BTreeMap<Key, String>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock cannot be read")?;
    let mut found = BTreeMap::new();
    let packages = lock.get("package").and_then(toml::Value::as_array);
    for package in packages.context("Cargo.lock has no packages")? {
        let word = |key: &str| package.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        let (Some(name), Some(version)) = (word("name"), word("version")) else {
            bail!("Cargo.lock has a package without a name or version");
        };
        if let Some(checksum) = word("checksum") {
            found.insert((name, version), checksum);
        }
    }
    Ok(found)
}

fn component(key: &Key, package: &Value, checksum: Option<&String>, scope: &str) -> anyhow::Result<Value> {
    let (name, version) = key;
    let Some(license) = package["license"].as_str() else {
        bail!("{name} {version} names no licence");
    };
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(key),
        "name": name,
        "version": version,
        "scope": scope,
        // Old manifests write a slash for it.
        "licenses": [{"expression": license.replace(" / ", " OR ").replace('/', " OR ")}],
    });
    // A crate in no registry must not be taken for one of the same name that is.
    match (package["source"].as_str(), checksum) {
        (None, None) => {}
        (Some(source), Some(checksum)) if source.starts_with("registry+") => {
            component["purl"] = format!("pkg:cargo/{name}@{}", version.replace('+', "%2B")).into();
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        _ => bail!("{name} {version} has a source without a checksum in Cargo.lock"),
    }
    Ok(component)
}

/// Rust's own library, which is linked into everything and stands in no lock file.
fn standard_library(compiler: &str) -> anyhow::Result<Value> {
    let version = compiler.split(' ').nth(1).context("rustc prints no version")?;
    Ok(json!({
        "type": "library",
        "bom-ref": "std",
        "name": "std",
        "version": version,
        "scope": "required",
        "description": format!("Rust's standard library, of {}", compiler.trim()),
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }))
}

/// The package in pure Python, by the name that programs import: a crate of ours is called `divvy-jobs` too. It stands in no
/// registry, and what its extras name is the user's own choice.
fn python(project: &Project) -> Value {
    let name = project.name.replace('-', "_");
    json!({
        "type": "library",
        "bom-ref": format!("python/{name}@{}", project.version),
        "name": name,
        "version": project.version,
        "scope": "required",
        "licenses": [{"expression": project.license}],
    })
}

/// Which package needs which, among `all`; tests' needs left out.
fn arrows(shipped: &[&str], metadata: &Value, all: &BTreeSet<Key>) -> anyhow::Result<Vec<Value>> {
    let mut of_id = BTreeMap::new();
    for package in list(metadata, "/packages")? {
        let key = key(package)?;
        if all.contains(&key) {
            of_id.insert(package["id"].as_str().unwrap_or_default(), key);
        }
    }
    let mut arrows = BTreeMap::new();
    for node in list(metadata, "/resolve/nodes")? {
        let Some(from) = of_id.get(node["id"].as_str().unwrap_or_default()) else {
            continue;
        };
        let mut to = BTreeSet::from(["std".to_owned()]);
        for dependency in list(node, "/deps")? {
            let needed = list(dependency, "/dep_kinds")?
                .iter()
                .any(|kind| kind["kind"] != "dev");
            if let (true, Some(key)) = (needed, of_id.get(dependency["pkg"].as_str().unwrap_or_default())) {
                to.insert(reference(key));
            }
        }
        arrows.insert(reference(from), to);
    }
    let roots = all.iter().filter(|(name, _)| shipped.contains(&name.as_str()));
    // The whole has the same name as the command's package.
    let whole = json!({"ref": "divvy", "dependsOn": roots.map(reference).collect::<Vec<_>>()});
    let rest = arrows
        .iter()
        .map(|(from, to)| json!({"ref": from, "dependsOn": to}));
    Ok(std::iter::once(whole).chain(rest).collect())
}

fn reference((name, version): &Key) -> String {
    format!("{name}@{version}")
}

fn key(package: &Value) -> anyhow::Result<Key> {
    let word = |key: &str| package[key].as_str().map(str::to_owned);
    word("name")
        .zip(word("version"))
        .context("cargo metadata has a package without a name or version")
}

fn list<'a>(value: &'a Value, pointer: &str) -> anyhow::Result<&'a Vec<Value>> {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .with_context(|| format!("cargo metadata has no {pointer}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{
        "packages": [
            {"name": "ours", "version": "0.1.0", "id": "o", "license": "Apache-2.0", "source": null},
            {"name": "linked", "version": "1.0.0+2", "id": "l", "license": "MIT/Apache-2.0", "source": "registry+x"},
            {"name": "macro", "version": "2.0.0", "id": "m", "license": "MIT", "source": "registry+x"},
            {"name": "tests", "version": "3.0.0", "id": "t", "license": "MIT", "source": "registry+x"}],
        "resolve": {"nodes": [
            {"id": "o", "deps": [
                {"pkg": "l", "dep_kinds": [{"kind": null}, {"kind": "dev"}]},
                {"pkg": "m", "dep_kinds": [{"kind": "build"}]},
                {"pkg": "t", "dep_kinds": [{"kind": "dev"}]}]},
            {"id": "l", "deps": []}, {"id": "m", "deps": []}, {"id": "t", "deps": []}]}}"#;
    const LOCK: &str = "[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n\
        [[package]]\nname = \"linked\"\nversion = \"1.0.0+2\"\nchecksum = \"aa\"\n\
        [[package]]\nname = \"macro\"\nversion = \"2.0.0\"\nchecksum = \"bb\"\n";

    fn sources(lock: &'static str) -> Sources<'static> {
        Sources {
            version: "0.1.0",
            shipped: &["ours"],
            linked: "ours v0.1.0 (/somewhere)\nlinked v1.0.0+2\n\nlinked v1.0.0+2 (*)\n",
            built_with: "ours v0.1.0 (/somewhere)\nmacro v2.0.0 (proc-macro)\nlinked v1.0.0+2\n",
            metadata: METADATA,
            lock,
            compiler: "rustc 1.95.0 (5980 2026-04-14)\n",
            python: Box::leak(Box::new(
                Project::read(env!("CARGO_PKG_VERSION")).expect("it is read"),
            )),
        }
    }

    #[test]
    fn each_crate_is_named_once_with_what_is_known_of_it() {
        let bill: Value = serde_json::from_str(&write(&sources(LOCK)).expect("a bill")).expect("JSON");
        let shown: Vec<_> = bill["components"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| {
                [
                    &one["bom-ref"],
                    &one["scope"],
                    &one["purl"],
                    &one["licenses"][0]["expression"],
                ]
            })
            .collect();
        let (null, word) = (Value::Null, |word: &str| Value::from(word));
        assert_eq!(
            shown,
            [
                [&word("std"), &word("required"), &null, &word("MIT OR Apache-2.0")],
                [
                    &word("linked@1.0.0+2"),
                    &word("required"),
                    &word("pkg:cargo/linked@1.0.0%2B2"),
                    &word("MIT OR Apache-2.0")
                ],
                [
                    &word("macro@2.0.0"),
                    &word("excluded"),
                    &word("pkg:cargo/macro@2.0.0"),
                    &word("MIT")
                ],
                [&word("ours@0.1.0"), &word("required"), &null, &word("Apache-2.0")],
                [
                    &format!("python/divvy_jobs@{}", env!("CARGO_PKG_VERSION")).into(),
                    &word("required"),
                    &null,
                    &word("Apache-2.0")
                ],
            ]
        );
        assert_eq!(
            bill["dependencies"][3],
            json!({"ref": "ours@0.1.0", "dependsOn": ["linked@1.0.0+2", "macro@2.0.0", "std"]})
        );
        assert_eq!(
            bill["dependencies"][0],
            json!({"ref": "divvy", "dependsOn": ["ours@0.1.0"]})
        );
    }

    #[test]
    fn a_crate_without_a_checksum_is_an_error() {
        let lock = LOCK.replace("checksum = \"bb\"\n", "");
        let error = write(&sources(lock.leak())).expect_err("macro has none");
        assert!(error.to_string().contains("macro 2.0.0"), "{error:#}");
    }
}

//! OCI bundles as an engine would make them, for scenarios that call the runtime wrapper themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::clients::on_path;
use crate::containers::{Image, in_namespace, wrapper};
use crate::host::{Host, finish, succeeded};

/// A folder with a configuration, and the wrapper to run it.
pub struct Bundle<'a> {
    host: &'a Host,
    folder: PathBuf,
    wrapper: PathBuf,
    state: PathBuf,
    runtime: String,
}

impl<'a> Bundle<'a> {
    /// A bundle of this image whose container runs `program`, with these annotations, under the wrapper over `runtime`;
    /// nothing where runc is not installed and need not be.
    pub fn new(
        host: &'a Host,
        image: &Image,
        program: &[&str],
        annotations: &[(&str, &str)],
        runtime: &str,
    ) -> Option<Self> {
        on_path("runc", "runc (cargo xtask setup)")?;
        let folder = host.folder().join("bundle");
        fs::create_dir_all(&folder).expect("a folder");
        let _former = fs::remove_file(folder.join("config.json"));
        succeeded(&finish(host.command("runc").current_dir(&folder).arg("spec")));
        let bundle = Self {
            host,
            wrapper: wrapper(host, &folder, &[], runtime),
            state: host.folder().join("state"),
            runtime: runtime.into(),
            folder,
        };
        let annotations: serde_json::Map<String, Value> = annotations
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        bundle.change(|config| {
            config["process"]["terminal"] = json!(false);
            config["process"]["args"] = json!(program);
            config["root"] = json!({"path": image.root(), "readonly": false});
            config["annotations"] = Value::Object(annotations);
        });
        Some(bundle)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Changes its configuration.
    pub fn change(&self, change: impl FnOnce(&mut Value)) {
        let file = self.folder.join("config.json");
        let text = fs::read(&file).expect("a configuration");
        let mut config = serde_json::from_slice(&text).expect("JSON");
        change(&mut config);
        fs::write(&file, config.to_string()).expect("written");
    }

    /// The wrapper with these words, as an engine calls it.
    pub fn call(&self, words: &[&str]) -> Command {
        let mut command = in_namespace(self.host, &self.runtime, "true");
        command
            .arg(&self.wrapper)
            .arg("--root")
            .arg(&self.state)
            .args(words);
        command
    }

    /// Runs the container to its end.
    pub fn run(&self, id: &str) -> Command {
        let mut command = self.call(&["run", "--bundle"]);
        command.arg(&self.folder).arg(id);
        command
    }
}

//! `cargo xtask schemas`: writes docs/schema, a JSON schema for each kind of document that `-o json` prints.
//!
//! Read from the sources: the records are plain structs that serde serialises as they stand, so what they say is what is
//! printed, and their comments are the descriptions.

mod sources;
mod types;

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};

use crate::cargo::workspace_root;
use sources::Sources;

/// Arguments of `cargo xtask schemas`.
#[derive(clap::Args)]
pub struct Args {
    /// Write nothing; fail if a schema is not up to date
    #[arg(long)]
    pub check: bool,
}

/// What a kind of document is made of: a record's own fields, or `items` of them.
enum Body {
    /// The fields of a record, by the file it is in and its name there; with its function where it is inside one.
    Of(&'static str, &'static str),
    /// A list of records.
    List(&'static str, &'static str),
    /// A record for itself, without kind and version: a line of a stream.
    Line(&'static str, &'static str),
}

use Body::{Line, List, Of};

const API: &str = "crates/agent/src/api.rs";
const SLICE: &str = "crates/model/src/slice.rs";

/// Every kind.
const KINDS: &[(&str, Body)] = &[
    ("AdviceList", List("crates/divvy/src/verbs/advise.rs", "Advice")),
    ("AgentStatus", Of(API, "Status")),
    (
        "CdiDeviceList",
        List("crates/divvy/src/verbs/container/cdi/look.rs", "Listed"),
    ),
    (
        "CdiFileList",
        List("crates/divvy/src/verbs/container/cdi/generate.rs", "Written"),
    ),
    (
        "CdiFindingList",
        List("crates/divvy/src/verbs/container/cdi/look.rs", "Finding"),
    ),
    (
        "CdiSlice",
        Of("crates/divvy/src/verbs/container/cdi/slice.rs", "Made"),
    ),
    (
        "CheckReport",
        Of("crates/divvy/src/verbs/emulate/report.rs", "CheckReport"),
    ),
    ("Code", Of("crates/divvy/src/verbs/explain/mod.rs", "Entry")),
    ("CodeList", List("crates/divvy/src/verbs/explain/mod.rs", "Entry")),
    (
        "ComputeList",
        List("crates/agent/src/api/compute.rs", "ComputeRecord"),
    ),
    ("ConfigList", List("crates/divvy/src/config.rs", "Value")),
    ("DeviceList", List("crates/model/src/device.rs", "DeviceRecord")),
    (
        "DoctorReport",
        List("crates/divvy/src/verbs/doctor/mod.rs", "Check"),
    ),
    (
        "EngineConfiguration",
        Of(
            "crates/divvy/src/verbs/container/runtime.rs",
            "EngineConfiguration",
        ),
    ),
    ("Environment", Of("crates/divvy/src/verbs/run.rs", "Observation")),
    ("Error", Of("crates/model/src/fault.rs", "Fault")),
    ("Event", Line("crates/agent/src/api/events.rs", "EventRecord")),
    (
        "HistoryList",
        List("crates/agent/src/api/history.rs", "HistoryRecord"),
    ),
    (
        "IsolationList",
        List("crates/divvy/src/verbs/explain/isolation.rs", "Entry"),
    ),
    ("K8sPlan", Of("crates/placement/src/plan.rs", "Plan")),
    (
        "KernelProfile",
        Of("crates/divvy/src/verbs/emulate/profile.rs", "KernelProfile"),
    ),
    ("KitReport", Line("crates/kit/src/report.rs", "Report")),
    ("Killed", Of(API, "Killed")),
    (
        "MigChanges",
        Of("crates/divvy/src/verbs/gpu/mig.rs", "perform::Body"),
    ),
    (
        "MigDeviceList",
        Of("crates/divvy/src/verbs/gpu/mig.rs", "list::Body"),
    ),
    ("MigPlan", Of("crates/divvy/src/verbs/gpu/mig.rs", "plan::Body")),
    (
        "NovaMistakeList",
        List("crates/vm/src/openstack/check.rs", "Mistake"),
    ),
    ("MpsStatus", Of("crates/divvy/src/verbs/gpu/mps.rs", "Status")),
    (
        "PartitionList",
        List("crates/divvy/src/verbs/gpu/partition.rs", "Item"),
    ),
    (
        "PodSliceList",
        List("crates/divvy/src/verbs/k8s/top.rs", "PodSlice"),
    ),
    ("RunPlan", Of("crates/divvy/src/verbs/run.rs", "show::Shown")),
    (
        "SharingModeList",
        List("crates/divvy/src/verbs/explain/sharing.rs", "Entry"),
    ),
    ("Slice", Of(SLICE, "SliceRecord")),
    ("SliceList", Of(API, "SliceItems")),
    (
        "Topology",
        List("crates/divvy/src/verbs/gpu/topology.rs", "Place"),
    ),
    (
        "TraceSummary",
        Of("crates/divvy/src/verbs/emulate/trace/summary.rs", "Summary"),
    ),
    ("Usage", Of("crates/divvy/src/verbs/top/picture.rs", "Picture")),
    ("VgpuList", Of("crates/divvy/src/verbs/gpu/vgpu.rs", "Body")),
    (
        "VisibleDevices",
        Of("crates/divvy/src/verbs/environment.rs", "Shown"),
    ),
    ("VmGroupList", List("crates/vm/src/status.rs", "GroupStatus")),
    ("VmPlan", Of("crates/vm/src/prepare/plan.rs", "Plan")),
    ("VmReport", Of("crates/divvy/src/verbs/vm/doctor.rs", "Body")),
];

/// Fields that a kind does not always have although the record does: `divvy slice list` knows of slices only.
const NOT_ALWAYS: &[(&str, &str)] = &[("SliceList", "unmanaged")];

/// Where the records are.
const ROOMS: &[&str] = &[
    "crates/model/src",
    "crates/agent/src",
    "crates/host/src",
    "crates/container/src",
    "crates/vm/src",
    "crates/divvy/src",
];

/// Writes the schemas, or compares them.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let sources = Sources::read(workspace_root(), ROOMS)?;
    // Their records have names of their own, which others use for other things.
    let kit = Sources::read(workspace_root(), &["crates/kit/src"])?;
    let placement = Sources::read(workspace_root(), &["crates/placement/src"])?;
    let folder = workspace_root().join("docs/schema");
    for (kind, body) in KINDS {
        let sources = match *kind {
            "KitReport" => &kit,
            "K8sPlan" => &placement,
            _ => &sources,
        };
        let schema = serde_json::to_string_pretty(&schema(sources, kind, body)?)? + "\n";
        write(&folder.join(format!("{kind}.json")), &schema, args.check)?;
    }
    let there = std::fs::read_dir(&folder)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    for name in there.filter(|name| name.ends_with(".json")) {
        if !KINDS.iter().any(|(kind, _)| name == format!("{kind}.json")) {
            bail!("docs/schema/{name} is of no kind that is printed: remove it");
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str, check: bool) -> anyhow::Result<()> {
    if check {
        if std::fs::read_to_string(path).ok().as_deref() != Some(text) {
            bail!("{} is not up to date: run `cargo xtask schemas`", path.display());
        }
        return Ok(());
    }
    std::fs::create_dir_all(path.parent().context("A schema lies in a folder")?)?;
    std::fs::write(path, text).with_context(|| format!("Cannot write {}", path.display()))
}

/// The schema of a kind.
fn schema(sources: &Sources, kind: &str, body: &Body) -> anyhow::Result<Value> {
    let mut definitions = types::Definitions::over(sources);
    let mut object = match body {
        Of(file, name) | Line(file, name) => definitions.root(file, name)?,
        List(file, name) => {
            let items = definitions.reference(file, name)?;
            json!({
                "type": "object",
                "properties": { "items": { "type": "array", "items": items } },
                "required": ["items"],
                "additionalProperties": false,
            })
        }
    };
    if !matches!(body, Line(..)) {
        let fields = object["properties"]
            .as_object_mut()
            .context("A document has fields")?;
        fields.insert("apiVersion".into(), json!({ "const": "divvy/v1" }));
        fields.insert("kind".into(), json!({ "const": kind }));
        let required = object["required"]
            .as_array_mut()
            .context("and says which it always has")?;
        required.retain(|field| !NOT_ALWAYS.iter().any(|(of, name)| of == &kind && field == name));
        required.extend([json!("apiVersion"), json!("kind")]);
    }
    let mut whole = Map::new();
    whole.insert(
        "$schema".into(),
        json!("https://json-schema.org/draft/2020-12/schema"),
    );
    whole.insert("title".into(), json!(kind));
    whole.extend(object.as_object().cloned().unwrap_or_default());
    let definitions = definitions.into_map();
    if !definitions.is_empty() {
        whole.insert("$defs".into(), Value::Object(definitions));
    }
    Ok(Value::Object(whole))
}

//! `divvy container cdi list` and `divvy container cdi validate`.

use std::path::PathBuf;

use divvy_container::cdi::{self, Finding, Level};
use divvy_model::Fault;
use serde::Serialize;

use super::directories::{directories, read_all};
use crate::context::Context;
use crate::output::{self, Format};
use crate::table::Table;

/// Flags of both.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Look in this directory; several may be named, of which a later one counts more [default: /etc/cdi, /var/run/cdi]
    #[arg(long, value_name = "DIR")]
    directory: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    file: PathBuf,
    version: String,
    state: &'static str,
}

/// Lists the devices.
pub fn list(args: &Args, context: &Context) -> Result<u8, Fault> {
    let found = read_all(&directories(&args.directory))?;
    let findings = cdi::validate(&found);
    let mut devices = Vec::new();
    for file in &found {
        let Ok(spec) = &file.spec else { continue };
        for device in &spec.devices {
            let name = format!("{}={}", spec.kind, device.name);
            let about = |finding: &&Finding| {
                finding.file == file.path && finding.device.as_ref().is_none_or(|device| *device == name)
            };
            let worst = findings.iter().filter(about).map(|finding| finding.level).max();
            devices.push(Listed {
                file: file.path.clone(),
                version: spec.cdi_version.clone(),
                state: match worst {
                    None => "ok",
                    Some(Level::Warning) => "warning",
                    Some(Level::Error) => "error",
                },
                name,
            });
        }
    }
    let table = |devices: &[Listed], _| {
        let mut table = Table::new(vec![
            ("DEVICE", false),
            ("STATE", false),
            ("VERSION", true),
            ("FILE", false),
        ]);
        for device in devices {
            table.row(vec![
                device.name.clone(),
                device.state.into(),
                device.version.clone(),
                device.file.display().to_string(),
            ]);
        }
        table
    };
    output::list(
        context.format,
        "CdiDeviceList",
        devices,
        |device| &device.name,
        table,
    )?;
    Ok(0)
}

/// Says what is wrong.
pub fn validate(args: &Args, context: &Context) -> Result<u8, Fault> {
    let directories = directories(&args.directory);
    let found = read_all(&directories)?;
    let findings = cdi::validate(&found);
    let failed = findings.iter().any(|finding| finding.level == Level::Error);
    match context.format {
        Format::Table | Format::Wide => {
            let mut text = String::new();
            for finding in &findings {
                let level = match finding.level {
                    Level::Warning => "warning",
                    Level::Error => "error",
                };
                let device = finding
                    .device
                    .as_ref()
                    .map_or(String::new(), |device| format!(" {device}:"));
                text.push_str(&format!(
                    "{level}: {}:{device} {}\n",
                    finding.file.display(),
                    finding.problem
                ));
                if let Some(hint) = &finding.hint {
                    text.push_str(&format!("  hint: {hint}\n"));
                }
            }
            if findings.is_empty() {
                let names: Vec<_> = directories
                    .iter()
                    .map(|folder| folder.display().to_string())
                    .collect();
                text = format!(
                    "{} files in {}: nothing is wrong\n",
                    found.len(),
                    names.join(" and ")
                );
            }
            output::print(&text)?;
        }
        format => {
            let name = |finding: &Finding| finding.file.display().to_string();
            let names: Vec<String> = findings.iter().map(name).collect();
            if format == Format::Name {
                output::print(&names.join("\n"))?;
            } else {
                #[derive(Serialize)]
                struct Items {
                    items: Vec<Finding>,
                }
                output::document(format, "CdiFindingList", Items { items: findings })?;
            }
        }
    }
    Ok(u8::from(failed))
}

//! The directories that engines read CDI files from.

use std::path::PathBuf;

use divvy_container::cdi;
use divvy_model::{Code, Fault};

/// A list of driver capabilities, as `compute,utility`.
pub(super) fn capabilities(text: &str) -> Result<cdi::Capabilities, Fault> {
    text.parse()
}

/// The directories that engines read, or those named instead.
pub(super) fn directories(named: &[PathBuf]) -> Vec<PathBuf> {
    match named {
        [] => cdi::STANDARD.iter().map(PathBuf::from).collect(),
        named => named.to_vec(),
    }
}

/// All files of these directories.
pub(super) fn read_all(directories: &[PathBuf]) -> Result<Vec<cdi::Found>, Fault> {
    cdi::read_all(directories).map_err(|(directory, error)| {
        Fault::new(
            Code::CdiDirectory,
            format!("cannot read the CDI directory `{}`", directory.display()),
        )
        .because(&error)
    })
}

/// Refuses to write what another file in the same directory claims: then an engine would give out neither.
pub(super) fn check_free(directory: &std::path::Path, file: &str, spec: &cdi::Spec) -> Result<(), Fault> {
    for found in read_all(&[directory.to_owned()])? {
        let Ok(other) = &found.spec else { continue };
        if found.path.file_name().is_some_and(|name| name == file) || other.kind != spec.kind {
            continue;
        }
        let taken = |device: &&cdi::Device| other.devices.iter().any(|theirs| theirs.name == device.name);
        if let Some(device) = spec.devices.iter().find(taken) {
            return Err(Fault::new(
                Code::CdiName,
                format!("{}={} is taken", spec.kind, device.name),
            )
            .cause(format!("`{}` claims it", found.path.display()))
            .hint(
                "an engine gives a name that two files claim to no container: remove that file, or choose another name with \
                 --kind for devices or --name for a slice",
            ));
        }
    }
    Ok(())
}

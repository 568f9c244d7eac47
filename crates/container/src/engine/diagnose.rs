//! Why an engine that failed did not give out a slice. Asked afterwards only: what works costs nothing.

use std::path::Path;
use std::process::{Command, Stdio};

use divvy_model::{Code, Fault};

use super::Engine;
use crate::cdi::{self, Level};

/// The first podman with CDI in `--device`.
const PODMAN: (u32, u32) = (4, 1);
/// The first docker whose daemon has CDI.
const DOCKER: (u32, u32) = (25, 0);

/// What is wrong with the engine or with the slice's CDI file in `directory`, if we can tell.
#[must_use]
pub fn diagnose(engine: Engine, program: &Path, file: &Path) -> Option<Fault> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    let directories: Vec<_> = cdi::STANDARD
        .iter()
        .map(Into::into)
        .filter(|standard| standard != directory)
        .chain([directory.to_owned()])
        .collect();
    let found = cdi::read_all(&directories).unwrap_or_default();
    let wrong = cdi::validate(&found)
        .into_iter()
        .find(|finding| finding.file == file && finding.level == Level::Error);
    if let Some(finding) = wrong {
        let fault = Fault::new(Code::CdiName, "the slice cannot be given to the container").cause(format!(
            "{}: {}",
            finding.file.display(),
            finding.problem
        ));
        return Some(match finding.hint {
            Some(hint) => fault.hint(hint),
            None => fault,
        });
    }
    let old = |text: String, least: (u32, u32)| {
        Fault::new(
            Code::EngineOld,
            format!("this {} gives out no CDI devices", engine.name()),
        )
        .cause(text)
        .hint(format!(
            "use {} {}.{} or later, or the runtime wrapper: `divvy container runtime configure --engine {}`",
            engine.name(),
            least.0,
            least.1,
            engine.name()
        ))
    };
    match engine {
        Engine::Podman => {
            let text = said(program, &["--version"])?;
            let version = version(&text)?;
            (version < PODMAN).then(|| old(format!("it is `{}`", text.trim()), PODMAN))
        }
        Engine::Docker => {
            let server = said(program, &["version", "--format", "{{.Server.Version}}"])?;
            if version(&server).is_some_and(|version| version < DOCKER) {
                return Some(old(format!("its daemon is {}", server.trim()), DOCKER));
            }
            let folders = said(program, &["info", "--format", "{{json .CDISpecDirs}}"])?;
            let none = matches!(folders.trim(), "null" | "[]");
            none.then(|| old("its daemon has CDI turned off".into(), DOCKER))
        }
    }
}

fn said(program: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first two numbers of a version: `podman version 4.3.1`, `28.2.2`, `20.10.24+dfsg1`.
#[must_use]
pub fn version(text: &str) -> Option<(u32, u32)> {
    let word = text
        .split_whitespace()
        .map(|word| word.trim_start_matches('v'))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut numbers = word.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_engines_print_them() {
        for (text, expected) in [
            ("podman version 4.3.1\n", Some((4, 3))),
            ("podman version 5.0.0-dev", Some((5, 0))),
            ("28.2.2", Some((28, 2))),
            ("20.10.24+dfsg1", Some((20, 10))),
            ("v1.7", Some((1, 7))),
            ("", None),
            ("podman", None),
        ] {
            assert_eq!(version(text), expected, "{text}");
        }
        assert!(version("podman version 3.4.4") < Some(PODMAN));
    }
}

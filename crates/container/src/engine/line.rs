//! An engine's command line, taken apart: our flags, the engine's flags, and the place of the image.
//!
//! Ours stand before the image, among the engine's own or not; `--` ends ours. Everything else goes to the engine as it
//! came. Two names are both ours and the engine's. `--memory` is the slice's: the engine's own has the letter `-m`, or
//! stands behind `--`. `--device` is told by its value: the engine's are paths and CDI names, with `/` or `=` in them.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use divvy_model::{Code, Fault};

use super::flags::{stands_alone, stands_alone_before, wants_next};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The engine's flags before `run`.
    pub globals: Vec<OsString>,
    /// Our flags, with their values.
    pub ours: Vec<OsString>,
    /// The engine's flags of `run`.
    pub flags: Vec<OsString>,
    /// The image, and what is run in it.
    pub rest: Vec<OsString>,
    /// What we need of the engine's flags.
    pub seen: Seen,
}

/// What the engine's flags say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The container's name.
    pub name: Option<String>,
    /// The file into which the engine writes the container's id.
    pub id_file: Option<PathBuf>,
    /// Whether the engine leaves the container running and returns.
    pub detached: bool,
    /// When the engine starts the container again.
    pub restart: Option<String>,
    /// Whether the engine removes the container when it has ended.
    pub removed: bool,
    /// Devices that are not ours.
    pub devices: Vec<String>,
    /// Rules that let the container at devices by their numbers.
    pub device_rules: Vec<String>,
    /// What is mounted from the host: the source, and where the container has it.
    pub mounts: Vec<(String, String)>,
    /// Whether the container of this name goes first, if there is one.
    pub replaces: bool,
    /// Whether the container is in no cgroup, which knows its devices.
    pub no_cgroups: bool,
    /// Whether docker is asked for whole GPUs.
    pub gpus: bool,
    /// Whether the container gets every device.
    pub privileged: bool,
    /// The runtime below the engine.
    pub runtime: Option<String>,
    /// Whether the image is a folder.
    pub rootfs: bool,
}

impl Seen {
    /// Whether the container is to be there when it has ended, to be started again: by its policy, or by a user who
    /// left it in the background.
    #[must_use]
    pub fn comes_back(&self) -> bool {
        let restarts = self.restart.as_deref().is_some_and(|when| when != "no");
        !self.removed && (self.detached || restarts)
    }

    fn note(&mut self, name: &str, value: &str) {
        let on = !matches!(value, "false" | "0" | "f" | "F" | "False" | "FALSE");
        match name {
            "name" => self.name = Some(value.into()),
            "cidfile" => self.id_file = Some(value.into()),
            "restart" => self.restart = Some(value.into()),
            "device" => self.devices.push(value.into()),
            "runtime" => self.runtime = Some(value.into()),
            "device-cgroup-rule" => self.device_rules.push(value.into()),
            "volume" => self.mounts.extend(of_volume(value)),
            "mount" => self.mounts.extend(of_mount(value)),
            "replace" => self.replaces = on,
            "cgroups" => self.no_cgroups = value == "disabled",
            "gpus" => self.gpus = true,
            "privileged" => self.privileged = on,
            "detach" => self.detached = on,
            "rm" => self.removed = on,
            "rootfs" => self.rootfs = on,
            _ => {}
        }
    }
}

/// Takes the words after `divvy podman` apart. `ours` answers for a flag's name whether it is ours, and whether it takes
/// a value in the next word.
///
/// # Errors
/// [`Code::Usage`] where the line is no `run` of an image.
pub fn split(words: &[OsString], ours: &dyn Fn(&str) -> Option<bool>) -> Result<Line, Fault> {
    let mut line = Line::default();
    let mut words = words.iter();
    before(&mut line, &mut words, ours)?;
    let mut ours_count = true;
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == "--" && ours_count {
            ours_count = false;
            continue;
        }
        if text == "--" {
            // The engine's own, as pflag has it: the image follows.
            line.flags.push(word.clone());
            line.rest = words.cloned().collect();
            break;
        }
        let Some(flag) = text.strip_prefix("--") else {
            if text.len() > 1 && text.starts_with('-') {
                letters(&mut line, &text);
                line.flags.push(word.clone());
                let next = match wants_next(&text, false) {
                    true => Some(value_of(&text, words.next())?),
                    false => None,
                };
                if let Some(within) = volume_letter(&text) {
                    let value = next.as_deref().map(OsStr::to_string_lossy);
                    line.seen.note("volume", value.as_deref().unwrap_or(within));
                }
                line.flags.extend(next);
                continue;
            }
            line.rest = std::iter::once(word).chain(words).cloned().collect();
            break;
        };
        let (name, within) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, None),
        };
        if ours_count && let Some(takes_value) = ours(name) {
            let next = match (within, takes_value) {
                (None, true) => Some(value_of(&text, words.next())?),
                _ => None,
            };
            let value = next.as_deref().map(OsStr::to_string_lossy);
            let value = value.as_deref().or(within).unwrap_or_default();
            let engines = name == "device" && value.contains(['/', '=']);
            if engines {
                line.seen.note(name, value);
            }
            let to = if engines { &mut line.flags } else { &mut line.ours };
            to.push(word.clone());
            to.extend(next);
            continue;
        }
        line.flags.push(word.clone());
        match within {
            Some(value) => line.seen.note(name, value),
            None if stands_alone(name) => line.seen.note(name, "true"),
            None => {
                let value = value_of(&text, words.next())?;
                line.seen.note(name, &value.to_string_lossy());
                line.flags.push(value);
            }
        }
    }
    if line.rest.is_empty() {
        return Err(Fault::new(Code::Usage, "no image was named")
            .hint("divvy podman run --memory 4GiB IMAGE COMMAND"));
    }
    Ok(line)
}

/// The engine's own flags, and the verb.
fn before<'a>(
    line: &mut Line,
    words: &mut impl Iterator<Item = &'a OsString>,
    ours: &dyn Fn(&str) -> Option<bool>,
) -> Result<(), Fault> {
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        match text.as_ref() {
            "run" => return Ok(()),
            _ if !text.starts_with('-') => {
                return Err(
                    Fault::new(Code::Usage, format!("`{text}` is not translated, only `run` is")).hint(
                        "call the engine itself: what `exec` opens in a container of a slice is in the slice, and \
                         `divvy container cdi slice` makes slices for all other verbs",
                    ),
                );
            }
            _ => {}
        }
        // None of ours is a flag that an engine takes here, and the engine's refusal would not say where it belongs.
        let name = text
            .strip_prefix("--")
            .map(|flag| flag.split('=').next().unwrap_or(flag));
        if name.is_some_and(|name| ours(name).is_some()) {
            return Err(Fault::new(Code::Usage, format!("`{text}` stands before `run`"))
                .hint("our flags stand between `run` and the image: divvy podman run --memory 4GiB IMAGE COMMAND"));
        }
        line.globals.push(word.clone());
        let alone = match text.strip_prefix("--") {
            Some(flag) => flag.contains('=') || stands_alone_before(flag),
            None => !wants_next(&text, true),
        };
        if !alone {
            line.globals.push(value_of(&text, words.next())?);
        }
    }
    Err(Fault::new(Code::Usage, "no verb of the engine was named")
        .hint("divvy podman run --memory 4GiB IMAGE COMMAND"))
}

fn letters(line: &mut Line, text: &str) {
    let alone = |letter: &char| !wants_next(&format!("-{letter}"), false);
    line.seen.detached |= text[1..].chars().take_while(alone).any(|letter| letter == 'd');
}

/// What stands behind the `v` of `-v/a:/b` or `-itv`.
fn volume_letter(text: &str) -> Option<&str> {
    let letter = |(_, letter): &(usize, char)| wants_next(&format!("-{letter}"), false);
    let (at, letter) = text.char_indices().skip(1).find(letter)?;
    (letter == 'v').then(|| text[at + 1..].trim_start_matches('='))
}

/// The folder or file of the host and its place in `-v SOURCE:PLACE[:OPTIONS]`; none of a volume of the engine's own.
fn of_volume(value: &str) -> Option<(String, String)> {
    let mut parts = value.split(':');
    let (source, place) = (parts.next()?, parts.next()?);
    source
        .starts_with(['/', '.'])
        .then(|| (source.into(), place.into()))
}

/// The same of `--mount type=bind,source=SOURCE,target=PLACE`.
fn of_mount(value: &str) -> Option<(String, String)> {
    let field = |names: &[&str]| {
        let mut fields = value.split(',').filter_map(|field| field.split_once('='));
        fields.find_map(|(name, value)| names.contains(&name).then(|| value.to_owned()))
    };
    let is_bind = field(&["type"]).is_some_and(|kind| kind == "bind");
    let source = field(&["source", "src"]).filter(|_| is_bind)?;
    Some((source, field(&["target", "destination", "dst"])?))
}

fn value_of(flag: &str, next: Option<&OsString>) -> Result<OsString, Fault> {
    next.cloned().ok_or_else(|| {
        Fault::new(Code::Usage, format!("`{flag}` wants a value"))
            .hint("flags stand before the image's name, and the image is not named here")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(words: &str) -> (String, String, String, String) {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let ours = |name: &str| match name {
            "memory" | "compute" | "device" => Some(true),
            "dry-run" | "oversubscribe" => Some(false),
            _ => None,
        };
        let line = split(&words, &ours).expect("a line");
        let join = |words: &[OsString]| {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        (
            join(&line.globals),
            join(&line.ours),
            join(&line.flags),
            join(&line.rest),
        )
    }

    #[test]
    fn ours_are_taken_before_the_image_and_nothing_else() {
        for (words, globals, ours, flags, rest) in [
            (
                "run --memory 4GiB --compute=30% image cmd --memory 1",
                "",
                "--memory 4GiB --compute=30%",
                "",
                "image cmd --memory 1",
            ),
            (
                "--root /x run -it --rm -v /a:/b --memory 1GiB image",
                "--root /x",
                "--memory 1GiB",
                "-it --rm -v /a:/b",
                "image",
            ),
            // The engine's own memory, both ways.
            (
                "run --memory 1GiB -m 8g image",
                "",
                "--memory 1GiB",
                "-m 8g",
                "image",
            ),
            (
                "run --memory 1GiB -- --memory 8g image x",
                "",
                "--memory 1GiB",
                "--memory 8g",
                "image x",
            ),
            // Devices by their form.
            (
                "run --device 0 --device /dev/fuse --device=a.b/c=d --device=emulated:h100 image",
                "",
                "--device 0 --device=emulated:h100",
                "--device /dev/fuse --device=a.b/c=d",
                "image",
            ),
            // A value that looks like a flag of ours is a value.
            (
                "run --label --memory --name=x image",
                "",
                "",
                "--label --memory --name=x",
                "image",
            ),
            (
                "run --dry-run --oversubscribe=2x -- -- image",
                "",
                "--dry-run --oversubscribe=2x",
                "--",
                "image",
            ),
            ("run --entrypoint= image -d", "", "", "--entrypoint=", "image -d"),
        ] {
            let expected = (globals.into(), ours.into(), flags.into(), rest.into());
            assert_eq!(parts(words), expected, "{words}");
        }
    }

    #[test]
    fn what_the_engine_is_told_is_seen() {
        let words: Vec<OsString> =
            "run -itd --name box --cidfile=/tmp/c --restart always --rootfs --detach=true /x -d"
                .split_whitespace()
                .map(OsString::from)
                .collect();
        let seen = split(&words, &|_| None).expect("a line").seen;
        assert!(seen.detached && seen.rootfs && !seen.privileged);
        assert_eq!(
            (
                seen.name.as_deref(),
                seen.restart.as_deref(),
                seen.id_file.as_deref()
            ),
            (Some("box"), Some("always"), Some(std::path::Path::new("/tmp/c")))
        );
        let words = ["run", "-v", "/d:/d", "image"].map(OsString::from);
        assert!(!split(&words, &|_| None).expect("a line").seen.detached);
    }

    #[test]
    fn what_is_mounted_from_the_host_is_seen() {
        for words in [
            "run -v /a:/b image",
            "run -v/a:/b:ro image",
            "run -itv /a:/b image",
            "run --volume=/a:/b:ro,z image",
            "run --volume /a:/b image",
            "run --mount type=bind,src=/a,dst=/b,ro image",
            "run --mount=target=/b,source=/a,type=bind image",
        ] {
            let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
            let seen = split(&words, &|_| None).expect("a line").seen;
            assert_eq!(seen.mounts, [("/a".into(), "/b".into())], "{words:?}");
        }
        for words in [
            "run -v name:/b image",
            "run -v /b image",
            "run -p 80:80 image",
            "run --mount type=volume,src=/a,dst=/b image",
            "run image -v /a:/b",
        ] {
            let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
            let seen = split(&words, &|_| None).expect("a line").seen;
            assert_eq!(seen.mounts, [], "{words:?}");
        }
    }

    #[test]
    fn lines_that_run_nothing_are_refused() {
        for words in [
            "",
            "exec box sh",
            "--root",
            "run",
            "run --memory",
            "run --rm -it",
            "run --name",
        ] {
            let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
            let refused = split(&words, &|name| (name == "memory").then_some(true)).expect_err("no image");
            assert_eq!(refused.code, Code::Usage, "{words:?}");
        }
    }
    #[test]
    fn ours_before_the_verb_are_refused_with_their_place() {
        for words in [
            "--memory 4GiB run image",
            "--memory=4GiB run image",
            "--log-level debug --memory 4GiB run image",
        ] {
            let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
            let refused =
                split(&words, &|name| (name == "memory").then_some(true)).expect_err("out of place");
            assert!(refused.message.ends_with("stands before `run`"), "{refused:?}");
        }
    }
}

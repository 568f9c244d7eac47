//! What a pod's annotations ask for.
//!
//! `divvy.dev/memory` is the whole pod's: one slice that all its containers are in. `memory.divvy.dev/container.NAME`, in
//! the form that NRI's own plugins have, is a slice of that container's own. So with `compute`, `device`,
//! `isolation` and `slice`.
//! The author of a pod writes its annotations: they are bytes from outside.

use std::collections::BTreeMap;

use divvy_model::{Code, Fault};

use super::message::{Container, Pod};
use crate::oci;

/// What is asked for one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    /// In the form in which the runtime wrapper has it.
    pub container: oci::Container,
    /// Whether the slice is the pod's, and all its containers' that do not ask for one of their own.
    pub of_pod: bool,
    /// The annotations that count, as they stand there, for a refusal.
    pub words: String,
}

/// Our domain.
const DOMAIN: &str = "divvy.dev";
/// What can be asked for, in the runtime wrapper's words.
const KINDS: [&str; 5] = ["memory", "compute", "device", "isolation", "slice"];
/// No value of ours is longer. A pod's annotations may have 256 KiB.
const LONGEST: usize = 128;

/// The addressee of an annotation.
enum Recipient<'a> {
    Pod,
    Container(&'a str),
}

/// What this container of this pod asks for.
///
/// # Errors
/// [`Code::Annotation`] for an annotation of our domain that means nothing: a pod whose limit is misspelt must not run
/// without one.
pub fn asks(pod: &Pod, container: &Container) -> Result<Asks, Fault> {
    let (mut of_pod, mut own) = (BTreeMap::new(), BTreeMap::new());
    let mut words: BTreeMap<&str, String> = BTreeMap::new();
    // In their order `divvy.dev/memory` comes before `memory.divvy.dev/pod`, which counts more with NRI's own plugins.
    for (key, value) in &pod.annotations {
        let Some((kind, recipient)) = read(key)? else {
            continue;
        };
        let known = match recipient {
            Recipient::Pod => &mut of_pod,
            Recipient::Container(name) if name == container.name => &mut own,
            Recipient::Container(_) => continue,
        };
        if value.len() > LONGEST {
            return Err(no_sense(key).cause(format!("its value has {} bytes", value.len())));
        }
        known.insert(kind, value.clone());
        words.insert(key, format!("{key}={value}"));
    }
    let is_of_pod = own.is_empty() && !of_pod.is_empty();
    // A container's own annotations count more than the pod's; the pod's device serves both. A slice that
    // is there has its memory.
    let joins = own.contains_key("slice");
    let asks_of_own = own.keys().any(|kind| *kind != "slice");
    for (kind, value) in of_pod {
        let against = joins || (kind == "slice" && asks_of_own);
        if is_of_pod || !against {
            own.entry(kind).or_insert(value);
        }
    }
    let annotations = own
        .into_iter()
        .map(|(kind, value)| (format!("{DOMAIN}/{kind}"), value));
    let pairs = container
        .environment
        .iter()
        .filter_map(|line| line.split_once('='));
    let nulls = container
        .mounts
        .iter()
        .filter(|(_, from)| oci::clean(from) == "/dev/null");
    Ok(Asks {
        container: oci::Container {
            annotated_by_image: false,
            environment: pairs.map(|(name, value)| (name.into(), value.into())).collect(),
            annotations: annotations.collect(),
            nulls: nulls.map(|(to, _)| oci::clean(to)).collect(),
            // NRI does not say.
            privileged: false,
            arguments: container.arguments.clone(),
            folder: "/".into(),
        },
        of_pod: is_of_pod,
        words: words.into_values().collect::<Vec<_>>().join(", "),
    })
}

/// The kind and the addressee; none for an annotation that is not ours.
fn read(key: &str) -> Result<Option<(&str, Recipient<'_>)>, Fault> {
    let Some((domain, name)) = key.split_once('/') else {
        return Ok(None);
    };
    let (kind, recipient) = if domain == DOMAIN {
        (name, Recipient::Pod)
    } else {
        let Some(kind) = domain
            .strip_suffix(DOMAIN)
            .and_then(|kind| kind.strip_suffix('.'))
        else {
            return Ok(None);
        };
        match (name, name.strip_prefix("container.")) {
            ("pod", _) => (kind, Recipient::Pod),
            (_, Some(container)) if !container.is_empty() => (kind, Recipient::Container(container)),
            _ => return Err(no_sense(key)),
        }
    };
    match KINDS.contains(&kind) {
        true => Ok(Some((kind, recipient))),
        false => Err(no_sense(key)),
    }
}

fn no_sense(key: &str) -> Fault {
    let shown: String = key.chars().take(LONGEST).collect();
    Fault::new(Code::Annotation, format!("the annotation `{shown}` means nothing")).hint(
        "a pod's are divvy.dev/memory, /compute, /device, /isolation and /slice; one container's memory.divvy.dev/container.NAME and the \
         like",
    )
}

/// Whether an id of the runtime's can be a file's name.
#[must_use]
pub fn is_id(id: &str) -> bool {
    let first = id.bytes().next();
    first.is_some_and(|byte| byte.is_ascii_alphanumeric())
        && id.len() <= 128
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: &[(&str, &str)]) -> Pod {
        let annotations = annotations
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()));
        Pod {
            annotations: annotations.collect(),
            ..Pod::default()
        }
    }

    fn of(annotations: &[(&str, &str)], name: &str) -> (Vec<String>, bool) {
        let container = Container {
            name: name.into(),
            ..Container::default()
        };
        let asks = asks(&pod(annotations), &container).expect("understood");
        let pairs = asks.container.annotations.iter();
        (
            pairs.map(|(key, value)| format!("{key}={value}")).collect(),
            asks.of_pod,
        )
    }

    #[test]
    fn a_pods_annotation_is_for_all_its_containers_together() {
        for key in ["divvy.dev/memory", "memory.divvy.dev/pod"] {
            assert_eq!(
                of(&[(key, "4GiB")], "a"),
                (vec!["divvy.dev/memory=4GiB".into()], true)
            );
        }
        let both = [("divvy.dev/memory", "1GiB"), ("memory.divvy.dev/pod", "2GiB")];
        assert_eq!(of(&both, "a").0, ["divvy.dev/memory=2GiB"]);
        assert_eq!(
            of(
                &[
                    ("example.com/memory", "1GiB"),
                    ("memory", "1GiB"),
                    ("notdivvy.dev/memory", "x")
                ],
                "a"
            ),
            (vec![], false)
        );
    }

    #[test]
    fn a_containers_own_counts_more() {
        let annotations = [
            ("divvy.dev/memory", "4GiB"),
            ("divvy.dev/device", "1"),
            ("memory.divvy.dev/container.a", "1GiB"),
            ("slice.divvy.dev/container.b", "alice"),
        ];
        assert_eq!(
            of(&annotations, "a"),
            (
                vec!["divvy.dev/device=1".into(), "divvy.dev/memory=1GiB".into()],
                false
            )
        );
        assert_eq!(
            of(&annotations, "b"),
            (vec!["divvy.dev/slice=alice".into()], false)
        );
        assert_eq!(
            of(&annotations, "c"),
            (
                vec!["divvy.dev/device=1".into(), "divvy.dev/memory=4GiB".into()],
                true
            )
        );
        let slice = [
            ("divvy.dev/slice", "alice"),
            ("memory.divvy.dev/container.a", "1GiB"),
        ];
        assert_eq!(of(&slice, "a"), (vec!["divvy.dev/memory=1GiB".into()], false));
        assert_eq!(of(&slice, "b"), (vec!["divvy.dev/slice=alice".into()], true));
    }

    #[test]
    fn what_is_misspelt_is_refused() {
        let long = "9".repeat(LONGEST + 1);
        for (key, value) in [
            ("divvy.dev/memroy", "1GiB"),
            ("divvy.dev/", "1GiB"),
            ("memroy.divvy.dev/container.a", "1GiB"),
            ("memory.divvy.dev/conteiner.a", "1GiB"),
            ("memory.divvy.dev/container.", "1GiB"),
            (".divvy.dev/pod", "1GiB"),
            ("divvy.dev/memory", long.as_str()),
        ] {
            let refused = asks(&pod(&[(key, value)]), &Container::default()).expect_err("nothing");
            assert_eq!(refused.code, Code::Annotation, "{key}");
            assert!(refused.to_string().len() < 300);
        }
    }

    #[test]
    fn ids_are_files_names() {
        assert!(is_id("0123456789abcdef") && is_id("a.b-c_d"));
        for id in ["", ".", "..", "a/b", "-x", "a\0", "ä", &"a".repeat(129)] {
            assert!(!is_id(id), "{id}");
        }
    }
}

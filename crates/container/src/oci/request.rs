//! What a container asks for, and who may ask in which way.
//!
//! Annotations are the engine's caller's own words. Under podman, which copies an image's among them, they count as
//! variables do, and one that does not count fails the container. Mounts of /dev/null below
//! /var/run/nvidia-container-devices are the caller's too, but in a cluster a pod's author is no administrator.
//! An image sets variables by itself: `NVIDIA_VISIBLE_DEVICES=all` is in most CUDA images, and NVIDIA's toolkit
//! gives every such container every GPU unless it is told otherwise.

use std::collections::BTreeMap;
use std::str::FromStr;

use divvy_model::{Code, Compute, Fault, Isolation, MemoryAmount, Selector};

use super::container::Container;
use super::variables::{self, Nvidia};
use crate::cdi::Capabilities;

/// In which ways a container without CAP_SYS_ADMIN may ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// By annotations only.
    #[default]
    Annotations,
    /// By mounts of /dev/null too.
    Mounts,
    /// By variables too.
    Variables,
}

impl FromStr for Trust {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "annotations" => Ok(Self::Annotations),
            "mounts" => Ok(Self::Mounts),
            "variables" => Ok(Self::Variables),
            _ => Err(format!(
                "`{text}` is no way to ask; choose annotations, mounts or variables"
            )),
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// NVIDIA's devices, whole.
    pub nvidia: Nvidia,
    /// The parts of NVIDIA's driver.
    pub capabilities: Capabilities,
    /// Whether the variables in which AMD's devices are asked for count.
    pub amd: bool,
    /// The container's variables: what AMD's say depends on the devices that there are.
    pub variables: BTreeMap<String, String>,
    /// A slice of its own.
    pub slice: Option<Wanted>,
    /// A lasting slice to be let into, by name.
    pub join: Option<String>,
    /// What was asked for in a way that is not allowed, in words.
    pub ignored: Vec<String>,
}

/// The slice that is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Its memory.
    pub memory: Option<MemoryAmount>,
    /// Its share of the device's time.
    pub compute: Option<Compute>,
    /// Its device.
    pub device: Option<Selector>,
    /// Its isolation level: `enforced`, where the container is to have no device. A weaker level is not asked for here.
    pub isolation: Option<Isolation>,
}

impl Request {
    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nvidia == Nvidia::Void && !self.amd && self.slice.is_none() && self.join.is_none()
    }
}

/// The root of NVIDIA's list of devices as mounts.
const MOUNTS: &str = "/var/run/nvidia-container-devices/";
/// The beginning of our annotations.
const OURS: &str = "divvy.dev/";

/// What this container asks for.
///
/// # Errors
/// [`Code::Quantity`], [`Code::Selector`] and [`Code::Usage`] for what is asked for in words that mean nothing;
/// [`Code::Usage`] for annotations that may be the image's.
pub fn request(container: &Container, trust: Trust) -> Result<Request, Fault> {
    let mut request = Request::default();
    let by_variables = container.privileged || trust >= Trust::Variables;
    let mounts: Vec<&str> = container
        .nulls
        .iter()
        .filter_map(|target| target.strip_prefix(MOUNTS))
        .filter(|name| !name.starts_with("cdi/") && !name.starts_with("imex/"))
        .collect();
    let mut refuse = |what: &str, how: &str| {
        request.ignored.push(format!(
            "{what} counts in privileged containers only: ask with the annotation {OURS}memory, or set \
             `container_requests = \"{how}\"`"
        ));
    };
    if !mounts.is_empty() && (container.privileged || trust >= Trust::Mounts) {
        request.nvidia = variables::of_list(mounts.into_iter());
    } else {
        if !mounts.is_empty() {
            refuse("a list of devices as mounts", "mounts");
        }
        let asked = variables::nvidia(&container.environment);
        if by_variables {
            request.nvidia = asked;
        } else if asked != Nvidia::Void {
            refuse("NVIDIA_VISIBLE_DEVICES", "variables");
        }
    }
    let names_amd = |name: &String| name == "AMD_VISIBLE_DEVICES" || name.starts_with("DOCKER_RESOURCE_");
    if container.environment.keys().any(names_amd) {
        if by_variables {
            request.amd = true;
            request.variables.clone_from(&container.environment);
        } else {
            refuse("AMD_VISIBLE_DEVICES", "variables");
        }
    }
    let by_annotations = by_variables || !container.annotated_by_image;
    let annotated = |name: &str| container.annotations.get(&format!("{OURS}{name}"));
    let is_hidden = !by_annotations
        && ["memory", "compute", "device", "isolation", "slice"]
            .iter()
            .any(|name| annotated(name).is_some());
    let annotated = |name: &str| annotated(name).filter(|_| by_annotations);
    let value = |name: &str| {
        let annotation = annotated(name);
        let variable = container
            .environment
            .get(&format!("DIVVY_{}", name.to_ascii_uppercase()));
        annotation
            .or(variable.filter(|_| by_variables))
            .map(String::as_str)
    };
    if !by_variables
        && ["DIVVY_MEMORY", "DIVVY_COMPUTE"]
            .iter()
            .any(|name| container.environment.contains_key(*name))
    {
        refuse("DIVVY_MEMORY", "variables");
    }
    if is_hidden {
        // Engines show no warning of a runtime that goes on, and a limit that does not count must not be none.
        return Err(Fault::new(
            Code::Usage,
            format!("podman takes annotations from images too, so {OURS}… counts in privileged containers only"),
        )
        .hint(
            "use `divvy podman run`, or let images ask: `container_requests = \"variables\"` in the configuration, or \
             DIVVY_CONTAINER_REQUESTS=variables for one command",
        ));
    }
    let wanted = Wanted {
        memory: read(value("memory"))?,
        compute: read(value("compute"))?,
        device: read(value("device"))?,
        isolation: value("isolation").map(isolation).transpose()?,
    };
    request.join = annotated("slice").cloned();
    if request.join.is_some() && wanted != Wanted::default() {
        return Err(Fault::new(
            Code::Usage,
            "a container is let into a slice that is there, or has one of its own",
        )
        .hint("leave divvy.dev/slice out, or divvy.dev/memory, /compute, /device and /isolation"));
    }
    if wanted != Wanted::default() {
        request.slice = Some(wanted);
    }
    let capabilities = container.environment.get("NVIDIA_DRIVER_CAPABILITIES");
    request.capabilities = capabilities.map_or(Ok(Capabilities::default()), |text| text.parse())?;
    Ok(request)
}

/// The one level that a container may ask for. The host chooses among the others.
fn isolation(text: &str) -> Result<Isolation, Fault> {
    match text.parse() {
        Ok(Isolation::Enforced) => Ok(Isolation::Enforced),
        _ => Err(Fault::new(
            Code::Usage,
            format!("a container cannot ask for the `{text}` isolation"),
        )
        .hint("divvy.dev/isolation takes `enforced`; without it the host chooses")),
    }
}

fn read<T>(text: Option<&str>) -> Result<Option<T>, Fault>
where
    T: FromStr,
    Fault: From<T::Err>,
{
    text.map(|text| text.parse::<T>().map_err(Fault::from))
        .transpose()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn container(variables: &[(&str, &str)], annotations: &[(&str, &str)]) -> Container {
        let owned = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()));
            pairs.collect()
        };
        Container {
            environment: owned(variables),
            annotations: owned(annotations),
            ..Container::default()
        }
    }

    #[test]
    fn an_images_annotations_count_as_its_variables_do() {
        // Whatever the image says of who runs it.
        let config = serde_json::json!({
            "annotations": { "divvy.dev/memory": "50GiB", "io.container.manager": "other" },
        });
        let at = |bundle: &str| Container::of_bundle(&config, Path::new(bundle));
        let podmans = at("/var/lib/containers/storage/overlay-containers/0f/userdata");
        for (trust, counts) in [
            (Trust::Annotations, false),
            (Trust::Mounts, false),
            (Trust::Variables, true),
        ] {
            let asked = request(&podmans, trust);
            assert_eq!(
                asked.is_ok_and(|asked| asked.slice.is_some()),
                counts,
                "{trust:?}"
            );
        }
        let dockers = at("/run/containerd/io.containerd.runtime.v2.task/moby/0f");
        for privileged in [
            dockers,
            Container {
                privileged: true,
                ..podmans.clone()
            },
        ] {
            let asked = request(&privileged, Trust::default()).expect("it counts");
            assert!(asked.slice.is_some());
        }
        let mut joins = podmans;
        joins.annotations = [("divvy.dev/slice".into(), "alice".into())].into();
        let refusal = request(&joins, Trust::default()).expect_err("it does not count");
        assert!(refusal.hint.expect("a hint").contains("DIVVY_CONTAINER_REQUESTS"));
    }

    /// What an image sets by itself gives it nothing.
    #[test]
    fn an_images_variables_ask_for_nothing_unless_they_may() {
        let asks = [
            ("NVIDIA_VISIBLE_DEVICES", "all"),
            ("AMD_VISIBLE_DEVICES", "all"),
            ("DIVVY_MEMORY", "1GiB"),
        ];
        let mut image = container(&asks, &[]);
        for trust in [Trust::Annotations, Trust::Mounts] {
            let request = request(&image, trust).expect("understood");
            assert!(request.is_empty(), "{request:?}");
            assert_eq!(request.ignored.len(), 3, "and it is said: {request:?}");
        }
        for (trust, privileged) in [(Trust::Variables, false), (Trust::Annotations, true)] {
            image.privileged = privileged;
            let request = request(&image, trust).expect("understood");
            assert_eq!((&request.nvidia, request.amd), (&Nvidia::All, true));
            assert!(request.slice.is_some() && request.ignored.is_empty());
        }
        // An image that asks for nothing is told nothing.
        let quiet = container(&[("NVIDIA_VISIBLE_DEVICES", "void")], &[]);
        let request = request(&quiet, Trust::Annotations).expect("understood");
        assert!(request.is_empty() && request.ignored.is_empty());
    }

    #[test]
    fn annotations_always_count_and_count_more() {
        let asked = container(
            &[("DIVVY_MEMORY", "64GiB"), ("DIVVY_COMPUTE", "90%")],
            &[("divvy.dev/memory", "1GiB")],
        );
        let wanted = |trust| {
            request(&asked, trust)
                .expect("understood")
                .slice
                .expect("a slice")
        };
        let memory = Some("1GiB".parse().expect("a size"));
        assert_eq!(
            wanted(Trust::Annotations),
            Wanted {
                memory,
                ..Wanted::default()
            }
        );
        let all = wanted(Trust::Variables);
        assert_eq!((all.memory, all.compute.is_some()), (memory, true));
        let without_device = container(&[], &[("divvy.dev/isolation", "enforced")]);
        let wanted = request(&without_device, Trust::Annotations)
            .expect("understood")
            .slice;
        assert_eq!(wanted.expect("a slice").isolation, Some(Isolation::Enforced));
        let weaker = container(&[], &[("divvy.dev/isolation", "env")]);
        let refused = request(&weaker, Trust::Annotations).expect_err("the host's choice");
        assert_eq!(refused.code, Code::Usage);
        let joins = container(&[], &[("divvy.dev/slice", "alice")]);
        let join = request(&joins, Trust::Annotations).expect("understood").join;
        assert_eq!(join.as_deref(), Some("alice"));
    }

    #[test]
    fn mounts_come_before_variables() {
        let mut asked = container(&[("NVIDIA_VISIBLE_DEVICES", "all")], &[]);
        asked.nulls = ["GPU-1", "cdi/nvidia.com/gpu=all", "1:0"]
            .map(|name| format!("{MOUNTS}{name}"))
            .to_vec();
        asked.nulls.push("/elsewhere/GPU-2".into());
        let of = |trust| request(&asked, trust).expect("understood").nvidia;
        let mounted = Nvidia::Some(vec!["GPU-1".into(), "1:0".into()]);
        assert_eq!(of(Trust::Variables), mounted);
        assert_eq!(of(Trust::Mounts), mounted);
        assert_eq!(of(Trust::Annotations), Nvidia::Void);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (name, value, code) in [
            ("divvy.dev/memory", "much", Code::Quantity),
            ("divvy.dev/compute", "0%", Code::Quantity),
            ("divvy.dev/device", "", Code::Selector),
        ] {
            let refused = request(&container(&[], &[(name, value)]), Trust::default()).expect_err("nothing");
            assert_eq!(refused.code, code, "{name}");
        }
        let both = [("divvy.dev/slice", "a"), ("divvy.dev/memory", "1GiB")];
        let refused = request(&container(&[], &both), Trust::default()).expect_err("both");
        assert_eq!(refused.code, Code::Usage);
        let parts = container(&[("NVIDIA_DRIVER_CAPABILITIES", "compute,flying")], &[]);
        assert_eq!(
            request(&parts, Trust::default()).expect_err("no part").code,
            Code::Usage
        );
    }
}

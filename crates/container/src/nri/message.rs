//! NRI's messages, as far as we read and write them (github.com/containerd/nri, pkg/api/api.proto).

use std::collections::BTreeMap;

use super::wire::{Malformed, Value, Writer, fields};
use crate::cdi::Mount;
use crate::oci::Node;

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// The id of its sandbox.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// What its author wrote to it.
    pub annotations: BTreeMap<String, String>,
    /// The process that keeps its namespaces; 0 where the runtime does not say, or it has none any more.
    pub pid: u32,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// The id of its pod's sandbox.
    pub pod: String,
    /// Its name in the pod.
    pub name: String,
    /// What it runs.
    pub arguments: Vec<String>,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// What is mounted: where, from where.
    pub mounts: Vec<(String, String)>,
    /// Its first process; 0 before there is one, or where the runtime does not say.
    pub pid: u32,
}

impl Pod {
    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(value: Value<'_>) -> Result<Self, Malformed> {
        let mut pod = Self::default();
        for field in fields(value.bytes()?) {
            match field? {
                (1, value) => pod.id = value.text()?,
                (2, value) => pod.name = value.text()?,
                (4, value) => pod.namespace = value.text()?,
                (6, value) => pod.annotations.extend([value.entry()?]),
                (9, value) => pod.pid = value.short()?,
                _ => {}
            }
        }
        Ok(pod)
    }
}

impl Container {
    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(value: Value<'_>) -> Result<Self, Malformed> {
        let mut container = Self::default();
        for field in fields(value.bytes()?) {
            match field? {
                (1, value) => container.id = value.text()?,
                (2, value) => container.pod = value.text()?,
                (3, value) => container.name = value.text()?,
                (7, value) => container.arguments.push(value.text()?),
                (8, value) => container.environment.push(value.text()?),
                (9, value) => container.mounts.push(place(value)?),
                (12, value) => container.pid = value.short()?,
                _ => {}
            }
        }
        Ok(container)
    }
}

/// Where a mount is, and where from.
fn place(value: Value<'_>) -> Result<(String, String), Malformed> {
    let (mut to, mut from) = (String::new(), String::new());
    for field in fields(value.bytes()?) {
        match field? {
            (1, value) => to = value.text()?,
            (3, value) => from = value.text()?,
            _ => {}
        }
    }
    Ok((to, from))
}

/// What the runtime says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configure {
    /// containerd, cri-o.
    pub runtime: String,
    /// Its version.
    pub version: String,
    /// What an administrator wrote for the plugin.
    pub config: String,
    /// How long it waits for an answer, in milliseconds; 0 where it does not say.
    pub request_timeout_ms: u64,
}

impl Configure {
    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut configure = Self::default();
        for field in fields(bytes) {
            match field? {
                (1, value) => configure.config = value.text()?,
                (2, value) => configure.runtime = value.text()?,
                (3, value) => configure.version = value.text()?,
                (5, value) => configure.request_timeout_ms = value.number()?,
                _ => {}
            }
        }
        Ok(configure)
    }
}

/// Everything that there is when the plugin comes, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synchronize {
    /// The pods.
    pub pods: Vec<Pod>,
    /// Their containers.
    pub containers: Vec<Container>,
    /// Whether there is more to come.
    pub more: bool,
}

impl Synchronize {
    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut all = Self::default();
        for field in fields(bytes) {
            match field? {
                (1, value) => all.pods.push(Pod::read(value)?),
                (2, value) => all.containers.push(Container::read(value)?),
                (3, value) => all.more = value.number()? != 0,
                _ => {}
            }
        }
        Ok(all)
    }
}

/// A pod and, of most events, a container of it. Requests of their own have them in fields 1 and 2, the notification of
/// all other events one further, behind the event's number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Happening {
    /// The event's number in a notification.
    pub event: u32,
    /// The pod.
    pub pod: Pod,
    /// The container.
    pub container: Container,
}

impl Happening {
    /// Reads a request.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn of_request(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut happening = Self::default();
        for field in fields(bytes) {
            match field? {
                (1, value) => happening.pod = Pod::read(value)?,
                (2, value) => happening.container = Container::read(value)?,
                _ => {}
            }
        }
        Ok(happening)
    }

    /// Reads a notification.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn of_notification(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut happening = Self::default();
        for field in fields(bytes) {
            match field? {
                (1, value) => happening.event = value.short()?,
                (2, value) => happening.pod = Pod::read(value)?,
                (3, value) => happening.container = Container::read(value)?,
                _ => {}
            }
        }
        Ok(happening)
    }
}

/// What is changed in a container that is being made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adjustment {
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// Device nodes. The runtime lets the container use them.
    pub nodes: Vec<Node>,
}

impl Adjustment {
    /// The answer to a container's creation.
    #[must_use]
    pub fn answer(&self) -> Writer {
        let mut adjust = Writer::default();
        for mount in &self.mounts {
            adjust = adjust.message(3, self::mount(mount));
        }
        for variable in &self.environment {
            let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
            adjust = adjust.message(4, Writer::default().text(1, name).text(2, value));
        }
        let mut linux = Writer::default();
        for node in &self.nodes {
            linux = linux.message(1, device(node));
        }
        if !self.nodes.is_empty() {
            adjust = adjust.message(6, linux);
        }
        Writer::default().message(1, adjust)
    }
}

fn mount(mount: &Mount) -> Writer {
    let kind = match mount.kind.as_str() {
        "" => "bind",
        other => other,
    };
    let writer = Writer::default().text(1, &mount.container_path).text(2, kind);
    let options = mount.options.iter();
    options.fold(writer.text(3, &mount.host_path), |writer, option| {
        writer.item(4, option.as_bytes())
    })
}

fn device(node: &Node) -> Writer {
    // A message of its own distinguishes zero from a missing value.
    let said = |number: u32| Writer::default().number(1, number.into());
    Writer::default()
        .text(1, &node.path)
        .text(2, node.kind)
        .number(3, node.major.into())
        .number(4, node.minor.into())
        .message(5, said(node.mode))
        .message(6, said(node.uid))
        .message(7, said(node.gid))
}

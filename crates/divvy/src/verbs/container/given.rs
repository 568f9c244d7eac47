//! What a container that asks for devices or a slice gets, for both sources of the request: the OCI runtime's caller
//! and the runtime's plugin.

use divvy_agent::Client;
use divvy_container::cdi::Edits;
use divvy_container::oci::{self, Nvidia, Request};
use divvy_host::machine::Sysroot;
use divvy_model::{ANY_POD, Code, Fault, Selector, SliceRecord};

use super::cdi::{Wanted, for_one};
use super::engine::end;
use super::nri::notes::is_noted;
use crate::context::Context;
use crate::flags::{compute, terms};

/// What is added to a container.
#[derive(Debug, Default)]
pub struct Additions {
    /// Its own slice, if one was made.
    pub slice: Option<SliceRecord>,
    /// What its configuration gets.
    pub edits: Edits,
}

impl Additions {
    /// Ends the slice again, where the container does not come to be.
    pub fn take_back(&self, context: &Context) {
        if let Some(slice) = &self.slice {
            end(context, slice);
        }
    }
}

/// Makes what the request asks for, or joins the slice that it names. A new slice has this name, or a generated one.
/// Where it is `attended`, it ends with this process, until it is told what else it ends with.
///
/// # Errors
/// What keeps it from being made; then nothing is left of it.
pub fn give(
    request: &mut Request,
    name: Option<String>,
    attended: bool,
    context: &Context,
) -> Result<Additions, Fault> {
    let mut given = Additions::default();
    if request.slice.is_some() || request.join.is_some() {
        let wanted = Wanted {
            name,
            attended,
            ..wanted(request)?
        };
        if let Some(device) = wanted.terms.device.iter().find(|device| is_made_up(device)) {
            may_emulate(device, context)?;
        }
        let (slice, edits) = for_one(&wanted, request.join.as_deref(), context)?;
        given.edits = edits;
        given.slice = request.join.is_none().then_some(slice);
    }
    let devices = match request.nvidia != Nvidia::Void || request.amd {
        true => devices(request, context),
        false => Ok(Edits::default()),
    };
    let more = devices.inspect_err(|_| given.take_back(context))?;
    given.edits.env.extend(more.env);
    given.edits.device_nodes.extend(more.device_nodes);
    given.edits.mounts.extend(more.mounts);
    Ok(given)
}

/// The slice into which a container may be let because its author names it: root's, or the agent's user's, by its whole
/// name, where it was made with `--pods`. `namespace` is that of the container's pod. One that goes with another container is
/// that one's alone, even if others read its name.
///
/// # Errors
/// [`Code::UnknownSlice`] where none of ours has the name, [`Code::NotAllowed`] for one that admits no such container,
/// [`Code::NotLasting`] for one of another container; what keeps it from being looked up.
pub fn may_join(which: &str, namespace: Option<&str>, context: &Context) -> Result<SliceRecord, Fault> {
    let slice = ours(which, &context.agent()?)?.ok_or_else(|| {
        Fault::new(
            Code::UnknownSlice,
            format!("there is no slice `{which}` that containers may join"),
        )
        .hint("they join slices of root's by the whole name: `divvy slice create NAME --memory SIZE --pods` makes one")
    })?;
    if slice.lifetime_anchor.is_some() || is_noted(context.peek().path(), &slice.name) {
        return Err(Fault::new(
            Code::NotLasting,
            format!("slice `{which}` belongs to a container"),
        )
        .hint("`divvy slice create NAME --memory SIZE --pods` makes slices that containers can join"));
    }
    match admits(&slice.pods, namespace) {
        true => Ok(slice),
        false => Err(not_admitted(&slice, namespace)),
    }
}

/// The slice of exactly this name that the caller made, or the agent's own user.
///
/// # Errors
/// What keeps the slices from being listed.
pub fn ours(name: &str, agent: &Client) -> Result<Option<SliceRecord>, Fault> {
    let own = rustix::process::geteuid().as_raw();
    let agents = agent.status()?.uid;
    Ok(of_these_users(agent.slices()?.body.items, name, [own, agents]))
}

/// The first user's slice of this name, else the second's.
fn of_these_users(mut slices: Vec<SliceRecord>, name: &str, users: [u32; 2]) -> Option<SliceRecord> {
    slices.retain(|slice| slice.name == name && users.contains(&slice.uid));
    slices.sort_by_key(|slice| slice.uid != users[0]);
    slices.into_iter().next()
}

fn admits(pods: &[String], namespace: Option<&str>) -> bool {
    pods.iter()
        .any(|admitted| admitted == ANY_POD || Some(admitted.as_str()) == namespace)
}

fn not_admitted(slice: &SliceRecord, namespace: Option<&str>) -> Fault {
    let name = &slice.name;
    let again = "it is made so, not changed: delete it and make it again";
    match (slice.pods.is_empty(), namespace) {
        (true, _) => Fault::new(
            Code::NotAllowed,
            format!("slice `{name}` was not made for containers to join"),
        )
        .hint(format!(
            "`divvy slice create {name} --memory {}B --pods` lets them in; {again}",
            slice.shares.first.memory_limit_bytes.0
        )),
        (false, None) => Fault::new(
            Code::NotAllowed,
            format!(
                "slice `{name}` is for pods of {}, and of this container no namespace is known",
                slice.pods.join(" and ")
            ),
        )
        .hint(format!(
            "`--pods` without namespaces lets every container in; {again}"
        )),
        (false, Some(namespace)) => Fault::new(
            Code::NotAllowed,
            format!(
                "slice `{name}` is for pods of {}, not of {namespace}",
                slice.pods.join(" and ")
            ),
        )
        .hint(format!("`--pods={namespace}` among them lets it in; {again}")),
    }
}

fn is_made_up(device: &Selector) -> bool {
    matches!(device, Selector::Emulated(_))
}

/// An emulated device is the host's to make, and no container's to ask for: it computes on the host's processors.
fn may_emulate(device: &Selector, context: &Context) -> Result<(), Fault> {
    match context.config.text("emulated") {
        Some(_) => Ok(()),
        None => Err(Fault::new(
            Code::NotAllowed,
            format!("containers may not ask for `{device}` here"),
        )
        .hint("`emulated` in the configuration makes emulated devices, which containers can then have by their index")),
    }
}

fn devices(request: &Request, context: &Context) -> Result<Edits, Fault> {
    let devices = context.survey(None)?.machine.devices;
    oci::devices(&Sysroot::default(), &devices, request)
}

/// The slice that is asked for. A device that is named the vendor's way is the slice's, and not given besides.
fn wanted(request: &mut Request) -> Result<Wanted, Fault> {
    let wanted = request.slice.clone().unwrap_or_default();
    let mut device: Vec<_> = wanted.device.into_iter().collect();
    match std::mem::take(&mut request.nvidia) {
        Nvidia::Some(names) if device.is_empty() => {
            let named: Result<Vec<_>, _> = names.iter().map(|name| name.parse()).collect();
            device = named?;
        }
        _ => {}
    }
    request.amd = false;
    Ok(Wanted {
        memory: wanted.memory,
        terms: terms::Flags {
            compute: compute::Flags {
                compute: wanted.compute,
                ..compute::Flags::default()
            },
            device,
            isolation: wanted.isolation,
            ..terms::Flags::default()
        },
        capabilities: Some(request.capabilities.clone()),
        ..Wanted::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, uid: u32) -> SliceRecord {
        serde_json::from_value(serde_json::json!({
            "id": format!("{uid:08x}"), "name": name, "uid": uid, "device_uuid": "GPU-1", "memory_limit_bytes": 1,
            "memory_used_bytes": 0, "isolation": "cooperative", "policy": "strict",
            "created_at": "2026-01-01T00:00:00Z", "state": "running", "context_bytes": 0, "command": [], "processes": [],
        }))
        .expect("a record")
    }

    /// A size with a space in it would be two words of a shell.
    #[test]
    fn the_command_of_a_hint_can_be_typed() {
        let mut small = slice("train", 1000);
        small.shares.first.memory_limit_bytes = divvy_model::Bytes(8 << 30);
        let hint = not_admitted(&small, None).hint.expect("a hint");
        let command = hint.split('`').nth(1).expect("a command");
        let size = command.split(' ').skip_while(|word| *word != "--memory").nth(1);
        let size = size.expect("a size").parse::<divvy_model::Bytes>();
        assert_eq!(size, Ok(divvy_model::Bytes(8 << 30)), "{hint}");
    }

    #[test]
    fn another_users_slice_of_the_name_is_not_ours() {
        let all = || {
            vec![
                slice("train", 1000),
                slice("train", 990),
                slice("train", 0),
                slice("trainer", 0),
            ]
        };
        let found = |name: &str, users| of_these_users(all(), name, users).map(|slice| slice.uid);
        assert_eq!(found("train", [0, 990]), Some(0));
        assert_eq!(found("train", [7, 990]), Some(990));
        assert_eq!(found("train", [7, 8]), None);
        assert_eq!(found("trai", [0, 0]), None, "the whole name");
        assert_eq!(found("00000000", [0, 0]), None, "no id");
    }

    #[test]
    fn a_slice_admits_what_it_was_made_for() {
        let pods = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        for (made_for, namespace, expected) in [
            (pods(&[]), None, false),
            (pods(&[]), Some("train"), false),
            (pods(&["*"]), None, true),
            (pods(&["*"]), Some("train"), true),
            (pods(&["train", "serve"]), Some("serve"), true),
            (pods(&["train"]), Some("trai"), false),
            (pods(&["train"]), None, false),
        ] {
            assert_eq!(
                admits(&made_for, namespace),
                expected,
                "{made_for:?} {namespace:?}"
            );
        }
    }
}

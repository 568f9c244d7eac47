//! What a container that asks for devices or a slice is given, whoever asked for it: the OCI runtime's caller or the
//! runtime's plugin.

use divvy_container::cdi::Edits;
use divvy_container::oci::{self, Nvidia, Request};
use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault, Selector, SliceRecord};

use super::cdi::{Wish, for_one};
use super::compute;
use super::engine::end;
use super::nri::is_noted;
use crate::context::Context;

/// What is added to a container.
#[derive(Debug, Default)]
pub struct Given {
    /// Its own slice, if one was made.
    pub slice: Option<SliceRecord>,
    /// What its configuration gets.
    pub edits: Edits,
}

impl Given {
    /// Ends the slice again, where the container does not come to be.
    pub fn take_back(&self, context: &Context) {
        if let Some(slice) = &self.slice {
            end(context, slice);
        }
    }
}

/// Makes what the request asks for, or joins the slice that it names. A slice that is made has this name, or one that
/// is made up, and goes with this process where it is `attended`, until somebody says what it goes with.
///
/// # Errors
/// What keeps it from being made; then nothing is left of it.
pub fn give(
    request: &mut Request,
    name: Option<String>,
    attended: bool,
    context: &Context,
) -> Result<Given, Fault> {
    let mut given = Given::default();
    if request.slice.is_some() || request.join.is_some() {
        let wish = Wish {
            name,
            attended,
            ..wish(request)?
        };
        if let Some(device) = wish.device.iter().find(|device| is_made_up(device)) {
            may_emulate(device, context)?;
        }
        let (slice, edits) = for_one(&wish, request.join.as_deref(), context)?;
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

/// Whether a container may be let into the slice of this name because its author says so. One that goes with another
/// container is that one's alone, whoever reads its name.
///
/// # Errors
/// [`Code::NotLasting`] for such a slice; what keeps it from being looked up.
pub fn may_join(which: &str, context: &Context) -> Result<(), Fault> {
    let slice = context.agent()?.slice(which)?;
    match slice.attendant.is_some() || is_noted(context.peek().path(), &slice.name) {
        false => Ok(()),
        true => Err(Fault::new(
            Code::NotLasting,
            format!("slice `{which}` belongs to a container"),
        )
        .hint("`divvy slice create` makes slices that containers can join")),
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

/// The slice that is wished for. A device that is named the vendor's way is the slice's, and not given besides.
fn wish(request: &mut Request) -> Result<Wish, Fault> {
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
    Ok(Wish {
        memory: wanted.memory,
        compute: compute::Flags {
            compute: wanted.compute,
            ..compute::Flags::default()
        },
        device,
        capabilities: Some(request.capabilities.clone()),
        ..Wish::default()
    })
}

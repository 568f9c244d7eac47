//! The devices that a request names, looked up on this host.

use divvy_host::{Inventory, emulated_devices};
use divvy_model::Fault;

use crate::api::CreateSlice;
use crate::decide::placement::{PlacementRequest, choose};

/// Looks up the devices that a request names. Emulated devices that it names by product are made if they do not exist
/// yet.
///
/// # Errors
/// [`divvy_model::Code::UnknownDevice`], [`divvy_model::Code::OneSlice`], [`divvy_model::Code::Config`].
pub(crate) fn asked<'a>(
    inventory: &mut Inventory,
    ask: &'a CreateSlice,
) -> Result<PlacementRequest<'a>, Fault> {
    let mut chosen = Vec::new();
    for selector in ask.request.selectors() {
        let device = inventory.choose(selector)?;
        choose(inventory, &mut chosen, selector, device)?;
    }
    let spec = ask.emulated.as_deref();
    let own = spec.map(|spec| emulated_devices(spec, &inventory.run_dir).unwrap_or_default());
    let own = own.unwrap_or_default().into_iter();
    Ok(PlacementRequest {
        request: &ask.request,
        visible: ask.visible.as_deref(),
        chosen,
        own: own.map(|device| device.record.uuid).collect(),
    })
}

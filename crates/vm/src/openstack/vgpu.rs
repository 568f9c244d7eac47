//! `nova.conf` for virtual GPUs. Nova makes mediated devices itself; virtual functions with a type are PCI devices to it.

use std::fmt::Write;

use divvy_host::machine::Sysroot;
use divvy_host::vgpu::{VgpuWay, list, types};
use divvy_model::{Code, Fault};

use super::conf::Form;
use crate::function::Function;

/// A type that a host offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// `nvidia-558`, or a number.
    pub id: String,
    /// `A40-4Q`, in letters, digits and dashes.
    pub profile: String,
    /// How one is made.
    pub way: VgpuWay,
    /// The functions that offer it.
    pub functions: Vec<Function>,
    /// How many there can be, where the host says it.
    pub most: u32,
}

/// The types of these ids or names, on every function that offers or has them.
///
/// # Errors
/// [`Code::Vgpu`] for one that no function offers.
pub fn offers(root: &Sysroot, wanted: &[String]) -> Result<Vec<Offer>, Fault> {
    let mut known = types(root);
    // A captured tree may have other letters there, for the texts that ids are put into.
    known.retain(|offered| {
        offered
            .id
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
    });
    let mut offers: Vec<Offer> = Vec::new();
    for name in wanted {
        let fitting = known
            .iter()
            .filter(|offered| offered.id == *name || offered.name == *name);
        let mut found: Option<Offer> = None;
        for one in fitting {
            let Some(function) = Function::read(root, &one.function) else {
                continue;
            };
            let offer = found.get_or_insert_with(|| Offer {
                id: one.id.clone(),
                profile: crate::vgpu::profile(&one.name),
                way: one.way,
                functions: Vec::new(),
                most: 0,
            });
            offer.functions.push(function);
            offer.most += one.available;
        }
        let mut offer = found.ok_or_else(|| {
            Fault::new(
                Code::Vgpu,
                format!("no function offers the type `{}`", name.escape_debug()),
            )
            .hint("`divvy gpu vgpu list` shows the types")
        })?;
        let made = list(root)
            .into_iter()
            .filter(|vgpu| vgpu.kind == offer.id)
            .count();
        offer.most += u32::try_from(made).unwrap_or(0);
        if !offers.contains(&offer) {
            offers.push(offer);
        }
    }
    Ok(offers)
}

/// The lines of a compute host.
///
/// # Errors
/// [`Code::Usage`] for virtual functions in the old form, which does not have `managed`.
pub fn compute(offers: &[Offer], form: Form) -> Result<String, Fault> {
    let mut text =
        String::from("# On each compute host, in /etc/nova/nova.conf. Restart nova-compute after it.\n");
    let (mediated, functions) = split(offers, form)?;
    if !mediated.is_empty() {
        let (list, section) = match form {
            Form::Now => ("enabled_mdev_types", "mdev"),
            Form::Old => ("enabled_vgpu_types", "vgpu"),
        };
        let ids: Vec<&str> = mediated.iter().map(|offer| offer.id.as_str()).collect();
        let _ = writeln!(text, "[devices]\n{list} = {}", ids.join(", "));
        for offer in &mediated {
            let addresses: Vec<&str> = offer.functions.iter().map(|one| one.address.as_str()).collect();
            let _ = writeln!(
                text,
                "\n[{section}_{}]\ndevice_addresses = {}",
                offer.id,
                addresses.join(", ")
            );
            if form == Form::Now && offer.most > 0 {
                let _ = writeln!(text, "max_instances = {}", offer.most);
            }
        }
    }
    if !functions.is_empty() {
        text.push_str("\n[pci]\nreport_in_placement = true\n# `divvy gpu vgpu create` gives each its type before nova-compute starts.\n");
        for offer in &functions {
            for function in &offer.functions {
                let _ = writeln!(
                    text,
                    "device_spec = {{\"address\": \"{}\", \"managed\": \"no\", \"resource_class\": \"{}\"}}",
                    function.address,
                    class(offer)
                );
            }
        }
        text.push_str(&aliases(&functions));
    }
    Ok(text)
}

/// The lines of the API and the scheduler, and what flavors ask for.
///
/// # Errors
/// As [`compute`].
pub fn api(offers: &[Offer], form: Form) -> Result<String, Fault> {
    let (mediated, functions) = split(offers, form)?;
    let mut text = String::from("# On the hosts of nova-api and nova-scheduler. Restart both after it.\n");
    if !functions.is_empty() {
        let _ = write!(
            text,
            "[pci]\n{}\n[filter_scheduler]\npci_in_placement = true\n",
            aliases(&functions)
        );
    }
    text.push_str("# A flavor asks for one:\n");
    if !mediated.is_empty() {
        text.push_str("# openstack flavor set FLAVOR --property resources:VGPU=1\n");
    }
    for offer in &functions {
        let _ = writeln!(
            text,
            "# openstack flavor set FLAVOR --property pci_passthrough:alias={}:1",
            alias(offer)
        );
    }
    Ok(text)
}

/// The mediated ones, and those of virtual functions.
fn split(offers: &[Offer], form: Form) -> Result<(Vec<&Offer>, Vec<&Offer>), Fault> {
    let (mediated, functions): (Vec<&Offer>, Vec<&Offer>) =
        offers.iter().partition(|offer| offer.way == VgpuWay::Mediated);
    match functions.first().filter(|_| form == Form::Old) {
        Some(offer) => Err(Fault::new(
            Code::Usage,
            format!(
                "{} is of virtual functions, which older releases of OpenStack do not pass on",
                offer.profile
            ),
        )
        .hint("leave --old out: `managed` of device_spec is new")),
        None => Ok((mediated, functions)),
    }
}

fn class(offer: &Offer) -> String {
    format!("CUSTOM_VGPU_{}", offer.profile.to_uppercase().replace('-', "_"))
}

fn alias(offer: &Offer) -> String {
    format!("vgpu-{}", offer.profile.to_lowercase())
}

fn aliases(offers: &[&Offer]) -> String {
    let mut text = String::new();
    for offer in offers {
        let Some(first) = offer.functions.first() else {
            continue;
        };
        // Compute hosts refuse an alias that has a resource class and no ids.
        let _ = writeln!(
            text,
            "alias = {{\"name\": \"{}\", \"vendor_id\": \"{:04x}\", \"product_id\": \"{:04x}\", \"device_type\": \"type-VF\", \
             \"resource_class\": \"{}\"}}",
            alias(offer),
            first.vendor,
            first.device,
            class(offer)
        );
    }
    text
}

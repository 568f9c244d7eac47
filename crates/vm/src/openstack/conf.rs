//! `nova.conf`.

use std::fmt::Write;

use super::Product;

/// Which words the release of OpenStack has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Zed and later: `device_spec`, and devices in Placement.
    Now,
    /// Before Zed: `passthrough_whitelist`.
    Old,
}

/// The lines of a compute host.
#[must_use]
pub fn compute(products: &[Product], form: Form) -> String {
    let mut text = String::from(
        "# On each compute host, in /etc/nova/nova.conf. Restart nova-compute after it.\n[pci]\n",
    );
    let name = match form {
        Form::Now => "device_spec",
        Form::Old => "passthrough_whitelist",
    };
    if form == Form::Now {
        text.push_str(
            "# It cannot be taken back once it is on. It has to be on everywhere before the scheduler is told of it.\n\
             report_in_placement = true\n",
        );
    }
    for product in products {
        for address in &product.addresses {
            let mut spec = format!(
                "\"vendor_id\": \"{:04x}\", \"product_id\": \"{:04x}\", \"address\": \"{address}\"",
                product.vendor, product.device
            );
            if form == Form::Now {
                let _ = write!(
                    spec,
                    ", \"resource_class\": \"{}\", \"traits\": \"{}\"",
                    resource_class(product),
                    product.trait_name
                );
            }
            let _ = writeln!(text, "{name} = {{{spec}}}");
        }
    }
    text.push_str(&aliases(products, form));
    text
}

/// The lines of the API and the scheduler.
#[must_use]
pub fn api(products: &[Product], form: Form) -> String {
    let mut text = String::from(
        "# On the hosts of nova-api and nova-scheduler. Restart both after it. The aliases are the same as on compute hosts.\n[pci]\n",
    );
    text.push_str(&aliases(products, form));
    text.push_str("\n[filter_scheduler]\n");
    if form == Form::Now {
        text.push_str("# Only once every compute host reports its devices.\npci_in_placement = true\n");
    }
    text.push_str(
        "enabled_filters = ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,\
         ServerGroupAffinityFilter,NUMATopologyFilter,PciPassthroughFilter\n",
    );
    text
}

/// The resource class of a product's devices in Placement.
#[must_use]
pub fn resource_class(product: &Product) -> String {
    format!("CUSTOM_PCI_GPU_{:04X}_{:04X}", product.vendor, product.device)
}

fn aliases(products: &[Product], form: Form) -> String {
    let mut text = String::new();
    for product in products {
        // Nova takes one of the two ways to name a device, not both.
        let what = match form {
            Form::Now => format!("\"resource_class\": \"{}\"", resource_class(product)),
            Form::Old => format!(
                "\"vendor_id\": \"{:04x}\", \"product_id\": \"{:04x}\"",
                product.vendor, product.device
            ),
        };
        let _ = writeln!(
            text,
            "alias = {{\"name\": \"{}\", {what}, \"device_type\": \"{}\", \"numa_policy\": \"preferred\"}}",
            product.alias,
            product.device_type()
        );
    }
    text
}

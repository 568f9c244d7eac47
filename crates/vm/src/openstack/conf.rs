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
                let _ = write!(spec, ", \"traits\": \"{}\"", product.trait_name);
            }
            let _ = writeln!(text, "{name} = {{{spec}}}");
        }
    }
    text.push_str(&aliases(products));
    text
}

/// The lines of the API and the scheduler.
#[must_use]
pub fn api(products: &[Product], form: Form) -> String {
    let mut text = String::from(
        "# On the hosts of nova-api and nova-scheduler. Restart both after it. The aliases are the same as on compute hosts.\n[pci]\n",
    );
    text.push_str(&aliases(products));
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

/// The resource class that Nova gives a product's devices in Placement.
#[must_use]
pub fn resource_class(vendor: u16, device: u16) -> String {
    format!("CUSTOM_PCI_{vendor:04X}_{device:04X}")
}

fn aliases(products: &[Product]) -> String {
    let mut text = String::new();
    for product in products {
        // Compute hosts refuse an alias that has a resource class and no ids.
        let _ = writeln!(
            text,
            "alias = {{\"name\": \"{}\", \"vendor_id\": \"{:04x}\", \"product_id\": \"{:04x}\", \"device_type\": \"{}\", \
             \"numa_policy\": \"preferred\"}}",
            product.alias,
            product.vendor,
            product.device,
            product.device_type()
        );
    }
    text
}

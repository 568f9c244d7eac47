//! Reads Nova's files, and names what is wrong with them before a server finds no host.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::Product;
use super::conf::resource_class;
use super::ini::{Setting, read};

/// A mistake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mistake {
    /// Which file: `api` or `compute`.
    pub file: &'static str,
    /// The line, 0 where something is not there.
    pub line: usize,
    /// What is wrong.
    pub mistake: String,
    /// What to write.
    pub fix: String,
}

const COMPUTE: &str = "compute";
const API: &str = "api";
const DEVICE_KEYS: [&str; 13] = [
    "vendor_id",
    "product_id",
    "address",
    "devname",
    "physical_network",
    "remote_managed",
    "managed",
    "live_migratable",
    "resource_class",
    "traits",
    "trusted",
    "one_time_use",
    "parent_ifname",
];
const ALIAS_KEYS: [&str; 9] = [
    "name",
    "vendor_id",
    "product_id",
    "capability_type",
    "device_type",
    "numa_policy",
    "resource_class",
    "traits",
    "live_migratable",
];

/// One of the two files, with what it says of PCI.
struct File {
    name: &'static str,
    settings: Vec<Setting>,
}

impl File {
    fn of<'a>(&'a self, section: &'a str, name: &'a str) -> impl Iterator<Item = &'a Setting> {
        let settings = self.settings.iter();
        settings.filter(move |setting| setting.section == section && setting.name == name)
    }

    fn is_on(&self, section: &str, name: &str) -> bool {
        self.of(section, name).last().is_some_and(|setting| {
            matches!(
                setting.value.to_ascii_lowercase().as_str(),
                "true" | "1" | "yes" | "on"
            )
        })
    }
}

struct Found(Vec<Mistake>);

impl Found {
    fn add(&mut self, file: &File, line: usize, mistake: impl Into<String>, fix: impl Into<String>) {
        self.0.push(Mistake {
            file: file.name,
            line,
            mistake: mistake.into(),
            fix: fix.into(),
        });
    }
}

/// Checks both files. `products` are the GPUs of the compute host, where they are known.
#[must_use]
pub fn check(api: &str, compute: &str, products: &[Product]) -> Vec<Mistake> {
    let mut found = Found(Vec::new());
    let mut file = |name, text: &str| {
        let (settings, wrong) = read(text);
        let file = File { name, settings };
        for line in wrong {
            found.add(
                &file,
                line,
                "the line is neither a section nor an option",
                "write NAME = VALUE",
            );
        }
        file
    };
    let (api, compute) = (file(API, api), file(COMPUTE, compute));
    let devices = devices(&compute, &mut found);
    let on_compute = aliases(&compute, products, &mut found);
    let on_api = aliases(&api, products, &mut found);
    agree(&api, &compute, &on_api, &on_compute, &mut found);
    for (name, alias) in &on_compute {
        if !devices.is_empty() && !devices.iter().any(|(_, device)| fits(alias, device)) {
            let line = line_of(&compute, name);
            found.add(
                &compute,
                line,
                format!("the alias `{name}` fits none of the devices of device_spec"),
                "give both the same vendor_id and product_id, or the same resource_class",
            );
        }
    }
    switches(&api, &compute, &mut found);
    found.0
}

fn line_of(file: &File, alias: &str) -> usize {
    let quoted = format!("\"{alias}\"");
    file.of("pci", "alias")
        .find(|setting| setting.value.contains(&quoted))
        .map_or(0, |setting| setting.line)
}

/// The JSON objects of an option; device_spec may hold a list of them.
fn objects(file: &File, setting: &Setting, found: &mut Found) -> Vec<Map<String, Value>> {
    let text = setting.value.trim_matches('\'');
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => vec![object],
        Ok(Value::Array(list)) => list
            .into_iter()
            .filter_map(|value| value.as_object().cloned())
            .collect(),
        Ok(_) => Vec::new(),
        Err(error) => {
            found.add(
                file,
                setting.line,
                format!("`{}` is no JSON: {error}", setting.name),
                "write {\"vendor_id\": \"10de\", …}: double quotes, no comma at the end",
            );
            Vec::new()
        }
    }
}

fn devices(compute: &File, found: &mut Found) -> Vec<(usize, Map<String, Value>)> {
    let mut all = Vec::new();
    let names = ["device_spec", "passthrough_whitelist"];
    for setting in names.iter().flat_map(|name| compute.of("pci", name)) {
        for object in objects(compute, setting, found) {
            all.push((setting.line, object));
        }
    }
    let old: Vec<&Setting> = compute.of("pci", "passthrough_whitelist").collect();
    if let Some(old) = old.first() {
        match compute.of("pci", "device_spec").next() {
            Some(_) => found.add(
                compute,
                old.line,
                "passthrough_whitelist and device_spec stand beside each other: Nova reads one of them",
                "keep device_spec",
            ),
            None if compute.is_on("pci", "report_in_placement") => found.add(
                compute,
                old.line,
                "passthrough_whitelist is the name before Zed, and report_in_placement is of Zed and later",
                "call it device_spec",
            ),
            None => {}
        }
    }
    for setting in compute.of("DEFAULT", "pci_passthrough_whitelist") {
        found.add(
            compute,
            setting.line,
            "pci_passthrough_whitelist in [DEFAULT] is no longer read",
            "write device_spec in [pci]",
        );
    }
    for (line, object) in &all {
        device(compute, *line, object, found);
    }
    if all.is_empty() {
        found.add(
            compute,
            0,
            "no device is given to Nova",
            "add device_spec to [pci]; `divvy vm openstack conf` writes it",
        );
    }
    all
}

fn device(compute: &File, line: usize, object: &Map<String, Value>, found: &mut Found) {
    if object.contains_key("devname") {
        found.add(
            compute,
            line,
            "devname is for network cards: with a GPU nova-compute does not start",
            "name it by address",
        );
    }
    unknown(compute, line, object, &DEVICE_KEYS, "device_spec", found);
    ids(compute, line, object, found);
    if let Some(address) = object.get("address").and_then(Value::as_str)
        && !address.contains('*')
        && crate::function::address(address).is_err()
    {
        found.add(
            compute,
            line,
            format!("`{address}` is no PCI address"),
            "write it as 0000:65:00.0",
        );
    }
}

fn unknown(
    file: &File,
    line: usize,
    object: &Map<String, Value>,
    keys: &[&str],
    what: &str,
    found: &mut Found,
) {
    for key in object.keys().filter(|key| !keys.contains(&key.as_str())) {
        found.add(
            file,
            line,
            format!("{what} has no key `{}`", key.escape_debug()),
            format!("it has {}", keys.join(", ")),
        );
    }
}

fn ids(file: &File, line: usize, object: &Map<String, Value>, found: &mut Found) {
    for key in ["vendor_id", "product_id"] {
        let Some(value) = object.get(key) else { continue };
        let is_right = value.as_str().is_some_and(|text| {
            text == "*" || (text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
        });
        if !is_right {
            found.add(
                file,
                line,
                format!("{key} {value} is not four hexadecimal digits in quotes"),
                "write \"10de\", without 0x",
            );
        }
    }
}

type Aliases = BTreeMap<String, Map<String, Value>>;

fn aliases(file: &File, products: &[Product], found: &mut Found) -> Aliases {
    let mut all = Aliases::new();
    for setting in file.of("DEFAULT", "pci_alias") {
        found.add(
            file,
            setting.line,
            "pci_alias in [DEFAULT] is no longer read",
            "write alias in [pci]",
        );
    }
    let settings: Vec<&Setting> = file.of("pci", "alias").collect();
    for setting in settings {
        for object in objects(file, setting, found) {
            let line = setting.line;
            unknown(file, line, &object, &ALIAS_KEYS, "alias", found);
            ids(file, line, &object, found);
            let text = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
            let Some(name) = text("name") else {
                found.add(file, line, "the alias has no name", "add \"name\"");
                continue;
            };
            let kind = text("device_type").unwrap_or_else(|| "type-PCI".to_owned());
            if !["type-PCI", "type-PF", "type-VF"].contains(&kind.as_str()) {
                found.add(
                    file,
                    line,
                    format!("there is no device_type `{}`", kind.escape_debug()),
                    "write type-PCI, type-PF or type-VF",
                );
            }
            if kind == "type-PCI" && is_sriov(&object, products) {
                found.add(
                    file,
                    line,
                    format!("the alias `{name}` asks for type-PCI, and this GPU has virtual functions: no host ever fits"),
                    "write \"device_type\": \"type-PF\"",
                );
            }
            let has_ids = object.contains_key("vendor_id") && object.contains_key("product_id");
            if !has_ids && !file.is_on("filter_scheduler", "pci_in_placement") {
                found.add(
                    file,
                    line,
                    format!(
                        "the alias `{name}` has no ids: Nova refuses it where pci_in_placement is not on"
                    ),
                    "add vendor_id and product_id",
                );
            }
            if let Some(policy) = text("numa_policy")
                && !["required", "legacy", "preferred", "socket"].contains(&policy.as_str())
            {
                found.add(
                    file,
                    line,
                    format!("there is no numa_policy `{}`", policy.escape_debug()),
                    "write required, socket, preferred or legacy",
                );
            }
            all.insert(name, object);
        }
    }
    all
}

/// Products that have virtual functions on every card of theirs: Ampere and later for data centres.
const SRIOV: [u16; 14] = [
    0x20b0, 0x20b2, 0x20b5, 0x20f1, 0x2235, 0x2236, 0x2237, 0x2330, 0x2331, 0x2335, 0x26b5, 0x26b9, 0x27b8,
    0x2342,
];

fn is_sriov(alias: &Map<String, Value>, products: &[Product]) -> bool {
    let id = |key: &str| {
        let text = alias.get(key)?.as_str()?;
        u16::from_str_radix(text, 16).ok()
    };
    let (vendor, device) = (id("vendor_id"), id("product_id"));
    if let Some(class) = alias.get("resource_class").and_then(Value::as_str) {
        let mut own = products.iter();
        let class_of = |product: &Product| resource_class(product.vendor, product.device);
        return own.any(|product| product.is_sriov && class_of(product) == class);
    }
    let own = products
        .iter()
        .find(|product| Some(product.vendor) == vendor && Some(product.device) == device);
    match own {
        Some(product) => product.is_sriov,
        None => vendor == Some(0x10de) && device.is_some_and(|device| SRIOV.contains(&device)),
    }
}

fn agree(api: &File, compute: &File, on_api: &Aliases, on_compute: &Aliases, found: &mut Found) {
    if on_api.is_empty() {
        found.add(
            api,
            0,
            "there is no alias: flavors cannot ask for a device",
            "add alias to [pci]",
        );
    }
    for (name, alias) in on_api {
        match on_compute.get(name) {
            None => found.add(
                compute,
                0,
                format!("the alias `{name}` of the API is not on the compute host: resizes and moves fail"),
                "write the same alias on both",
            ),
            Some(other) if other != alias => found.add(
                compute,
                line_of(compute, name),
                format!("the alias `{name}` differs from the API's"),
                "write the same alias on both",
            ),
            Some(_) => {}
        }
    }
}

/// Whether an alias fits a device.
fn fits(alias: &Map<String, Value>, device: &Map<String, Value>) -> bool {
    let text = |object: &Map<String, Value>, key: &str| {
        object
            .get(key)
            .and_then(Value::as_str)
            .map(str::to_ascii_lowercase)
            .filter(|text| text != "*")
    };
    let same = |key: &str| match (text(alias, key), text(device, key)) {
        (Some(a), Some(b)) => a == b,
        (Some(_), None) | (None, _) => true,
    };
    // Without one of its own a device has the class that its ids make.
    let id = |key: &str| u16::from_str_radix(&text(device, key)?, 16).ok();
    let made = id("vendor_id").zip(id("product_id"));
    let made = made.map(|(vendor, device)| resource_class(vendor, device).to_ascii_lowercase());
    let class = match (
        text(alias, "resource_class"),
        text(device, "resource_class").or(made),
    ) {
        (Some(a), Some(b)) => a == b,
        (Some(_), None) => false,
        (None, _) => true,
    };
    same("vendor_id") && same("product_id") && class
}

fn switches(api: &File, compute: &File, found: &mut Found) {
    let in_placement = api.of("filter_scheduler", "pci_in_placement").last();
    if api.is_on("filter_scheduler", "pci_in_placement") && !compute.is_on("pci", "report_in_placement") {
        found.add(
            api,
            in_placement.map_or(0, |setting| setting.line),
            "pci_in_placement is on, and the compute host does not report its devices: no host is found",
            "set report_in_placement = true on every compute host first",
        );
    }
    let filters = api.of("filter_scheduler", "enabled_filters").last();
    if let Some(filters) = filters
        && !filters
            .value
            .split(',')
            .any(|filter| filter.trim() == "PciPassthroughFilter")
    {
        found.add(
            api,
            filters.line,
            "enabled_filters lacks PciPassthroughFilter: hosts without the device are chosen",
            "add PciPassthroughFilter",
        );
    }
    if filters.is_none() {
        found.add(
            api,
            0,
            "enabled_filters is not set, and Nova's own choice lacks PciPassthroughFilter",
            "set enabled_filters in [filter_scheduler] with PciPassthroughFilter",
        );
    }
}

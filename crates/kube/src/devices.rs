//! The node's devices as ResourceSlices: each whole, and each in shares of memory, cores and slots. Both forms take the same
//! counters ([`crate::counters`]), so the scheduler gives out one form at a time.

use std::collections::BTreeMap;

use divvy_model::{DeviceKind, DeviceRecord, Hardware, Vendor};
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, CounterSet, Device, DeviceAttribute, DeviceCapacity,
    DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::DRIVER;
use crate::counters::{consumed, sets};
use crate::quantity::{bytes, count};
use crate::split::Split;

/// Memory is given out in multiples of so many bytes.
pub const STEP: u64 = 256 << 20;
/// The ends of names of devices that are given out in shares.
const SHARED: &str = "-shared";
/// The most slices of a device where the agent says nothing.
const SLOTS: u64 = 16;
/// Kubernetes' bound of devices with counters in a ResourceSlice.
const MOST_DEVICES: usize = 64;

/// How a device is given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// To one claim alone.
    Whole,
    /// In shares.
    Shared,
}

/// What the API server keeps of the fields that are newer than 1.34.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All: each device in both forms.
    Both,
    /// No counters: shares only, because nothing would keep the forms apart.
    SharedOnly,
    /// No shares.
    WholeOnly,
}

/// The node that the devices are of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The node's name, which is the pool's too.
    pub node: String,
    /// The node's UID; empty where it is not known.
    pub uid: String,
}

/// What is published of the devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// In which forms.
    pub shape: Shape,
    /// Unhealthy devices have a taint; where the server keeps none they are left out.
    pub taints: bool,
    /// What the claims of one device may have of its time together, in percent: 100, or more to overcommit.
    pub most_cores: u64,
    /// Which devices are this driver's, and in which forms.
    pub split: Split,
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            shape: Shape::Both,
            taints: true,
            most_cores: 100,
            split: Split::default(),
        }
    }
}

impl Offer {
    /// Whether a device is given out in this form. One that is given out whole only needs no counters, and takes part without them.
    fn gives(&self, device: &DeviceRecord, form: Form) -> bool {
        let forms: &[Form] = match device.hardware.as_deref().map(|facts| facts.vendor) {
            // No limiter holds a share of these: what nothing enforces is not given out.
            Some(Vendor::Amd | Vendor::Intel) => &[Form::Whole],
            _ => self.split.forms(device),
        };
        let is_kept = match self.shape {
            Shape::Both => true,
            Shape::SharedOnly => form == Form::Shared || forms == [Form::Whole],
            Shape::WholeOnly => form == Form::Whole,
        };
        is_kept && forms.contains(&form)
    }
}

/// The taint of a device that is not well.
pub const UNHEALTHY: &str = "gpu.divvy.dev/unhealthy";

/// What is wrong with a device, as far as it matters to new claims. A device that is slowed down for a while is well.
#[must_use]
pub fn ailments(device: &DeviceRecord) -> Vec<&str> {
    let health = device.hardware.iter().flat_map(|facts| &facts.health);
    health
        .map(String::as_str)
        .filter(|words| !words.starts_with("it is slowed down"))
        .collect()
}

/// A device's name in the pool: its UUID in a label's letters.
#[must_use]
pub fn name(device: &DeviceRecord) -> String {
    label(&device.uuid)
}

/// A UUID in a label's letters.
pub(crate) fn label(uuid: &str) -> String {
    let plain: String = uuid
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(63 - SHARED.len())
        .collect();
    plain.trim_matches('-').to_owned()
}

/// A device's name in the pool in this form.
#[must_use]
pub fn published_name(device: &DeviceRecord, form: Form) -> String {
    match form {
        Form::Whole => name(device),
        Form::Shared => format!("{}{SHARED}", name(device)),
    }
}

/// The device of this name in the pool, and the form in which it has it.
#[must_use]
pub fn find<'a>(devices: &'a [DeviceRecord], named: &str) -> Option<(&'a DeviceRecord, Form)> {
    let of = |plain: &str| {
        devices
            .iter()
            .find(|device| is_offered(device) && name(device) == plain)
    };
    match named.strip_suffix(SHARED) {
        Some(plain) => of(plain).map(|device| (device, Form::Shared)),
        None => of(named).map(|device| (device, Form::Whole)),
    }
}

/// Whether pods can have it, or a part of it.
#[must_use]
pub fn is_offered(device: &DeviceRecord) -> bool {
    !device.is_divided() && device.memory_usable_bytes().0 >= STEP && !name(device).is_empty()
}

/// What a share can have of a device's memory at most: whole steps.
#[must_use]
pub fn shared_memory(device: &DeviceRecord) -> u64 {
    device.memory_usable_bytes().0 / STEP * STEP
}

/// How many slices a device may have.
#[must_use]
pub fn given_slots(device: &DeviceRecord) -> u64 {
    let told = device.sharing.as_ref();
    told.map_or(SLOTS, |sharing| u64::from(sharing.slice_max).max(1))
}

/// What all claims of a device together may have of its memory: with an agent that overcommits, more than there is.
#[must_use]
pub fn given_memory(device: &DeviceRecord) -> u64 {
    let usable = device.memory_usable_bytes().0;
    let ratio = device
        .sharing
        .as_ref()
        .map_or(1.0, |sharing| sharing.oversubscription_ratio);
    match ratio.is_finite() && ratio > 1.0 {
        true => (usable as f64 * ratio.min(100.0)) as u64,
        false => usable,
    }
}

fn text(value: &str) -> Option<DeviceAttribute> {
    // Kubernetes' bound of an attribute's text.
    (!value.is_empty() && value.len() <= 64).then(|| DeviceAttribute {
        string: Some(value.to_owned()),
        ..DeviceAttribute::default()
    })
}

/// A version in three numbers without leading zeros, as semantic versions are; none for what is none.
fn version(value: &str) -> Option<DeviceAttribute> {
    let mut numbers: Vec<u32> = value.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    if numbers.len() > 3 {
        return None;
    }
    numbers.resize(3, 0);
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    Some(DeviceAttribute {
        version: Some(numbers.join(".")),
        ..DeviceAttribute::default()
    })
}

fn architecture(compute_capability: &str) -> &'static str {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
    let mut parts = compute_capability.split('.');
    match (number(parts.next()), number(parts.next())) {
        (Some(7), Some(5)) => "Turing",
        (Some(7), _) => "Volta",
        (Some(8), Some(9)) => "Ada Lovelace",
        (Some(8), _) => "Ampere",
        (Some(9), _) => "Hopper",
        (Some(10 | 12), _) => "Blackwell",
        _ => "",
    }
}

/// NVIDIA's names where NVIDIA's driver has one, so that selectors carry over; ours beside them.
fn attributes(device: &DeviceRecord, form: Form) -> BTreeMap<String, DeviceAttribute> {
    let facts = device.hardware.as_deref();
    // An emulated instance is of another kind, and is one all the same.
    let is_mig = device.kind == DeviceKind::Mig || device.mig_instance().is_some();
    let kind = match (is_mig, form) {
        (true, Form::Whole) => "mig",
        (true, Form::Shared) => "mig-shared",
        (false, Form::Whole) => "gpu",
        (false, Form::Shared) => "gpu-shared",
    };
    let emulated = device.kind == DeviceKind::Emulated;
    let vendor = match facts.map(|facts| facts.vendor) {
        _ if emulated => "emulated",
        Some(Vendor::Amd) => "amd",
        Some(Vendor::Intel) => "intel",
        Some(Vendor::Other) => "",
        Some(Vendor::Emulated) => "emulated",
        Some(Vendor::Nvidia) | None => "nvidia",
    };
    let place = device.mig_instance();
    let int = |number: Option<u32>| {
        number.map(|number| DeviceAttribute {
            int: Some(number.into()),
            ..DeviceAttribute::default()
        })
    };
    let pci = if emulated { "" } else { device.pci_address.as_str() };
    let told = |of: fn(&Hardware) -> &Option<String>| facts.and_then(|facts| of(facts).as_deref());
    let all = [
        ("type", text(kind)),
        ("uuid", text(&device.uuid)),
        ("productName", text(&device.name)),
        ("brand", told(|facts| &facts.brand).and_then(text)),
        (
            "driverVersion",
            told(|facts| &facts.driver_version).and_then(version),
        ),
        ("vendor", text(vendor)),
        ("architecture", text(architecture(&device.compute_capability))),
        ("cudaComputeCapability", version(&device.compute_capability)),
        ("index", int(Some(device.index))),
        ("numaNode", int(facts.and_then(|facts| facts.numa_node))),
        ("parentUUID", place.and_then(|place| text(&place.gpu_uuid))),
        ("profile", place.and_then(|place| text(place.profile.as_deref()?))),
        ("resource.kubernetes.io/pciBusID", text(pci)),
        (
            "resource.kubernetes.io/pcieRoot",
            told(|facts| &facts.pcie_root).and_then(text),
        ),
    ];
    let kept = all
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    kept.collect()
}

fn plain(value: k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> DeviceCapacity {
    DeviceCapacity {
        request_policy: None,
        value,
    }
}

fn capacity(device: &DeviceRecord, form: Form, most_cores: u64) -> BTreeMap<String, DeviceCapacity> {
    let slots = given_slots(device);
    let all = match form {
        Form::Whole => vec![
            ("memory", plain(bytes(device.memory_usable_bytes().0))),
            ("cores", plain(count(100))),
        ],
        Form::Shared => {
            let memory = shared_memory(device);
            let range = |min, max, step| {
                Some(CapacityRequestPolicyRange {
                    min,
                    max: Some(max),
                    step,
                })
            };
            // A step that the smallest share plus one of it goes beyond is refused, and the whole pool with it.
            let step = (memory > STEP).then(|| bytes(STEP));
            vec![
                // A claim that names no memory has all of it, and one that names no cores is promised none.
                (
                    "memory",
                    DeviceCapacity {
                        value: bytes(given_memory(device) / STEP * STEP),
                        request_policy: Some(CapacityRequestPolicy {
                            default: Some(bytes(memory)),
                            valid_range: range(bytes(STEP), bytes(memory), step),
                            valid_values: None,
                        }),
                    },
                ),
                (
                    "cores",
                    DeviceCapacity {
                        value: count(most_cores),
                        request_policy: Some(CapacityRequestPolicy {
                            default: Some(count(0)),
                            valid_range: range(count(0), count(100), Some(count(1))),
                            valid_values: None,
                        }),
                    },
                ),
                (
                    "slots",
                    DeviceCapacity {
                        value: count(slots),
                        request_policy: Some(CapacityRequestPolicy {
                            default: Some(count(1)),
                            valid_range: None,
                            valid_values: Some(vec![count(1)]),
                        }),
                    },
                ),
            ]
        }
    };
    all.into_iter()
        .map(|(name, capacity)| (name.to_owned(), capacity))
        .collect()
}

fn offered(device: &DeviceRecord, all: &[DeviceRecord], form: Form, offer: &Offer) -> Device {
    let counters = offer.shape == Shape::Both;
    let taint = || {
        vec![DeviceTaint {
            key: UNHEALTHY.into(),
            effect: "NoSchedule".into(),
            ..DeviceTaint::default()
        }]
    };
    let consumes = || vec![consumed(device, all)];
    Device {
        name: published_name(device, form),
        allow_multiple_allocations: (form == Form::Shared).then_some(true),
        attributes: Some(attributes(device, form)),
        capacity: Some(capacity(device, form, offer.most_cores)),
        taints: (offer.taints && !ailments(device).is_empty()).then(taint),
        consumes_counters: counters.then(consumes),
        ..Device::default()
    }
}

/// What one slice of the pool holds: its name's end, and sets of counters or devices.
type Part = (String, Option<Vec<CounterSet>>, Option<Vec<Device>>);

/// The pool of a node: every ResourceSlice of one generation, sets of counters first. Their order of devices is the order
/// in which the scheduler tries them: shares before whole devices, each in the order of `devices` ([`crate::order`]).
#[must_use]
pub fn pool(owner: &Owner, devices: &[DeviceRecord], offer: &Offer, generation: i64) -> Vec<ResourceSlice> {
    let all = devices;
    let devices: Vec<&DeviceRecord> = all
        .iter()
        .filter(|device| is_offered(device) && offer.split.has(device))
        .filter(|device| offer.taints || ailments(device).is_empty())
        .collect();
    let counters = offer.shape == Shape::Both;
    let offers: Vec<Device> = [Form::Shared, Form::Whole]
        .into_iter()
        .flat_map(|form| devices.iter().map(move |device| (*device, form)))
        .filter(|(device, form)| offer.gives(device, *form))
        .map(|(device, form)| offered(device, all, form, offer))
        .collect();
    let sets = if counters { sets(&devices, all) } else { Vec::new() };
    let mut parts: Vec<Part> = Vec::new();
    for (place, sets) in sets.into_iter().enumerate() {
        parts.push((format!("counters-{place}"), Some(sets), None));
    }
    for (place, offers) in offers.chunks(MOST_DEVICES).enumerate() {
        parts.push((format!("devices-{place}"), None, Some(offers.to_vec())));
    }
    let total = i64::try_from(parts.len()).unwrap_or(i64::MAX);
    let of_node = |uid: &str| {
        vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: owner.node.clone(),
            uid: uid.to_owned(),
            controller: Some(true),
            block_owner_deletion: None,
        }]
    };
    let slice = |(part, shared_counters, devices): Part| ResourceSlice {
        metadata: ObjectMeta {
            name: Some(slice_name(&owner.node, &part)),
            owner_references: (!owner.uid.is_empty()).then(|| of_node(&owner.uid)),
            ..ObjectMeta::default()
        },
        spec: ResourceSliceSpec {
            driver: DRIVER.into(),
            node_name: Some(owner.node.clone()),
            pool: ResourcePool {
                name: owner.node.clone(),
                generation,
                resource_slice_count: total,
            },
            shared_counters,
            devices,
            ..ResourceSliceSpec::default()
        },
    };
    parts.into_iter().map(slice).collect()
}

/// A name under which nothing is published.
pub(crate) fn probe_name(name: &str) -> String {
    let digest = crate::state::digest(&["probe", name]);
    format!("probe-{digest}.{DRIVER}")
}

/// The name of a ResourceSlice, of 253 characters at most.
fn slice_name(node: &str, part: &str) -> String {
    let end = format!("-{DRIVER}-{part}");
    if node.len() + end.len() <= 253 {
        return format!("{node}{end}");
    }
    // Nodes of long names, which may begin alike.
    let digest = crate::state::digest(&[node]);
    let start: String = node.chars().take(253 - end.len() - digest.len() - 1).collect();
    format!("{start}-{digest}{end}")
}

#[cfg(test)]
pub(crate) mod tests {
    use divvy_model::Bytes;

    use super::*;
    use crate::quantity::whole;

    pub(crate) fn device(index: u32) -> DeviceRecord {
        DeviceRecord {
            index,
            uuid: format!("GPU-0000000{index}-0000-0000-0000-000000000000"),
            name: "NVIDIA H200".into(),
            kind: DeviceKind::Gpu,
            profile: None,
            pci_address: format!("0000:{index:02x}:00.0"),
            memory_total_bytes: Bytes((140 << 30) + 77),
            memory_reserved_bytes: Bytes(1 << 30),
            memory_used_bytes: Bytes(0),
            sm_count: 132,
            compute_capability: "9.0".into(),
            context_bytes: None,
            sharing: None,
            hardware: None,
        }
    }

    fn owner(node: &str) -> Owner {
        Owner {
            node: node.into(),
            uid: "n-1".into(),
        }
    }

    #[test]
    fn both_forms_exclude_each_other_and_follow_kubernetes_bounds() {
        let all: Vec<DeviceRecord> = (0..40).map(device).collect();
        let pool = pool(&owner("node"), &all, &Offer::default(), 3);
        let sets: Vec<usize> = pool
            .iter()
            .filter_map(|slice| Some(slice.spec.shared_counters.as_ref()?.len()))
            .collect();
        let devices: Vec<usize> = pool
            .iter()
            .filter_map(|slice| Some(slice.spec.devices.as_ref()?.len()))
            .collect();
        assert_eq!((sets, devices), (vec![8; 5], vec![64, 16]));
        for slice in &pool {
            assert_eq!(
                (slice.spec.pool.generation, slice.spec.pool.resource_slice_count),
                (3, 7)
            );
            assert!(slice.spec.shared_counters.is_none() || slice.spec.devices.is_none());
        }
        let first = &pool[5].spec.devices.as_ref().expect("devices")[0];
        assert_eq!(first.name, "gpu-00000000-0000-0000-0000-000000000000-shared");
        assert_eq!(first.allow_multiple_allocations, Some(true));
        assert_eq!(
            first.consumes_counters.as_ref().expect("one")[0].counter_set,
            name(&all[0])
        );
        let memory = &first.capacity.as_ref().expect("capacities")["memory"];
        let policy = memory.request_policy.as_ref().expect("a policy");
        let range = policy.valid_range.as_ref().expect("a range");
        let number = |quantity: &Option<_>| quantity.as_ref().and_then(whole).expect("a number");
        let (max, step) = (number(&range.max), number(&range.step));
        assert!(max.is_multiple_of(step) && max <= whole(&memory.value).expect("bytes"));
        assert!(max <= all[0].memory_usable_bytes().0 && all[0].memory_usable_bytes().0 - max < step);
        let whole_form = &pool[5].spec.devices.as_ref().expect("devices")[40];
        assert_eq!(
            (whole_form.name.as_str(), whole_form.allow_multiple_allocations),
            (&*name(&all[0]), None)
        );
        for named in [&first.name, &whole_form.name] {
            assert_eq!(find(&all, named).expect("it is one").0.index, 0);
        }
        assert!(find(&all, "gpu-9").is_none());
    }

    /// Kubernetes refuses a range whose minimum plus a step is more than there is.
    #[test]
    fn a_device_of_one_step_of_memory_has_a_range_without_steps() {
        for (memory, steps) in [(STEP, false), (2 * STEP - 1, false), (2 * STEP, true)] {
            let mut small = device(0);
            (small.memory_total_bytes, small.memory_reserved_bytes) = (Bytes(memory), Bytes(0));
            let capacity = &capacity(&small, Form::Shared, 100)["memory"];
            let policy = capacity.request_policy.as_ref().expect("a policy");
            let range = policy.valid_range.as_ref().expect("a range");
            assert_eq!(range.step.is_some(), steps, "{memory}");
            let most = whole(&range.min).expect("bytes") + if steps { STEP } else { 0 };
            assert!(most <= whole(&capacity.value).expect("bytes"), "{memory}");
        }
    }

    #[test]
    fn attributes_have_nvidias_names() {
        let mut mig = device(1);
        mig.kind = DeviceKind::Mig;
        let mut first = device(0);
        first.hardware = Some(Box::new(Hardware {
            brand: Some("Nvidia".into()),
            driver_version: Some("580.65.06".into()),
            pcie_root: Some("pci0000:60".into()),
            numa_node: Some(1),
            ..Hardware::default()
        }));
        let attributes = attributes(&first, Form::Whole);
        let string = |name: &str| attributes[name].string.as_deref();
        assert_eq!(string("brand"), Some("Nvidia"));
        assert_eq!(string("resource.kubernetes.io/pcieRoot"), Some("pci0000:60"));
        // As semantic versions are, without leading zeros.
        assert_eq!(attributes["driverVersion"].version.as_deref(), Some("580.65.6"));
        assert_eq!(attributes["numaNode"].int, Some(1));
        assert_eq!(string("type"), Some("gpu"));
        assert_eq!(string("productName"), Some("NVIDIA H200"));
        assert_eq!(string("architecture"), Some("Hopper"));
        assert_eq!(string("resource.kubernetes.io/pciBusID"), Some("0000:00:00.0"));
        assert_eq!(
            attributes["cudaComputeCapability"].version.as_deref(),
            Some("9.0.0")
        );
        assert_eq!(
            super::attributes(&mig, Form::Whole)["type"].string.as_deref(),
            Some("mig")
        );
        for text in ["", "9.x", "1.2.3.4", "-1"] {
            assert_eq!(version(text), None, "{text}");
        }
        assert_eq!(
            version("550.054.14").and_then(|found| found.version).as_deref(),
            Some("550.54.14")
        );
    }

    /// As a host with an MI300X in CPX mode tells: no share of a partition is limited by anything, and the partition itself is.
    #[test]
    fn amds_devices_are_given_out_whole() {
        let amd = |index: u32, kind: DeviceKind| {
            let mut found = device(index);
            (found.kind, found.uuid) = (kind, format!("GPU-0123456789abcdef/{index}"));
            (found.name, found.compute_capability) = ("AMD Instinct MI300X".into(), "gfx942".into());
            found.hardware = Some(Box::new(Hardware {
                vendor: Vendor::Amd,
                numa_node: Some(1),
                pcie_root: Some("pci0000:60".into()),
                ..Hardware::default()
            }));
            found
        };
        let all = [amd(0, DeviceKind::Gpu), amd(1, DeviceKind::Partition), device(2)];
        for shape in [Shape::Both, Shape::SharedOnly, Shape::WholeOnly] {
            let offer = Offer {
                shape,
                ..Offer::default()
            };
            let slices = pool(&owner("node"), &all, &offer, 1);
            let devices: Vec<Device> = slices
                .into_iter()
                .filter_map(|slice| slice.spec.devices)
                .flatten()
                .collect();
            let of_amd: Vec<&Device> = devices
                .iter()
                .filter(|found| found.name.starts_with("gpu-0123456789abcdef"))
                .collect();
            assert_eq!(
                of_amd.len(),
                2,
                "{shape:?}: each in one form, as every server keeps it"
            );
            for found in of_amd {
                assert!(found.allow_multiple_allocations.is_none(), "{found:?}");
                let attributes = found.attributes.as_ref().expect("attributes");
                let string = |name: &str| attributes.get(name).and_then(|value| value.string.as_deref());
                assert_eq!((string("vendor"), string("type")), (Some("amd"), Some("gpu")));
                assert_eq!(string("productName"), Some("AMD Instinct MI300X"));
                assert_eq!(string("resource.kubernetes.io/pcieRoot"), Some("pci0000:60"));
                // A selector by NVIDIA's names is to find none of these.
                for none in ["cudaComputeCapability", "architecture", "brand"] {
                    assert!(!attributes.contains_key(none), "{none}");
                }
                let capacity = found.capacity.as_ref().expect("capacity");
                assert!(
                    capacity.contains_key("memory") && !capacity.contains_key("slots"),
                    "{capacity:?}"
                );
            }
        }
        let named = find(&all, "gpu-0123456789abcdef-1").expect("found by its name");
        assert_eq!((named.0.kind, named.1), (DeviceKind::Partition, Form::Whole));
    }

    #[test]
    fn a_gpu_in_mig_mode_is_not_offered() {
        let mut divided = device(0);
        divided.hardware = Some(Box::new(Hardware {
            mig_mode: Some(true),
            ..Hardware::default()
        }));
        let shares = Offer {
            shape: Shape::SharedOnly,
            ..Offer::default()
        };
        let shared = pool(&owner("node"), &[divided, device(1)], &shares, 1);
        assert_eq!(shared.len(), 1);
        let devices = shared[0].spec.devices.as_ref().expect("devices");
        assert!(devices.len() == 1 && devices[0].consumes_counters.is_none());
        assert!(pool(&owner("node"), &[], &Offer::default(), 1).is_empty());
    }

    #[test]
    fn a_nodes_devices_are_divided_by_form_and_by_driver() {
        let all: Vec<DeviceRecord> = (0..4).map(device).collect();
        let uuid = |index: usize| all[index].uuid.clone();
        let own: Vec<String> = (0..3).map(uuid).collect();
        let split = Split::new(&own, &[uuid(0)], &[uuid(1)]).expect("a split");
        let of = |shape: Shape| {
            let offer = Offer {
                shape,
                split: split.clone(),
                ..Offer::default()
            };
            let pool = pool(&owner("node"), &all, &offer, 1);
            let devices = pool.into_iter().filter_map(|slice| slice.spec.devices).flatten();
            devices.map(|device| device.name).collect::<Vec<_>>()
        };
        let named = |index: usize, form| published_name(&all[index], form);
        let (one, two) = (named(1, Form::Shared), named(2, Form::Shared));
        let (zero, two_whole) = (named(0, Form::Whole), named(2, Form::Whole));
        assert_eq!(
            of(Shape::Both),
            [one.clone(), two.clone(), zero.clone(), two_whole.clone()]
        );
        // Nothing keeps the forms of the third device apart.
        assert_eq!(of(Shape::SharedOnly), [one, two, zero.clone()]);
        assert_eq!(of(Shape::WholeOnly), [zero, two_whole]);
    }

    pub(crate) fn ill(index: u32) -> DeviceRecord {
        let mut device = device(index);
        device.hardware.get_or_insert_default().health = vec!["2 uncorrectable memory errors".into()];
        device
    }

    #[test]
    fn an_unhealthy_device_has_a_taint_or_is_left_out() {
        let mut warm = device(1);
        warm.hardware.get_or_insert_default().health =
            vec!["it is slowed down by the driver: too hot".into()];
        let of = |taints: bool| {
            let offer = Offer {
                taints,
                ..Offer::default()
            };
            let pool = pool(&owner("node"), &[ill(0), warm.clone()], &offer, 1);
            let devices = pool.into_iter().filter_map(|slice| slice.spec.devices);
            let tainted = |device: Device| {
                let effects = device
                    .taints
                    .into_iter()
                    .flatten()
                    .map(|taint| (taint.key, taint.effect));
                (
                    device.name.starts_with("gpu-00000000"),
                    effects.collect::<Vec<_>>(),
                )
            };
            devices.flatten().map(tainted).collect::<Vec<_>>()
        };
        let taint = vec![(UNHEALTHY.to_owned(), "NoSchedule".to_owned())];
        let ill = (true, taint);
        let well = (false, Vec::new());
        assert_eq!(of(true), [ill.clone(), well.clone(), ill, well.clone()]);
        assert_eq!(of(false), [well.clone(), well]);
    }

    #[test]
    fn overcommitted_devices_are_given_out_beyond_what_they_have_and_no_claim_is() {
        let mut full = device(0);
        full.sharing = Some(divvy_model::Sharing {
            oversubscription_ratio: 1.5,
            slice_max: 16,
            ..divvy_model::Sharing::default()
        });
        let offer = Offer {
            most_cores: 200,
            ..Offer::default()
        };
        let pool = pool(&owner("node"), &[full.clone()], &offer, 1);
        let shared = pool[1].spec.devices.as_ref().expect("devices")[0]
            .capacity
            .clone()
            .expect("capacities");
        let most = |name: &str| {
            let policy = shared[name].request_policy.as_ref().expect("a policy");
            let range = policy.valid_range.as_ref().expect("a range");
            (whole(&shared[name].value), range.max.as_ref().and_then(whole))
        };
        assert_eq!(most("cores"), (Some(200), Some(100)));
        let (all, one) = most("memory");
        assert_eq!(one, Some(shared_memory(&full)));
        assert_eq!(all, Some(given_memory(&full) / STEP * STEP));
        assert_eq!(given_memory(&full), full.memory_usable_bytes().0 * 3 / 2);
        // Factors that are none.
        for ratio in [f64::NAN, f64::INFINITY, 0.0, -1.0, 0.5] {
            full.sharing.as_mut().expect("some").oversubscription_ratio = ratio;
            assert_eq!(given_memory(&full), full.memory_usable_bytes().0, "{ratio}");
        }
    }

    #[test]
    fn names_of_resource_slices_fit() {
        let long = ["a", "b"].map(|end| format!("{}{end}", "n".repeat(252)));
        let names = long.each_ref().map(|node| slice_name(node, "devices-0"));
        assert!(names.iter().all(|name| name.len() <= 253) && names[0] != names[1]);
        assert_eq!(slice_name("n1", "devices-0"), "n1-gpu.divvy.dev-devices-0");
    }
}

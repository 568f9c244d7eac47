//! Nova's files: what is written is right, and each planted mistake is named.

use divvy_host::machine::Sysroot;
use divvy_vm::openstack::check::{Mistake, check};
use divvy_vm::openstack::commands::{Server, commands, flavors};
use divvy_vm::openstack::conf::{Form, api, compute};
use divvy_vm::openstack::{Product, products};

fn host() -> Vec<Product> {
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/hosts/passthrough");
    products(&Sysroot::at(tree), &[]).expect("it has GPUs")
}

const API: &str = r#"[pci]
alias = {"name": "a1", "vendor_id": "10de", "product_id": "26b9", "device_type": "type-PF", "numa_policy": "preferred"}

[filter_scheduler]
pci_in_placement = true
enabled_filters = ComputeFilter,NUMATopologyFilter,PciPassthroughFilter
"#;

const COMPUTE: &str = r#"[pci]
report_in_placement = true
device_spec = {"vendor_id": "10de", "product_id": "26b9", "address": "0000:65:00.0"}
alias = {"name": "a1", "vendor_id": "10de", "product_id": "26b9", "device_type": "type-PF", "numa_policy": "preferred"}
"#;

fn said(mistakes: &[Mistake]) -> String {
    let lines: Vec<String> = mistakes
        .iter()
        .map(|one| format!("{}:{}: {} -> {}", one.file, one.line, one.mistake, one.fix))
        .collect();
    lines.join("\n")
}

#[test]
fn each_planted_mistake_is_named() {
    assert_eq!(said(&check(API, COMPUTE, &host())), "", "these are right");
    let on_both = |from: &str, to: &str| (API.replace(from, to), COMPUTE.replace(from, to));
    let on_compute = |from: &str, to: &str| {
        assert!(COMPUTE.contains(from), "{from}");
        (API.to_owned(), COMPUTE.replace(from, to))
    };
    let on_api = |from: &str, to: &str| {
        assert!(API.contains(from), "{from}");
        (API.replace(from, to), COMPUTE.to_owned())
    };
    let spec = COMPUTE.lines().nth(2).expect("a line");
    let alias = API.lines().nth(1).expect("a line");
    for ((api, compute), wanted) in [
        (
            on_both("type-PF", "type-PCI"),
            "asks for type-PCI, and this GPU has virtual functions",
        ),
        (
            on_api("\"numa_policy\": \"preferred\"", "\"numa_policy\": \"legacy\""),
            "the alias `a1` differs from the API's",
        ),
        (
            on_compute("\"name\": \"a1\"", "\"name\": \"a2\""),
            "the alias `a1` of the API is not on the compute host",
        ),
        (
            on_compute("\"address\": \"0000:65:00.0\"", "\"devname\": \"eth0\""),
            "nova-compute does not start",
        ),
        (
            on_compute(
                "\"vendor_id\": \"10de\", \"product_id\": \"26b9\", \"device",
                "\"resource_class\": \"CUSTOM_X\", \"device",
            ),
            "Nova refuses it where pci_in_placement is not on",
        ),
        (
            on_compute("26b9\", \"address\"", "2330\", \"address\""),
            "fits none of the devices",
        ),
        (
            on_api(",PciPassthroughFilter", ""),
            "enabled_filters lacks PciPassthroughFilter",
        ),
        (
            on_compute("report_in_placement = true\n", ""),
            "the compute host does not report its devices",
        ),
        (
            on_both("type-PF", "type-GPU"),
            "there is no device_type `type-GPU`",
        ),
        (
            on_both("preferred", "prefered"),
            "there is no numa_policy `prefered`",
        ),
        (
            on_compute("0000:65:00.0\"}", "0000:65:00.0\",}"),
            "`device_spec` is no JSON",
        ),
        (
            on_both("\"10de\"", "\"0x10de\""),
            "is not four hexadecimal digits",
        ),
        (
            on_compute(
                "\"vendor_id\": \"10de\", \"product_id\": \"26b9\", \"address\"",
                "\"vender_id\": \"10de\", \"address\"",
            ),
            "has no key `vender_id`",
        ),
        (
            on_compute(spec, &format!("{spec}\npassthrough_whitelist = {{}}")),
            "stand beside each other",
        ),
        (
            on_compute(spec, &spec.replace("device_spec", "passthrough_whitelist")),
            "the name before Zed",
        ),
        (on_compute(spec, ""), "no device is given to Nova"),
        (on_api(alias, ""), "there is no alias"),
        (on_compute("0000:65:00.0", "65.00.0"), "is no PCI address"),
        (
            on_api("[pci]", "[DEFAULT]\npci_alias = {}\n[pci]"),
            "pci_alias in [DEFAULT] is no longer read",
        ),
        (
            on_api("[pci]\n", "[pci]\nalias {}\n"),
            "neither a section nor an option",
        ),
    ] {
        let mistakes = said(&check(&api, &compute, &host()));
        assert!(mistakes.contains(wanted), "{wanted}: {mistakes}\n{api}{compute}");
    }
    // Without the host's GPUs its products are known by their ids.
    let (api, compute) = on_both("type-PF", "type-PCI");
    assert!(said(&check(&api, &compute, &[])).contains("type-PCI"));
}

#[test]
fn what_is_written_is_right() {
    let host = host();
    for form in [Form::Now, Form::Old] {
        let (api, compute) = (api(&host, form), compute(&host, form));
        assert_eq!(said(&check(&api, &compute, &host)), "", "{api}{compute}");
        let wanted = match form {
            Form::Now => "device_spec = {\"vendor_id\": \"10de\"",
            Form::Old => "passthrough_whitelist = {\"vendor_id\": \"10de\"",
        };
        assert!(compute.contains(wanted), "{compute}");
    }
    // A card with virtual functions is a physical function for Nova, one without is not.
    let types: Vec<(u16, &str)> = host.iter().map(|one| (one.device, one.device_type())).collect();
    assert_eq!(types, [(0x1eb8, "type-PCI"), (0x26b9, "type-PF")]);
}

#[test]
fn flavors_have_the_proportions_that_are_asked_for() {
    let host = host();
    let server = Server {
        name: "trainer".into(),
        image: "ubuntu".into(),
        network: "private".into(),
        external: "public".into(),
    };
    let all = commands(&host[1..], &flavors(10, 100), &server, Form::Now);
    let lines: Vec<String> = all.iter().map(|words| words.join(" ")).collect();
    assert!(
        lines[0].ends_with("trait create CUSTOM_GPU_10DE_26B9"),
        "{lines:?}"
    );
    assert_eq!(
        lines[4],
        "openstack flavor create gpu-10de-26b9.8 --vcpus 80 --ram 819200 --disk 100 --ephemeral 6500 --property \
         pci_passthrough:alias=gpu-10de-26b9:8 --property hw:pci_numa_affinity_policy=preferred --property \
         hw:cpu_policy=dedicated --property hw:mem_page_size=1GB"
    );
    let order = [
        "security group create",
        "rule create",
        "volume create",
        "server create",
        "add volume",
        "floating ip create",
        "add floating ip",
    ];
    for (line, wanted) in lines[5..].iter().zip(order) {
        assert!(line.contains(wanted), "{line}: {wanted}");
    }
    let old = commands(&host, &flavors(8, 64), &server, Form::Old);
    let old: Vec<String> = old.iter().map(|words| words.join(" ")).collect();
    assert!(
        old[0].starts_with("nova flavor-create gpu-10de-1eb8.1 auto 65536 100 8"),
        "{old:?}"
    );
    assert!(
        old.iter()
            .any(|line| line.starts_with("neutron floatingip-create")),
        "{old:?}"
    );
}

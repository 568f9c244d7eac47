//! The YAML that root reads: CDI files and MIG files, out of any bytes.

use std::path::Path;

use divvy_container::cdi::{Found, parse, validate};
use divvy_container::oci::apply;
use divvy_host::mig::{Geometry, MigDevice, MigFile, targets};
use divvy_model::{Fault, MigProduct};

/// No reason is longer, whatever the file says: people and logs get it.
const LONGEST_REASON: usize = 4096;

/// Reads a text as both kinds of file, and uses each as a reader does. Returns how many of the two it was.
///
/// # Panics
/// Where something that must hold does not.
pub fn files(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return 0;
    };
    usize::from(cdi(text)) + usize::from(mig(text))
}

fn cdi(text: &str) -> bool {
    let path = Path::new("vendor.yaml");
    let spec = parse(path, text);
    let was = spec.is_ok();
    match &spec {
        Ok(spec) => {
            // All content that one notation can hold, the other can hold too.
            let again = parse(Path::new("vendor.json"), &spec.to_json()).expect("our own JSON");
            assert_eq!(*spec, again);
            for edits in spec.edits() {
                let mut config = serde_json::json!({"process": {"env": ["A=b"]}, "mounts": []});
                let _applied = apply(&mut config, edits);
                assert!(config["process"]["env"].is_array());
            }
        }
        Err(reason) => assert!(reason.len() < LONGEST_REASON, "{} bytes", reason.len()),
    }
    let found = Found {
        path: path.to_owned(),
        priority: 0,
        spec,
    };
    assert!(
        was || !validate(&[found]).is_empty(),
        "a file that cannot be read is told of"
    );
    was
}

fn mig(text: &str) -> bool {
    let told = |fault: &Fault| assert!(fault.to_string().len() < LONGEST_REASON);
    let file = match MigFile::parse(text) {
        Ok(file) => file,
        Err(fault) => {
            told(&fault);
            return false;
        }
    };
    let devices: Vec<MigDevice> = ["h100", "a30"].iter().zip(0..).map(device).collect();
    for name in file.configs.keys() {
        let entries = file.config(Some(name)).expect("it has that name");
        let Ok(targets) = targets(entries, &devices) else {
            continue;
        };
        assert!(targets.len() <= devices.len());
        for target in targets {
            assert!(target.enabled || target.wanted.is_empty());
        }
    }
    true
}

fn device((product, index): (&&str, u32)) -> MigDevice {
    let geometry = Geometry::from(MigProduct::of_key(product).expect("a product"));
    MigDevice {
        index,
        uuid: format!("GPU-{index}"),
        name: (*product).to_owned(),
        pci_device: 0x2330,
        mode: Some(true),
        geometry,
        instances: Vec::new(),
        tenants: Vec::new(),
    }
}

//! A driver that hangs in the middle of a change, and two who want to change devices at once.

use std::time::Duration;

use divvy_host::mig::{
    Alone, Geometry, GpuInstance, MigDevice, MigDriver, MigWithTimeout, NewInstance, Target, apply,
    parse_list, plan_devices,
};
use divvy_model::{Code, Fault, MigProduct};

/// Holds a 7g, and never comes back from removing it.
struct Hangs;

impl MigDriver for Hangs {
    fn devices(&mut self) -> Result<Vec<MigDevice>, Fault> {
        let product = MigProduct::of_key("h100").expect("a product");
        Ok(vec![MigDevice {
            index: 0,
            uuid: "GPU-0".into(),
            name: "H100".into(),
            pci_device: product.pci_devices[0],
            mode: Some(true),
            geometry: Geometry::from(product),
            instances: vec![GpuInstance {
                id: 1,
                profile_id: 0,
                start: 0,
                compute: Vec::new(),
            }],
            tenants: Vec::new(),
        }])
    }

    fn set_mode(&mut self, _uuid: &str, _on: bool) -> Result<bool, Fault> {
        unreachable!("it is on")
    }

    fn create(&mut self, _: &str, _: &NewInstance) -> Result<u32, Fault> {
        unreachable!("nothing is asked of a driver that hangs")
    }

    fn destroy(&mut self, _uuid: &str, _instance: u32) -> Result<(), Fault> {
        loop {
            std::thread::park();
        }
    }

    fn create_compute(&mut self, _: &str, _: u32, _: u8) -> Result<(), Fault> {
        unreachable!("nothing is asked of a driver that hangs")
    }

    fn destroy_compute(&mut self, _: &str, _: u32, _: u32) -> Result<(), Fault> {
        unreachable!("nothing is asked of a driver that hangs")
    }
}

#[test]
fn a_driver_that_hangs_half_way_is_given_up_and_told_of() {
    let mut driver = MigWithTimeout::over(Hangs, Duration::from_secs(60), Duration::from_millis(50));
    let devices = driver.devices().expect("it answers");
    let target = Target {
        device: 0,
        enabled: true,
        wanted: parse_list("3g.40gb").expect("a list"),
    };
    let plans = plan_devices(&devices, &[target]).expect("a plan");
    let refusal = apply(&mut driver, &plans).expect_err("it hangs");
    let causes = refusal.causes.join("; ");
    assert_eq!(refusal.code, Code::Driver);
    assert!(
        refusal.message.contains("could not remove 7g.80gb:0"),
        "{refusal:?}"
    );
    assert!(
        causes.contains("does not answer within") && causes.contains("not everything could be put back"),
        "{causes}"
    );
    // Not waited for a second time.
    let refusal = driver.devices().expect_err("it hangs still");
    assert_eq!(refusal.message, "NVIDIA's library does not answer");
}

#[test]
fn devices_are_changed_by_one_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(Alone::NAME);
    let first = Alone::wait(&path, Duration::ZERO).expect("no other");
    let refusal = Alone::wait(&path, Duration::ZERO).expect_err("another is at it");
    assert_eq!(refusal.code, Code::MigBusy);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| Alone::wait(&path, Alone::TIMEOUT));
        drop(first);
        assert!(second.join().expect("no panic").is_ok(), "it is free now");
    });
    // Another user's link does not choose what is opened.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), &link).expect("a link");
    Alone::wait(&link, Duration::ZERO).expect_err("a link");
    assert!(!folder.path().join("elsewhere").exists());
}

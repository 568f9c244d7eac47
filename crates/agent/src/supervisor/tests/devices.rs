//! A slice of two devices, which passes the gate on both.

use divvy_model::{Bytes, DeviceRecord, DeviceShare};

use super::whole::{DEVICE, MIB, MS, Whole, lives, pass, supervised};
use super::{Shell, is_stopped, until};
use crate::decide::supervise::time::Used;
use crate::leasing::Charge;
use crate::supervisor::Seen;
use crate::supervisor::sight::{Sight, since_boot};

const SLICE: &str = "0123abcd";
const OTHER: &str = "GPU-1";
const PAUSE: u64 = 100 * MS;

/// The device with the smaller debt thawed what the other one had frozen, until the next look.
#[test]
fn one_device_lets_nothing_go_on_that_another_has_frozen() {
    let whole = Whole::start();
    let mut shell = Shell::start();
    let pid = shell.spawn();
    let mut record = supervised(SLICE, &shell);
    record.shares.further.push(DeviceShare {
        device_uuid: OTHER.into(),
        memory_limit_bytes: Bytes(1024 * MIB),
        ..DeviceShare::default()
    });
    let records = [record];
    let other = DeviceRecord {
        uuid: OTHER.into(),
        ..whole.device.clone()
    };
    let (mut used, mut apart) = (0, 0);
    for look in 0..300 {
        used += if is_stopped(pid) { 0 } else { PAUSE };
        pass(PAUSE);
        // Of one device it gets more soon, and so has paid earlier there.
        let shares = [3000, if look < 5 { 3000 } else { 9000 }];
        let seen = [&whole.device, &other].into_iter().zip(shares);
        let seen = seen.map(|(device, share)| Seen {
            device,
            sight: Some(Sight {
                holders: vec![(pid, Some(Bytes(MIB)))],
                used: vec![(pid, Used::Total(used))],
                dead: None,
                asked: since_boot() + 20 * MS,
            }),
            charges: vec![Charge {
                slice_id: SLICE.into(),
                device_uuid: device.uuid.clone(),
                charged: 0,
                outlasted: 0,
                share,
                counts: true,
                is_open: false,
            }],
            at: (whole.supervisor.clock)(),
        });
        whole.supervisor.judge(&records, seen.collect());
        let frozen = [DEVICE, OTHER].map(|device| {
            let of = (SLICE.to_owned(), device.to_owned());
            whole.supervisor.lock().accounts.all[&of].is_frozen[1]
        });
        apart += u64::from(frozen[0] != frozen[1]);
        until(|| is_stopped(pid) == frozen.contains(&true));
    }
    assert!(apart > 0, "one was thawed before the other");
    assert!(lives(pid));
}

//! Figures in the text form that Prometheus reads (version 0.0.4).

use std::fmt::Write;

use crate::api::Status;
use crate::api::compute::ComputeRecord;
use divvy_model::exposition::{head, label};
use divvy_model::{DeviceRecord, DeviceShare, SliceRecord};

/// The agent's counters, and what each slice has of its devices' time.
pub(crate) fn text(
    status: &Status,
    slices: &[ComputeRecord],
    devices: &[DeviceRecord],
    records: &[SliceRecord],
) -> String {
    let mut text = String::new();
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut alone = |name: &str, about: &str, kind: &str, value: f64| {
        head(&mut text, name, about, kind);
        let _written = writeln!(text, "{name} {value}");
    };
    alone(
        "divvy_slices",
        "Slices of the agent.",
        "gauge",
        f64::from(status.slice_count),
    );
    alone(
        "divvy_bypasses_total",
        "Limits asked for and not enforced.",
        "counter",
        status.bypass_total as f64,
    );
    alone(
        "divvy_leases_overdue_total",
        "Leases outlasted so that others were told.",
        "counter",
        status.overdue_total as f64,
    );
    alone(
        "divvy_leases_expired_total",
        "Leases outlasted so that the device went to others.",
        "counter",
        status.expired_total as f64,
    );
    alone(
        "divvy_uncharged_seconds_total",
        "Device time used by slices that were not charged for it.",
        "counter",
        seconds(status.uncharged_ns_total),
    );
    alone(
        "divvy_overuse_ended_total",
        "Processes of supervised slices that were ended for their memory.",
        "counter",
        status.overuse_ended_total as f64,
    );
    alone(
        "divvy_frozen_total",
        "Freezes of supervised slices.",
        "counter",
        status.frozen_total as f64,
    );
    type Figure = fn(&ComputeRecord) -> f64;
    let each: [(&str, &str, &str, Figure); 6] = [
        (
            "divvy_slice_charged_seconds_total",
            "Device time that the slice was charged.",
            "counter",
            |slice| slice.charged_ns as f64 / 1e9,
        ),
        (
            "divvy_slice_uncharged_seconds_total",
            "Device time that the slice used and was not charged.",
            "counter",
            |slice| slice.uncharged_ns as f64 / 1e9,
        ),
        (
            "divvy_slice_effective_share",
            "What the slice comes to while all want the device, 0 to 1.",
            "gauge",
            |slice| f64::from(slice.effective.0) / 1e4,
        ),
        (
            "divvy_slice_debt_seconds",
            "Device time that the slice has to repay.",
            "gauge",
            |slice| slice.debt_ns as f64 / 1e9,
        ),
        (
            "divvy_slice_leases_total",
            "Leases that the slice has had.",
            "counter",
            |slice| slice.leases as f64,
        ),
        (
            "divvy_slice_expired_total",
            "Leases that the slice outlasted so that the device went to others.",
            "counter",
            |slice| slice.expired_total as f64,
        ),
    ];
    for (name, about, kind, figure) in each {
        if slices.is_empty() {
            break;
        }
        head(&mut text, name, about, kind);
        for slice in slices {
            let _written = writeln!(
                text,
                "{name}{{slice=\"{}\",id=\"{}\",device=\"{}\"}} {}",
                label(&slice.slice),
                label(&slice.slice_id),
                label(&slice.device_uuid),
                figure(slice)
            );
        }
    }
    memory(&mut text, devices, records);
    copies(&mut text, records);
    as_dcgm(&mut text, devices);
    text
}

/// What workers copied for programs without a device.
fn copies(text: &mut String, slices: &[SliceRecord]) {
    let copying: Vec<&SliceRecord> = slices.iter().filter(|slice| !slice.copied.is_none()).collect();
    if copying.is_empty() {
        return;
    }
    let name = "divvy_slice_copied_bytes_total";
    let about = "Bytes between the slice's programs and its devices, by path. Copies of a byte: message 4, staged 2, \
                 shared 1, pinned 0.";
    head(text, name, about, "counter");
    for slice in &copying {
        for (path, bytes, _) in slice.copied.by_path() {
            let (named, id) = (label(&slice.name), label(&slice.id));
            let _written = writeln!(
                text,
                "{name}{{slice=\"{named}\",id=\"{id}\",path=\"{path}\"}} {}",
                bytes.0
            );
        }
    }
    let name = "divvy_slice_copies_per_byte";
    let about =
        "How often a processor copied a byte between the slice's programs and its devices, on average.";
    head(text, name, about, "gauge");
    for slice in &copying {
        let (named, id) = (label(&slice.name), label(&slice.id));
        let _written = writeln!(
            text,
            "{name}{{slice=\"{named}\",id=\"{id}\"}} {}",
            slice.copied.copies_per_byte()
        );
    }
}

/// Memory of the slices and of the devices.
fn memory(text: &mut String, devices: &[DeviceRecord], slices: &[SliceRecord]) {
    type OfShare = fn(&DeviceShare) -> u64;
    let of_slices: [(&str, &str, &str, OfShare); 4] = [
        (
            "divvy_slice_memory_limit_bytes",
            "Device memory that the slice may use.",
            "gauge",
            |share| share.memory_limit_bytes.0,
        ),
        (
            "divvy_slice_memory_used_bytes",
            "Device memory that the slice's processes hold.",
            "gauge",
            |share| share.memory_used_bytes.0,
        ),
        (
            "divvy_slice_memory_peak_bytes",
            "The most device memory that they held at once.",
            "gauge",
            |share| share.memory_peak_bytes.0,
        ),
        (
            "divvy_slice_refused_allocations_total",
            "Allocations that were refused because they did not fit into the slice.",
            "counter",
            |share| share.refused_allocations,
        ),
    ];
    for (name, about, kind, figure) in of_slices.into_iter().filter(|_| !slices.is_empty()) {
        head(text, name, about, kind);
        let shares = slices
            .iter()
            .flat_map(|slice| slice.shares.iter().map(move |share| (slice, share)));
        for (slice, share) in shares {
            let _written = writeln!(
                text,
                "{name}{{slice=\"{}\",id=\"{}\",device=\"{}\"}} {}",
                label(&slice.name),
                label(&slice.id),
                label(&share.device_uuid),
                figure(share)
            );
        }
    }
    type OfDevice = fn(&DeviceRecord) -> u64;
    let of_devices: [(&str, &str, OfDevice); 2] = [
        (
            "divvy_device_memory_total_bytes",
            "Memory of the device.",
            |device| device.memory_total_bytes.0,
        ),
        (
            "divvy_device_memory_used_bytes",
            "Memory in use on the device, by all processes.",
            |device| device.memory_used_bytes.0,
        ),
    ];
    for (name, about, figure) in of_devices.into_iter().filter(|_| !devices.is_empty()) {
        head(text, name, about, "gauge");
        for device in devices {
            let _written = writeln!(
                text,
                "{name}{{device=\"{}\",index=\"{}\"}} {}",
                label(&device.uuid),
                device.index,
                figure(device)
            );
        }
    }
}

/// Memory of the devices by the names of NVIDIA's DCGM exporter, in MiB: dashboards that have them go on to work.
fn as_dcgm(text: &mut String, devices: &[DeviceRecord]) {
    type OfDevice = fn(&DeviceRecord) -> u64;
    let figures: [(&str, &str, OfDevice); 3] = [
        ("DCGM_FI_DEV_FB_TOTAL", "Memory of the device in MiB.", |device| {
            device.memory_total_bytes.0
        }),
        (
            "DCGM_FI_DEV_FB_USED",
            "Memory in use on the device in MiB.",
            |device| device.memory_used_bytes.0,
        ),
        (
            "DCGM_FI_DEV_FB_FREE",
            "Memory not in use on the device in MiB.",
            |device| {
                device
                    .memory_total_bytes
                    .0
                    .saturating_sub(device.memory_used_bytes.0)
            },
        ),
    ];
    for (name, about, figure) in figures.into_iter().filter(|_| !devices.is_empty()) {
        head(text, name, about, "gauge");
        for device in devices {
            let _written = writeln!(
                text,
                "{name}{{gpu=\"{}\",UUID=\"{}\"}} {}",
                device.index,
                label(&device.uuid),
                figure(device) >> 20
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_a_line_under_its_head() {
        let status: Status = serde_json::from_value(serde_json::json!({
            "version": "1", "pid": 1, "uid": 0, "run_dir": "/run", "started_at": "", "slice_count": 2,
            "bypass_total": 3, "uncharged_ns_total": 1_500_000_000,
        }))
        .expect("a status");
        let slice = ComputeRecord {
            slice: "a\"b".into(),
            slice_id: "01".into(),
            device_uuid: "GPU-1".into(),
            charged_ns: 2_500_000_000,
            ..ComputeRecord::default()
        };
        let record: SliceRecord = serde_json::from_value(serde_json::json!({
            "id": "01", "name": "a", "uid": 0, "device_uuid": "GPU-1", "memory_limit_bytes": 4096,
            "memory_used_bytes": 512, "memory_peak_bytes": 1024, "refused_allocations": 2,
            "isolation": "cooperative", "policy": "strict", "created_at": "", "processes": [], "state": "running",
        }))
        .expect("a slice");
        assert!(!text(&status, &[], &[], std::slice::from_ref(&record)).contains("copied"));
        let record = SliceRecord {
            copied: divvy_model::CopiedRecord {
                message_bytes: divvy_model::Bytes(100),
                staged_bytes: divvy_model::Bytes(200),
                shared_bytes: divvy_model::Bytes(400),
                pinned_bytes: divvy_model::Bytes(300),
            },
            ..record
        };
        let text = text(&status, &[slice], &[], &[record]);
        for line in [
            r#"divvy_slice_copied_bytes_total{slice="a",id="01",path="message"} 100"#,
            r#"divvy_slice_copied_bytes_total{slice="a",id="01",path="pinned"} 300"#,
            r#"divvy_slice_copies_per_byte{slice="a",id="01"} 1.2"#,
        ] {
            assert!(text.lines().any(|known| known == line), "{line}: {text}");
        }
        for (figure, value) in [
            ("divvy_slice_memory_limit_bytes", 4096),
            ("divvy_slice_memory_used_bytes", 512),
            ("divvy_slice_memory_peak_bytes", 1024),
            ("divvy_slice_refused_allocations_total", 2),
        ] {
            let line = format!("{figure}{{slice=\"a\",id=\"01\",device=\"GPU-1\"}} {value}");
            assert!(text.lines().any(|known| known == line), "{line}: {text}");
        }
        assert!(
            text.contains(
                "# TYPE divvy_uncharged_seconds_total counter\ndivvy_uncharged_seconds_total 1.5\n"
            )
        );
        let line = r#"divvy_slice_charged_seconds_total{slice="a\"b",id="01",device="GPU-1"} 2.5"#;
        assert!(text.lines().any(|known| known == line), "{text}");
        let named = |line: &str| line.starts_with('#') || line.starts_with("divvy_");
        assert!(text.lines().all(named) && text.ends_with('\n'));
    }
}

//! Figures in the text form that Prometheus reads (version 0.0.4).

use std::fmt::Write;

use crate::api::Status;
use crate::api::compute::ComputeRecord;

/// The agent's counters, and what each slice has of its devices' time.
pub(crate) fn text(status: &Status, slices: &[ComputeRecord]) -> String {
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
                quoted(&slice.slice),
                quoted(&slice.slice_id),
                quoted(&slice.device_uuid),
                figure(slice)
            );
        }
    }
    text
}

fn head(text: &mut String, name: &str, about: &str, kind: &str) {
    let _written = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}");
}

/// A label's value: these three characters have a backslash before them.
fn quoted(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
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
        let text = text(&status, &[slice]);
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

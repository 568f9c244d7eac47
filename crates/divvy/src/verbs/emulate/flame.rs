//! A flame picture of a profile: kernels below, their lines above, each as wide as its share of the instructions.

use std::fmt::Write;

use super::counted::{Kernel, KernelProfile};

/// The picture's width and a row's height, in pixels.
const WIDTH: f64 = 1200.0;
const ROW: f64 = 22.0;
/// Narrower boxes are left out, in pixels.
const LEAST: f64 = 0.5;

/// An SVG document. Its boxes tell their counts where the pointer rests on them.
pub fn picture(profile: &KernelProfile) -> String {
    let all: u64 = profile.kernels.iter().map(|kernel| kernel.total.warps).sum();
    let height = 4.0 * ROW;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"monospace\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let share = |part: u64| WIDTH * part as f64 / all.max(1) as f64;
    let title = format!("{all} instructions of warps");
    rectangle(&mut svg, 0.0, 3.0 * ROW, WIDTH, &title, &title, "#c9c9c9");
    let mut left = 0.0;
    for kernel in &profile.kernels {
        let width = share(kernel.total.warps);
        let told = told(&kernel.name, kernel.total.warps, all, kernel.total.lanes);
        rectangle(&mut svg, left, 2.0 * ROW, width, &kernel.name, &told, "#f0a860");
        lines(&mut svg, kernel, left, all, &share);
        left += width;
    }
    svg.push_str("</svg>\n");
    svg
}

fn lines(svg: &mut String, kernel: &Kernel, left: f64, all: u64, share: &impl Fn(u64) -> f64) {
    let mut at = left;
    for (place, instruction, counts) in kernel.places() {
        let width = share(counts.warps);
        let short = place.rsplit('/').next().unwrap_or(&place).to_owned();
        let name = format!("{place} {instruction}");
        // The fewer lanes are active, the more red.
        let active = counts.lanes as f64 / (32.0 * counts.warps.max(1) as f64);
        let colour = format!("rgb(250,{:.0},90)", 90.0 + 130.0 * active);
        let told = told(name.trim(), counts.warps, all, counts.lanes);
        rectangle(svg, at, ROW, width, &short, &told, &colour);
        at += width;
    }
}

fn told(name: &str, warps: u64, all: u64, lanes: u64) -> String {
    format!(
        "{name}: {warps} instructions of warps, {:.1} %, {:.0} % of the lanes active",
        100.0 * warps as f64 / all.max(1) as f64,
        100.0 * lanes as f64 / (32.0 * warps.max(1) as f64)
    )
}

fn rectangle(svg: &mut String, x: f64, y: f64, width: f64, name: &str, told: &str, colour: &str) {
    if width < LEAST {
        return;
    }
    // A letter of 12 pixels is some 7.3 wide.
    let room = ((width - 6.0) / 7.3).max(0.0) as usize;
    let mut shown: String = name.chars().take(room).collect();
    if shown.chars().count() < 3 {
        shown.clear();
    }
    let _ = writeln!(
        svg,
        "<g><title>{}</title><rect x=\"{x:.2}\" y=\"{y:.0}\" width=\"{width:.2}\" height=\"{:.0}\" fill=\"{colour}\" \
         stroke=\"#fff\"/><text x=\"{:.2}\" y=\"{:.0}\">{}</text></g>",
        in_xml(told),
        ROW - 1.0,
        x + 3.0,
        y + 15.0,
        in_xml(&shown)
    );
}

fn in_xml(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::counted::{Counts, Line};
    use super::*;

    #[test]
    fn boxes_are_as_wide_as_their_share() {
        let counts = |warps| Counts {
            warps,
            lanes: 32 * warps,
            ..Counts::default()
        };
        let line = |ptx_line, warps| Line {
            source: None,
            ptx_line,
            instruction: "a < b".into(),
            counts: counts(warps),
        };
        let kernel = |name: &str, lines: Vec<Line>| Kernel {
            name: name.into(),
            total: counts(lines.iter().map(|line| line.counts.warps).sum()),
            lines,
            ..Kernel::default()
        };
        let profile = KernelProfile {
            exit_status: 0,
            processes: 1,
            kernels: vec![
                kernel("first", vec![line(3, 20), line(4, 55)]),
                kernel("second", vec![line(5, 25)]),
            ],
        };
        let svg = picture(&profile);
        for part in [
            "<rect x=\"0.00\" y=\"44\" width=\"900.00\"",
            "<rect x=\"900.00\" y=\"44\" width=\"300.00\"",
            "<rect x=\"240.00\" y=\"22\" width=\"660.00\"",
            "PTX line 3 a &lt; b: 20 instructions of warps, 20.0 %, 100 % of the lanes active",
        ] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
    }
}

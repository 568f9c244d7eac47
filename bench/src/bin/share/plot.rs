//! Shares over time as a picture: one panel for each way of sharing, one line for each tenant.

use std::fmt::Write as _;

use divvy_arbiter::Nanos;
use divvy_arbiter::sim::Outcome;

const WIDTH: f64 = 760.0;
const PANEL: f64 = 170.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 34.0;
const GAP: f64 = 44.0;
/// Lines that are told apart in print and by most eyes (Okabe and Ito).
const COLOURS: [&str; 4] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"];

/// An SVG of each tenant's use in percent over windows of `window`, with what was asked for as a dashed line.
pub fn svg(title: &str, shares: &[f64], panels: &[(&str, Outcome)], window: Nanos) -> String {
    let height = TOP + panels.len() as f64 * (PANEL + GAP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\" font-weight=\"bold\">{title}</text>\n"
    );
    for (n, (name, outcome)) in panels.iter().enumerate() {
        let top = TOP + n as f64 * (PANEL + GAP) + 16.0;
        panel(&mut out, top, name, shares, outcome, window);
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, top: f64, name: &str, shares: &[f64], outcome: &Outcome, window: Nanos) {
    let seconds = outcome.lasted as f64 / 1e9;
    let x = |at: f64| LEFT + (WIDTH - LEFT - 16.0) * at / seconds.max(1e-9);
    let y = |percent: f64| top + PANEL * (1.0 - percent / 100.0);
    // A String takes what is written.
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{name}</text>",
        top - 5.0
    );
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{percent:.0} %</text>",
            x(seconds),
            y(percent),
            y(percent),
            LEFT - 6.0,
            y(percent) + 4.0
        );
    }
    for second in 0..=seconds as u64 {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{second} s</text>",
            x(second as f64),
            top + PANEL + 16.0
        );
    }
    for (actor, share) in shares.iter().enumerate() {
        let colour = COLOURS[actor % COLOURS.len()];
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-dasharray=\"6 4\" opacity=\"0.6\"/>",
            x(seconds),
            y(*share),
            y(*share)
        );
        let mut points = String::new();
        let mut begin = 0;
        while begin + window <= outcome.lasted {
            let middle = (begin + window / 2) as f64 / 1e9;
            let percent = outcome.percent(actor, begin, begin + window);
            let _ = write!(points, "{:.1},{:.1} ", x(middle), y(percent.min(100.0)));
            begin += window;
        }
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/>",
            points.trim_end()
        );
    }
}

//! Makes a program that ends differently shorter, by leaving out instructions as long as it still does.

use super::program::{BODY, END};

/// `text` without the instructions of its body that `fails` does not need. Labels, branches and what loops count with
/// stay, so that each program ends.
pub fn shrink(text: &str, fails: impl Fn(&str) -> bool) -> String {
    let (Some(from), Some(to)) = (text.find(BODY), text.find(END)) else {
        return text.into();
    };
    let (head, tail) = (&text[..from + BODY.len()], &text[to..]);
    let mut lines: Vec<&str> = text[from + BODY.len()..to].lines().collect();
    let whole = |lines: &[&str]| {
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        format!("{head}{body}{tail}")
    };
    let mut size = lines.len().div_ceil(2);
    loop {
        let mut at = 0;
        while at < lines.len() {
            let end = (at + size).min(lines.len());
            let fewer: Vec<&str> = (lines.iter().enumerate())
                .filter(|(n, line)| !(at..end).contains(n) || stays(line))
                .map(|(_, line)| *line)
                .collect();
            if fewer.len() < lines.len() && fails(&whole(&fewer)) {
                lines = fewer;
            } else {
                at = end;
            }
        }
        if size <= 1 {
            return whole(&lines);
        }
        size = size.div_ceil(2);
    }
}

fn stays(line: &str) -> bool {
    line.trim_end().ends_with(':')
        || ["bra ", "%n", "%m", "%again", "bar."]
            .iter()
            .any(|part| line.contains(part))
}

#[test]
fn a_failing_program_is_made_as_short_as_it_can_be() {
    let body: String = (0..50).map(|n| format!(" add.s32 %r0, %r0, {n};\n")).collect();
    let text = format!("head\n{BODY}{body}L1:\n @%again bra L1;\n{END}tail\n");
    // Two instructions together make the difference.
    let fails = |text: &str| text.contains("r0, 17;") && text.contains("r0, 41;");
    let short = shrink(&text, fails);
    assert_eq!(
        short,
        format!(
            "head\n{BODY} add.s32 %r0, %r0, 17;\n add.s32 %r0, %r0, 41;\nL1:\n @%again bra L1;\n{END}tail\n"
        )
    );
}

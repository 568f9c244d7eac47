//! Whether a command printed what its page shows. `…` in a line stands for any text, and a line of `…` alone for any
//! lines. Spaces count as one: the width of a column depends on what is in it.

/// What stands for anything.
const ANY: &str = "…";

/// Whether these lines are what the page shows.
pub fn fits(shown: &[String], printed: &[String]) -> bool {
    let (shown, printed) = (trimmed(shown), trimmed(printed));
    fits_from(shown, printed)
}

fn fits_from(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first.trim() == ANY => {
            (0..=printed.len()).any(|skipped| fits_from(rest, &printed[skipped..]))
        }
        Some((first, rest)) => printed
            .split_first()
            .is_some_and(|(line, others)| line_fits(first, line) && fits_from(rest, others)),
    }
}

/// Without empty lines at the end.
fn trimmed(lines: &[String]) -> &[String] {
    let empty = lines
        .iter()
        .rev()
        .take_while(|line| line.trim().is_empty())
        .count();
    &lines[..lines.len() - empty]
}

fn line_fits(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (single_spaced(shown), single_spaced(printed));
    let mut parts = shown.split(ANY);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn single_spaced(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a page should show of these lines: the lines that it showed where they fit, with their `…`, and `…` in the
/// place of what differs in each run.
pub fn to_show(shown: &[String], printed: &[String]) -> Vec<String> {
    let kept = |line: &String| {
        let fitting = |old: &&String| old.trim() != ANY && line_fits(old, line);
        shown
            .iter()
            .find(fitting)
            .cloned()
            .unwrap_or_else(|| without_ids(line))
    };
    trimmed(printed).iter().map(kept).collect()
}

/// A line with `…` for UUIDs, whole or their beginning: those hang on the run directory.
fn without_ids(line: &str) -> String {
    let mut text = line.trim_end().to_owned();
    while let Some((at, length)) = uuid(&text) {
        put_any(&mut text, at, length);
    }
    for kind in ["GPU-", "MIG-"] {
        let begins =
            |part: &str| part.len() >= 8 && part.bytes().take(8).all(|byte| byte.is_ascii_hexdigit());
        let found = text.match_indices(kind).map(|(at, _)| at + kind.len());
        let short: Vec<usize> = found.filter(|at| begins(&text[*at..])).collect();
        for at in short.into_iter().rev() {
            put_any(&mut text, at, 8);
        }
    }
    text
}

/// Puts `…` in the place of so many letters. A column keeps its width.
fn put_any(text: &mut String, at: usize, length: usize) {
    let in_column = text[at + length..].starts_with("  ");
    let spaces = if in_column {
        " ".repeat(length - 1)
    } else {
        String::new()
    };
    text.replace_range(at..at + length, &format!("{ANY}{spaces}"));
}

/// Where the first UUID is, and how long.
fn uuid(text: &str) -> Option<(usize, usize)> {
    const PARTS: [usize; 5] = [8, 4, 4, 4, 12];
    let is_uuid = |candidate: &[u8]| {
        let mut parts = candidate.split(|byte| *byte == b'-');
        PARTS.iter().all(|length| {
            parts
                .next()
                .is_some_and(|part| part.len() == *length && part.iter().all(u8::is_ascii_hexdigit))
        })
    };
    let at = text.as_bytes().windows(36).position(is_uuid)?;
    Some((at, 36))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn dots_stand_for_anything_and_spaces_for_one() {
        for (shown, printed) in [
            ("NAME  USED", "NAME          USED\n"),
            ("… GiB of …", "4 GiB of NVIDIA H100"),
            ("GPU-… [emulated]", "GPU-514d5941 [emulated]"),
            ("a\n…\nz", "a\nb\nc\nz"),
            ("a\n…", "a"),
            ("…", ""),
            ("a\n", "a\n\n"),
        ] {
            assert!(fits(&lines(shown), &lines(printed)), "{shown:?} {printed:?}");
        }
        for (shown, printed) in [
            ("NAME USED", "NAME"),
            ("NAME", "NAME USED"),
            ("… GiB of", "4 GiB of NVIDIA H100"),
            ("a\n…\nz", "a\nb"),
            ("a", "a\nb"),
            ("a…a", "a"),
        ] {
            assert!(!fits(&lines(shown), &lines(printed)), "{shown:?} {printed:?}");
        }
    }

    #[test]
    fn what_is_written_keeps_the_dots_that_fit() {
        let printed =
            lines("alice 41.2 s\n(GPU-514d5941-dbd0-8963-b99f-8a47aea51715) ok\n0 GPU-514d5941  0 B\n\n");
        let shown = lines("…\nalice … s\nold");
        assert_eq!(
            to_show(&shown, &printed),
            ["alice … s", "(GPU-…) ok", "0 GPU-…         0 B"]
        );
        assert!(fits(&to_show(&shown, &printed), &printed));
    }
}

//! Slurm's lists of hosts: `n1,gpu[01-04,7]`.

/// Whether a list names this node.
#[must_use]
pub fn contains(list: &str, node: &str) -> bool {
    entries(list).any(|entry| fits(entry, node))
}

/// The list's entries: commas inside brackets divide none.
pub(crate) fn entries(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    list.split(move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// Whether one entry is this node, or a pattern that it fits.
fn fits(entry: &str, node: &str) -> bool {
    let Some((before, rest)) = entry.split_once('[') else {
        return entry == node;
    };
    let (Some((ranges, after)), Some(node)) = (rest.split_once(']'), node.strip_prefix(before)) else {
        return false;
    };
    ranges.split(',').any(|range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        // A number has as many digits as the range's first, or more.
        (low.len()..=high.len().max(low.len())).any(|digits| {
            let number = node
                .get(..digits)
                .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let read = |text: &str| text.parse::<u64>().ok();
            let is_within = number.and_then(read).zip(read(low).zip(read(high)));
            let is_within = is_within.is_some_and(|(number, (low, high))| (low..=high).contains(&number));
            let is_padded = digits == low.len() || !node.starts_with('0');
            is_within && is_padded && fits_rest(after, &node[digits..])
        })
    })
}

fn fits_rest(pattern: &str, node: &str) -> bool {
    fits(pattern, node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        for (list, node) in [
            ("n1", "n1"),
            ("n1,n2", "n2"),
            ("n[1-3,7]", "n7"),
            ("n[1-3,7]", "n2"),
            ("n[8-12]", "n10"),
            ("gpu[01-04]-ib", "gpu03-ib"),
            ("a,r[1-2]n[1-2],z", "r2n1"),
            ("n[009-010]", "n010"),
        ] {
            assert!(contains(list, node), "{list} {node}");
        }
        for (list, node) in [
            ("n1", "n12"),
            ("n[1-3]", "n4"),
            ("n[1-3]", "n01"),
            ("n[01-04]", "n1"),
            ("n[1-3]x", "n1"),
            ("n[1-3", "n1"),
            ("", "n1"),
            ("n[]", "n"),
        ] {
            assert!(!contains(list, node), "{list} {node}");
        }
    }
}

//! Names as CDI's grammar has them: `vendor.com/class=device`.

/// Whether the text is a kind, `vendor/class`: each part begins with a letter and ends with a letter or digit.
#[must_use]
pub fn is_kind(text: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic())
            && part.ends_with(|c: char| c.is_ascii_alphanumeric())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    text.split_once('/')
        .is_some_and(|(vendor, class)| part(vendor) && part(class))
}

/// Whether the text can be a device's name: it begins and ends with a letter or digit.
#[must_use]
pub fn is_device_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
}

/// A device's id as a name: a character outside the grammar becomes a colon, as in `GPU-1a2b:3` for a partition.
#[must_use]
pub fn device_name(id: &str) -> String {
    let plain: String = id
        .chars()
        .map(|c| {
            let known = c.is_ascii_alphanumeric() || "-_.:".contains(c);
            if known { c } else { ':' }
        })
        .collect();
    plain
        .trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["nvidia.com/gpu", "a/b", "divvy.dev/slice"] {
            assert!(is_kind(good), "{good}");
        }
        for bad in [
            "",
            "gpu",
            "/gpu",
            "nvidia.com/",
            "9/gpu",
            "a/b/c",
            "a/b-",
            "a b/c",
        ] {
            assert!(!is_kind(bad), "{bad}");
        }
        for good in ["0", "0:1", "GPU-1a2b", "all", "a.b_c"] {
            assert!(is_device_name(good), "{good}");
        }
        for bad in ["", "-a", "a-", "a/b", "a=b", "ä"] {
            assert!(!is_device_name(bad), "{bad}");
        }
        assert_eq!(device_name("GPU-00ff/3"), "GPU-00ff:3");
        assert_eq!(device_name("PCI-0000:01:00.0"), "PCI-0000:01:00.0");
        assert_eq!(device_name("/"), "");
    }
}

//! The SPANK plugin's file and Slurm's list of plugins.
//!
//! Slurm loads a SPANK plugin only where the plugin names Slurm's own release. Divvy's file names none until `divvy slurm setup`
//! writes the node's version into it.

use divvy_model::spank;

use crate::configuration::{Finding, setting};

/// The number by which Slurm's headers name a version: `slurm-wlm 22.05.8` is 0x160508.
#[must_use]
pub fn number_of(told: &str) -> Option<u32> {
    let version = told.split_whitespace().nth(1)?;
    // `23.11.0-0rc1`
    let mut parts = version.split(['.', '-']).map(|part| part.parse::<u8>().ok());
    let mut part = || parts.next().flatten().map(u32::from);
    Some((part()? << 16) | (part()? << 8) | part()?)
}

/// The same for people: 22.5.8.
#[must_use]
pub fn in_words(number: u32) -> String {
    format!(
        "{}.{:02}.{}",
        number >> 16 & 0xff,
        number >> 8 & 0xff,
        number & 0xff
    )
}

/// The version of Slurm that a plugin's file names; 0 for none.
#[must_use]
pub fn version_in(file: &[u8]) -> Option<u32> {
    let at = place(file)?;
    let bytes = file.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The file with that version in it.
#[must_use]
pub fn with_version(file: &[u8], number: u32) -> Option<Vec<u8>> {
    let at = place(file)?;
    let mut new = file.to_vec();
    new.get_mut(at..at + 4)?.copy_from_slice(&number.to_le_bytes());
    Some(new)
}

/// Where the version stands: right before the mark, which is there once.
fn place(file: &[u8]) -> Option<usize> {
    let mut found = file
        .windows(spank::MARK.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == spank::MARK)
        .map(|(at, _)| at);
    let at = found.next()?;
    match found.next() {
        None => at.checked_sub(4),
        Some(_) => None,
    }
}

/// The list of plugins that slurm.conf names, where it is not `plugstack.conf` beside it.
#[must_use]
pub fn list_of(slurm: &str) -> Option<&str> {
    setting(slurm, "PlugStackConfig").filter(|path| !path.is_empty())
}

/// The line that has Slurm load the plugin. It is not required: where it cannot be loaded, jobs without its options run on.
#[must_use]
pub fn line(plugin: &str) -> String {
    format!("optional {plugin}")
}

/// Whether a list of plugins has this one.
#[must_use]
pub fn lists(list: &str, plugin: &str) -> bool {
    list.lines().any(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        matches!(words.next(), Some("optional" | "required")) && words.next() == Some(plugin)
    })
}

/// What keeps the options from being known: `installed` is the version in the plugin's file, where there is a file, and
/// `slurm` that of the node's Slurm.
#[must_use]
pub fn check(list: &str, plugin: &str, installed: Option<u32>, slurm: Option<u32>) -> Vec<Finding> {
    let release = |number: u32| number >> 8;
    let text = match (installed, slurm) {
        _ if !lists(list, plugin) => format!(
            "the list of SPANK plugins does not name {plugin}: srun knows no --divvy-memory and no --divvy-compute"
        ),
        (None, _) => format!("{plugin} is not there: srun knows no --divvy-memory and no --divvy-compute"),
        (Some(own), Some(slurm)) if release(own) != release(slurm) => format!(
            "{plugin} is for Slurm {}, and this is {}: Slurm does not load it until `divvy slurm setup --apply`",
            in_words(own),
            in_words(slurm)
        ),
        _ => return Vec::new(),
    };
    vec![Finding {
        is_error: false,
        text,
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_slurm_tells_them() {
        for (told, number) in [
            ("slurm-wlm 22.05.8\n", Some(0x0016_0508)),
            ("slurm 23.11.0-0rc1", Some(0x0017_0b00)),
            ("slurm 24.05.4", Some(0x0018_0504)),
            ("slurm 24.05", None),
            ("slurm", None),
            ("slurm 999.1.1", None),
        ] {
            assert_eq!(number_of(told), number, "{told}");
        }
        assert_eq!(in_words(0x0016_0508), "22.05.8");
    }

    #[test]
    fn a_version_is_written_into_the_file_and_nothing_else_changes() {
        let file = [&b"before\0\0\0\0"[..], &spank::MARK, b"after"].concat();
        assert_eq!(version_in(&file), Some(0));
        let new = with_version(&file, 0x0016_0508).expect("a place");
        assert_eq!(version_in(&new), Some(0x0016_0508));
        assert_eq!(with_version(&new, 0).as_deref(), Some(&file[..]));
        for odd in [
            &b"nothing"[..],
            &spank::MARK,
            &[&b"1234"[..], &spank::MARK, &spank::MARK].concat(),
        ] {
            assert_eq!((version_in(odd), with_version(odd, 1)), (None, None));
        }
    }

    #[test]
    fn what_keeps_srun_from_the_options_has_a_sentence() {
        let plugin = "/etc/slurm/divvy/options.so";
        let list = format!("include /etc/slurm/plugstack.d/*\n{}\n", line(plugin));
        let said = |list: &str, installed, slurm| {
            let found = check(list, plugin, installed, slurm);
            found
                .first()
                .map(|finding| finding.text.clone())
                .unwrap_or_default()
        };
        let (here, later) = (Some(0x0016_0508), Some(0x0017_0b00));
        assert_eq!(said(&list, here, here), "");
        // Slurm takes another one of the same release.
        assert_eq!(said(&list, here, Some(0x0016_0509)), "");
        assert_eq!(said(&list, here, None), "");
        assert!(said("# optional /etc/slurm/divvy/options.so\n", here, here).contains("does not name"));
        assert!(said(&list, None, here).contains("is not there"));
        assert!(said(&list, here, later).contains("is for Slurm 22.05.8, and this is 23.11.0"));
    }
}

//! Changes of configuration files that are there.

/// The value of a shell variable's last assignment, and the text with words added to it. None where the assignment is more
/// than one plain string: then a person has to look.
#[must_use]
pub fn grub(text: &str, variable: &str, words: &[String]) -> Option<String> {
    let mut lines: Vec<String> = lines(text).map(str::to_owned).collect();
    let assigns = |line: &String| {
        let line = line.trim_start();
        line.strip_prefix(variable)
            .is_some_and(|rest| rest.starts_with('=') || rest.starts_with("+="))
    };
    let at: Vec<usize> = (0..lines.len()).filter(|at| assigns(&lines[*at])).collect();
    match at[..] {
        [] => lines.push(format!("{variable}=\"{}\"", words.join(" "))),
        [at] => {
            let (indent, rest) = lines[at].split_once(variable)?;
            let value = rest.strip_prefix('=')?.trim_end();
            let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''));
            let inner = match quote {
                Some(quote) => value.strip_prefix(quote)?.strip_suffix(quote)?,
                None => value,
            };
            // Commands, other variables, escaped letters and comments are not for us to change. Without quotes a command may
            // stand behind the value: in quotes it would be a part of it.
            let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.,:=/@%+".contains(letter);
            if inner.contains(['$', '`', '\\', '"', '\'', '#'])
                || (quote.is_none() && !inner.chars().all(is_plain))
            {
                return None;
            }
            let lacking = lacking(inner, words);
            if lacking.is_empty() {
                return Some(text.to_owned());
            }
            let joined = [&[inner.trim_end().to_owned()][..], &lacking].concat().join(" ");
            lines[at] = format!("{indent}{variable}=\"{}\"", joined.trim_start());
        }
        _ => return None,
    }
    Some(lines.join("\n") + "\n")
}

/// The lines of a text, each as it is: one that ends with a carriage return keeps it.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let whole = text.strip_suffix('\n').unwrap_or(text);
    let count = if text.is_empty() { 0 } else { usize::MAX };
    whole.split('\n').take(count)
}

/// The words that a command line lacks.
#[must_use]
pub fn lacking(line: &str, words: &[String]) -> Vec<String> {
    let has = |word: &&String| line.split_whitespace().any(|known| known == word.as_str());
    words.iter().filter(|word| !has(word)).cloned().collect()
}

/// A line of words with those that it lacks.
#[must_use]
pub fn line(text: &str, words: &[String]) -> String {
    let lacking = lacking(text, words);
    match (lacking.is_empty(), text.trim()) {
        (true, _) => text.to_owned(),
        (false, "") => lacking.join(" ") + "\n",
        (false, there) => format!("{there} {}\n", lacking.join(" ")),
    }
}

/// An entry of systemd-boot's with words added to its options.
#[must_use]
pub fn entry(text: &str, words: &[String]) -> String {
    let mut found = false;
    let mut lines: Vec<String> = Vec::new();
    for old in self::lines(text) {
        match old
            .strip_prefix("options")
            .filter(|rest| rest.starts_with([' ', '\t']))
        {
            Some(rest) if !found => {
                found = true;
                let lacking = lacking(rest, words);
                lines.push(match lacking.is_empty() {
                    true => old.to_owned(),
                    false => format!("{} {}", old.trim_end(), lacking.join(" ")),
                });
            }
            _ => lines.push(old.to_owned()),
        }
    }
    if !found {
        lines.push(format!("options {}", words.join(" ")));
    }
    lines.join("\n") + "\n"
}

/// A list of modules, one a line, with one more.
#[must_use]
pub fn list(text: &str, module: &str) -> String {
    match text.lines().any(|line| line.trim() == module) {
        true => text.to_owned(),
        false if text.is_empty() || text.ends_with('\n') => format!("{text}{module}\n"),
        false => format!("{text}\n{module}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<String> {
        ["intel_iommu=on", "iommu=pt"].map(str::to_owned).to_vec()
    }

    #[test]
    fn only_a_plain_string_is_changed() {
        let change = |text: &str| grub(text, "GRUB_CMDLINE_LINUX_DEFAULT", &words());
        let name = "GRUB_CMDLINE_LINUX_DEFAULT";
        for (value, wanted) in [
            ("\"quiet\"", "\"quiet intel_iommu=on iommu=pt\""),
            ("'quiet splash'", "\"quiet splash intel_iommu=on iommu=pt\""),
            ("", "\"intel_iommu=on iommu=pt\""),
            ("quiet", "\"quiet intel_iommu=on iommu=pt\""),
            ("\"iommu=pt quiet\"", "\"iommu=pt quiet intel_iommu=on\""),
        ] {
            let text = format!("A=1\n{name}={value}\n# end\n");
            assert_eq!(
                change(&text),
                Some(format!("A=1\n{name}={wanted}\n# end\n")),
                "{value}"
            );
        }
        assert_eq!(
            change("A=1\n"),
            Some(format!("A=1\n{name}=\"intel_iommu=on iommu=pt\"\n"))
        );
        // Those with all words, and comments, stay.
        let done = format!("{name}=\"intel_iommu=on iommu=pt\"");
        assert_eq!(change(&done), Some(done.clone()));
        for odd in [
            "\"$(cat x)\"",
            "\"$A quiet\"",
            "\"a",
            "\"a\" # why",
            "a b",
            "a;b",
            "a\tb",
            "a&",
            "\"a\\\"b\"",
        ] {
            assert_eq!(change(&format!("{name}={odd}\n")), None, "{odd}");
        }
        assert_eq!(change(&format!("{name}+=\" quiet\"\n")), None);
        assert_eq!(change(&format!("{name}=\"a\"\n{name}=\"b\"\n")), None);
    }

    #[test]
    fn entries_and_lists_get_what_they_lack() {
        assert_eq!(
            entry("title Arch\noptions root=/dev/sda2 rw\n", &words()),
            "title Arch\noptions root=/dev/sda2 rw intel_iommu=on iommu=pt\n"
        );
        // Other lines stay as they end.
        assert_eq!(
            entry("title Arch\r\n\r\r\noptions rw\r\n", &words()),
            "title Arch\r\n\r\r\noptions rw intel_iommu=on iommu=pt\n"
        );
        assert_eq!(entry("", &words()), "options intel_iommu=on iommu=pt\n");
        assert_eq!(
            entry("title Arch\n", &words()),
            "title Arch\noptions intel_iommu=on iommu=pt\n"
        );
        assert_eq!(
            line("root=/dev/sda2\n", &words()),
            "root=/dev/sda2 intel_iommu=on iommu=pt\n"
        );
        assert_eq!(list("# a\nloop", "vfio-pci"), "# a\nloop\nvfio-pci\n");
        assert_eq!(list("vfio-pci\n", "vfio-pci"), "vfio-pci\n");
    }
}

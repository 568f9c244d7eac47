//! Configuration files as oslo.config reads them: sections, and options that may stand several times.

/// An option, with the line it stands in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its section.
    pub section: String,
    /// Its name.
    pub name: String,
    /// Its value; lines that go on are joined.
    pub value: String,
    /// The line, from 1.
    pub line: usize,
}

/// Reads a file; the lines that mean nothing come second.
#[must_use]
pub fn read(text: &str) -> (Vec<Setting>, Vec<usize>) {
    let mut settings: Vec<Setting> = Vec::new();
    let mut wrong = Vec::new();
    let mut section = String::new();
    let mut goes_on = false;
    for (line, raw) in (1..).zip(text.lines()) {
        let trimmed = raw.trim();
        if trimmed.is_empty() {
            goes_on = false;
            continue;
        }
        if trimmed.starts_with(['#', ';']) {
            continue;
        }
        if raw.starts_with([' ', '\t']) && goes_on {
            if let Some(last) = settings.last_mut() {
                last.value.push(' ');
                last.value.push_str(trimmed);
            }
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
            goes_on = false;
            continue;
        }
        let Some((name, value)) = trimmed.split_once(['=', ':']) else {
            wrong.push(line);
            continue;
        };
        settings.push(Setting {
            section: section.clone(),
            name: name.trim().replace('-', "_"),
            value: value.trim().to_owned(),
            line,
        });
        goes_on = true;
    }
    (settings, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_may_stand_again_and_go_on() {
        let (settings, wrong) = read(
            "[DEFAULT]\ndebug = true\n# alias = {}\n[pci]\nalias = {\"name\": \"a\",\n  \"x\": 1}\nalias={}\nnonsense\n",
        );
        assert_eq!(settings.len(), 3);
        assert_eq!(
            (
                settings[1].section.as_str(),
                settings[1].value.as_str(),
                settings[1].line
            ),
            ("pci", "{\"name\": \"a\", \"x\": 1}", 5)
        );
        assert_eq!(wrong, [8]);
    }
}

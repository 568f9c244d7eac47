//! Slurm's files with those that they include: `Include nodes.conf`. This follows no name by itself: what reads a file is handed in.

use std::collections::HashMap;

/// How deep a file may include another.
const DEEPEST: usize = 8;
/// How many files may be included in all.
const MOST: usize = 64;

/// A line of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The file in which it stands, as the configuration names it.
    pub file: String,
    /// Its number there, from 1.
    pub number: usize,
    /// Its text.
    pub text: String,
}

impl Line {
    /// Where it stands: `gres.conf line 3`.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{} line {}", self.file, self.number)
    }
}

/// A configuration: a file's lines, with those of the included files in their place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conf {
    /// The file's name.
    pub file: String,
    /// The lines.
    pub lines: Vec<Line>,
}

impl Conf {
    /// A text that includes nothing, or whose includes are not followed.
    #[must_use]
    pub fn plain(file: &str, text: &str) -> Self {
        let lines = (1..).zip(text.lines()).map(|(number, text)| Line {
            file: file.into(),
            number,
            text: text.into(),
        });
        Self {
            file: file.into(),
            lines: lines.collect(),
        }
    }

    /// A text with what it includes. `read` gives the text of a file by the name that an `Include` line has.
    ///
    /// # Errors
    /// A sentence: a file that cannot be read, one that includes itself, and too many of them.
    pub fn expand(
        file: &str,
        text: &str,
        mut read: impl FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, String> {
        let mut conf = Self {
            file: file.into(),
            lines: Vec::new(),
        };
        let mut read_before = HashMap::new();
        let mut count = 0;
        let mut above = vec![file.to_owned()];
        add(&mut conf.lines, text, &mut above, &mut count, &mut |name| {
            if let Some(text) = read_before.get(name) {
                return Ok(String::clone(text));
            }
            let text = read(name)?;
            read_before.insert(name.to_owned(), text.clone());
            Ok(text)
        })?;
        Ok(conf)
    }

    /// Its text, all files together.
    #[must_use]
    pub fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{}\n", line.text)).collect()
    }

    /// The file that has this line, where it is another than the first.
    #[must_use]
    pub fn included_place(&self, text: &str) -> Option<String> {
        let found = self
            .lines
            .iter()
            .find(|line| line.text == text && line.file != self.file);
        found.map(Line::place)
    }
}

fn add(
    lines: &mut Vec<Line>,
    text: &str,
    above: &mut Vec<String>,
    count: &mut usize,
    read: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<(), String> {
    let file = above.last().cloned().unwrap_or_default();
    for line in Conf::plain(&file, text).lines {
        let Some(name) = included(&line.text).map(str::to_owned) else {
            lines.push(line);
            continue;
        };
        let place = line.place();
        if above.contains(&name) {
            return Err(format!("{place}: `{name}` includes itself"));
        }
        *count += 1;
        if above.len() > DEEPEST || *count > MOST {
            return Err(format!(
                "{place}: more than {MOST} files are included, or one {DEEPEST} deep"
            ));
        }
        let text = read(&name).map_err(|why| format!("{place}: {why}"))?;
        above.push(name);
        add(lines, &text, above, count, read)?;
        above.pop();
    }
    Ok(())
}

/// The file that a line includes: the word behind `Include`, in any case.
#[must_use]
pub fn included(line: &str) -> Option<&str> {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = line.split_whitespace();
    let is_include = words.next()?.eq_ignore_ascii_case("include");
    is_include.then(|| words.next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(files: &[(&str, &str)]) -> Result<Conf, String> {
        let read = |name: &str| {
            let found = files.iter().find(|(other, _)| *other == name);
            found
                .map(|(_, text)| (*text).to_owned())
                .ok_or_else(|| format!("there is no `{name}`"))
        };
        Conf::expand("slurm.conf", &read("slurm.conf").expect("the first"), read)
    }

    #[test]
    fn what_is_included_stands_in_its_place() {
        let conf = expand(&[
            (
                "slurm.conf",
                "A=1\n  include  nodes.conf # ours\n#Include no.conf\nB=2\n",
            ),
            ("nodes.conf", "NodeName=n1\nInclude /etc/more.conf\n"),
            ("/etc/more.conf", "C=3\n"),
        ])
        .expect("expanded");
        assert_eq!(conf.text(), "A=1\nNodeName=n1\nC=3\n#Include no.conf\nB=2\n");
        assert_eq!(conf.lines[2].place(), "/etc/more.conf line 1");
        assert_eq!(
            conf.included_place("NodeName=n1"),
            Some("nodes.conf line 1".into())
        );
        assert_eq!(conf.included_place("A=1"), None);
    }

    #[test]
    fn a_circle_a_missing_file_and_too_many_end() {
        let circle = expand(&[
            ("slurm.conf", "Include a\n"),
            ("a", "Include b\n"),
            ("b", "Include a\n"),
        ]);
        assert!(
            circle
                .expect_err("a circle")
                .contains("b line 1: `a` includes itself")
        );
        let missing = expand(&[("slurm.conf", "A=1\nInclude a\n")]).expect_err("missing");
        assert_eq!(missing, "slurm.conf line 2: there is no `a`");
        let many = "Include a\n".repeat(MOST + 1);
        expand(&[("slurm.conf", &many), ("a", "")]).expect_err("too many");
        let deep: Vec<(String, String)> = (0..=DEEPEST + 1)
            .map(|at| (format!("f{at}"), format!("Include f{}\n", at + 1)))
            .collect();
        let mut files = vec![("slurm.conf", "Include f0\n")];
        files.extend(deep.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        expand(&files).expect_err("too deep");
        // A tree whose branches double is bounded too.
        let doubled: Vec<(String, String)> = (0..DEEPEST)
            .map(|at| (format!("f{at}"), format!("Include f{0}\nInclude f{0}\n", at + 1)))
            .collect();
        let mut files = vec![("slurm.conf", "Include f0\n"), ("f8", "")];
        files.extend(doubled.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        expand(&files).expect_err("doubled");
    }
}

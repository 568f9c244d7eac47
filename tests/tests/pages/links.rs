//! Links of pages: each leads to a file that is there, and to a heading that it has.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use divvy_tests::build::workspace;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The pages below a folder of the repository, as paths from its root.
pub fn files(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(workspace().join(folder)).expect("a folder") {
        let entry = entry.expect("an entry");
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            found.extend(files(&path));
        } else if path.ends_with(".md") {
            found.push(path);
        }
    }
    found.sort_unstable();
    found
}

fn events(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

/// Where the links and pictures of a page lead.
pub fn targets(text: &str) -> Vec<String> {
    let target = |event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some(dest_url.to_string()),
        _ => None,
    };
    events(text).filter_map(target).collect()
}

/// The names by which a page's headings are linked to, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut seen = BTreeMap::<String, u32>::new();
    let mut heading: Option<String> = None;
    for event in events(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let name = anchor(&heading.take().unwrap_or_default());
                let before = seen.entry(name.clone()).or_default();
                anchors.push(match *before {
                    0 => name,
                    number => format!("{name}-{number}"),
                });
                *before += 1;
            }
            _ => {}
        }
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
    let lower = heading.trim().to_lowercase();
    lower
        .chars()
        .filter(kept)
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

/// `docs/../README.md` as `README.md`; nothing where it leads out of the repository.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if !plain.pop() => return None,
            Component::Normal(name) => plain.push(name),
            _ => {}
        }
    }
    Some(plain)
}

/// Why a link of the page at `from` leads nowhere.
fn broken(from: &str, target: &str, read: &impl Fn(&Path) -> Option<String>) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = target
        .split_once('#')
        .map_or((target, None), |(path, heading)| (path, Some(heading)));
    let file = match path {
        "" => PathBuf::from(from),
        path => match plain(&Path::new(from).parent().unwrap_or(Path::new("")).join(path)) {
            Some(file) => file,
            None => return Some("it leads out of the repository".to_owned()),
        },
    };
    let Some(text) = read(&file) else {
        return Some(format!("there is no {}", file.display()));
    };
    let heading = heading.filter(|_| file.extension().is_some_and(|end| end == "md"))?;
    (!anchors(&text).iter().any(|known| known == heading))
        .then(|| format!("{} has no heading #{heading}", file.display()))
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut pages = files("docs");
    for page in [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "SPECIFICATION.md",
        "CHANGELOG.md",
    ] {
        pages.push(page.to_owned());
    }
    let read = |path: &Path| {
        let path = workspace().join(path);
        match path.is_dir() {
            true => Some(String::new()),
            false => std::fs::read(path)
                .ok()
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        }
    };
    let mut wrong = Vec::new();
    for page in &pages {
        let text = read(Path::new(page)).unwrap_or_else(|| panic!("there is no {page}"));
        for target in targets(&text) {
            wrong.extend(broken(page, &target, &read).map(|why| format!("{page}: ({target}) {why}")));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn headings_are_named_as_readers_find_them() {
    let text = "# How `--compute` works\n\n## Pods: containerd, and CRI-O\n\n## Again\n\n## Again\n";
    assert_eq!(
        anchors(text),
        [
            "how---compute-works",
            "pods-containerd-and-cri-o",
            "again",
            "again-1"
        ]
    );
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let read = |path: &Path| (path == Path::new("docs/a.md")).then(|| "# One\n".to_owned());
    for (target, why) in [
        ("a.md", None),
        ("a.md#one", None),
        ("#one", None),
        ("../docs/a.md", None),
        ("https://example.com/#none", None),
        ("b.md", Some("there is no docs/b.md")),
        ("a.md#two", Some("docs/a.md has no heading #two")),
        ("../../x", Some("it leads out of the repository")),
    ] {
        assert_eq!(broken("docs/a.md", target, &read).as_deref(), why, "{target}");
    }
}

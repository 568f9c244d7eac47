//! Text of YAML, edited in place: block style only. What comes of it is read again by the caller's comparison, so nothing here has to
//! be right about YAML's corners: it has to be right or to be seen wrong.

use serde_json::Value;

/// A document of a file.
pub struct Document<'a> {
    /// The line before it, with `---`; empty for a first one without.
    pub mark: &'a str,
    /// Its text.
    pub body: &'a str,
}

/// The documents of a file, whose texts together are the file's.
pub fn documents(text: &str) -> Vec<Document<'_>> {
    let mut found = Vec::new();
    let (mut mark, mut begin, mut at) = ("", 0, 0);
    for line in text.split_inclusive('\n') {
        if line.trim_end() == "---" || line.starts_with("--- #") {
            if at > begin || !mark.is_empty() {
                found.push(Document {
                    mark,
                    body: &text[begin..at],
                });
            }
            mark = line;
            begin = at + line.len();
        }
        at += line.len();
    }
    found.push(Document {
        mark,
        body: &text[begin..],
    });
    found
}

/// A value as block YAML.
pub fn written(value: &Value) -> Result<String, String> {
    let mut text = serde_saphyr::to_string(value).map_err(|error| error.to_string())?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// The text edited from one value to the other; none where that did not come out.
pub fn edited(text: &str, before: &Value, after: &Value) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let whole = Span {
        begin: 0,
        end: lines.len(),
        indent: 0,
    };
    change(&mut lines, whole, before, after)?;
    let mut text = lines.join("\n");
    text.push('\n');
    let read: Value = serde_saphyr::from_str(&text).ok()?;
    (read == *after).then_some(text)
}

/// Lines of a block value, and the column of its keys.
#[derive(Clone, Copy, Debug)]
struct Span {
    begin: usize,
    end: usize,
    indent: usize,
}

fn indent_of(line: &str) -> Option<usize> {
    let trimmed = line.trim_start();
    (!trimmed.is_empty() && !trimmed.starts_with('#')).then(|| line.len() - trimmed.len())
}

/// Changes the lines of one value; how many lines more there are.
fn change(lines: &mut Vec<String>, span: Span, before: &Value, after: &Value) -> Option<isize> {
    match (before, after) {
        _ if before == after => Some(0),
        (Value::Object(old), Value::Object(new)) => {
            let mut more = 0_isize;
            let now = |span: Span, more: isize| -> Option<Span> {
                Some(Span {
                    end: span.end.checked_add_signed(more)?,
                    ..span
                })
            };
            for (key, value) in old {
                let inner = member(lines, now(span, more)?, key)?;
                more += match new.get(key) {
                    None => remove(lines, inner),
                    Some(changed) if changed == value => 0,
                    Some(changed) => below(lines, inner, value, changed)?,
                };
            }
            for (key, value) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
                let one = Value::Object([(key.clone(), value.clone())].into_iter().collect());
                more += insert(lines, now(span, more)?, &written(&one).ok()?);
            }
            Some(more)
        }
        (Value::Array(old), Value::Array(new)) if old.len() <= new.len() => {
            let mut more = 0_isize;
            for (place, value) in old.iter().enumerate() {
                let end = span.end.checked_add_signed(more)?;
                let inner = item(lines, Span { end, ..span }, place)?;
                more += change(lines, inner, value, &new[place])?;
            }
            if new.len() > old.len() {
                let rest = Value::Array(new[old.len()..].to_vec());
                let end = span.end.checked_add_signed(more)?;
                more += insert(lines, Span { end, ..span }, &written(&rest).ok()?);
            }
            Some(more)
        }
        _ => None,
    }
}

/// A member that stands on lines of its own below its key.
fn below(lines: &mut Vec<String>, member: Span, before: &Value, after: &Value) -> Option<isize> {
    let (_, rest) = lines[member.begin].split_once(':')?;
    let rest = rest.trim_start();
    if !(rest.is_empty() || rest.starts_with('#')) {
        return None;
    }
    let indent = (member.begin + 1..member.end).find_map(|line| indent_of(&lines[line]))?;
    let span = Span {
        begin: member.begin + 1,
        end: member.end,
        indent,
    };
    change(lines, span, before, after)
}

/// The lines of a member of a map: from its key to what follows at its column.
fn member(lines: &[String], span: Span, key: &str) -> Option<Span> {
    let is_key = |line: &str| {
        let text = line.get(span.indent..).unwrap_or_default();
        [key.to_owned(), format!("\"{key}\""), format!("'{key}'")]
            .iter()
            .any(|key| {
                text.strip_prefix(key.as_str())
                    .is_some_and(|rest| rest.starts_with(':'))
            })
    };
    let at_column = |line: &str| {
        indent_of(line) == Some(span.indent)
            || line
                .get(..span.indent)
                .is_some_and(|start| start.trim_end().ends_with('-'))
    };
    let begin = (span.begin..span.end).find(|line| at_column(&lines[*line]) && is_key(&lines[*line]))?;
    let mut end = begin + 1;
    let mut last = begin + 1;
    while end < span.end {
        match indent_of(&lines[end]) {
            // A list may stand at its key's own column.
            Some(indent) if indent == span.indent && lines[end].trim_start().starts_with("- ") => {
                last = end + 1;
            }
            Some(indent) if indent <= span.indent => break,
            Some(_) => last = end + 1,
            None => {}
        }
        end += 1;
    }
    Some(Span {
        begin,
        end: last,
        indent: span.indent,
    })
}

/// The lines of an item of a list, whose map begins behind the dash.
fn item(lines: &[String], span: Span, place: usize) -> Option<Span> {
    let starts: Vec<usize> = (span.begin..span.end)
        .filter(|line| {
            indent_of(&lines[*line]) == Some(span.indent) && lines[*line].trim_start().starts_with("- ")
        })
        .collect();
    let begin = *starts.get(place)?;
    let end = starts.get(place + 1).copied().unwrap_or(span.end);
    let rest = lines[begin].trim_start().strip_prefix('-')?;
    Some(Span {
        begin,
        end,
        indent: lines[begin].len() - rest.trim_start().len(),
    })
}

fn remove(lines: &mut Vec<String>, span: Span) -> isize {
    // An item's first key shares its line with the dash: then the comparison fails, and the document is written afresh.
    lines.drain(span.begin..span.end);
    -isize::try_from(span.end - span.begin).unwrap_or(0)
}

/// Puts block text at the end of a value, before what only looks like a part of it.
fn insert(lines: &mut Vec<String>, span: Span, text: &str) -> isize {
    let mut end = span.end;
    while end > span.begin && indent_of(&lines[end - 1]).is_none() {
        end -= 1;
    }
    let indent = " ".repeat(span.indent);
    let new: Vec<String> = text.lines().map(|line| format!("{indent}{line}")).collect();
    let count = new.len();
    lines.splice(end..end, new);
    isize::try_from(count).unwrap_or(0)
}

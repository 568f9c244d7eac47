//! crates/abi/roles.txt as text: one line for an entry point, or for several whose names begin alike.

use anyhow::{Context, bail};

/// What is said of an entry point.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// Stub and dispatch are generated, with these roles where the type does not tell.
    Roles {
        submit: bool,
        roles: Vec<(String, Role)>,
    },
    /// Written by hand in files of this name.
    By(String),
    /// Answers `CUDA_ERROR_NOT_SUPPORTED`, for this reason.
    Unsupported(String),
}

/// The role of an argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// A number, an enumeration or a plain structure.
    Value,
    /// A pointer to what is read; members of it that are sent as zeros.
    In {
        many: Option<Count>,
        clearing: Vec<String>,
    },
    /// A pointer to what is written.
    Out {
        many: Option<Count>,
        clearing: Vec<String>,
    },
    /// A pointer to what is read and written.
    InOut,
    /// A C string that is read.
    String,
    /// A buffer for a C string of so many bytes.
    Text(Count),
    /// An object.
    Handle,
    /// An object that the call ends.
    Destroy,
    /// A new object that goes with another one.
    Create(Parent),
    /// An object that the call finds, or several.
    Find { many: Option<Count>, of: Parent },
    /// Device memory of so many bytes; without a count, an address in it.
    Memory(Option<Count>),
    /// Rows of device memory: how many, bytes from one to the next, bytes in each.
    Rows {
        rows: String,
        pitch: String,
        width: Count,
    },
    /// New device memory of so many bytes, which goes with an object.
    NewMemory(Count, Parent),
    /// Device memory that is freed.
    FreeMemory,
    /// A pointer that is reserved, or an address that is a hint: the driver gets a null one.
    Null,
}

/// A product of numbers and of other arguments; of a pointer, what it points to.
pub type Count = Vec<String>;

/// What an object goes with.
#[derive(Clone, Debug, PartialEq)]
pub enum Parent {
    /// With nothing but itself.
    None,
    /// With the current context.
    Current,
    /// With the object of another argument.
    Of(String),
}

/// The lines of a file: names and what is said of them.
pub fn lines(text: &str) -> anyhow::Result<Vec<(String, Line)>> {
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (names, said) = line
            .split_once(':')
            .with_context(|| format!("Line {} has no colon", number + 1))?;
        let said = said_of(said.trim()).with_context(|| format!("Line {}: {line}", number + 1))?;
        for name in names.split_whitespace() {
            all.push((name.to_owned(), said.clone()));
        }
    }
    Ok(all)
}

fn said_of(text: &str) -> anyhow::Result<Line> {
    if let Some(reason) = text.strip_prefix("unsupported,") {
        return Ok(Line::Unsupported(reason.trim().to_owned()));
    }
    if let Some(file) = text.strip_prefix("by ") {
        return Ok(Line::By(file.trim().to_owned()));
    }
    let (submit, text) = match text.strip_prefix("submit") {
        Some(rest) => (true, rest.trim()),
        None => (false, text),
    };
    let mut roles = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (argument, said) = part.split_once('=').context("A role is written argument=role")?;
        roles.push((argument.to_owned(), role(said)?));
    }
    Ok(Line::Roles { submit, roles })
}

fn role(text: &str) -> anyhow::Result<Role> {
    let (text, clearing) = match text.split_once(" clearing ") {
        Some((text, members)) => (text, members.split_whitespace().map(str::to_owned).collect()),
        None => (text, Vec::new()),
    };
    let (text, of) = match text.split_once(" of ") {
        Some((text, "current")) => (text, Parent::Current),
        Some((text, argument)) => (text, Parent::Of(argument.to_owned())),
        None => (text, Parent::None),
    };
    let (word, many) = match text.split_once('[') {
        Some((word, count)) => {
            let count = count.strip_suffix(']').context("A count ends with ]")?;
            (word, Some(count.split('*').map(str::to_owned).collect::<Count>()))
        }
        None => (text, None),
    };
    Ok(match (word, many) {
        ("value", None) => Role::Value,
        ("in", many) => Role::In { many, clearing },
        ("out", many) => Role::Out { many, clearing },
        ("inout", None) => Role::InOut,
        ("string", None) => Role::String,
        ("text", Some(count)) => Role::Text(count),
        ("handle", None) => Role::Handle,
        ("destroy", None) => Role::Destroy,
        ("create", None) => Role::Create(of),
        ("find", many) => Role::Find { many, of },
        ("memory", many) => Role::Memory(many),
        ("rows", Some(shape)) => rows(&shape)?,
        ("new memory", Some(count)) => Role::NewMemory(count, of),
        ("free memory", None) => Role::FreeMemory,
        ("null", None) => Role::Null,
        (word, _) => bail!("{word} is no role, or has a count that it cannot have, or lacks one"),
    })
}

/// `[Height by dstPitch of Width*2]` came as `Height by dstPitch of Width`, `2`.
fn rows(shape: &[String]) -> anyhow::Result<Role> {
    let (first, rest) = shape.split_first().context("Rows have a shape")?;
    let words: Vec<&str> = first.split_whitespace().collect();
    let [rows, "by", pitch, "each", width] = words.as_slice() else {
        bail!("Rows are written [COUNT by PITCH each WIDTH]");
    };
    let mut bytes = vec![(*width).to_owned()];
    bytes.extend(rest.iter().cloned());
    Ok(Role::Rows {
        rows: (*rows).to_owned(),
        pitch: (*pitch).to_owned(),
        width: bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Line {
        lines(text).expect("a line").remove(0).1
    }

    #[test]
    fn each_form_is_read() {
        assert_eq!(one("cuA: by module.rs"), Line::By("module.rs".to_owned()));
        assert_eq!(
            one("cuA: unsupported, no: never"),
            Line::Unsupported("no: never".to_owned())
        );
        let Line::Roles { submit: true, roles } = one("cuA: submit a=in[n*4], b=create of current # why")
        else {
            panic!("roles");
        };
        let count = vec!["n".to_owned(), "4".to_owned()];
        assert_eq!(
            roles[0].1,
            Role::In {
                many: Some(count),
                clearing: vec![]
            }
        );
        assert_eq!(roles[1].1, Role::Create(Parent::Current));
        let Line::Roles { roles, .. } = one("cuA: a=rows[H by P each W*2], b=in clearing x y") else {
            panic!("roles");
        };
        let width = vec!["W".to_owned(), "2".to_owned()];
        assert_eq!(
            roles[0].1,
            Role::Rows {
                rows: "H".to_owned(),
                pitch: "P".to_owned(),
                width
            }
        );
        assert!(matches!(&roles[1].1, Role::In { clearing, .. } if clearing.len() == 2));
    }

    #[test]
    fn a_line_that_says_nothing_clear_is_refused() {
        for text in [
            "cuA",
            "cuA: a",
            "cuA: a=inn",
            "cuA: a=text",
            "cuA: a=in[n",
            "cuA: a=rows[n]",
        ] {
            assert!(lines(text).is_err(), "{text}");
        }
    }
}

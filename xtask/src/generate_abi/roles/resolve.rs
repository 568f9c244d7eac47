//! From lines and types to one role for each argument of each entry point, or to the reasons why not.

use std::collections::BTreeMap;

use super::grammar::{Line, Parent, Role};
use super::table::{Entry, Parameter};
use super::types::Types;

/// What becomes of an entry point.
#[derive(Debug, PartialEq)]
pub enum Resolved {
    Generated { submit: bool, roles: Vec<Role> },
    By(String),
    Unsupported(String),
}

/// Resolves every entry of the table. The second list has what is wrong, one line for each.
pub fn resolve(entries: &[Entry], lines: &[(String, Line)], types: &Types) -> (Vec<Resolved>, Vec<String>) {
    let mut wrong = Vec::new();
    let mut used = vec![false; lines.len()];
    let mut exact = BTreeMap::new();
    for (at, (name, _)) in lines.iter().enumerate() {
        if exact.insert(name.as_str(), at).is_some() {
            wrong.push(format!("{name} has two lines"));
        }
    }
    let all = entries
        .iter()
        .map(|entry| {
            let found = line_of(&entry.symbol, lines, &exact);
            let said = found.map(|at| {
                used[at] = true;
                &lines[at].1
            });
            match said {
                Some(Line::By(file)) => Resolved::By(file.clone()),
                Some(Line::Unsupported(reason)) => Resolved::Unsupported(reason.clone()),
                Some(Line::Roles { submit, roles }) => generated(entry, *submit, roles, types, &mut wrong),
                None => generated(entry, false, &[], types, &mut wrong),
            }
        })
        .collect();
    for ((name, _), used) in lines.iter().zip(used) {
        if !used {
            wrong.push(format!("{name} is no entry point, or has a line of its own"));
        }
    }
    (all, wrong)
}

/// The line of a symbol: its own, that of its legacy variant, or the longest beginning.
fn line_of(symbol: &str, lines: &[(String, Line)], exact: &BTreeMap<&str, usize>) -> Option<usize> {
    let legacy = ["_ptsz", "_ptds"].iter().find_map(|end| symbol.strip_suffix(end));
    let own = [Some(symbol), legacy].into_iter().flatten();
    own.filter_map(|name| exact.get(name).copied())
        .next()
        .or_else(|| {
            let beginnings = lines.iter().enumerate().filter_map(|(at, (name, _))| {
                let beginning = name.strip_suffix('*')?;
                symbol.starts_with(beginning).then_some((beginning.len(), at))
            });
            beginnings.max().map(|(_, at)| at)
        })
}

fn generated(
    entry: &Entry,
    submit: bool,
    said: &[(String, Role)],
    types: &Types,
    wrong: &mut Vec<String>,
) -> Resolved {
    let mut complain = |text: String| wrong.push(format!("{}: {text}", entry.symbol));
    for (argument, _) in said {
        if entry.parameter(argument).is_none() {
            complain(format!("it has no argument {argument}"));
        }
    }
    let mut roles = Vec::new();
    for parameter in &entry.parameters {
        let told = said.iter().find(|(argument, _)| *argument == parameter.name);
        let role = match told {
            Some((_, role)) => Some(role.clone()),
            None => inferred(parameter, types),
        };
        let Some(role) = role else {
            complain(format!("{}: {} needs a role", parameter.name, parameter.of));
            continue;
        };
        if let Err(reason) = fits(&role, parameter, entry, types) {
            complain(format!("{}: {reason}", parameter.name));
        }
        if submit && answers(&role) {
            complain(format!(
                "{} has an answer, so the call cannot be submitted",
                parameter.name
            ));
        }
        roles.push(role);
    }
    Resolved::Generated { submit, roles }
}

/// The role that a type tells by itself: numbers, handles, pointers to one number.
fn inferred(parameter: &Parameter, types: &Types) -> Option<Role> {
    let of = parameter.of.as_str();
    if types.handle(of).is_some() {
        return Some(Role::Handle);
    }
    if !of.starts_with('*') {
        return types.is_plain(of, &[]).then_some(Role::Value);
    }
    if let Some(to) = of.strip_prefix("*mut ") {
        // A structure may be read through such a pointer: the file says which.
        return (to != "c_char" && types.is_number(to)).then_some(Role::Out {
            many: None,
            clearing: vec![],
        });
    }
    let to = of.strip_prefix("*const ")?;
    // A string may name a file, which is another one where the call is served: the file says which does not.
    (to != "c_char" && types.is_plain(to, &[])).then_some(Role::In {
        many: None,
        clearing: vec![],
    })
}

/// Whether a call with such an argument has to wait.
fn answers(role: &Role) -> bool {
    matches!(
        role,
        Role::Out { .. } | Role::InOut | Role::Text(_) | Role::Find { .. } | Role::NewMemory(..)
    )
}

fn fits(role: &Role, parameter: &Parameter, entry: &Entry, types: &Types) -> Result<(), String> {
    let of = parameter.of.as_str();
    let to = of.strip_prefix("*mut ").or_else(|| of.strip_prefix("*const "));
    let to_mut = of.strip_prefix("*mut ");
    let address = |of: &str| of == "CUdeviceptr";
    let plain = |to: Option<&str>, clearing: &[String]| {
        let bytes = to == Some("c_void");
        to.is_some_and(|to| types.is_plain(to, clearing)) || bytes
    };
    let fits = match role {
        Role::Value => types.is_plain(of, &[]),
        Role::In {
            many: Some(_),
            clearing,
        } if clearing.is_empty() => plain(to, &[]) || to.is_some_and(|to| types.handle(to).is_some()),
        Role::In { many, clearing } => plain(to, clearing) && (to != Some("c_void") || many.is_some()),
        Role::Out { many, clearing } => {
            (plain(to_mut, clearing) || to_mut.is_some_and(address))
                && (to != Some("c_void") || many.is_some())
        }
        Role::InOut => plain(to_mut, &[]) && to != Some("c_void"),
        Role::String => of == "*const c_char",
        Role::Text(_) => of == "*mut c_char",
        Role::Handle | Role::Destroy => types.handle(of).is_some(),
        Role::Create(_) | Role::Find { .. } => to_mut.is_some_and(|to| types.handle(to).is_some()),
        Role::Memory(_) | Role::FreeMemory => address(of) || of == "*mut c_void",
        Role::Rows { .. } => address(of),
        Role::NewMemory(..) => to_mut.is_some_and(address),
        Role::Null => of.starts_with('*') || address(of),
    };
    if !fits {
        return Err(format!("{of} cannot have the role {role:?}"));
    }
    if let Role::In { clearing, .. } | Role::Out { clearing, .. } = role
        && let Some(member) = clearing
            .iter()
            .find(|member| !types.has_pointer(to.unwrap_or(""), member))
    {
        return Err(format!("{of} has no pointer {member}"));
    }
    for name in counts(role) {
        let known = name.parse::<u64>().is_ok() || entry.parameter(name).is_some();
        if !known {
            return Err(format!("{name} is neither a number nor an argument"));
        }
        let number = entry.parameter(name).is_none_or(|other| {
            let of = other.of.strip_prefix("*mut ").unwrap_or(&other.of);
            matches!(of, "usize" | "u32" | "i32" | "u64" | "cuuint32_t" | "cuuint64_t")
        });
        if !number {
            return Err(format!("{name} is no count"));
        }
    }
    match parent(role) {
        Some(name)
            if entry
                .parameter(name)
                .is_none_or(|other| types.handle(&other.of).is_none()) =>
        {
            Err(format!("{name} is no object"))
        }
        _ => Ok(()),
    }
}

/// The arguments and numbers that a role's counts name.
fn counts(role: &Role) -> Vec<&String> {
    match role {
        Role::In { many, .. } | Role::Out { many, .. } | Role::Find { many, .. } | Role::Memory(many) => {
            many.iter().flatten().collect()
        }
        Role::Text(count) | Role::NewMemory(count, _) => count.iter().collect(),
        Role::Rows { rows, pitch, width } => [rows, pitch].into_iter().chain(width).collect(),
        _ => Vec::new(),
    }
}

fn parent(role: &Role) -> Option<&String> {
    match role {
        Role::Create(Parent::Of(name))
        | Role::NewMemory(_, Parent::Of(name))
        | Role::Find {
            of: Parent::Of(name), ..
        } => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::grammar::lines;
    use super::super::{table, types};
    use super::*;

    const TABLE: &str =
        "        cuAlloc (\"cuAlloc\", 1, Legacy) (p: *mut $crate::CUdeviceptr, bytes: usize);
        cuFree (\"cuFree\", 1, Legacy) (p: $crate::CUdeviceptr, s: $crate::CUstream);
        cuSet (\"cuSet\", 1, Legacy) (limit: $crate::CUlimit, value: *const $crate::Place);
        cuSet_ptsz (\"cuSet\", 1, PerThread) (limit: $crate::CUlimit, value: *const $crate::Place);";

    fn of(text: &str) -> (Vec<Resolved>, Vec<String>) {
        let entries = table::entries(TABLE);
        resolve(&entries, &lines(text).expect("lines"), &types::sample())
    }

    #[test]
    fn what_the_types_tell_needs_no_line() {
        let (all, wrong) = of("cuAlloc: p=new memory[bytes]\ncuFree: submit p=free memory");
        assert_eq!(wrong, Vec::<String>::new());
        let Resolved::Generated { submit: false, roles } = &all[2] else {
            panic!("generated")
        };
        assert!(matches!(roles.as_slice(), [Role::Value, Role::In { .. }]));
        assert_eq!(all[2], all[3], "a variant has the roles of its legacy symbol");
        let Resolved::Generated { submit: true, roles } = &all[1] else {
            panic!("submitted")
        };
        assert_eq!(roles[1], Role::Handle);
    }

    #[test]
    fn what_is_missing_or_does_not_fit_is_named() {
        let complaint = |text: &str, part: &str| {
            let (_, wrong) = of(text);
            assert!(wrong.iter().any(|line| line.contains(part)), "{text}: {wrong:?}");
        };
        complaint("", "cuAlloc: p: *mut CUdeviceptr needs a role");
        complaint("cuAlloc: q=out", "no argument q");
        complaint("cuAlloc: p=create", "cannot have the role");
        complaint("cuAlloc: p=new memory[size]", "size is neither");
        complaint("cuAlloc: submit p=new memory[bytes]", "cannot be submitted");
        complaint("cuFree: p=memory[s]", "s is no count");
        complaint("cuNone: by a.rs", "cuNone is no entry point");
        complaint("cuSet: value=in clearing id", "has no pointer id");
        complaint("cuFree: by a.rs\ncuFree: by a.rs", "two lines");
    }

    #[test]
    fn a_beginning_speaks_for_those_without_a_line() {
        let (all, wrong) = of("cu*: unsupported, no\ncuSet: by set.rs");
        assert_eq!(wrong, Vec::<String>::new());
        assert_eq!(all[0], Resolved::Unsupported("no".to_owned()));
        assert_eq!(all[3], Resolved::By("set.rs".to_owned()));
    }
}

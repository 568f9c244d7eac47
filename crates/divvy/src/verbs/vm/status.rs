//! `divvy vm status`: the groups with GPUs, and who has them.

use std::path::PathBuf;

use divvy_model::Fault;
use divvy_vm::status::{GroupStatus, status};

use super::root;
use crate::context::Context;
use crate::output;
use crate::report::remark;
use crate::table::Table;

/// Flags of `divvy vm status`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy vm status
  divvy vm status -o json")]
pub struct Args {
    /// Look at the machine captured below this folder in the place of this one
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

/// Shows.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let (tree, base) = root(args.sysroot.as_deref())?;
    let groups = status(&tree, &base);
    let left = divvy_vm::lent::left(&tree, &base);
    if !left.is_empty() {
        remark(&format!(
            "a killed `divvy vm run` left {} with its machine's user: `divvy vm restore` gives them back, and so does the next \
             `run`, `bind` or `unbind`",
            left.join(", ")
        ));
    }
    output::list(
        context.format,
        "VmGroupList",
        groups,
        |group| &group.address,
        table,
    )?;
    Ok(0)
}

fn table(groups: &[GroupStatus], _wide: bool) -> Table {
    let mut table = Table::new(vec![
        ("GROUP", true),
        ("ADDRESS", false),
        ("WHAT", false),
        ("DRIVER", false),
        ("FIRST", false),
        ("STATE", false),
    ]);
    for group in groups {
        for (at, function) in group.functions.iter().enumerate() {
            let number = group
                .group
                .map_or_else(|| "-".to_owned(), |number| number.to_string());
            let state = match group.used_by.first() {
                _ if at > 0 => String::new(),
                Some(user) if group.viable => format!("{}: {user}", group.state.name()),
                _ => group.state.name().to_owned(),
            };
            let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
            table.row(vec![
                if at == 0 { number } else { String::new() },
                function.address.clone(),
                format!("{} {}", function.kind.name(), function.id),
                or_none(&function.driver),
                or_none(&function.first_driver),
                state,
            ]);
        }
    }
    table
}

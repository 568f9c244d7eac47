//! What the arguments of the driver's entry points are for, from the table that the split driver's messages come from.

/// What an argument is for, as far as it matters for text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Role {
    /// Nothing is there before the call has succeeded.
    pub is_output: bool,
    /// The argument that says how many elements there are.
    pub count: Option<&'static str>,
}

/// A function's name, and of its arguments the name, the role, and what the role needs.
type Row = (
    &'static str,
    &'static [(&'static str, &'static str, &'static str)],
);

macro_rules! rows {
    ([] $($name:ident $id:literal [$kind:ident] ($($parameter:ident: $of:ty = $role:ident [$($needs:tt)*]),*);)*) => {
        const ROWS: &[Row] = &[
            $((stringify!($name), &[$((stringify!($parameter), stringify!($role), stringify!($($needs)*))),*])),*
        ];
    };
}

divvy_abi::driver_roles! { [rows] }

/// The role of an argument of a function. What the table does not have, the runtime's functions among it, is told by its
/// type: what can be written is an output.
pub fn role(function: &str, argument: &str, of: &str) -> Role {
    let row = ROWS
        .binary_search_by(|(name, _)| (*name).cmp(function))
        .ok()
        .and_then(|at| ROWS[at].1.iter().find(|(name, ..)| *name == argument));
    match row {
        Some((_, role, needs)) => Role {
            is_output: [
                "output",
                "outputs",
                "create",
                "find",
                "finds",
                "find_device",
                "new_memory",
            ]
            .contains(role),
            count: match *role {
                "outputs" | "inputs" | "handles" | "finds" => needs
                    .split_whitespace()
                    .find(|word| {
                        word.chars()
                            .all(|letter| letter.is_alphanumeric() || letter == '_')
                    })
                    .filter(|word| !word.starts_with(|first: char| first.is_ascii_digit())),
                _ => None,
            },
        },
        None => Role {
            is_output: of.starts_with("*mut"),
            count: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_those_of_the_table() {
        assert!(ROWS.is_sorted_by_key(|(name, _)| *name), "as a search wants it");
        let output = role("cuMemAlloc_v2", "dptr", "*mut u64");
        assert_eq!((output.is_output, output.count), (true, None));
        assert!(!role("cuMemAlloc_v2", "bytesize", "usize").is_output);
        assert_eq!(role("cuDeviceGetName", "name", "*mut c_char").count, Some("len"));
        assert!(role("cudaMalloc", "devPtr", "*mut *mut c_void").is_output);
        assert!(!role("cudaMemcpy", "src", "*const c_void").is_output);
    }
}

//! What of a trace is wanted: functions and kernels by name, kernels only, calls inside calls.

use divvy_model::{Code, Fault};
use divvy_trace::{Call, Operation};

/// Names, in which `*` stands for any letters.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    names: Vec<String>,
    kernels: bool,
    nested: bool,
}

impl Choice {
    /// Takes all names where there is none.
    ///
    /// # Errors
    /// [`Code::Usage`]: a name that looks like a function of CUDA and is none.
    pub fn new(names: &[String], kernels: bool, nested: bool) -> Result<Self, Fault> {
        for name in names {
            let begins = |begin: &str| {
                name.strip_prefix(begin)
                    .is_some_and(|rest| rest.starts_with(char::is_uppercase))
            };
            // Other names are kernels', which are not known before they run.
            let is_function = begins("cu") || begins("cuda");
            if is_function && !divvy_trace::functions().any(|function| is_match(name, function)) {
                return Err(
                    Fault::new(Code::Usage, format!("no function of CUDA is called `{name}`"))
                        .hint(nearest(name)),
                );
            }
        }
        Ok(Self {
            names: names.to_vec(),
            kernels,
            nested,
        })
    }

    fn has(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|pattern| is_match(pattern, name))
    }

    /// Whether a call is wanted. One inside another was made by the runtime. Lookups of functions are many, and wanted where
    /// they are named.
    pub fn takes_call(&self, call: &Call, inside: bool) -> bool {
        let is_lookup = call.name.starts_with("cuGetProcAddress");
        !self.kernels
            && (self.nested || !inside)
            && self.has(&call.name)
            && !(is_lookup && self.names.is_empty())
    }

    /// Whether work of a stream is wanted: by the kernel's name, or by that of the call that it came from.
    pub fn takes_operation(&self, operation: &Operation) -> bool {
        let kernel = operation.kernel.as_ref();
        self.has(&operation.call) || kernel.is_some_and(|kernel| self.has(&kernel.name))
    }
}

/// A function without the ends that versions and streams have: `cuMemAlloc` of `cuMemAlloc_v2`.
fn plain(name: &str) -> &str {
    let without = |end: &str| name.strip_suffix(end);
    match ["_ptsz", "_ptds", "_v2", "_v3", "_v4"]
        .into_iter()
        .find_map(without)
    {
        Some(rest) => plain(rest),
        None => name,
    }
}

/// Whether a name fits a pattern, as it is or without its ends.
fn is_match(pattern: &str, name: &str) -> bool {
    fits(pattern, name) || fits(pattern, plain(name))
}

fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The functions that were perhaps meant.
fn nearest(name: &str) -> String {
    let begin: String = name.chars().take_while(|letter| *letter != '*').collect();
    let shared = |function: &str| {
        let same = begin.chars().zip(function.chars());
        same.take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count()
    };
    let best =
        divvy_trace::functions().max_by_key(|function| (shared(function), std::cmp::Reverse(function.len())));
    match best {
        Some(best) => format!(
            "`{}` is one. `--only '{}*'` takes a family",
            plain(best),
            family(best)
        ),
        None => "docs/driver-coverage.md lists them".to_owned(),
    }
}

/// `cuMem` of `cuMemAlloc_v2`.
fn family(name: &str) -> &str {
    let capitals = name.char_indices().filter(|(_, letter)| letter.is_uppercase());
    let second = capitals.skip(1).map(|(at, _)| at).next();
    &name[..second.unwrap_or(name.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_names_with_and_without_their_versions() {
        for (pattern, name, expected) in [
            ("cuMemAlloc", "cuMemAlloc_v2", true),
            ("cuMemAlloc_v2", "cuMemAlloc_v2", true),
            ("cuMemAlloc", "cuMemAllocAsync_ptsz", false),
            ("cuMem*Async", "cuMemAllocAsync_ptsz", true),
            ("cuMem*", "cuMemFree_v2", true),
            ("*Free*", "cuMemFree_v2", true),
            ("cuMem*x*", "cuMemFree_v2", false),
            ("*", "saxpy", true),
            ("saxpy", "saxpy2", false),
        ] {
            assert_eq!(is_match(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_function_that_is_none_is_refused_and_kernels_are_not() {
        let new = |name: &str| Choice::new(&[name.to_owned()], false, false);
        let fault = new("cuMemAllok").expect_err("refused");
        assert!(
            fault
                .hint
                .is_some_and(|hint| hint.starts_with("`cuMemAlloc` is one. `--only 'cuMem*'`"))
        );
        for fine in ["cuMem*", "cudaMalloc", "custom_kernel", "saxpy", "cuLaunchKernel"] {
            assert!(new(fine).is_ok(), "{fine}");
        }
    }
}

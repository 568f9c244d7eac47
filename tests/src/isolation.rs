//! The isolation level on which scenarios run. `DIVVY_TEST_ISOLATION=enforced` runs the same scenarios on that level, and
//! `cargo xtask isolation` does so with a list of those that differ.

/// The level that `DIVVY_TEST_ISOLATION` names; nothing where scenarios run on the default level.
#[must_use]
pub fn asked_for() -> Option<String> {
    let named = std::env::var("DIVVY_TEST_ISOLATION").ok();
    named.filter(|level| !level.is_empty())
}

/// Arguments of `divvy`, with the level where they make a slice and name none.
#[must_use]
pub fn among<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    with(asked_for().as_deref(), arguments)
}

/// A slice's level is chosen when it is made, and what joins one has its level. A whole device has none.
const JOINS: [&str; 4] = ["--slice", "--observe", "--isolation", "--whole"];

fn with<'a>(level: Option<&str>, arguments: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let own = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let verb = match words.as_slice() {
        ["run", ..] => 1,
        ["slice", "create", ..] => 2,
        _ => return arguments,
    };
    let joins = words[..own]
        .iter()
        .any(|word| JOINS.iter().any(|flag| word.starts_with(flag)));
    if let Some(level) = level.filter(|_| !joins) {
        arguments.splice(verb..verb, ["--isolation".to_owned(), level.to_owned()]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_a_slice_has_the_level() {
        let on = |words: &str| with(Some("enforced"), words.split(' ')).join(" ");
        assert_eq!(
            on("run --memory 1GiB -- x"),
            "run --isolation enforced --memory 1GiB -- x"
        );
        assert_eq!(
            on("slice create a --memory 1GiB"),
            "slice create --isolation enforced a --memory 1GiB"
        );
        for same in [
            "ps",
            "run --isolation env -- x",
            "run --slice a -- x",
            "run --observe -- x",
        ] {
            assert_eq!(on(same), same);
        }
        assert_eq!(
            on("run --memory 1GiB -- x --slice a"),
            "run --isolation enforced --memory 1GiB -- x --slice a",
            "the program's own words"
        );
        assert_eq!(with(None, ["run", "--", "x"]), ["run", "--", "x"]);
    }
}

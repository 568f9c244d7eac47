//! Holds documents to docs/schema, by as much of JSON Schema as those schemas use. A word that it does not know is a
//! failure, so that nothing passes unread.

use std::path::Path;

use serde_json::Value;

/// What is wrong with a document of this kind, with where.
pub fn complaints(kind: &str, document: &Value) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    let text = std::fs::read_to_string(folder.join(format!("{kind}.json")))
        .unwrap_or_else(|error| panic!("{kind} has no schema: {error}"));
    let root: Value = serde_json::from_str(&text).expect("a schema is JSON");
    let mut found = Vec::new();
    check(&root, &root, document, "$", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let rules = schema.as_object().expect("a schema is an object");
    for (word, rule) in rules {
        let holds = match word.as_str() {
            "$schema" | "$defs" | "title" | "description" | "required" | "additionalProperties" => true,
            "$ref" => {
                let name = rule.as_str().and_then(|text| text.strip_prefix("#/$defs/"));
                check(
                    root,
                    &root["$defs"][name.expect("a definition")],
                    value,
                    at,
                    found,
                );
                true
            }
            "type" => match rule.as_str().expect("one type") {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "number" => value.is_number(),
                "integer" => value.is_u64() || value.is_i64(),
                "null" => value.is_null(),
                other => panic!("no type is called {other}"),
            },
            "const" => value == rule,
            "enum" => rule.as_array().expect("words").contains(value),
            "minimum" => !value.is_number() || value.as_f64() >= rule.as_f64(),
            "pattern" => {
                assert_eq!(rule, "^D[0-9]{4}$", "the one pattern there is");
                let digits = value.as_str().and_then(|text| text.strip_prefix('D'));
                digits.is_some_and(|digits| {
                    digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_digit())
                })
            }
            "anyOf" => rule.as_array().expect("schemas").iter().any(|one| {
                let mut inside = Vec::new();
                check(root, one, value, at, &mut inside);
                inside.is_empty()
            }),
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, rule, item, &format!("{at}[{index}]"), found);
                }
                true
            }
            "properties" => {
                fields(root, rules, value, at, found);
                true
            }
            other => panic!("unknown here: {other}"),
        };
        if !holds {
            found.push(format!("{at}: {value} is not as {word} says: {rule}"));
        }
    }
    if !rules.contains_key("properties") && rules.contains_key("additionalProperties") {
        for (name, value) in value.as_object().into_iter().flatten() {
            check(
                root,
                &rules["additionalProperties"],
                value,
                &format!("{at}.{name}"),
                found,
            );
        }
    }
}

fn fields(
    root: &Value,
    rules: &serde_json::Map<String, Value>,
    value: &Value,
    at: &str,
    found: &mut Vec<String>,
) {
    let Some(fields) = value.as_object() else { return };
    for required in rules["required"].as_array().expect("names") {
        let name = required.as_str().expect("a name");
        if !fields.contains_key(name) {
            found.push(format!("{at}: {name} is missing"));
        }
    }
    for (name, value) in fields {
        match rules["properties"].get(name) {
            Some(rule) => check(root, rule, value, &format!("{at}.{name}"), found),
            None if rules["additionalProperties"] == false => {
                found.push(format!("{at}: {name} is not in the schema"));
            }
            None => {}
        }
    }
}

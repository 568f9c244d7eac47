//! What a program asked the driver for, as the recorder wrote it down: `dropin/kit-record`.

use std::collections::{BTreeMap, BTreeSet};

use divvy_abi::{Query, Symbol, nvml, query};
use serde::Deserialize;
use serde_json::{Value, json};

/// One line of the recorder's.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Symbol {
        symbol: String,
    },
    Entry {
        entry: String,
        version: i32,
        flags: u64,
        found: bool,
    },
    Table {
        table: String,
        answered: bool,
    },
}

/// All of it, each thing once. What was answered at one time and refused at another was answered.
#[derive(Default)]
pub(super) struct DriverRequests {
    symbols: BTreeSet<String>,
    entries: BTreeMap<(String, i32, u64), bool>,
    tables: BTreeMap<String, bool>,
}

impl DriverRequests {
    /// What these lines say. A line that is none of the recorder's is left out.
    pub fn read(text: &str) -> Self {
        let mut asked = Self::default();
        for line in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            match line {
                Line::Symbol { symbol } => drop(asked.symbols.insert(symbol)),
                Line::Entry {
                    entry,
                    version,
                    flags,
                    found,
                } => *asked.entries.entry((entry, version, flags)).or_default() |= found,
                Line::Table { table, answered } => *asked.tables.entry(table).or_default() |= answered,
            }
        }
        asked
    }

    /// How many things were asked for.
    pub fn count(&self) -> usize {
        self.symbols.len() + self.entries.len() + self.tables.len()
    }

    /// In a sentence.
    pub fn says(&self) -> String {
        let found = |answers: &mut dyn Iterator<Item = &bool>| answers.filter(|found| **found).count();
        format!(
            "{} symbols; {} entry points by name, {} of them found; {} export tables, {} of them answered",
            self.symbols.len(),
            self.entries.len(),
            found(&mut self.entries.values()),
            self.tables.len(),
            found(&mut self.tables.values())
        )
    }

    /// All of it, in order.
    pub fn details(&self) -> Value {
        let entries = self.entries.iter().map(|((name, version, flags), found)| {
            json!({"name": name, "version": version, "flags": flags, "found": found})
        });
        let tables = self.tables.iter();
        let tables = tables.map(|(uuid, answered)| json!({"uuid": uuid, "answered": answered}));
        json!({
            "symbols": self.symbols,
            "entries": entries.collect::<Vec<_>>(),
            "tables": tables.collect::<Vec<_>>(),
        })
    }

    /// The names that our own tables do not have, and whether the driver has them.
    pub fn unknown(&self) -> Vec<Value> {
        let is_known = |name: &str| Symbol::by_name(name).is_some() || nvml::Symbol::by_name(name).is_some();
        let symbols = self.symbols.iter().filter(|name| !is_known(name));
        // What is bound is there.
        let mut unknown: BTreeMap<&str, bool> = symbols.map(|name| (name.as_str(), true)).collect();
        for ((name, version, flags), found) in &self.entries {
            if query(name, *version, *flags) == Query::Unknown {
                *unknown.entry(name).or_default() |= found;
            }
        }
        let names = unknown.into_iter();
        names
            .map(|(name, found)| json!({"name": name, "found": found}))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_sorted_and_once() {
        let asked = DriverRequests::read(
            r#"{"symbol":"nvmlInit_v2","library":"libnvidia-ml.so.1","by":"relocation"}
            {"symbol":"cuInit","library":"libcuda.so.1","by":"dlsym"}
            {"symbol":"cuInit","library":"libcuda.so.1","by":"relocation"}
            {"symbol":"cuNew","library":"libcuda.so.1","by":"dlsym"}
            {"entry":"cuMemAlloc","version":12000,"flags":0,"found":true}
            {"entry":"cuCoredumpNone","version":12000,"flags":2,"found":false}
            {"entry":"cuMulticastCreate","version":3000,"flags":0,"found":false}
            {"table":"0a","answered":false}
            {"table":"0a","answered":true}
            {"table":"09","answered":false}
            {"table":"0"#,
        );
        assert_eq!(
            asked.details(),
            json!({
                "symbols": ["cuInit", "cuNew", "nvmlInit_v2"],
                "entries": [
                    {"name": "cuCoredumpNone", "version": 12000, "flags": 2, "found": false},
                    {"name": "cuMemAlloc", "version": 12000, "flags": 0, "found": true},
                    {"name": "cuMulticastCreate", "version": 3000, "flags": 0, "found": false},
                ],
                "tables": [{"uuid": "09", "answered": false}, {"uuid": "0a", "answered": true}],
            })
        );
        assert_eq!(asked.count(), 8);
        assert_eq!(
            asked.says(),
            "3 symbols; 3 entry points by name, 1 of them found; 2 export tables, 1 of them answered"
        );
        // A name that only came later is one that we know.
        assert_eq!(
            asked.unknown(),
            [
                json!({"name": "cuCoredumpNone", "found": false}),
                json!({"name": "cuNew", "found": true})
            ]
        );
    }
}

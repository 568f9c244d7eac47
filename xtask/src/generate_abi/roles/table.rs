//! The declaration table as text: symbols, and their parameters' names and types.

/// An entry point.
pub struct Entry {
    pub symbol: String,
    pub parameters: Vec<Parameter>,
}

/// One parameter.
pub struct Parameter {
    pub name: String,
    /// Its type, without the path of the crate.
    pub of: String,
}

impl Entry {
    /// A parameter by its name.
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }
}

/// The entries of the generated functions.rs.
pub fn entries(text: &str) -> Vec<Entry> {
    text.lines().filter_map(entry).collect()
}

/// `cuMemAlloc_v2 ("cuMemAlloc", 3020, Legacy) (dptr: *mut $crate::CUdeviceptr, bytesize: usize);`
fn entry(line: &str) -> Option<Entry> {
    let (symbol, rest) = line.trim_start().split_once(" (\"")?;
    let (_, parameters) = rest.split_once(") (")?;
    let parameters = parameters.strip_suffix(");")?.replace("$crate::", "");
    let parameters = parameters
        .split(", ")
        .filter_map(|parameter| parameter.split_once(": "))
        .map(|(name, of)| Parameter {
            name: name.to_owned(),
            of: of.to_owned(),
        })
        .collect();
    Some(Entry {
        symbol: symbol.to_owned(),
        parameters,
    })
}

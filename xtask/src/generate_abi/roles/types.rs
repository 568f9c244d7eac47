//! What the driver's types are made of, read from the generated files: which are plain bytes, and which are handles.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use syn::{Fields, Item};

/// The handles, and what kind of object each names. Some are numbers in C, so the type alone does not tell.
const HANDLES: &[(&str, &str)] = &[
    ("CUarray", "Array"),
    ("CUcontext", "Context"),
    ("CUevent", "Event"),
    ("CUexternalMemory", "ExternalMemory"),
    ("CUexternalSemaphore", "ExternalSemaphore"),
    ("CUfunction", "Function"),
    ("CUgraph", "Graph"),
    ("CUgraphExec", "GraphExec"),
    ("CUgraphNode", "GraphNode"),
    ("CUgraphicsResource", "GraphicsResource"),
    ("CUgreenCtx", "GreenContext"),
    ("CUkernel", "Kernel"),
    ("CUlibrary", "Library"),
    ("CUlinkState", "Linker"),
    ("CUmemGenericAllocationHandle", "Allocation"),
    ("CUmemoryPool", "Pool"),
    ("CUmipmappedArray", "MipmappedArray"),
    ("CUmodule", "Module"),
    ("CUstream", "Stream"),
    ("CUsurfObject", "Surface"),
    ("CUsurfref", "SurfaceReference"),
    ("CUtexObject", "Texture"),
    ("CUtexref", "TextureReference"),
    ("CUuserObject", "UserObject"),
];

/// Numbers of the driver that mean something only in its process.
const NUMBERS_OF_A_PROCESS: &[&str] = &["CUdeviceptr", "CUdeviceptr_v1", "CUgraphConditionalHandle"];

const NUMBERS: &[&str] = &[
    "u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "f32", "f64", "c_char",
];

/// The types of the driver's interface.
pub struct Types {
    aliases: BTreeMap<String, String>,
    enumerations: BTreeSet<String>,
    /// Structures and unions: members and their types.
    records: BTreeMap<String, Vec<(String, String)>>,
}

impl Types {
    /// Reads the texts of the generated aliases.rs, enumerations.rs and records.rs.
    pub fn read(aliases: &str, enumerations: &str, records: &str) -> anyhow::Result<Self> {
        let mut types = Self {
            aliases: BTreeMap::new(),
            enumerations: BTreeSet::new(),
            records: BTreeMap::new(),
        };
        for line in aliases.lines() {
            let definition = line.strip_prefix("pub type ").and_then(|l| l.split_once(" = "));
            if let Some((name, of)) = definition {
                types
                    .aliases
                    .insert(name.to_owned(), of.trim_end_matches(';').to_owned());
            }
        }
        for line in enumerations.lines() {
            let name = line
                .trim_start()
                .split_once(": u32;")
                .or_else(|| line.trim_start().split_once(": i32;"));
            types.enumerations.extend(name.map(|(name, _)| name.to_owned()));
        }
        for item in syn::parse_file(records).context("records.rs is not Rust")?.items {
            let (name, fields) = match item {
                Item::Struct(item) => (item.ident, item.fields),
                Item::Union(item) => (item.ident, Fields::Named(item.fields)),
                _ => continue,
            };
            let members = fields
                .iter()
                .map(|field| {
                    let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                    (name, spelling(&field.ty))
                })
                .collect();
            types.records.insert(name.to_string(), members);
        }
        Ok(types)
    }

    /// The kind of object that a type is a handle of.
    pub fn handle(&self, of: &str) -> Option<&'static str> {
        HANDLES
            .iter()
            .find(|(name, _)| *name == of)
            .map(|(_, kind)| *kind)
    }

    /// Whether a type is a number or an enumeration, and no handle, address or structure.
    pub fn is_number(&self, of: &str) -> bool {
        self.handle(of).is_none()
            && !NUMBERS_OF_A_PROCESS.contains(&of)
            && (NUMBERS.contains(&of)
                || self.enumerations.contains(of)
                || self.aliases.get(of).is_some_and(|other| self.is_number(other)))
    }

    /// Whether a type's bytes mean the same in every process. `cleared` are members of it that are sent as zeros.
    pub fn is_plain(&self, of: &str, cleared: &[String]) -> bool {
        if let Some((element, _)) = array(of) {
            return self.is_plain(element, &[]);
        }
        if self.is_number(of) {
            return true;
        }
        if self.handle(of).is_some() || NUMBERS_OF_A_PROCESS.contains(&of) {
            return false;
        }
        match (self.aliases.get(of), self.records.get(of)) {
            (Some(other), _) => self.is_plain(other, cleared),
            (_, Some(members)) => members
                .iter()
                .all(|(name, of)| cleared.contains(name) || self.is_plain(of, &[])),
            (None, None) => false,
        }
    }

    /// The structure behind a name, if it is one.
    pub fn record<'a>(&'a self, of: &'a str) -> Option<&'a str> {
        match self.aliases.get(of) {
            Some(other) => self.record(other),
            None => self.records.contains_key(of).then_some(of),
        }
    }

    /// Whether a structure has a member that is a pointer.
    pub fn has_pointer(&self, of: &str, member: &str) -> bool {
        let members = self.record(of).and_then(|record| self.records.get(record));
        members.is_some_and(|members| {
            members
                .iter()
                .any(|(name, of)| name == member && of.starts_with('*'))
        })
    }
}

/// `[u8; 4]`: the element and the count.
fn array(of: &str) -> Option<(&str, &str)> {
    of.strip_prefix('[')?.strip_suffix(']')?.rsplit_once("; ")
}

/// A member's type as this module compares it. What is neither a name, a pointer nor an array is `?`: never plain.
fn spelling(of: &syn::Type) -> String {
    match of {
        syn::Type::Path(path) => path
            .path
            .segments
            .last()
            .filter(|segment| segment.arguments.is_none())
            .map_or_else(|| "?".to_owned(), |segment| segment.ident.to_string()),
        syn::Type::Ptr(pointer) => format!("*{}", spelling(&pointer.elem)),
        syn::Type::Array(array) => format!("[{}; n]", spelling(&array.elem)),
        _ => "?".to_owned(),
    }
}

#[cfg(test)]
pub fn sample() -> Types {
    Types::read(
        "pub type CUstream = *mut CUstream_st;\npub type CUdeviceptr = u64;\npub type CUdevice = i32;\n\
         pub type CUfunction = *mut CUfunc_st;\npub type CUmodule = *mut CUmod_st;\n",
        "enumeration! {\n    CUlimit: u32;\n    A = 1,\n}\n",
        "pub struct Place { pub of: CUlimit, pub id: [i32; 2] }\npub struct Named { pub place: Place, pub meta: *mut \
         c_void }\npub struct Copy { pub from: CUdeviceptr }\npub union Either { pub a: u32, pub f: Option<fn()> }",
    )
    .expect("types")
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_means_the_same_everywhere_is_plain() {
        let types = super::sample();
        for plain in ["u32", "CUdevice", "CUlimit", "Place", "[Place; 3]"] {
            assert!(types.is_plain(plain, &[]), "{plain}");
        }
        for other in ["CUstream", "CUdeviceptr", "Named", "Copy", "Either", "Unknown"] {
            assert!(!types.is_plain(other, &[]), "{other}");
        }
        assert!(types.is_plain("Named", &["meta".to_owned()]));
        assert!(types.has_pointer("Named", "meta") && !types.has_pointer("Named", "place"));
    }
}

//! The records that serde serialises, as the sources declare them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use syn::visit::Visit;

/// A struct or an enum that is serialised.
#[derive(Clone)]
pub enum Declared {
    Struct(syn::ItemStruct),
    Enum(syn::ItemEnum),
}

/// Where something is declared: a file, and the function in it where it is inside one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub file: String,
    pub function: Option<String>,
}

/// All of them.
pub struct Sources {
    declared: BTreeMap<(String, Place), Declared>,
}

impl Sources {
    /// Reads every file of these folders below `root`.
    pub fn read(root: &Path, folders: &[&str]) -> anyhow::Result<Self> {
        let mut declared = BTreeMap::new();
        for folder in folders {
            read_folder(root, &root.join(folder), &mut declared)?;
        }
        Ok(Self { declared })
    }

    /// What `name` is where it is written at `place`: what is nearest.
    pub fn find(&self, name: &str, place: &Place) -> anyhow::Result<(Place, &Declared)> {
        let all: Vec<(&Place, &Declared)> = self
            .declared
            .iter()
            .filter(|((declared, _), _)| declared == name)
            .map(|((_, place), declared)| (place, declared))
            .collect();
        let in_file = all.iter().filter(|(found, _)| found.file == place.file);
        let nearest = in_file.clone().find(|(found, _)| *found == place).or_else(|| {
            let mut of_file = in_file.filter(|(found, _)| found.function.is_none());
            of_file.next()
        });
        match (nearest, all.as_slice()) {
            (Some((found, declared)), _) | (None, [(found, declared)]) => Ok(((*found).clone(), declared)),
            (None, []) => bail!("{name} in {} is no record that is serialised", place.file),
            (None, several) => bail!("{name} in {} may be any of {}", place.file, several.len()),
        }
    }
}

fn read_folder(
    root: &Path,
    folder: &Path,
    declared: &mut BTreeMap<(String, Place), Declared>,
) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("Cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            read_folder(root, &path, declared)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let parsed =
                syn::parse_file(&text).with_context(|| format!("Cannot parse {}", path.display()))?;
            let file = path.strip_prefix(root)?.to_string_lossy().into_owned();
            let mut finder = Finder {
                place: Place { file, function: None },
                declared,
            };
            finder.visit_file(&parsed);
        }
    }
    Ok(())
}

struct Finder<'a> {
    place: Place,
    declared: &'a mut BTreeMap<(String, Place), Declared>,
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        let before = self.place.function.replace(function.sig.ident.to_string());
        syn::visit::visit_item_fn(self, function);
        self.place.function = before;
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if is_serialised(&item.attrs) {
            let key = (item.ident.to_string(), self.place.clone());
            self.declared.insert(key, Declared::Struct(item.clone()));
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if is_serialised(&item.attrs) {
            let key = (item.ident.to_string(), self.place.clone());
            self.declared.insert(key, Declared::Enum(item.clone()));
        }
    }
}

fn is_serialised(attributes: &[syn::Attribute]) -> bool {
    let mut found = false;
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("derive"))
    {
        let _other = attribute.parse_nested_meta(|meta| {
            found |= meta
                .path
                .segments
                .last()
                .is_some_and(|last| last.ident == "Serialize");
            Ok(())
        });
    }
    found
}

//! From Rust's types to JSON's.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use syn::{Expr, Fields, Lit, Type};

use super::sources::{Declared, Place, Sources};

/// The records that a schema refers to.
pub struct Definitions<'a> {
    sources: &'a Sources,
    /// By name; nothing while it is being made.
    made: BTreeMap<String, (Place, Value)>,
}

impl<'a> Definitions<'a> {
    pub fn over(sources: &'a Sources) -> Self {
        Self {
            sources,
            made: BTreeMap::new(),
        }
    }

    pub fn into_map(self) -> Map<String, Value> {
        self.made
            .into_iter()
            .map(|(name, (_, made))| (name, made))
            .collect()
    }

    /// The schema of a record itself. `name` may be `function::Name`.
    pub fn root(&mut self, file: &str, name: &str) -> anyhow::Result<Value> {
        let (place, name) = at(file, name);
        let (place, declared) = self.sources.find(&name, &place)?;
        self.declared(&place, &declared.clone())
    }

    /// A reference to a record, which is defined if it was not yet.
    pub fn reference(&mut self, file: &str, name: &str) -> anyhow::Result<Value> {
        let (place, name) = at(file, name);
        self.named(&name, &place)
    }

    fn named(&mut self, name: &str, written_at: &Place) -> anyhow::Result<Value> {
        // It writes itself: D and its number.
        if name == "Code" {
            return Ok(json!({ "type": "string", "pattern": "^D[0-9]{4}$" }));
        }
        let (place, declared) = self.sources.find(name, written_at)?;
        let declared = declared.clone();
        match self.made.get(name) {
            Some((known, _)) if *known == place => {}
            Some((known, _)) => bail!("{name} is in {} and in {}", known.file, place.file),
            None => {
                self.made.insert(name.into(), (place.clone(), Value::Null));
                let made = self.declared(&place, &declared)?;
                self.made.insert(name.into(), (place, made));
            }
        }
        Ok(json!({ "$ref": format!("#/$defs/{name}") }))
    }

    fn declared(&mut self, place: &Place, declared: &Declared) -> anyhow::Result<Value> {
        // Written by way of another record.
        if let Declared::Struct(item) = declared
            && let Some(written) = serde_says(&item.attrs, "into")
        {
            let (place, written) = self.sources.find(&written, place)?;
            return self.declared(&place, &written.clone());
        }
        let (attributes, mut schema) = match declared {
            Declared::Struct(item) => (&item.attrs, self.fields(place, &item.attrs, &item.fields)?),
            Declared::Enum(item) => (&item.attrs, self.variants(place, item)?),
        };
        describe(&mut schema, attributes);
        Ok(schema)
    }

    fn fields(
        &mut self,
        place: &Place,
        attributes: &[syn::Attribute],
        fields: &Fields,
    ) -> anyhow::Result<Value> {
        let fields = match fields {
            Fields::Named(fields) => &fields.named,
            Fields::Unnamed(only) if only.unnamed.len() == 1 => return self.of(&only.unnamed[0].ty, place),
            _ => bail!("{}: a record without names", place.file),
        };
        let case = serde_says(attributes, "rename_all");
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for field in fields {
            let ident = field.ident.as_ref().context("A named field")?.to_string();
            if serde_says(&field.attrs, "flatten").is_some() {
                let inside = self.inlined(&field.ty, place)?;
                properties.extend(inside["properties"].as_object().cloned().unwrap_or_default());
                required.extend(inside["required"].as_array().cloned().unwrap_or_default());
                continue;
            }
            let renamed = serde_says(&field.attrs, "rename");
            let name = renamed.unwrap_or_else(|| cased(&ident, case.as_deref()));
            let may_lack = serde_says(&field.attrs, "skip_serializing_if").is_some();
            let of = match optional(&field.ty).filter(|_| may_lack) {
                Some(inner) => inner,
                None => &field.ty,
            };
            let mut schema = self.of(of, place)?;
            describe(&mut schema, &field.attrs);
            properties.insert(name.clone(), schema);
            if !may_lack {
                required.push(json!(name));
            }
        }
        Ok(json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        }))
    }

    fn inlined(&mut self, of: &Type, place: &Place) -> anyhow::Result<Value> {
        match of {
            Type::Reference(reference) => self.inlined(&reference.elem, place),
            Type::Path(path) => {
                let name = path
                    .path
                    .segments
                    .last()
                    .context("A type has a name")?
                    .ident
                    .to_string();
                let (place, declared) = self.sources.find(&name, place)?;
                self.declared(&place, &declared.clone())
            }
            _ => bail!("{}: only a record can be flattened", place.file),
        }
    }

    fn variants(&mut self, place: &Place, item: &syn::ItemEnum) -> anyhow::Result<Value> {
        let case = serde_says(&item.attrs, "rename_all");
        let untagged = serde_says(&item.attrs, "untagged").is_some();
        let (mut words, mut others) = (Vec::new(), Vec::new());
        for variant in &item.variants {
            let name = serde_says(&variant.attrs, "rename")
                .unwrap_or_else(|| cased(&variant.ident.to_string(), case.as_deref()));
            if matches!(variant.fields, Fields::Unit) {
                words.push(json!(name));
                continue;
            }
            let inside = self.fields(place, &variant.attrs, &variant.fields)?;
            others.push(match untagged {
                true => inside,
                false => json!({
                    "type": "object",
                    "properties": { &name: inside },
                    "required": [name],
                    "additionalProperties": false,
                }),
            });
        }
        if others.is_empty() {
            return Ok(json!({ "enum": words }));
        }
        if !words.is_empty() {
            others.push(json!({ "enum": words }));
        }
        Ok(json!({ "anyOf": others }))
    }

    fn of(&mut self, of: &Type, place: &Place) -> anyhow::Result<Value> {
        let path = match of {
            Type::Reference(reference) => return self.of(&reference.elem, place),
            Type::Slice(slice) => return self.list(&slice.elem, place),
            Type::Array(array) => return self.list(&array.elem, place),
            Type::Path(path) => path,
            _ => bail!("{}: a type that no schema is known for", place.file),
        };
        let last = path.path.segments.last().context("A type has a name")?;
        let name = last.ident.to_string();
        let inner: Vec<&Type> = match &last.arguments {
            syn::PathArguments::AngleBracketed(arguments) => arguments
                .args
                .iter()
                .filter_map(|argument| match argument {
                    syn::GenericArgument::Type(inner) => Some(inner),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        };
        // Written out in full: any JSON.
        if name == "Value"
            && path
                .path
                .segments
                .first()
                .is_some_and(|first| first.ident == "serde_json")
        {
            return Ok(json!({}));
        }
        match (name.as_str(), inner.as_slice()) {
            ("String" | "str" | "PathBuf" | "Path", _) => Ok(json!({ "type": "string" })),
            ("bool", _) => Ok(json!({ "type": "boolean" })),
            ("f64" | "f32", _) => Ok(json!({ "type": "number" })),
            ("u8" | "u16" | "u32" | "u64" | "usize", _) => Ok(json!({ "type": "integer", "minimum": 0 })),
            ("i32" | "i64", _) => Ok(json!({ "type": "integer" })),
            ("Option", [inner]) => Ok(json!({ "anyOf": [self.of(inner, place)?, { "type": "null" }] })),
            ("Box" | "Cow" | "Arc", [inner]) => self.of(inner, place),
            ("Vec" | "BTreeSet", [inner]) => self.list(inner, place),
            ("BTreeMap" | "HashMap", [_, value]) => {
                Ok(json!({ "type": "object", "additionalProperties": self.of(value, place)? }))
            }
            (name, []) => self.named(name, place),
            _ => bail!("{}: no schema is known for {name}", place.file),
        }
    }

    fn list(&mut self, of: &Type, place: &Place) -> anyhow::Result<Value> {
        Ok(json!({ "type": "array", "items": self.of(of, place)? }))
    }
}

fn at(file: &str, name: &str) -> (Place, String) {
    let (function, name) = match name.split_once("::") {
        Some((function, name)) => (Some(function.to_owned()), name),
        None => (None, name),
    };
    let file = file.to_owned();
    (Place { file, function }, name.to_owned())
}

/// What stands in an Option.
fn optional(of: &Type) -> Option<&Type> {
    let Type::Path(path) = of else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == "Option")?;
    match &last.arguments {
        syn::PathArguments::AngleBracketed(arguments) => match arguments.args.first()? {
            syn::GenericArgument::Type(inner) => Some(inner),
            _ => None,
        },
        _ => None,
    }
}

/// What serde's attributes say under a word; empty text where it stands alone.
fn serde_says(attributes: &[syn::Attribute], word: &str) -> Option<String> {
    let mut said = None;
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("serde"))
    {
        let _other = attribute.parse_nested_meta(|meta| {
            let value = match meta.value() {
                Ok(value) => value.parse::<syn::LitStr>()?.value(),
                Err(_) => String::new(),
            };
            if meta.path.is_ident(word) {
                said = Some(value);
            }
            Ok(())
        });
    }
    said
}

fn cased(name: &str, case: Option<&str>) -> String {
    match case {
        Some("snake_case") => apart(name, '_'),
        Some("kebab-case") => apart(name, '-'),
        Some("lowercase") => name.to_lowercase(),
        Some("camelCase") => {
            let mut words = name.split('_');
            let first = words.next().unwrap_or_default().to_owned();
            words.fold(first, |text, word| {
                let (begin, rest) = word.split_at(word.len().min(1));
                text + &begin.to_uppercase() + rest
            })
        }
        _ => name.to_owned(),
    }
}

fn apart(name: &str, between: char) -> String {
    let mut text = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !text.is_empty() {
            text.push(between);
        }
        text.extend(character.to_lowercase());
    }
    text
}

/// The documentation's text becomes the description, unless there is one of the type's own.
fn describe(schema: &mut Value, attributes: &[syn::Attribute]) {
    let mut lines = Vec::new();
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("doc"))
    {
        if let syn::Meta::NameValue(value) = &attribute.meta
            && let Expr::Lit(literal) = &value.value
            && let Lit::Str(text) = &literal.lit
        {
            lines.push(text.value().trim().to_owned());
        }
    }
    let text = lines.join(" ").trim().to_owned();
    if !text.is_empty()
        && let Some(schema) = schema.as_object_mut()
    {
        schema.insert("description".into(), json!(text));
    }
}

//! A cluster from files: what `kubectl get nodes,resourceslices,deviceclasses,resourceclaims,pods -A -o json` prints, in one
//! file or several, as JSON or YAML; or a small file of Divvy's own.

mod kubernetes;
mod own;
mod words;

use serde::de::DeserializeOwned;

use crate::cluster::Cluster;

/// The most objects that are made of one line of a small file.
const MOST: u64 = 1_000_000;

/// Reads the files together: a claim in one may name a class in another.
///
/// # Errors
/// Which file was not understood, and why.
pub fn read(files: &[(String, String)]) -> Result<Cluster, String> {
    let mut objects = Vec::new();
    let mut own = Vec::new();
    for (name, text) in files {
        let at = |error: String| format!("{name}: {error}");
        match own::Plan::is_one(text) {
            true => own.push(parse::<own::Plan>(text).map_err(at)?),
            false => {
                let mut documents: Vec<words::Object> = documents(text).map_err(at)?;
                kubernetes::flatten(&mut documents, &mut objects)
                    .map_err(|error| format!("{name}: {error}"))?;
            }
        }
    }
    let mut cluster = kubernetes::cluster(objects)?;
    for plan in own {
        own::add(&mut cluster, plan)?;
    }
    Ok(cluster)
}

fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    match is_json(text) {
        true => serde_json::from_str(text).map_err(|error| error.to_string()),
        false => serde_saphyr::from_str(text).map_err(|error| error.to_string()),
    }
}

fn documents<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, String> {
    if !is_json(text) {
        return serde_saphyr::from_multiple(text).map_err(|error| error.to_string());
    }
    let stream = serde_json::Deserializer::from_str(text).into_iter();
    stream
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;

//! A cluster from files: what `kubectl get nodes,resourceslices,deviceclasses,resourceclaims,pods -A -o json` prints, in one
//! file or several, as JSON or YAML; or a small file of Divvy's own.

mod kubernetes;
mod own;
mod words;

use serde::de::DeserializeOwned;

use crate::cluster::Cluster;

/// The most objects that are made of one line of a small file.
const MOST: u64 = 1_000_000;

/// The largest files that are read together, in bytes. The cluster that a plan is promised for (10,000 nodes, 100,000 claims) has a
/// tenth of it.
pub const LARGEST: u64 = 1 << 30;

/// Reads the files together: a claim in one may name a class in another.
///
/// # Errors
/// Which file was not understood, and why.
pub fn read(files: &[(String, String)]) -> Result<Cluster, String> {
    let mut objects = Vec::new();
    let mut own = Vec::new();
    let size = files.iter().map(|(_, text)| text.len() as u64).sum::<u64>();
    if size > LARGEST {
        return Err(format!(
            "{} MiB are too much: a plan reads {} MiB at most",
            size >> 20,
            LARGEST >> 20
        ));
    }
    for (name, text) in files {
        let at = |error: String| format!("{name}: {error}");
        match own::Plan::is_one(text) {
            true => own.push(parse::<own::Plan>(text).map_err(at)?),
            false => {
                let mut documents: Vec<words::Object> = documents(text).map_err(at)?;
                if documents.is_empty() {
                    return Err(at("it is empty: there is no object in it".into()));
                }
                kubernetes::flatten(&mut documents, &mut objects)
                    .map_err(|error| format!("{name}: {error}"))?;
            }
        }
    }
    let mut cluster = kubernetes::cluster(objects)?;
    own::told_once(&own)?;
    for plan in own {
        own::add(&mut cluster, plan)?;
    }
    if cluster.nodes.is_empty() && cluster.pods.is_empty() {
        let mut words = String::from("there is neither a node nor a claim nor a pod in it");
        for remark in &cluster.remarks {
            words.push_str("; ");
            words.push_str(remark);
        }
        return Err(words);
    }
    Ok(cluster)
}

fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    match is_json(text) {
        true => serde_json::from_str(text).map_err(|error| error.to_string()),
        false => serde_saphyr::from_str(text).map_err(|error| in_words(&error)),
    }
}

/// What YAML's reader says. That it read as much as it may is said as what to do: it would name a counter of its own.
fn in_words(error: &serde_saphyr::Error) -> String {
    match error.without_snippet() {
        serde_saphyr::Error::Budget { .. } => {
            "it is too large or too deep for YAML, of which 250,000 values in 1,024 documents are \
            read: give it as JSON (`kubectl get -o json`)"
                .into()
        }
        _ => error.to_string(),
    }
}

fn documents<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, String> {
    if !is_json(text) {
        return serde_saphyr::from_multiple(text).map_err(|error| in_words(&error));
    }
    let stream = serde_json::Deserializer::from_str(text).into_iter();
    stream
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;

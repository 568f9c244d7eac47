//! The chart's objects at an API server: the one that `DIVVY_TEST_KUBECONFIG` names is asked whether it would take each, by dry runs
//! with strict checks of fields. Rendered objects are written to `DIVVY_TEST_RENDERED`, a folder, for `kubectl apply`.

use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

/// The path of an object's kind, and its namespace where it has one.
fn path(object: &Value) -> (String, Option<String>) {
    let of = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (of("apiVersion"), of("kind").to_lowercase());
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with('s') => format!("{kind}es"),
        None => format!("{kind}s"),
    };
    let root = if version == "v1" { "api" } else { "apis" };
    let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
    let below = namespace
        .as_ref()
        .map(|name| format!("namespaces/{name}/"))
        .unwrap_or_default();
    (format!("/{root}/{version}/{below}{plural}"), namespace)
}

async fn post(client: &Client, path: &str, object: &Value) -> Result<(), String> {
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(object.to_string().into_bytes());
    match client.request::<Value>(request.expect("a request")).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether the server would take these; without one they are only written.
///
/// # Errors
/// The first object that is refused, and why.
pub fn takes(mode: &str, objects: &[Value]) -> Result<(), String> {
    if let Some(folder) = std::env::var_os("DIVVY_TEST_RENDERED") {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let file = Path::new(&folder).join(format!("{}.json", mode.replace([' ', ','], "-")));
        std::fs::write(file, list.to_string()).map_err(|error| error.to_string())?;
    }
    let Some(kubeconfig) = std::env::var_os("DIVVY_TEST_KUBECONFIG") else {
        return Ok(());
    };
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let read = Kubeconfig::read_from(kubeconfig).map_err(|error| error.to_string())?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.map_err(|error| error.to_string())?)
            .map_err(|error| error.to_string())?;
        for object in objects {
            let (path, namespace) = path(object);
            if let Some(name) = namespace {
                // A dry run in a namespace that is not there is refused.
                let one = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
                post(&client, "/api/v1/namespaces", &one).await?;
            }
            post(
                &client,
                &format!("{path}?dryRun=All&fieldValidation=Strict"),
                object,
            )
            .await
            .map_err(|why| format!("{} {}: {why}", object["kind"], object["metadata"]["name"]))?;
        }
        Ok(())
    })
}

//! ResourceClaimTemplates that are known by what they ask for. The name says all of it, so that two writers make the same one, and
//! a template can be made after the pod that names it.

use divvy_model::Class;
use divvy_placement::fallback::ask::{Ask, Memory, PodAsk};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::parameters::{API_VERSION, KIND};
use crate::state::digest;
use crate::{DRIVER, names};

/// The annotation of pods with what their claims ask for, for the loop that makes templates.
pub const ASKS: &str = "gpu.divvy.dev/asks";
/// The label of templates that the loop made.
pub const MADE: &str = "gpu.divvy.dev/made-for";
/// The classes that the chart has.
const SLICES: &str = "slice.gpu.divvy.dev";
const WHOLE: &str = "whole.gpu.divvy.dev";
/// The class of slices that go first, where the administrator has it made: a claim alone cannot ask for that.
pub const LATENCY: &str = "latency.slice.gpu.divvy.dev";
/// The longest annotation that is read.
const LONGEST: usize = 16 << 10;

/// What one template asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Template {
    /// How many devices.
    pub devices: u32,
    /// Memory of each, in MiB; none for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Cores of each, in percent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cores: u64,
    /// Whole devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// Which slices go first: `latency`, `best-effort`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Only these UUIDs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// Not these UUIDs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub never: Vec<String>,
    /// Only models with one of these texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// No model with one of these texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_models: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Template {
    /// The template for a container's ask.
    ///
    /// # Errors
    /// What a claim cannot say.
    pub fn of(ask: &Ask, pod: &PodAsk, class: Option<Class>) -> Result<Self, String> {
        let memory_mib = match ask.memory {
            Memory::All => None,
            Memory::Mib(mib) => Some(mib),
            Memory::Percent(percent) => {
                return Err(format!(
                    "{percent} % of a device's memory: a claim says how much; --device-memory says what a device has"
                ));
            }
        };
        Ok(Self {
            devices: ask.devices,
            memory_mib: memory_mib.filter(|_| !ask.whole),
            cores: if ask.whole { 0 } else { ask.cores },
            whole: ask.whole,
            class: class.filter(|_| !ask.whole).map(|class| class.to_string()),
            only: pod.only.clone(),
            never: pod.never.clone(),
            models: pod.models.clone(),
            no_models: pod.no_models.clone(),
        })
    }

    /// Its name: what it asks for, and a digest of all of it.
    #[must_use]
    pub fn name(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        let digest: String = digest(&[&json]).chars().take(10).collect();
        let size = match (self.whole, self.memory_mib) {
            (true, _) => "whole".to_owned(),
            (false, None) => format!("all-{}c", self.cores),
            (false, Some(mib)) => format!("{mib}mi-{}c", self.cores),
        };
        format!("divvy-{}x-{size}-{digest}", self.devices)
    }

    /// The spec of its claims.
    #[must_use]
    pub fn spec(&self) -> Value {
        let mut exactly = json!({
            "deviceClassName": match (self.whole, self.is_latency()) {
                (true, _) => WHOLE,
                (false, true) => LATENCY,
                (false, false) => SLICES,
            },
        });
        if self.devices != 1 {
            exactly["count"] = json!(self.devices);
        }
        if !self.whole {
            let mut requests = json!({});
            if let Some(mib) = self.memory_mib {
                requests["memory"] = format!("{mib}Mi").into();
            }
            if self.cores > 0 {
                requests["cores"] = self.cores.to_string().into();
            }
            if requests.as_object().is_some_and(|all| !all.is_empty()) {
                exactly["capacity"] = json!({"requests": requests});
            }
        }
        let selectors = self.selectors();
        if !selectors.is_empty() {
            let all = selectors
                .into_iter()
                .map(|expression| json!({"cel": {"expression": expression}}));
            exactly["selectors"] = all.collect();
        }
        let mut devices = json!({"requests": [{"name": "gpu", "exactly": exactly}]});
        if self.devices > 1 {
            devices["constraints"] = json!([{"distinctAttribute": format!("{DRIVER}/uuid")}]);
        }
        if let Some(class) = self.class.as_ref().filter(|_| !self.is_latency()) {
            let parameters = json!({"apiVersion": API_VERSION, "kind": KIND, "class": class});
            devices["config"] =
                json!([{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": parameters}}]);
        }
        json!({"devices": devices})
    }

    /// The whole object.
    #[must_use]
    pub fn object(&self, namespace: Option<&str>) -> Value {
        let mut metadata = json!({"name": self.name()});
        if let Some(namespace) = namespace {
            metadata["namespace"] = namespace.into();
        }
        json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": metadata,
            "spec": {"spec": self.spec()},
        })
    }

    /// Texts were checked where they were read: letters, digits, `-`, `_`, `.` and spaces only.
    fn selectors(&self) -> Vec<String> {
        let attribute = |name: &str| format!("device.attributes['{DRIVER}'].{name}");
        let quoted = |texts: &[String]| {
            let all: Vec<String> = texts.iter().map(|text| format!("'{text}'")).collect();
            all.join(", ")
        };
        let models = |texts: &[String]| {
            let one = |text: &String| {
                let text = text.to_ascii_lowercase();
                format!("{}.lowerAscii().contains('{text}')", attribute("productName"))
            };
            let all: Vec<String> = texts.iter().map(one).collect();
            all.join(" || ")
        };
        let mut all = Vec::new();
        if !self.only.is_empty() {
            all.push(format!("{} in [{}]", attribute("uuid"), quoted(&self.only)));
        }
        if !self.never.is_empty() {
            all.push(format!("!({} in [{}])", attribute("uuid"), quoted(&self.never)));
        }
        if !self.models.is_empty() {
            all.push(models(&self.models));
        }
        if !self.no_models.is_empty() {
            all.push(format!("!({})", models(&self.no_models)));
        }
        all
    }

    fn is_latency(&self) -> bool {
        self.class.as_deref() == Some("latency")
    }

    fn is_plain(&self) -> bool {
        let texts = [&self.only, &self.never, &self.models, &self.no_models];
        let plain = |text: &String| {
            text.len() <= 64
                && text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_. ".contains(c))
        };
        texts.into_iter().flatten().all(plain)
            && self
                .class
                .as_deref()
                .is_none_or(|class| class.parse::<Class>().is_ok())
            && (1..=32).contains(&self.devices)
    }
}

/// The templates that a pod names, of the annotation that the webhook wrote. What a pod's author wrote there is no more than they
/// may ask for by claims of their own: the class is ours, and `adminAccess` cannot be said.
///
/// # Errors
/// What was not understood.
pub fn of_pod(annotation: &str) -> Result<Vec<Template>, String> {
    if annotation.len() > LONGEST {
        return Err("the annotation is too long".into());
    }
    let all: Vec<Template> =
        serde_json::from_str(annotation).map_err(|error| names::cut(&error.to_string()))?;
    match all.iter().all(Template::is_plain) && all.len() <= names::MOST_CONTAINERS {
        true => Ok(all),
        false => Err("it asks for what no webhook wrote".into()),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::ResourceClaimTemplate;

    use super::*;

    #[test]
    fn a_template_is_known_by_what_it_asks_for() {
        let small = Template {
            devices: 1,
            memory_mib: Some(4096),
            cores: 30,
            ..Template::default()
        };
        let mut pinned = small.clone();
        pinned.only = vec!["GPU-1".into()];
        assert!(
            small.name().starts_with("divvy-1x-4096mi-30c-"),
            "{}",
            small.name()
        );
        assert_ne!(small.name(), pinned.name());
        let object: ResourceClaimTemplate =
            serde_json::from_value(pinned.object(Some("n"))).expect("a template");
        let requests = object
            .spec
            .spec
            .devices
            .and_then(|devices| devices.requests)
            .expect("requests");
        let exactly = requests[0].exactly.as_ref().expect("exactly");
        assert_eq!(exactly.device_class_name, SLICES);
        let selector = exactly.selectors.as_ref().expect("one")[0]
            .cel
            .as_ref()
            .expect("cel");
        divvy_placement::cel::Expression::read(&selector.expression).expect("understood");
        let text = serde_json::to_string(&[&small, &pinned]).expect("JSON");
        let mut first = small.clone();
        first.class = Some(Class::Latency.to_string());
        let devices = &first.spec()["devices"];
        assert_eq!(devices["requests"][0]["exactly"]["deviceClassName"], LATENCY);
        assert!(devices.get("config").is_none(), "the class says it");
        assert_eq!(of_pod(&text), Ok(vec![small, pinned]));
    }

    #[test]
    fn what_no_webhook_wrote_is_refused() {
        for text in [
            "",
            "{}",
            "[{\"devices\": 1, \"adminAccess\": true}]",
            "[{\"devices\": 0}]",
            "[{\"devices\": 33}]",
            "[{\"devices\": 1, \"class\": \"'\"}]",
            "[{\"devices\": 1, \"only\": [\"'] || true || '\"]}]",
            &format!("[{}]", "{\"devices\": 1},".repeat(9000)),
            &format!("[{}{{\"devices\": 1}}]", "{\"devices\": 1},".repeat(16)),
        ] {
            assert!(of_pod(text).is_err(), "{}", &text[..text.len().min(40)]);
        }
    }
}

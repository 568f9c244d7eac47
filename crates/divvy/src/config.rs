//! Settings and where each comes from: flag, DIVVY_ variable, ./divvy.toml (for `run`), the user's file, the host's
//! file, default. The first that says something wins.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use divvy_agent::{Settings, admits_others, root_may_believe, system_run_dir};
use divvy_model::{Bytes, Code, Fault};
use serde::Serialize;

use crate::report::remark;

mod keys;

use keys::AGENTS;
pub use keys::{KEYS, Key};

/// A value and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Value {
    /// The setting's name.
    pub key: &'static str,
    /// The value as text; empty where it is not set.
    pub value: String,
    /// `flag --memory`, `DIVVY_MEMORY`, a file's path, or `default`.
    pub origin: String,
    /// What the running agent holds to, where that is another value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// All settings.
#[derive(Clone, Debug, Default)]
pub struct Config {
    values: BTreeMap<&'static str, Value>,
}

/// What a configuration is read from.
pub struct Sources {
    /// The environment.
    pub variable: fn(&str) -> Option<String>,
    /// Files, the strongest first; `true` for the folder's own.
    pub files: Vec<(PathBuf, bool)>,
    /// Only files count that root alone can have written: they say what is loaded and executed, and this is root.
    pub roots_only: bool,
    /// Where the system agent serves, which is this user's too where it says so.
    pub system: Option<PathBuf>,
}

/// The host's settings, which the system's agent reads.
pub const HOSTS_FILE: &str = "/etc/divvy/config.toml";

impl Sources {
    /// One file and nothing else, as an agent in a service reads it.
    pub fn of_file(path: &Path) -> Self {
        Self {
            variable: |_| None,
            files: vec![(path.into(), false)],
            roots_only: false,
            system: None,
        }
    }

    /// This process's environment and files; the folder's file for `run` only.
    pub fn of_process(for_run: bool) -> Self {
        let mut files = Vec::new();
        if for_run {
            files.push((PathBuf::from("divvy.toml"), true));
        }
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let user = std::env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| home.map(|home| home.join(".config")));
        files.extend(user.map(|folder| (folder.join("divvy/config.toml"), false)));
        files.push((HOSTS_FILE.into(), false));
        Self {
            variable: |name| std::env::var(name).ok(),
            files,
            roots_only: rustix::process::geteuid().is_root(),
            system: (!rustix::process::getuid().is_root()).then(system_run_dir),
        }
    }
}

impl Config {
    /// Reads every layer.
    ///
    /// # Errors
    /// [`Code::Config`] for a file that cannot be read or says something unknown.
    pub fn read(sources: &Sources) -> Result<Self, Fault> {
        let mut config = Self::default();
        for key in &KEYS {
            let name = key.variable();
            if let Some(value) = (sources.variable)(&name).filter(|value| !value.is_empty()) {
                config.offer(key.name, &value, &name);
            }
        }
        for (path, in_folder) in &sources.files {
            let Some(path) = believed(path, sources.roots_only) else {
                continue;
            };
            let path = &path;
            for (name, value) in read_file(path)? {
                let key = known(path, &name, *in_folder)?;
                config.offer(key.name, &value, &path.display().to_string());
            }
        }
        if let Some(system) = sources.system.as_ref().filter(|system| admits_others(system)) {
            let origin = system.join("admits-others");
            config.offer(
                "run_dir",
                &system.to_string_lossy(),
                &origin.display().to_string(),
            );
        }
        for key in &KEYS {
            config.offer(key.name, key.default, "default");
        }
        Ok(config)
    }

    /// Sets a value unless a stronger layer has.
    fn offer(&mut self, key: &'static str, value: &str, origin: &str) {
        self.values.entry(key).or_insert_with(|| Value {
            key,
            value: value.into(),
            origin: origin.into(),
            agent: None,
        });
    }

    /// A flag says more than any layer.
    pub fn set(&mut self, key: &'static str, value: impl Into<String>) {
        let origin = format!("flag --{}", key.replace('_', "-"));
        self.values.insert(
            key,
            Value {
                key,
                value: value.into(),
                origin,
                agent: None,
            },
        );
    }

    /// Every setting, in the table's order.
    pub fn values(&self) -> Vec<Value> {
        KEYS.iter()
            .filter_map(|key| self.values.get(key.name).cloned())
            .collect()
    }

    /// A setting as text; None where it is not set.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.values
            .get(key)
            .map(|value| value.value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// A setting parsed.
    ///
    /// # Errors
    /// The parser's, with the origin of the value.
    pub fn get<T>(&self, key: &str) -> Result<Option<T>, Fault>
    where
        T: FromStr,
        T::Err: IntoFault,
    {
        self.text(key)
            .map(|text| {
                text.parse()
                    .map_err(|error: T::Err| self.blame(key, error.into_fault()))
            })
            .transpose()
    }

    /// Says where a bad value came from, unless it came from a flag: that the user just typed.
    fn blame(&self, key: &str, fault: Fault) -> Fault {
        match self.values.get(key) {
            Some(value) if !value.origin.starts_with("flag ") => {
                fault.cause(format!("`{key}` comes from {}", value.origin))
            }
            _ => fault,
        }
    }

    /// What an agent is to be started with.
    ///
    /// # Errors
    /// [`Code::Config`].
    pub fn agent_settings(&self) -> Result<Settings, Fault> {
        let defaults = Settings::default();
        let oversubscription: f64 = self.get("oversubscription")?.unwrap_or(defaults.oversubscription);
        if !(1.0..=1000.0).contains(&oversubscription) {
            let fault = bad("oversubscription", "it must be from 1 to 1000");
            return Err(self.blame("oversubscription", fault));
        }
        let max_slices = self.get("max_slices")?.unwrap_or(defaults.max_slices);
        if max_slices == 0 {
            let fault = bad(
                "max_slices",
                "it must be at least 1: no slice at all would fit a device",
            );
            return Err(self.blame("max_slices", fault));
        }
        let user_slices = self.get("user_slices")?;
        if user_slices == Some(0) {
            let fault = bad(
                "user_slices",
                "it must be at least 1; `admit_others = false` keeps others out",
            );
            return Err(self.blame("user_slices", fault));
        }
        let worker_memory: Option<Bytes> = self.get("worker_memory")?;
        if worker_memory.is_some_and(|bytes| bytes < LEAST_WORKER_MEMORY) {
            let fault = bad(
                "worker_memory",
                "it must be at least 16MiB: no worker starts with less; leave it out for no limit",
            );
            return Err(self.blame("worker_memory", fault));
        }
        if let Some(spec) = self.text("emulated").filter(|spec| !spec.is_empty()) {
            divvy_host::check_emulated(spec).map_err(|fault| self.blame("emulated", fault))?;
        }
        let quantum = self.duration("quantum")?.unwrap_or(defaults.quantum);
        if !(Duration::from_millis(1)..=Duration::from_millis(30)).contains(&quantum) {
            let fault = bad("quantum", "it must be from 1ms to 30ms");
            return Err(self.blame("quantum", fault));
        }
        let timeslice_replicas = self
            .get("timeslice_replicas")?
            .unwrap_or(defaults.timeslice_replicas);
        if timeslice_replicas == 0 {
            let fault = bad("timeslice_replicas", "it must be at least 1");
            return Err(self.blame("timeslice_replicas", fault));
        }
        Ok(Settings {
            oversubscription,
            quantum,
            max_slices,
            user_memory: self.get("user_memory")?,
            user_slices,
            worker_memory,
            user_compute: self.get("user_compute")?,
            timeslice_replicas,
            mig_instances: self.get("mig_instances")?.unwrap_or(defaults.mig_instances),
            default_slice: self.get("default_slice")?,
            context: self.get::<Bytes>("context_memory")?,
            least_isolation: self.get("least_isolation")?,
            least_on_overuse: self.get("least_on_overuse")?,
            user_ttl: self.lifetime("user_ttl")?,
            idle_ttl: self.lifetime("idle_ttl")?,
            texts: AGENTS
                .iter()
                .map(|key| ((*key).to_owned(), self.text(key).unwrap_or_default().to_owned()))
                .collect(),
            idle_timeout: self.duration("idle_timeout")?.unwrap_or(defaults.idle_timeout),
            emulated: self.text("emulated").map(str::to_owned),
            admit_others: self.get("admit_others")?.unwrap_or(defaults.admit_others),
        })
    }

    fn duration(&self, key: &str) -> Result<Option<Duration>, Fault> {
        self.time(key, parse_duration)
    }

    /// How long slices live or stay.
    fn lifetime(&self, key: &str) -> Result<Option<Duration>, Fault> {
        self.time(key, a_second_at_least)
    }

    fn time(&self, key: &str, of: fn(&str) -> Result<Duration, Fault>) -> Result<Option<Duration>, Fault> {
        self.text(key)
            .map(|text| of(text).map_err(|fault| self.blame(key, fault)))
            .transpose()
    }
}

/// A duration such as `250ms`, `60s`, `5min` or `5m`.
///
/// # Errors
/// [`Code::Config`].
pub fn parse_duration(text: &str) -> Result<Duration, Fault> {
    let units = [
        ("ms", 1),
        ("min", 60_000),
        ("m", 60_000),
        ("s", 1000),
        ("h", 3_600_000),
    ];
    units
        .into_iter()
        .find_map(|(unit, scale)| {
            let number: u64 = text.trim().strip_suffix(unit)?.trim().parse().ok()?;
            Some(Duration::from_millis(number.checked_mul(scale)?))
        })
        .ok_or_else(|| bad(text, "write a duration such as `250ms`, `60s`, `5min` or `1h`"))
}

/// A duration for which something is to be there.
///
/// # Errors
/// As [`parse_duration`]; a duration of less than a second.
pub fn a_second_at_least(text: &str) -> Result<Duration, Fault> {
    match parse_duration(text)? {
        time if time >= Duration::from_secs(1) => Ok(time),
        _ => Err(Fault::new(
            Code::Config,
            format!("`{text}` is no time in which a program can run"),
        )
        .hint("write 1s at least; without it there is no end")),
    }
}

/// With less no worker starts.
const LEAST_WORKER_MEMORY: Bytes = Bytes(16 << 20);

fn bad(what: &str, hint: &str) -> Fault {
    Fault::new(Code::Config, format!("`{what}` was not understood")).hint(hint)
}

fn known(path: &Path, name: &str, in_folder: bool) -> Result<&'static Key, Fault> {
    let shown = path.display();
    let Some(key) = KEYS.iter().find(|key| key.name == name) else {
        let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        return Err(
            Fault::new(Code::Config, format!("`{shown}` has an unknown key `{name}`"))
                .hint(format!("the keys are {}", names.join(", "))),
        );
    };
    if in_folder && !key.in_folder {
        return Err(
            Fault::new(Code::Config, format!("`{shown}` may not set `{name}`"))
                .hint("set it in your own configuration file, with a flag or in the environment"),
        );
    }
    Ok(key)
}

/// The file, if it counts. Root follows no other user's HOME: `sudo -E` and `su` without `-` leave it set.
fn believed(path: &Path, roots_only: bool) -> Option<PathBuf> {
    if !roots_only || std::fs::symlink_metadata(path).is_err() {
        return Some(path.to_owned());
    }
    match root_may_believe(path) {
        Ok(real) => Some(real),
        Err(why) => {
            remark(&format!(
                "`{}` is ignored: root reads no settings that another user may have written: {why}",
                path.display()
            ));
            None
        }
    }
}

/// The keys and values of a file; none where there is no such file.
fn read_file(path: &Path) -> Result<Vec<(String, String)>, Fault> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => {
            return Err(
                Fault::new(Code::Config, format!("cannot read `{}`", path.display())).because(&error),
            );
        }
    };
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        Fault::new(Code::Config, format!("`{}` is not TOML", path.display()))
            .cause(error.message().to_owned())
    })?;
    table
        .into_iter()
        .map(|(name, value)| match value {
            toml::Value::String(text) => Ok((name, text)),
            toml::Value::Integer(number) => Ok((name, number.to_string())),
            toml::Value::Float(number) => Ok((name, number.to_string())),
            toml::Value::Boolean(yes) => Ok((name, yes.to_string())),
            _ => Err(Fault::new(
                Code::Config,
                format!("`{name}` in `{}` is neither text nor a number", path.display()),
            )),
        })
        .collect()
}

/// A parser's error as a failure with a code.
pub trait IntoFault {
    /// The failure.
    fn into_fault(self) -> Fault;
}

impl IntoFault for divvy_model::QuantityError {
    fn into_fault(self) -> Fault {
        self.into()
    }
}

impl IntoFault for divvy_model::SelectorError {
    fn into_fault(self) -> Fault {
        self.into()
    }
}

impl IntoFault for divvy_model::NoSuchWord {
    fn into_fault(self) -> Fault {
        self.into()
    }
}

impl IntoFault for String {
    fn into_fault(self) -> Fault {
        Fault::new(Code::Config, self)
    }
}

impl IntoFault for std::num::ParseIntError {
    fn into_fault(self) -> Fault {
        Fault::new(Code::Config, "a whole number was expected").because(&self)
    }
}

impl IntoFault for std::num::ParseFloatError {
    fn into_fault(self) -> Fault {
        Fault::new(Code::Config, "a number was expected").because(&self)
    }
}

impl IntoFault for std::str::ParseBoolError {
    fn into_fault(self) -> Fault {
        Fault::new(Code::Config, "`true` or `false` was expected").because(&self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(user: &str, folder: &str) -> Result<Config, Fault> {
        let base = tempfile::tempdir().expect("a folder");
        let (of_user, of_folder) = (base.path().join("config.toml"), base.path().join("divvy.toml"));
        std::fs::write(&of_user, user).expect("written");
        std::fs::write(&of_folder, folder).expect("written");
        Config::read(&Sources {
            variable: |name| (name == "DIVVY_POLICY").then(|| "best-effort".to_owned()),
            files: vec![
                (of_folder, true),
                (of_user, false),
                ("/nonexistent/config.toml".into(), false),
            ],
            roots_only: false,
            system: None,
        })
    }

    #[test]
    fn the_strongest_layer_wins_and_is_named() {
        let mut config = read(
            "memory = \"1GiB\"\nmax_slices = 8\npolicy = \"strict\"",
            "memory = \"2GiB\"",
        )
        .expect("read");
        assert_eq!(config.text("memory"), Some("2GiB"));
        assert_eq!(config.text("policy"), Some("best-effort"));
        assert_eq!(config.agent_settings().expect("settings").max_slices, 8);
        config.set("memory", "3GiB");
        let values = config.values();
        let origin = |key: &str| {
            &values
                .iter()
                .find(|value| value.key == key)
                .expect("a key")
                .origin
        };
        assert_eq!(origin("memory"), "flag --memory");
        assert_eq!(origin("policy"), "DIVVY_POLICY");
        assert!(origin("max_slices").ends_with("config.toml"));
        assert_eq!(origin("output"), "default");
        assert_eq!(values.len(), KEYS.len());
    }

    #[test]
    fn root_ignores_what_another_user_may_have_written() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().expect("a folder");
        let file = base.path().join("config.toml");
        std::fs::write(&file, "driver = \"/tmp/evil.so\"").expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("a mode");
        let read = |roots_only| {
            let sources = Sources {
                variable: |_| None,
                files: vec![(file.clone(), false)],
                roots_only,
                system: None,
            };
            let config = Config::read(&sources).expect("read");
            config.text("driver").map(str::to_owned)
        };
        assert_eq!(read(true), None);
        assert_eq!(read(false).as_deref(), Some("/tmp/evil.so"));
    }

    #[test]
    fn a_system_agent_that_admits_others_is_the_default() {
        let base = tempfile::tempdir().expect("a folder");
        let system = base.path().join("system");
        std::fs::create_dir(&system).expect("a folder");
        let read = |named: fn(&str) -> Option<String>| {
            let sources = Sources {
                variable: named,
                files: Vec::new(),
                roots_only: false,
                system: Some(system.clone()),
            };
            let config = Config::read(&sources).expect("read");
            let values = config.values();
            let value = values.into_iter().find(|value| value.key == "run_dir");
            value.expect("a key")
        };
        assert_eq!(read(|_| None).origin, "default");
        std::fs::write(system.join("admits-others"), "").expect("written");
        let value = read(|_| None);
        assert_eq!(value.value, system.to_string_lossy());
        assert!(value.origin.ends_with("/admits-others"), "{value:?}");
        let own = read(|name| (name == "DIVVY_RUN_DIR").then(|| "/own".to_owned()));
        assert_eq!(own.value, "/own");
    }

    #[test]
    fn what_is_not_understood_names_its_place() {
        assert!(
            read("colour = 1", "")
                .expect_err("no such key")
                .message
                .contains("colour")
        );
        assert!(read("memory = [1]", "").is_err());
        assert!(read("memory =", "").is_err());
        assert!(
            read("", "driver = \"/tmp/evil.so\"")
                .expect_err("not there")
                .message
                .contains("may not set")
        );
        let config = read("memory = \"4096\"\noversubscription = 0.5", "").expect("read");
        let fault = config
            .get::<divvy_model::MemoryAmount>("memory")
            .expect_err("no unit");
        assert!(fault.causes[0].contains("config.toml"), "{fault:?}");
        assert!(config.agent_settings().is_err());
    }

    #[test]
    fn a_slice_lives_for_a_second_at_least() {
        for key in ["user_ttl", "idle_ttl"] {
            for (time, is_right) in [("0s", false), ("0h", false), ("999ms", false), ("1s", true)] {
                let config = read(&format!("{key} = \"{time}\""), "").expect("read");
                let settings = config.agent_settings();
                assert_eq!(settings.is_ok(), is_right, "{key} = {time}");
                let Err(fault) = settings else { continue };
                assert!(fault.hint.is_some() && fault.causes[0].contains(key), "{fault:?}");
            }
        }
    }

    #[test]
    fn an_agent_is_asked_what_it_has_of_all_its_settings() {
        let settings = read("idle_timeout = \"50s\"\nemulated = \"l4\"", "").expect("read");
        let texts = settings.agent_settings().expect("settings").texts;
        assert_eq!(
            (texts["idle_timeout"].as_str(), texts["emulated"].as_str()),
            ("50s", "l4")
        );
        assert!(AGENTS.is_sorted() && AGENTS.iter().all(|name| KEYS.iter().any(|key| key.name == *name)));
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(
            parse_duration("5min").expect("five minutes"),
            Duration::from_secs(300)
        );
        assert_eq!(
            parse_duration("250ms").expect("a quarter"),
            Duration::from_millis(250)
        );
        for text in ["", "5", "s", "-1s", "1.5s", "99999999999999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}

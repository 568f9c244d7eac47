//! The terms that a claim or its class writes for this driver: opaque parameters, which the API server does not look at.
//!
//! What is not known is refused: a limit that is misspelt must not be none.

use std::str::FromStr;

use divvy_model::{Cap, Class, Code, Fault, Isolation, Mode, OnOveruse, Policy, SliceRequest, Weight};
use serde::Deserialize;
use serde_json::Value;

/// The version of their schema.
pub const API_VERSION: &str = "gpu.divvy.dev/v1alpha1";
/// Their kind.
pub const KIND: &str = "SliceParameters";
/// The longest text that is read as one of their values.
const LONGEST: usize = 64;
/// The levels that a slice of a container can have. `env` has no limits, and `hardware` and `vm` are no slices.
const GIVEN: [Isolation; 3] = [Isolation::Cooperative, Isolation::Supervised, Isolation::Enforced];

/// Terms, each as far as it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Which slice goes first.
    pub class: Option<Class>,
    /// Without cores: the slice's weight among those that have none.
    pub weight: Option<Weight>,
    /// Whether the share is a bound too.
    pub cap: Option<Cap>,
    /// How the device is shared.
    pub share: Option<Mode>,
    /// The isolation level.
    pub isolation: Option<Isolation>,
    /// The level is the claim's own word: the agent may choose a stronger one.
    pub isolation_is_least: bool,
    /// What follows where a process takes more than the slice has.
    pub on_overuse: Option<OnOveruse>,
    /// What follows where a limit cannot be enforced.
    pub policy: Option<Policy>,
    /// How long an allocation that does not fit waits, in nanoseconds.
    pub on_oom_wait_ns: Option<u64>,
    /// What may be allocated in all, in parts per 100 of the memory.
    pub oversubscribe_percent: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    api_version: String,
    kind: String,
    class: Option<String>,
    weight: Option<u64>,
    cap: Option<String>,
    share: Option<String>,
    isolation: Option<String>,
    on_overuse: Option<String>,
    policy: Option<String>,
    on_oom: Option<String>,
    oversubscribe: Option<String>,
}

impl Parameters {
    /// Reads them.
    ///
    /// # Errors
    /// [`Code::Claim`], with the field and what it may be.
    pub fn read(value: &Value) -> Result<Self, Fault> {
        let written = Written::deserialize(value).map_err(|error| refused(&cut(&error.to_string())))?;
        if (&*written.api_version, &*written.kind) != (API_VERSION, KIND) {
            return Err(refused(&format!(
                "they are `{}` of `{}`",
                cut(&written.kind),
                cut(&written.api_version)
            )));
        }
        let weight = written.weight.map(|weight| weight.to_string());
        let share = word("share", written.share)?;
        if share == Some(Mode::Mig) {
            return Err(refused(
                "share: `mig` is not given by parameters; a MIG instance is a device of its own, of type `mig`",
            ));
        }
        let isolation: Option<Isolation> = word("isolation", written.isolation)?;
        if let Some(level) = isolation.filter(|level| !GIVEN.contains(level)) {
            return Err(refused(&format!(
                "isolation: `{}` cannot be given to a pod; choose cooperative, supervised or enforced",
                level.name()
            )));
        }
        Ok(Self {
            class: word("class", written.class)?,
            weight: word("weight", weight)?,
            cap: word("cap", written.cap)?,
            share,
            isolation,
            isolation_is_least: false,
            on_overuse: word("onOveruse", written.on_overuse)?,
            policy: word("policy", written.policy)?,
            on_oom_wait_ns: written.on_oom.as_deref().map(on_oom).transpose()?,
            oversubscribe_percent: written.oversubscribe.as_deref().map(times).transpose()?,
        })
    }

    /// These, and for what they do not say those.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            class: self.class.or(below.class),
            weight: self.weight.or(below.weight),
            cap: self.cap.or(below.cap),
            share: self.share.or(below.share),
            isolation: self.isolation.or(below.isolation),
            isolation_is_least: match self.isolation {
                Some(_) => self.isolation_is_least,
                None => below.isolation_is_least,
            },
            on_overuse: self.on_overuse.or(below.on_overuse),
            policy: self.policy.or(below.policy),
            on_oom_wait_ns: self.on_oom_wait_ns.or(below.on_oom_wait_ns),
            oversubscribe_percent: self.oversubscribe_percent.or(below.oversubscribe_percent),
        }
    }

    /// A claim's terms on those of its class. The class is the administrator's; the claim is written by any user that may make pods. So
    /// a claim may ask for stricter limits and for less, and never for more than its class says.
    ///
    /// # Errors
    /// [`Code::Claim`] names the term that would be weaker than the class's, or would take from others.
    pub fn within(self, class: Self) -> Result<Self, Fault> {
        let only = |field: &str, claim: String, class: String| {
            Err(refused(&format!(
                "{field}: the claim says `{claim}`, and its DeviceClass allows `{class}`"
            ))
            .hint("a claim may only be stricter than its DeviceClass; the terms of the class are the administrator's"))
        };
        if let (Some(claim), Some(class)) = (self.isolation, class.isolation)
            && claim < class
        {
            return only("isolation", claim.to_string(), class.to_string());
        }
        if let (Some(claim), Some(class)) = (self.share, class.share)
            && claim != class
        {
            return only("share", claim.to_string(), class.to_string());
        }
        if (self.cap, class.cap) == (Some(Cap::Soft), Some(Cap::Hard)) {
            return only("cap", Cap::Soft.to_string(), Cap::Hard.to_string());
        }
        // Here silence means the default.
        let allowed = class.class.unwrap_or_default();
        if (self.class, allowed) == (Some(Class::Latency), Class::BestEffort) {
            return only("class", Class::Latency.to_string(), allowed.to_string());
        }
        let (claim, allowed) = (
            self.on_overuse.unwrap_or_default(),
            class.on_overuse.unwrap_or_default(),
        );
        if self.on_overuse.is_some() && claim > allowed {
            return only("onOveruse", claim.to_string(), allowed.to_string());
        }
        let (claim, allowed) = (self.policy.unwrap_or_default(), class.policy.unwrap_or_default());
        if (self.policy.is_some(), claim, allowed) == (true, Policy::BestEffort, Policy::Strict) {
            return only("policy", claim.to_string(), allowed.to_string());
        }
        let (claim, allowed) = (self.weight.unwrap_or_default(), class.weight.unwrap_or_default());
        if self.weight.is_some() && claim > allowed {
            return only("weight", claim.to_string(), allowed.to_string());
        }
        let allowed = class.oversubscribe_percent.unwrap_or(100);
        if let Some(claim) = self.oversubscribe_percent.filter(|claim| *claim > allowed) {
            let times = |percent: u32| format!("{}x", f64::from(percent) / 100.0);
            return only("oversubscribe", times(claim), times(allowed));
        }
        Ok(Self {
            isolation_is_least: self.isolation.is_some() && class.isolation.is_none(),
            ..self
        }
        .over(class))
    }

    /// Writes them into a request, whose share is there already.
    ///
    /// # Errors
    /// [`Code::Claim`] for a weight beside a share.
    pub fn apply(&self, request: &mut SliceRequest) -> Result<(), Fault> {
        let terms = &mut request.terms;
        if self.weight.is_some() && terms.compute.share.is_some() {
            return Err(refused("`weight` is for claims that ask for no cores"));
        }
        terms.compute.weight = self.weight;
        terms.compute.cap = self.cap.unwrap_or_default();
        terms.compute.class = self.class.unwrap_or_default();
        terms.sharing.mode = self.share.unwrap_or_default();
        terms.on_overuse = self.on_overuse.unwrap_or_default();
        terms.policy = self.policy.unwrap_or_default();
        terms.on_oom_wait_ns = self.on_oom_wait_ns.unwrap_or_default();
        terms.isolation = self.isolation.unwrap_or_default();
        request.isolation_unasked = self.isolation.is_none() || self.isolation_is_least;
        request.oversubscribe_percent = self.oversubscribe_percent.unwrap_or(100);
        Ok(())
    }
}

fn refused(why: &str) -> Fault {
    Fault::new(Code::Claim, "the claim's parameters were not understood")
        .cause(why)
        .hint(format!(
            "`apiVersion: {API_VERSION}`, `kind: {KIND}`, and any of class, weight, cap, share, isolation, onOveruse, policy, \
             onOom, oversubscribe: docs/kubernetes.md"
        ))
}

/// Text of a claim's author's, of a length for logs and events.
fn cut(text: &str) -> String {
    let plain = text.chars().filter(|c| !c.is_control());
    plain.take(3 * LONGEST).collect()
}

fn word<T>(field: &str, text: Option<String>) -> Result<Option<T>, Fault>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    let Some(text) = text else { return Ok(None) };
    if text.len() > LONGEST {
        return Err(refused(&format!("`{field}` is too long")));
    }
    let read = text.parse().map(Some);
    read.map_err(|error: T::Err| refused(&format!("{field}: {}", cut(&error.to_string()))))
}

/// `fail`, `wait`, `wait=30s`: how long an allocation waits, in nanoseconds.
fn on_oom(text: &str) -> Result<u64, Fault> {
    const SECOND: u64 = 1_000_000_000;
    const LONGEST_WAIT: u64 = 24 * 3600 * SECOND;
    let wait = match text {
        "fail" => Some(0),
        "wait" => Some(30 * SECOND),
        _ => text.strip_prefix("wait=").and_then(|limit| {
            let units = [
                ("ms", SECOND / 1000),
                ("s", SECOND),
                ("m", 60 * SECOND),
                ("h", 3600 * SECOND),
            ];
            let (number, unit) = units
                .iter()
                .find_map(|(suffix, unit)| Some((limit.strip_suffix(suffix)?, unit)))?;
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            number.parse::<u64>().ok().filter(|_| digits)?.checked_mul(*unit)
        }),
    };
    wait.filter(|wait| *wait <= LONGEST_WAIT)
        .ok_or_else(|| refused(&format!("onOom: `{}` is not fail, wait or wait=30s", cut(text))))
}

/// `2x` or `1.5x`, in parts per 100.
fn times(text: &str) -> Result<u32, Fault> {
    let number = text.strip_suffix('x').and_then(|number| {
        let plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        number.parse::<f64>().ok().filter(|_| plain && number.len() < 10)
    });
    match number {
        Some(number) if (1.0..=100.0).contains(&number) => Ok((number * 100.0).round() as u32),
        _ => Err(refused(&format!(
            "oversubscribe: `{}` is not from 1x to 100x",
            cut(text)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(mut fields: Value) -> Result<Parameters, Fault> {
        fields["apiVersion"] = API_VERSION.into();
        fields["kind"] = KIND.into();
        Parameters::read(&fields)
    }

    #[test]
    fn all_terms_are_read_and_written_into_a_request() {
        let read = of(json!({
            "class": "latency", "cap": "hard", "share": "lease", "isolation": "supervised", "onOveruse": "freeze",
            "policy": "best-effort", "onOom": "wait=500ms", "oversubscribe": "1.5x",
        }))
        .expect("understood");
        let mut request = SliceRequest::default();
        read.apply(&mut request).expect("applied");
        let terms = request.terms;
        assert_eq!(
            (terms.compute.class, terms.compute.cap),
            (Class::Latency, Cap::Hard)
        );
        assert_eq!(
            (terms.isolation, terms.on_overuse),
            (Isolation::Supervised, OnOveruse::Freeze)
        );
        assert_eq!(
            (terms.policy, terms.on_oom_wait_ns),
            (Policy::BestEffort, 500_000_000)
        );
        assert_eq!(
            (request.oversubscribe_percent, request.isolation_unasked),
            (150, false)
        );
        let mut plain = SliceRequest::default();
        of(json!({}))
            .expect("nothing asked for")
            .apply(&mut plain)
            .expect("applied");
        assert!(plain.isolation_unasked && plain.oversubscribe_percent == 100);
    }

    #[test]
    fn what_is_not_known_is_refused_and_named() {
        let long = "x".repeat(1 << 16);
        for (fields, named) in [
            (json!({"memory": "4Gi"}), "memory"),
            (json!({"on-oom": "fail"}), "on-oom"),
            (json!({"class": "fast"}), "class: `fast`"),
            (json!({"class": 1}), "expected a string"),
            (json!({"class": long}), "`class` is too long"),
            (json!({"weight": 0}), "weight: `0`"),
            (json!({"weight": -1}), "-1"),
            (json!({"onOom": "wait=1y"}), "onOom"),
            (json!({"onOom": "wait=99999999999h"}), "onOom"),
            (json!({"oversubscribe": "0.5x"}), "oversubscribe"),
            (json!({"oversubscribe": "infx"}), "oversubscribe"),
            (json!({"isolation": "strong"}), "isolation"),
            (json!({"isolation": "env"}), "isolation: `env`"),
            (json!({"isolation": "hardware"}), "isolation: `hardware`"),
            (json!({"isolation": "vm"}), "isolation: `vm`"),
            (json!({"share": "mig"}), "share: `mig`"),
        ] {
            let refused = of(fields.clone()).expect_err("refused");
            assert_eq!(refused.code, Code::Claim);
            assert!(
                refused.causes[0].contains(named),
                "{fields}: {:?}",
                refused.causes
            );
            assert!(refused.causes[0].len() < 500);
        }
        let other = json!({"apiVersion": "gpu.nvidia.com/v1beta1", "kind": "GpuConfig"});
        for value in [other, json!(null), json!([]), json!({"kind": KIND})] {
            assert_eq!(Parameters::read(&value).expect_err("refused").code, Code::Claim);
        }
    }

    #[test]
    fn a_claim_is_as_strict_as_its_class_or_stricter() {
        for (class, claim, named) in [
            (
                json!({"isolation": "supervised"}),
                json!({"isolation": "cooperative"}),
                "isolation",
            ),
            (json!({"cap": "hard"}), json!({"cap": "soft"}), "cap"),
            (
                json!({"class": "best-effort"}),
                json!({"class": "latency"}),
                "class",
            ),
            (json!({}), json!({"class": "latency"}), "class"),
            (json!({"share": "mps"}), json!({"share": "lease"}), "share"),
            (json!({}), json!({"onOveruse": "report"}), "onOveruse"),
            (
                json!({"onOveruse": "freeze"}),
                json!({"onOveruse": "report"}),
                "onOveruse",
            ),
            (json!({}), json!({"policy": "best-effort"}), "policy"),
            (json!({}), json!({"weight": 101}), "weight"),
            (json!({"weight": 50}), json!({"weight": 51}), "weight"),
            (json!({}), json!({"oversubscribe": "1.1x"}), "oversubscribe"),
            (
                json!({"oversubscribe": "2x"}),
                json!({"oversubscribe": "3x"}),
                "oversubscribe",
            ),
        ] {
            let (class, claim) = (of(class).expect("understood"), of(claim).expect("understood"));
            let refused = claim.within(class).expect_err(named);
            assert!(refused.causes[0].starts_with(&format!("{named}:")), "{refused:?}");
            // What the class says itself is no more than it says.
            assert_eq!(class.within(class).expect("the same"), class);
        }
        let class = of(
            json!({"class": "latency", "weight": 500, "oversubscribe": "2x", "onOveruse": "report",
            "policy": "best-effort", "isolation": "cooperative"}),
        )
        .expect("understood");
        let claim = of(
            json!({"cap": "hard", "weight": 400, "oversubscribe": "1.5x", "onOveruse": "freeze",
            "policy": "strict", "isolation": "enforced", "onOom": "wait"}),
        )
        .expect("understood");
        let both = claim.within(class).expect("stricter");
        assert_eq!((both.class, both.cap), (Some(Class::Latency), Some(Cap::Hard)));
        assert_eq!(
            (both.weight, both.oversubscribe_percent),
            (Some(Weight(400)), Some(150))
        );
        assert_eq!(
            (both.isolation, both.policy),
            (Some(Isolation::Enforced), Some(Policy::Strict))
        );
    }

    #[test]
    fn a_claims_own_level_is_the_least() {
        let claim = of(json!({"isolation": "cooperative"})).expect("understood");
        let mut request = SliceRequest::default();
        let both = claim.within(Parameters::default()).expect("allowed");
        both.apply(&mut request).expect("applied");
        assert!(request.isolation_unasked, "the agent's own level may be stronger");
        let both = Parameters::default().within(claim).expect("allowed");
        both.apply(&mut request).expect("applied");
        assert!(!request.isolation_unasked, "a class's level is meant");
    }

    #[test]
    fn a_weight_is_for_claims_without_cores() {
        let weight = of(json!({"weight": 50})).expect("understood");
        let mut request = SliceRequest::default();
        weight.apply(&mut request).expect("no cores");
        request.terms.compute.share = Some(divvy_model::Compute(3000));
        assert_eq!(weight.apply(&mut request).expect_err("both").code, Code::Claim);
    }
}

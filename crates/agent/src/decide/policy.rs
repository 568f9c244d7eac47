//! Which limits can be enforced here, and what happens with the others.

use divvy_model::{Code, Fault, Isolation, Mode, OnOveruse, Policy, SliceRecord, SliceRequest};

/// The isolation level that a request really gets, and which of its limits are not enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enforcement {
    /// The isolation level.
    pub isolation: Isolation,
    /// The limits that were asked for and do not hold, in words; empty under the strict policy.
    pub bypasses: Vec<String>,
}

/// Decides what a request gets.
///
/// # Errors
/// [`Code::NotEnforceable`] under the strict policy when something of it cannot be enforced.
pub fn enforce(request: &SliceRequest) -> Result<Enforcement, Fault> {
    let mut lacking = Vec::new();
    let has_terms = !request.terms.compute.is_default();
    if request.terms.whole && has_terms {
        return Err(
            Fault::new(Code::BadCompute, "a whole device is for a single slice")
                .hint("leave --compute, --cap, --class and --weight out"),
        );
    }
    let isolation = match request.terms.isolation {
        // Nothing is in the program's way: a tenant with all of a device needs no limit.
        _ if request.terms.whole => Isolation::Env,
        Isolation::Env => {
            if request.memory.is_some() {
                lacking.push("the `env` isolation enforces no memory limit".into());
            }
            if has_terms {
                let terms = request.terms.compute;
                lacking.push(format!(
                    "the `env` isolation keeps no program to a part of compute ({terms})"
                ));
            }
            Isolation::Env
        }
        level @ (Isolation::Cooperative | Isolation::Supervised | Isolation::Enforced) => level,
        level => {
            lacking.push(format!("the `{level}` isolation is not offered by this version"));
            Isolation::Cooperative
        }
    };
    match (request.terms.policy, lacking.as_slice()) {
        (_, []) | (Policy::BestEffort, _) => Ok(Enforcement {
            isolation,
            bypasses: lacking,
        }),
        (Policy::Strict, [first, rest @ ..]) => {
            let mut fault = Fault::new(Code::NotEnforceable, first.clone());
            fault.causes = rest.to_vec();
            Err(fault.hint("`--policy best-effort` runs the program without it and counts the bypass"))
        }
    }
}

/// What decides whether the tenant can be kept from its device.
#[derive(Clone, Copy, Debug)]
pub struct Boundary {
    /// Root can be asked to start workers as users of their own.
    pub has_root: bool,
    /// The tenant can open the device's nodes, or ask for its pages, by itself.
    pub is_open: bool,
}

/// Takes the level `enforced` away where the tenant would have the device all the same, or where its workers would be its
/// own user's.
///
/// # Errors
/// [`Code::NotEnforceable`] under the strict policy.
pub fn check_boundary(
    request: &SliceRequest,
    enforcement: &mut Enforcement,
    how: Boundary,
) -> Result<(), Fault> {
    if enforcement.isolation != Isolation::Enforced {
        return Ok(());
    }
    let mode = request.terms.sharing.mode;
    let (why, hint) = match how {
        _ if mode != Mode::Lease => (
            format!("workers share a device by leases, not by {mode}"),
            "leave --share out",
        ),
        Boundary { has_root: false, .. } => (
            "this agent runs as your own user, and so would the workers: your programs could trace them"
                .to_owned(),
            "the system's agent starts them as users of their own: `divvy agent install`",
        ),
        Boundary { is_open: true, .. } => (
            "the device's nodes are open to you, past every worker".to_owned(),
            "`options nvidia NVreg_DeviceFileMode=0660 NVreg_DeviceFileGID=GROUP` in /etc/modprobe.d closes them; containers have none",
        ),
        _ => return Ok(()),
    };
    let message = format!("the `enforced` isolation cannot be had: {why}");
    if request.terms.policy == Policy::Strict {
        return Err(Fault::new(Code::NotEnforceable, message).hint(hint));
    }
    enforcement.isolation = Isolation::Cooperative;
    enforcement.bypasses.push(message);
    Ok(())
}

/// Refuses what an OpenCL device without CUDA cannot have.
///
/// # Errors
/// [`Code::NotEnforceable`].
pub fn check_opencl(
    request: &SliceRequest,
    enforcement: &Enforcement,
    in_container: bool,
) -> Result<(), Fault> {
    let mode = request.terms.sharing.mode;
    let why = if enforcement.isolation == Isolation::Enforced {
        "workers make CUDA's calls only"
    } else if mode != Mode::Lease {
        "its programs share it by leases only"
    } else if in_container {
        "containers do not get it"
    } else {
        return Ok(());
    };
    Err(Fault::new(
        Code::NotEnforceable,
        format!("PoCL's device cannot be shared so: {why}"),
    )
    .hint("`divvy run --device emulated:pocl` shares it among programs of this host"))
}

/// What decides whether a slice is supervised, beside its request.
#[derive(Clone, Copy, Debug)]
pub struct Supervision {
    /// A slice is supervised here without being asked for: by the system's agent, for a container, inside another slice
    /// that is.
    pub is_default: bool,
    /// It is inside another slice that is supervised: a weaker level would be a way out of that.
    pub is_inside: bool,
    /// The drivers of the slice's devices say what each process holds.
    pub is_told: bool,
}

/// Adds supervision to what a request gets, or takes it away where nothing could be seen. Returns what the user is to
/// know, if anything.
///
/// # Errors
/// [`Code::NotEnforceable`] under the strict policy, where supervision was asked for and cannot be had, and where a weaker
/// level was asked for inside a supervised slice.
pub fn supervise(
    request: &SliceRequest,
    enforcement: &mut Enforcement,
    how: Supervision,
) -> Result<Option<String>, Fault> {
    const BLIND: &str = "the device's driver does not say what each process holds";
    if how.is_inside && !request.isolation_unasked && enforcement.isolation < Isolation::Supervised {
        let message = format!(
            "a slice inside a supervised one cannot be `{}`",
            enforcement.isolation.name()
        );
        return Err(Fault::new(Code::NotEnforceable, message)
            .hint("leave `--isolation` out: it is supervised like the slice around it"));
    }
    match (enforcement.isolation, how) {
        (Isolation::Cooperative, how) if request.isolation_unasked && how.is_default => {
            if how.is_told {
                enforcement.isolation = Isolation::Supervised;
                return Ok(None);
            }
            Ok(Some(format!("not supervised: {BLIND}")))
        }
        (Isolation::Supervised, Supervision { is_told: false, .. }) => {
            let message = format!("the `supervised` isolation cannot be had: {BLIND}");
            if request.terms.policy == Policy::Strict {
                return Err(Fault::new(Code::NotEnforceable, message).hint(
                    "`--isolation cooperative` has limits in the program alone; `--policy best-effort` falls back to it",
                ));
            }
            enforcement.isolation = Isolation::Cooperative;
            enforcement.bypasses.push(message);
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// The administrator's minimum, which no user may go below.
#[derive(Clone, Copy, Debug, Default)]
pub struct Least {
    /// The weakest isolation level.
    pub isolation: Option<Isolation>,
    /// The mildest consequence of taking more than a slice has.
    pub on_overuse: Option<OnOveruse>,
}

impl Least {
    /// Whether a slice is supervised without being asked for.
    #[must_use]
    pub fn supervises(self) -> bool {
        self.isolation >= Some(Isolation::Supervised)
    }

    /// Refuses the use of a slice that was made before the minimum, and has less.
    ///
    /// # Errors
    /// [`Code::BelowLeast`].
    pub fn check_existing(self, slice: &SliceRecord) -> Result<(), Fault> {
        let terms = &slice.terms;
        let weak = self.isolation.is_some_and(|least| terms.isolation < least);
        // `end` is the first of them, and the strictest.
        let mild = terms.isolation == Isolation::Supervised
            && self.on_overuse.is_some_and(|least| terms.on_overuse > least);
        if terms.whole || !(weak || mild) {
            return Ok(());
        }
        Err(Fault::new(
            Code::BelowLeast,
            format!("slice {} was made before this host's minimum, and has less", slice.name),
        )
        .hint("`divvy slice delete` and `divvy slice create` make it again; `divvy explain isolation` shows the minimum"))
    }

    /// Refuses what gets less than the minimum. A whole device is its only user's: there is nothing to keep it from.
    ///
    /// # Errors
    /// [`Code::BelowLeast`].
    pub fn check(self, request: &SliceRequest, had: &Enforcement) -> Result<(), Fault> {
        let below = |message: String, key: &str, least: &str| {
            let hint = match had.bypasses.first() {
                Some(lacking) => {
                    format!("{lacking}; `{key} = {least}` in the agent's configuration is the minimum")
                }
                // Workers are the caller's to start: no agent makes a slice enforced by itself.
                None if request.isolation_unasked && key == "least_isolation" => {
                    format!(
                        "ask for it, as `--isolation {least}`: `{key}` in the agent's configuration is the minimum"
                    )
                }
                None => format!(
                    "leave it out, or ask for `{least}`: `{key}` in the agent's configuration is the minimum"
                ),
            };
            Err(Fault::new(Code::BelowLeast, message).hint(hint))
        };
        if request.terms.whole {
            return Ok(());
        }
        if let Some(least) = self.isolation.filter(|least| had.isolation < *least) {
            let what = match request.isolation_unasked {
                true => format!("the default level, `{}`,", had.isolation),
                false => format!("`--isolation {}`", had.isolation),
            };
            let message = format!("{what} is less than this host's minimum, `{least}`");
            return below(message, "least_isolation", least.name());
        }
        let asked = request.terms.on_overuse;
        match self.on_overuse {
            // `end` is the first of them, and the strictest.
            Some(least) if had.isolation == Isolation::Supervised && asked > least => {
                let message = format!("`--on-overuse {asked}` is less than this host's minimum, `{least}`");
                below(message, "least_on_overuse", least.name())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_below_the_administrators_minimum_is_had() {
        let had = |isolation, bypasses: &[&str]| Enforcement {
            isolation,
            bypasses: bypasses.iter().map(|text| (*text).to_owned()).collect(),
        };
        let code = |least: Least, request: &SliceRequest, had: &Enforcement| {
            least
                .check(request, had)
                .map_err(|fault| (fault.code, fault.hint))
        };
        let (none, supervised) = (
            Least::default(),
            Least {
                isolation: Some(Isolation::Supervised),
                on_overuse: Some(OnOveruse::Freeze),
            },
        );
        assert!(!none.supervises() && supervised.supervises());
        assert_eq!(code(none, &request(), &had(Isolation::Env, &[])), Ok(()));
        let weak = had(Isolation::Cooperative, &[]);
        let (fault, hint) = code(supervised, &request(), &weak).expect_err("less");
        assert_eq!(fault, Code::BelowLeast);
        assert!(hint.is_some_and(|hint| hint.contains("least_isolation")));
        // What fell back, because nothing can be seen, is less as well.
        let blind = had(Isolation::Cooperative, &["nothing can be seen"]);
        let (_, hint) = code(supervised, &request(), &blind).expect_err("less");
        assert!(hint.is_some_and(|hint| hint.starts_with("nothing can be seen")));
        let strong = had(Isolation::Supervised, &[]);
        for (asked, is_had) in [
            (OnOveruse::End, true),
            (OnOveruse::Freeze, true),
            (OnOveruse::Report, false),
        ] {
            let mut request = request();
            request.terms.on_overuse = asked;
            assert_eq!(supervised.check(&request, &strong).is_ok(), is_had, "{asked}");
        }
        let mut slice: SliceRecord = serde_json::from_value(serde_json::json!({
            "id": "1", "name": "old", "uid": 0, "device_uuid": "GPU-0", "memory_limit_bytes": 1,
            "memory_used_bytes": 0, "isolation": "cooperative", "policy": "strict", "created_at": "", "processes": [],
        }))
        .expect("a record");
        assert_eq!(none.check_existing(&slice), Ok(()));
        let fault = supervised.check_existing(&slice).expect_err("it has less");
        assert_eq!(fault.code, Code::BelowLeast);
        slice.terms.isolation = Isolation::Supervised;
        assert_eq!(supervised.check_existing(&slice), Ok(()));
        slice.terms.on_overuse = OnOveruse::Report;
        supervised
            .check_existing(&slice)
            .expect_err("it is only reported");
        let mut whole = request();
        whole.terms.whole = true;
        assert_eq!(code(supervised, &whole, &had(Isolation::Env, &[])), Ok(()));
    }

    #[test]
    fn supervision_is_had_where_the_driver_tells() {
        let told = Supervision {
            is_default: false,
            is_inside: false,
            is_told: true,
        };
        let by_default = Supervision {
            is_default: true,
            ..told
        };
        let blind = |how| Supervision {
            is_told: false,
            ..how
        };
        let had = |request: &SliceRequest, how| {
            let mut enforcement = enforce(request).expect("enforced");
            let note = supervise(request, &mut enforcement, how)?;
            Ok::<_, Fault>((enforcement.isolation, enforcement.bypasses.len(), note.is_some()))
        };
        let mut unasked = request();
        unasked.isolation_unasked = true;
        assert_eq!(had(&unasked, told), Ok((Isolation::Cooperative, 0, false)));
        assert_eq!(had(&unasked, by_default), Ok((Isolation::Supervised, 0, false)));
        assert_eq!(
            had(&unasked, blind(by_default)),
            Ok((Isolation::Cooperative, 0, true))
        );
        assert_eq!(
            had(&request(), by_default),
            Ok((Isolation::Cooperative, 0, false)),
            "it was asked for"
        );
        let mut asked = request();
        asked.terms.isolation = Isolation::Supervised;
        assert_eq!(had(&asked, told), Ok((Isolation::Supervised, 0, false)));
        let refusal = had(&asked, blind(told)).expect_err("strict");
        assert_eq!(refusal.code, Code::NotEnforceable);
        asked.terms.policy = Policy::BestEffort;
        assert_eq!(had(&asked, blind(told)), Ok((Isolation::Cooperative, 1, false)));
    }

    fn request() -> SliceRequest {
        SliceRequest {
            memory: Some("1GiB".parse().expect("a size")),
            ..SliceRequest::default()
        }
    }

    #[test]
    fn memory_under_the_cooperative_level_is_enforced() {
        let enforcement = enforce(&request()).expect("enforced");
        assert_eq!(
            (enforcement.isolation, enforcement.bypasses.len()),
            (Isolation::Cooperative, 0)
        );
        let mut whole = request();
        whole.terms.compute.share = Some(divvy_model::Compute::WHOLE);
        enforce(&whole).expect("the whole device is no limit");
    }

    #[test]
    fn what_does_not_hold_is_refused_or_counted() {
        let mut request = request();
        request.terms.compute.share = Some("30%".parse().expect("a share"));
        request.terms.isolation = Isolation::Vm;
        let fault = enforce(&request).expect_err("strict");
        assert_eq!(fault.code, Code::NotEnforceable);
        assert!(fault.message.contains("`vm`"), "{fault:?}");
        request.terms.policy = Policy::BestEffort;
        let enforcement = enforce(&request).expect("best effort");
        assert_eq!(
            (enforcement.isolation, enforcement.bypasses.len()),
            (Isolation::Cooperative, 1)
        );
    }

    #[test]
    fn a_whole_device_needs_no_limit_and_has_no_share() {
        let mut whole = request();
        whole.terms.whole = true;
        let enforcement = enforce(&whole).expect("nothing is in its way");
        assert_eq!(
            (enforcement.isolation, enforcement.bypasses.len()),
            (Isolation::Env, 0)
        );
        whole.terms.compute.share = Some("30%".parse().expect("a share"));
        assert_eq!(enforce(&whole).expect_err("of what").code, Code::BadCompute);
    }

    #[test]
    fn a_compute_share_holds() {
        let mut request = request();
        request.terms.compute.share = Some("30%".parse().expect("a share"));
        let enforcement = enforce(&request).expect("kept");
        assert!(enforcement.bypasses.is_empty(), "{enforcement:?}");
    }

    #[test]
    fn the_env_level_limits_no_memory() {
        let mut request = request();
        request.terms.isolation = Isolation::Env;
        assert!(enforce(&request).is_err());
        request.memory = None;
        request.terms.compute.weight = Some(divvy_model::Weight(50));
        let refusal = enforce(&request).expect_err("no gate there");
        assert!(refusal.message.contains("(weight 50)"), "{refusal:?}");
        request.terms.compute.weight = None;
        assert_eq!(
            enforce(&request).expect("no limit asked for").isolation,
            Isolation::Env
        );
    }
}

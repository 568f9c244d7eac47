//! Which limits can be enforced here, and what happens with the others.

use divvy_model::{Code, Fault, Isolation, Policy, SliceRequest};

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
        Isolation::Cooperative => Isolation::Cooperative,
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

#[cfg(test)]
mod tests {
    use super::*;

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

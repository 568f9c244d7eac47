//! A claim's opaque parameters, which a pod's author writes, out of any bytes.

use divvy_kube::parameters::Parameters;
use divvy_model::SliceRequest;

/// No reason is longer, whatever a claim says: it becomes an event of the pod.
const LONGEST_REASON: usize = 1024;

/// Reads parameters and writes them into a request. Whether they were some.
///
/// # Panics
/// Where something that must hold does not.
pub fn parameters(bytes: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice(bytes) else {
        return false;
    };
    match Parameters::read(&value) {
        Ok(read) => {
            // What the claim says counts more, and saying it twice changes nothing.
            assert_eq!(read.over(read), read);
            assert_eq!(read.over(Parameters::default()), read);
            let mut request = SliceRequest::default();
            read.apply(&mut request).expect("no share is there");
            assert!((100..=10_000).contains(&request.oversubscribe_percent));
            assert!(request.terms.on_oom_wait_ns <= 24 * 3600 * 1_000_000_000);
            assert!(request.name.is_none() && request.memory.is_none() && !request.terms.whole);
            true
        }
        Err(fault) => {
            let length: usize = fault.causes.iter().map(String::len).sum();
            assert!(length + fault.message.len() < LONGEST_REASON, "{length} bytes");
            assert!(!fault.causes.iter().any(|cause| cause.contains(char::is_control)));
            false
        }
    }
}

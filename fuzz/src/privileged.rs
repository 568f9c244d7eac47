//! What an agent may send to the helper that is root.

use divvy_privileged::answer::Answer;
use divvy_privileged::request::Request;

/// Reads the bytes as a request and as an answer. Returns whether they were a request.
///
/// # Panics
/// A message has other bytes than those that it was read from: then two sides may differ on it.
pub fn message(bytes: &[u8]) -> bool {
    if let Ok((number, answer)) = Answer::decode(bytes) {
        let again = Answer::decode(&answer.encode(number));
        assert_eq!(again, Ok((number, answer)));
    }
    let Ok((number, request)) = Request::decode(bytes) else {
        return false;
    };
    assert_eq!(request.encode(number), bytes);
    if let Request::Look { path } = &request {
        assert!(path.starts_with(b"/") && !path.contains(&0));
        assert!(!path.split(|byte| *byte == b'/').any(|part| part == b".."));
    }
    true
}

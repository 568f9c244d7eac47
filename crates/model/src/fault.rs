//! A failure as the user meets it: a code, one sentence, its causes, a hint. It travels from the agent as JSON.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Code, NoSuchWord, QuantityError, SelectorError};

/// A failure with a stable code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The stable code.
    pub code: Code,
    /// One sentence without a full stop.
    pub message: String,
    /// Why, nearest cause first; none repeats the message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Fault {
    /// A failure with a code and a sentence.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            causes: Vec::new(),
            hint: None,
        }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with `cause` and every source below it.
    #[must_use]
    pub fn because(mut self, cause: &dyn Error) -> Self {
        let mut next = Some(cause);
        while let Some(error) = next {
            self.causes.push(error.to_string());
            next = error.source();
        }
        self
    }

    /// The same with another failure as its cause, and that one's causes.
    #[must_use]
    pub fn after(mut self, cause: &Self) -> Self {
        self.causes.push(cause.message.clone());
        self.causes.extend(cause.causes.iter().cloned());
        self
    }

    /// The same with a cause in words.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Fault {}

impl From<QuantityError> for Fault {
    fn from(error: QuantityError) -> Self {
        Self::new(Code::Quantity, error.to_string()).hint(error.hint())
    }
}

impl From<NoSuchWord> for Fault {
    fn from(error: NoSuchWord) -> Self {
        let hint = error.hint();
        Self {
            hint,
            ..Self::new(Code::Config, error.to_string())
        }
    }
}

impl From<SelectorError> for Fault {
    fn from(error: SelectorError) -> Self {
        let (code, hint) = match error {
            SelectorError::Malformed(_) => (
                Code::Selector,
                "a device is an index, a UUID or a unique prefix of one, a PCI address, `emulated:h100`, or \
                 `tcp://HOST:PORT/0` for one of another host; see `divvy devices`",
            ),
            SelectorError::Unknown(_) => (
                Code::UnknownDevice,
                "`divvy devices` lists the devices of this machine",
            ),
            SelectorError::Ambiguous { .. } => (Code::AmbiguousDevice, "type more of the UUID"),
        };
        Self::new(code, error.to_string()).hint(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_listed_from_the_nearest() {
        let inner = std::io::Error::other("disk on fire");
        let fault = Fault::new(Code::Internal, "cannot write")
            .because(&inner)
            .hint("pour water");
        assert_eq!(fault.causes, ["disk on fire"]);
        let json = serde_json_like(&fault);
        assert!(json.contains("D0099"), "{json}");
    }

    /// The model carries no JSON library: the code's own text is what matters here.
    fn serde_json_like(fault: &Fault) -> String {
        format!("{} {}", fault.code, fault.message)
    }

    #[test]
    fn a_bare_number_keeps_its_hint() {
        let fault = Fault::from("4096".parse::<crate::Bytes>().expect_err("no unit"));
        assert_eq!(fault.code, Code::Quantity);
        assert!(fault.hint.expect("a hint").contains("4096MiB"));
    }
}

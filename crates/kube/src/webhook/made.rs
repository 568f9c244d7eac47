//! What the loop beside the webhook knows of the templates that it makes: those that were made a moment ago, and those that could not be made.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A template's namespace and name.
type Key = (String, String);

fn key(object: &Value) -> Key {
    let of = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (of("namespace"), of("name"))
}

/// Templates that were made a moment ago. A pod is told of several times while the scheduler tries it, and each of many pods names the
/// same template: without this eight calls of nine found it there already (three pods on 1.36.2).
#[derive(Debug, Default)]
pub struct Recent {
    /// By namespace and name.
    made: HashMap<Key, Instant>,
}

impl Recent {
    /// For so long a template that was made is taken to be there.
    pub const HOLDS: Duration = Duration::from_secs(10);

    /// Whether this one has to be made.
    pub fn is_due(&self, object: &Value, now: Instant) -> bool {
        let made = self.made.get(&key(object));
        made.is_none_or(|at| now.saturating_duration_since(*at) >= Self::HOLDS)
    }

    /// It was made now.
    pub fn note(&mut self, object: &Value, now: Instant) {
        self.made
            .retain(|_, at| now.saturating_duration_since(*at) < Self::HOLDS);
        self.made.insert(key(object), now);
    }
}

/// Templates that the API server did not take. They are tried again while a pod names them: nothing else would make them, because a pod
/// that waits for its template may not change any more.
#[derive(Debug, Default)]
pub struct Unmade {
    objects: VecDeque<Value>,
}

impl Unmade {
    /// More are not kept; their pods tell of themselves when the list is read again.
    const MOST: usize = 4096;

    /// How many there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Keeps one for another try, behind the others: one that is never taken keeps none from its turn.
    pub fn note(&mut self, object: Value) {
        self.forget(&object);
        if self.objects.len() < Self::MOST {
            self.objects.push_back(object);
        }
    }

    /// It is there now.
    pub fn forget(&mut self, object: &Value) {
        let gone = key(object);
        self.objects.retain(|one| key(one) != gone);
    }

    /// Takes the next one that a pod still names, by namespace and name.
    pub fn next(&mut self, is_named: impl Fn(&str, &str) -> bool) -> Option<Value> {
        while let Some(object) = self.objects.pop_front() {
            let (namespace, name) = key(&object);
            if is_named(&namespace, &name) {
                return Some(object);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_is_made_again_after_a_while_and_in_another_namespace() {
        let of = template;
        let (mut recent, now) = (Recent::default(), Instant::now());
        assert!(recent.is_due(&of("n"), now));
        recent.note(&of("n"), now);
        assert!(!recent.is_due(&of("n"), now) && recent.is_due(&of("m"), now));
        // Others may have removed it meanwhile.
        assert!(recent.is_due(&of("n"), now + Recent::HOLDS));
        recent.note(&of("m"), now + Recent::HOLDS);
        assert_eq!(recent.made.len(), 1, "what is old is forgotten");
    }

    fn template(namespace: &str) -> Value {
        json!({"metadata": {"namespace": namespace, "name": "t"}})
    }

    #[test]
    fn what_could_not_be_made_has_its_turn_while_a_pod_names_it() {
        let mut unmade = Unmade::default();
        for namespace in ["a", "b", "c", "b", "d"] {
            unmade.note(template(namespace));
        }
        unmade.forget(&template("c"));
        assert_eq!(unmade.len(), 3);
        let is_named = |namespace: &str, name: &str| namespace != "a" && name == "t";
        assert_eq!(unmade.next(is_named), Some(template("b")), "no pod names a's");
        unmade.note(template("b"));
        assert_eq!(
            unmade.next(is_named),
            Some(template("d")),
            "before b's second try"
        );
        assert_eq!(unmade.next(is_named), Some(template("b")));
        assert_eq!(unmade.next(is_named), None);
    }
}

//! What API servers, schedulers and people send of pods and clusters, out of any bytes.

use divvy_kube::migrate::migrate;
use divvy_kube::names::Terms;
use divvy_kube::webhook::review::Webhook;
use divvy_kube::webhook::rewrite::Target;
use divvy_placement::cel::Expression;

/// No reason is longer, whatever a pod says.
const LONGEST_REASON: usize = 1024;

/// Bytes as an AdmissionReview, as manifests and as a selector. Whether they were a review.
///
/// # Panics
/// Where something that must hold does not.
pub fn any(bytes: &[u8]) -> bool {
    let mut was_review = false;
    for target in [Target::Claims, Target::Extender] {
        let webhook = Webhook {
            terms: Terms::default(),
            target,
        };
        match webhook.review(bytes) {
            Ok(answer) => {
                was_review = true;
                let allowed = answer["response"]["allowed"].as_bool();
                assert!(allowed.is_some());
                assert!(allowed == Some(true) || answer["response"].get("patch").is_none());
            }
            Err(why) => assert!(why.len() < LONGEST_REASON),
        }
        let Ok(text) = std::str::from_utf8(bytes) else {
            continue;
        };
        if let Ok(done) = migrate(text, &Terms::default(), target) {
            // What was rewritten has nothing left to rewrite for claims.
            if target == Target::Claims && done.rewritten > 0 {
                let again = migrate(&done.text, &Terms::default(), target).expect("its own text");
                assert_eq!(again.rewritten, 0);
            }
        }
        drop(Expression::read(text));
        drop(divvy_placement::read::read(&[(
            "bytes".to_owned(),
            text.to_owned(),
        )]));
    }
    was_review
}

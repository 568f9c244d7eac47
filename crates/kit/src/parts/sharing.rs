//! The ways of sharing that need no setting of the card.

use crate::finding::{Failure, Finding};
use crate::kit::{Kit, output};

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    for (check, words) in [
        ("sharing.devices", &["devices", "-o", "json"][..]),
        ("sharing.mig", &["mig", "list", "-o", "json"][..]),
        ("sharing.doctor", &["doctor", "-o", "json"][..]),
    ] {
        match output(&mut Kit::divvy(words)) {
            Ok(text) => {
                let details = serde_json::from_str(&text).unwrap_or_default();
                kit.found(
                    &Finding::fact(check, format!("what `divvy {}` says", words.join(" "))).details(details),
                )?;
            }
            Err(why) => kit.found(&Finding::skipped(check, why))?,
        }
    }
    for way in ["lease", "mps"] {
        let check = format!("sharing.{way}");
        let mut command = kit.tenant(&["--memory", "1GiB", "--share", way], "calls");
        match output(&mut command) {
            Ok(_) => kit.found(&Finding::promise(check, true, "a program runs so"))?,
            Err(why) if way == "mps" => kit.found(&Finding::skipped(check, why))?,
            Err(why) => kit.found(&Finding::promise(check, false, why))?,
        }
    }
    Ok(())
}

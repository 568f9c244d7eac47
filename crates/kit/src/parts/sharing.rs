//! The ways of sharing that need no setting of the card.

use serde_json::json;

use super::{Card, count};
use crate::finding::{Failure, Finding, Unit};
use crate::kit::{Kit, output};
use crate::scrub::foreign_value;

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    for (check, words) in [
        ("sharing.devices", &["devices", "-o", "json"][..]),
        ("sharing.mig", &["mig", "list", "-o", "json"][..]),
        ("sharing.doctor", &["doctor", "-o", "json"][..]),
    ] {
        match output(&mut Kit::divvy(words)) {
            Ok(text) => {
                let details = foreign_value(serde_json::from_str(&text).unwrap_or_default());
                kit.found(
                    &Finding::fact(check, format!("what `divvy {}` says", words.join(" "))).details(details),
                )?;
            }
            Err(why) => kit.found(&Finding::skipped(check, why))?,
        }
    }
    if let Ok(card) = Card::of(kit) {
        profiles(kit, &card)?;
    }
    for level in ["supervised", "enforced"] {
        let check = format!("sharing.{level}");
        let mut command = kit.tenant(&["--memory", "1GiB", "--isolation", level], "calls");
        let finding = match output(&mut command) {
            Ok(_) => Finding::promise(check, true, format!("a program runs in the isolation {level}")),
            Err(_) => Finding::skipped(check, "not offered by this version"),
        };
        kit.found(&finding)?;
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

/// The profiles of MIG that the card offers, as `nvidia-smi mig -lgip` lists them. Nothing is changed for it: a card whose MIG
/// mode is off may tell of none.
fn profiles(kit: &mut Kit, card: &Card) -> Result<(), Failure> {
    const CHECK: &str = "sharing.profiles";
    let profiles = match card.nvml.profiles(card.handle) {
        Ok(profiles) if !profiles.is_empty() => profiles,
        Ok(_) => return kit.found(&Finding::skipped(CHECK, "the card tells of no profile of MIG")),
        Err(failure) => return kit.found(&Finding::skipped(CHECK, failure.to_string())),
    };
    let listed = profiles.iter().map(|profile| {
        json!({
            "id": profile.id,
            "name": profile.name,
            "slices": profile.slices,
            "most": profile.max,
            "multiprocessors": profile.sm_count,
            "memory_mib": profile.memory_mib,
            "placements": profile.placements,
        })
    });
    let details = json!({"profiles": listed.collect::<Vec<_>>()});
    kit.found(
        &Finding::fact(CHECK, "profiles of MIG that the card offers")
            .figure(count(profiles.len()), Unit::Count)
            .details(details),
    )
}

//! What the two drivers answer, call by call, and what whole kernels compute: the kit's own program asks each of them, in a
//! process of its own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::finding::{Failure, Finding, Unit};
use crate::gpu::PROGRAMS;
use crate::kit::{Kit, output};
use crate::parts::Card;
use crate::place::Place;
use crate::scrub::foreign;

/// What the tenant `answers` says.
#[derive(Debug, Deserialize)]
struct TenantAnswers {
    answers: BTreeMap<String, String>,
    /// The results of each kernel in words of four bytes, or why there are none.
    kernels: BTreeMap<String, Result<Vec<u32>, String>>,
}

/// Products that are emulated, and what a card of that kind calls itself.
const PRODUCTS: [(&str, &str); 13] = [
    ("NVIDIA B200", "b200"),
    ("H200", "h200"),
    ("H100 80GB", "h100"),
    ("A100-SXM4-80GB", "a100-80gb"),
    ("A100-SXM4-40GB", "a100-40gb"),
    ("A30", "a30"),
    ("A10", "a10"),
    ("A40", "a40"),
    ("L40S", "l40s"),
    ("RTX 4090", "rtx4090"),
    ("NVIDIA L4", "l4"),
    ("Tesla T4", "t4"),
    ("V100-SXM2-16GB", "v100"),
];

/// Answers by the first word of their names, and what they are of.
const GROUPS: [(&str, &str); 8] = [
    ("attribute", "attributes of the device"),
    ("error", "errors"),
    ("pitch", "pitches"),
    ("granularity", "steps of physical memory"),
    ("address", "alignments of addresses"),
    ("limit", "limits of a context"),
    ("occupancy", "occupancies"),
    ("function", "what kernels need"),
];
/// These say the same of every product.
const OF_ALL: [&str; 3] = ["error", "pitch", "address"];

/// Single precision is near where it is off by no more than this: hardware's approximations have two units in the last place,
/// and whole kernels add some up.
const NEAR: u32 = 64;

pub(super) fn run(kit: &mut Kit) -> Result<(), Failure> {
    let name = Card::of(kit).map(|card| card.name).unwrap_or_default();
    let spec = std::env::var("KIT_AGAINST").ok();
    let spec = spec.as_deref().or(emulated_as(&name));
    let place = Place::inside_own(&format!("emulated:{}", spec.unwrap_or("h100")));
    let place = place.map_err(|error| format!("no temporary folder can be had: {error}"))?;
    let mut emulated = Kit::bare_tenant("answers");
    place.enter(&mut emulated);
    let card = told(&output(&mut Kit::bare_tenant("answers"))?)?;
    let emulated = told(&output(&mut emulated)?)?;
    for (group, about) in GROUPS {
        if spec.is_none() && !OF_ALL.contains(&group) {
            let says = format!("`{}` is not among the products that are emulated", foreign(&name));
            kit.found(&Finding::skipped(format!("differences.{group}"), says))?;
            continue;
        }
        answers(kit, group, about, &card, &emulated)?;
    }
    for program in PROGRAMS {
        kernel(kit, program.entry, program.exact, &card, &emulated)?;
    }
    Ok(())
}

/// What a card of this name is emulated as. Its words have to be the name's own, whole: an L40 is no L4.
fn emulated_as(name: &str) -> Option<&'static str> {
    let words: Vec<&str> = name.split_whitespace().collect();
    let has = |product: &str| {
        let product: Vec<&str> = product.split_whitespace().collect();
        words.windows(product.len()).any(|window| window == product)
    };
    let same = PRODUCTS.iter().find(|(product, _)| has(product));
    same.map(|(_, spec)| *spec)
}

fn told(text: &str) -> Result<TenantAnswers, Failure> {
    serde_json::from_str(text.trim()).map_err(|error| format!("the tenant said something else: {error}"))
}

fn answers(
    kit: &mut Kit,
    group: &str,
    about: &str,
    card: &TenantAnswers,
    emulated: &TenantAnswers,
) -> Result<(), Failure> {
    let belongs = |name: &&String| name.split('.').next() == Some(group);
    let names: Vec<&String> = card.answers.keys().filter(belongs).collect();
    let differ: Vec<Value> = names
        .iter()
        .filter(|name| card.answers.get(**name) != emulated.answers.get(**name))
        .map(|name| json!({"of": name, "card": card.answers.get(*name), "emulated": emulated.answers.get(*name)}))
        .collect();
    let says = format!(
        "{about}: {} of {} are answered otherwise by the card",
        differ.len(),
        names.len()
    );
    kit.found(
        &Finding::promise(format!("differences.{group}"), differ.is_empty(), says)
            .details(json!({"differ": differ})),
    )
}

fn kernel(
    kit: &mut Kit,
    entry: &str,
    exact: bool,
    card: &TenantAnswers,
    emulated: &TenantAnswers,
) -> Result<(), Failure> {
    let check = format!("differences.kernel.{entry}");
    let missing = Err("it was not run".to_owned());
    let of = |told: &TenantAnswers| {
        told.kernels
            .get(entry)
            .cloned()
            .unwrap_or_else(|| missing.clone())
    };
    let (card, emulated) = match (of(card), of(emulated)) {
        (Ok(card), Ok(emulated)) => (card, emulated),
        (Err(why), Err(_)) => return kit.found(&Finding::skipped(check, why)),
        (card, emulated) => {
            let words =
                |outcome: Result<Vec<u32>, String>| outcome.map_or_else(|why| why, |_| "it runs".into());
            let says = format!(
                "on the card: {}; on the emulated device: {}",
                words(card),
                words(emulated)
            );
            return kit.found(&Finding::promise(check, false, says));
        }
    };
    let differ = card
        .iter()
        .zip(&emulated)
        .filter(|(one, other)| one != other)
        .count();
    let most = card
        .iter()
        .zip(&emulated)
        .map(|(one, other)| steps(*one, *other))
        .max()
        .unwrap_or(0);
    let first = card.iter().zip(&emulated).position(|(one, other)| one != other);
    let first = first.map(|at| json!({"word": at, "card": format!("{:#x}", card[at]), "emulated": format!("{:#x}", emulated[at])}));
    let (holds, says) = match exact {
        true => (differ == 0, format!("{differ} of {} words differ", card.len())),
        false => (
            most <= NEAR,
            format!(
                "{differ} of {} numbers differ, by {most} steps of single precision at most",
                card.len()
            ),
        ),
    };
    let holds = holds && card.len() == emulated.len();
    kit.found(
        &Finding::promise(check, holds, says)
            .figure(f64::from(u32::try_from(differ).unwrap_or(u32::MAX)), Unit::Count)
            .details(json!({"first": first})),
    )
}

/// How many numbers of single precision lie between two.
fn steps(one: u32, other: u32) -> u32 {
    // Negative numbers count downwards from zero.
    let place = |bits: u32| match bits >> 31 {
        0 => i64::from(bits),
        _ => -i64::from(bits & 0x7fff_ffff),
    };
    u32::try_from((place(one) - place(other)).abs()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_known_by_whole_words() {
        for (name, spec) in [
            ("NVIDIA L4", Some("l4")),
            ("NVIDIA L40", None),
            ("NVIDIA L40S", Some("l40s")),
            ("NVIDIA RTX A3000", None),
            ("NVIDIA A30", Some("a30")),
            ("NVIDIA H100 80GB HBM3", Some("h100")),
            ("NVIDIA GH200 480GB", None),
            ("NVIDIA A10G", None),
            ("NVIDIA GeForce RTX 4090", Some("rtx4090")),
            ("NVIDIA H200", Some("h200")),
            ("NVIDIA A100-SXM4-40GB", Some("a100-40gb")),
            ("Tesla T4", Some("t4")),
            ("", None),
        ] {
            assert_eq!(emulated_as(name), spec, "{name}");
        }
    }

    #[test]
    fn steps_are_counted_over_zero() {
        assert_eq!(steps(1.0_f32.to_bits(), 1.0_f32.to_bits()), 0);
        assert_eq!(steps(1.0_f32.to_bits(), 1.0_f32.to_bits() + 3), 3);
        assert_eq!(steps(0x8000_0001, 0x0000_0002), 3);
    }
}

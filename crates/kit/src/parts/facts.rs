//! What the driver and NVML say of the card, and which of their functions we know.

use std::ffi::CString;

use divvy_abi::nvml::{NVML_COMPUTEMODE_DEFAULT, NVML_COMPUTEMODE_PROHIBITED, nvmlComputeMode_t};
use divvy_abi::{Query, Symbol, query};
use serde_json::json;

use super::{Card, count};
use crate::conversation::Conversation;
use crate::finding::{Failure, Finding, Unit, Verdict};
use crate::gpu::Gpu;
use crate::kit::Kit;
use crate::scrub::foreign;

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    match Card::of(kit) {
        Ok(card) => of_nvml(kit, &card)?,
        Err(why) => kit.found(&Finding::skipped("facts.nvml", why))?,
    }
    let gpu = Gpu::load().map_err(|why| foreign(&why))?;
    exports(kit, &gpu)?;
    // The first context's cost, by NVML's figures before it and after.
    let before = used(kit);
    let gpu = Gpu::open()?;
    let after = used(kit);
    if let (Some(before), Some(after)) = (before, after) {
        let finding = Finding::fact("facts.context", "device memory that a first context takes")
            .bytes(after.saturating_sub(before));
        kit.found(&finding)?;
    }
    another_context(kit)?;
    of_driver(kit, &gpu)?;
    entries(kit, &gpu)
}

/// What the context of a second process takes.
fn another_context(kit: &mut Kit) -> Result<(), Failure> {
    let before = used(kit);
    let another = match Conversation::start(Kit::bare_tenant("memory"), kit.left()) {
        Ok((another, _)) => another,
        // A card that takes one program at a time has this one's context already.
        Err(why) => return kit.found(&Finding::skipped("facts.context.another", why)),
    };
    let after = used(kit);
    drop(another);
    let (Some(before), Some(after)) = (before, after) else {
        return Ok(());
    };
    let says = "device memory that a context of another process takes";
    kit.found(&Finding::fact("facts.context.another", says).bytes(after.saturating_sub(before)))
}

fn used(kit: &Kit) -> Option<u64> {
    let card = Card::of(kit).ok()?;
    Some(card.nvml.memory(card.handle).ok()?.used)
}

fn of_nvml(kit: &mut Kit, card: &Card) -> Result<(), Failure> {
    kit.found(&Finding::fact("facts.name", foreign(&card.name)))?;
    if let Ok(version) = card.nvml.driver_version() {
        kit.found(&of_version(&foreign(&version), kit.is_emulated()))?;
    }
    match card.nvml.compute_mode(card.handle) {
        Ok(mode) => kit.found(&of_mode(mode))?,
        Err(failure) => kit.found(&Finding::skipped("facts.mode", failure.to_string()))?,
    }
    match card.nvml.uncorrected_errors(card.handle) {
        Ok(errors) => kit.found(&of_errors(errors))?,
        Err(failure) => kit.found(&Finding::skipped("facts.ecc", failure.to_string()))?,
    }
    if let Ok(memory) = card.nvml.memory(card.handle) {
        kit.found(&Finding::fact("facts.memory.total", "memory in all, by NVML").bytes(memory.total))?;
        kit.found(&Finding::fact("facts.memory.reserved", "set aside by the driver").bytes(memory.reserved))?;
        kit.found(&Finding::fact("facts.memory.used", "in use before the kit's own").bytes(memory.used))?;
    }
    match card.nvml.mig_mode(card.handle) {
        Ok(true) => kit.found(&Finding::skipped(
            "facts.mig",
            "the card is in MIG mode: the kit asks whatever CUDA shows first",
        ))?,
        Ok(false) => kit.found(&Finding::fact("facts.mig", "MIG mode is off"))?,
        Err(_) => kit.found(&Finding::fact("facts.mig", "the product has no MIG"))?,
    }
    match card.nvml.processes(card.handle) {
        Ok(others) if !others.is_empty() => kit.found(
            &Finding::fact(
                "facts.busy",
                "other programs use the card: figures of time are theirs too",
            )
            .figure(count(others.len()), Unit::Count),
        ),
        Ok(_) => kit.found(&Finding::fact("facts.busy", "no other program uses the card")),
        Err(failure) => kit.found(&Finding::skipped("facts.busy", failure.to_string())),
    }
}

/// The oldest driver that has version 3 of NVML's process lists, by its major number.
const OLDEST: u32 = 525;

fn of_version(version: &str, is_emulated: bool) -> Finding {
    let major: Option<u32> = version.split('.').next().and_then(|major| major.parse().ok());
    let old = !is_emulated && major.is_some_and(|major| major < OLDEST);
    let says = match old {
        true => format!("driver {version} is older than {OLDEST}, the oldest that Divvy was written for"),
        false => format!("driver {version}"),
    };
    Finding::promise("facts.driver", !old, says)
}

fn of_mode(mode: nvmlComputeMode_t) -> Finding {
    const CHECK: &str = "facts.mode";
    match mode {
        NVML_COMPUTEMODE_DEFAULT => Finding::fact(CHECK, "several programs may use the card at once"),
        NVML_COMPUTEMODE_PROHIBITED => Finding::skipped(CHECK, "the card is set to take no program"),
        _ => Finding::skipped(
            CHECK,
            "the card is set to take one program at a time: it cannot be shared",
        ),
    }
}

fn of_errors(errors: u64) -> Finding {
    #[expect(clippy::cast_precision_loss, reason = "a count to read")]
    let figure = errors as f64;
    let says = match errors {
        0 => "the card's memory had no error that ECC could not correct",
        _ => "errors of the card's memory that ECC could not correct: wrong results may be the card's own",
    };
    let verdict = if errors == 0 {
        Verdict::Fact
    } else {
        Verdict::Skipped
    };
    Finding::new("facts.ecc", verdict, says).figure(figure, Unit::Count)
}

/// Whether the driver serves a newer CUDA than our tables have.
fn of_cuda(version: i32) -> Finding {
    let (major, minor) = (version / 1000, version % 1000 / 10);
    let ours = i32::try_from(divvy_abi::CUDA_VERSION).unwrap_or(i32::MAX);
    let says = match version > ours {
        true => format!(
            "the driver serves CUDA {major}.{minor}; our tables end with {}.{}, and what is newer is handed on uncharged",
            ours / 1000,
            ours % 1000 / 10
        ),
        false => format!("the driver serves CUDA {major}.{minor}"),
    };
    Finding::fact("facts.cuda", says)
}

/// Which of the functions that we know the library exports.
fn exports(kit: &mut Kit, gpu: &Gpu) -> Result<(), Failure> {
    let missing: Vec<&str> = Symbol::ALL
        .iter()
        .filter(|symbol| !gpu.exports(symbol.c_name()))
        .map(|symbol| symbol.name())
        .collect();
    let known = Symbol::ALL.len();
    let says = format!(
        "{} of {known} functions of our table are exported",
        known - missing.len()
    );
    kit.found(
        &Finding::fact("facts.exports", says)
            .figure(count(missing.len()), Unit::Count)
            .details(json!({"missing": missing})),
    )
}

fn of_driver(kit: &mut Kit, gpu: &Gpu) -> Result<(), Failure> {
    let words = |error: crate::gpu::CudaError| error.to_string();
    let version = gpu.cuda_version().map_err(words)?;
    kit.found(&of_cuda(version))?;
    let (free, total) = gpu.memory().map_err(words)?;
    kit.found(&Finding::fact("facts.cuda.total", "memory in all, by CUDA").bytes(total))?;
    kit.found(&Finding::fact("facts.cuda.free", "free memory, by CUDA").bytes(free))?;
    match gpu.granularity() {
        Ok((least, recommended)) => {
            kit.found(
                &Finding::fact("facts.granularity", "least step of physical memory").bytes(least as u64),
            )?;
            let says = "recommended step of physical memory";
            kit.found(&Finding::fact("facts.granularity.recommended", says).bytes(recommended as u64))?;
        }
        Err(error) => kit.found(&Finding::skipped("facts.granularity", error.to_string()))?,
    }
    // Numbers beyond the last are refused, and left out.
    let attributes: serde_json::Map<String, serde_json::Value> = (1..200)
        .filter_map(|number| Some((number.to_string(), gpu.attribute(number).ok()?.into())))
        .collect();
    kit.found(
        &Finding::fact(
            "facts.attributes",
            "attributes of the device that the driver knows",
        )
        .figure(count(attributes.len()), Unit::Count)
        .details(attributes.into()),
    )
}

/// Whether the driver finds by name, version and flags what our own table says that it finds.
fn entries(kit: &mut Kit, gpu: &Gpu) -> Result<(), Failure> {
    let version = gpu.cuda_version().map_err(|error| error.to_string())?;
    let (mut asked, mut other) = (0, Vec::new());
    let mut names: Vec<&str> = Symbol::ALL.iter().map(|symbol| symbol.public_name()).collect();
    names.dedup();
    for name in names {
        let Ok(text) = CString::new(name) else { continue };
        for flags in 0..=2 {
            let Ok(has) = gpu.has_entry(&text, version, flags) else {
                continue;
            };
            asked += 1;
            let ours = matches!(query(name, version, flags), Query::Found(_));
            if has != ours {
                other.push(json!({"name": name, "flags": flags, "driver": has, "ours": ours}));
            }
        }
    }
    let says = format!(
        "{} of {asked} answers of cuGetProcAddress differ from our table's",
        other.len()
    );
    kit.found(
        &Finding::promise("facts.entries", other.is_empty(), says)
            .figure(count(other.len()), Unit::Count)
            .details(json!({"differ": other})),
    )
}

#[cfg(test)]
mod tests {
    use divvy_abi::nvml::NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;

    use super::*;

    #[test]
    fn a_card_that_is_not_as_usual_is_told_of() {
        assert_eq!(of_version("520.61.05", false).verdict, Verdict::Fails);
        for (version, is_emulated) in [
            ("525.60.13", false),
            ("999.1", false),
            ("1.0", true),
            ("odd", false),
        ] {
            assert_eq!(
                of_version(version, is_emulated).verdict,
                Verdict::Holds,
                "{version}"
            );
        }
        assert_eq!(of_mode(NVML_COMPUTEMODE_DEFAULT).verdict, Verdict::Fact);
        assert!(
            of_mode(NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
                .says
                .contains("one program at a time")
        );
        assert!(of_mode(NVML_COMPUTEMODE_PROHIBITED).says.contains("no program"));
        assert_eq!(of_errors(0).verdict, Verdict::Fact);
        assert_eq!(of_errors(3).verdict, Verdict::Skipped);
        assert_eq!(of_cuda(12040).says, "the driver serves CUDA 12.4");
        assert!(
            of_cuda(14010)
                .says
                .starts_with("the driver serves CUDA 14.1; our tables end with ")
        );
    }
}

//! What the driver and NVML say of the card, and which of their functions we know.

use std::ffi::CString;

use divvy_abi::{Query, Symbol, query};
use serde_json::json;

use super::{Card, count};
use crate::finding::{Failure, Finding, Unit};
use crate::gpu::Gpu;
use crate::kit::Kit;

pub(crate) fn run(kit: &mut Kit) -> Result<(), Failure> {
    match Card::of(kit) {
        Ok(card) => of_nvml(kit, &card)?,
        Err(why) => kit.found(&Finding::skipped("facts.nvml", why))?,
    }
    let gpu = Gpu::load()?;
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
    of_driver(kit, &gpu)?;
    entries(kit, &gpu)
}

fn used(kit: &Kit) -> Option<u64> {
    let card = Card::of(kit).ok()?;
    Some(card.nvml.memory(card.handle).ok()?.used)
}

fn of_nvml(kit: &mut Kit, card: &Card) -> Result<(), Failure> {
    kit.found(&Finding::fact("facts.name", card.name.clone()))?;
    if let Ok(version) = card.nvml.driver_version() {
        // 525 is the first with NVML's version 3 of process lists.
        let major: Option<u32> = version.split('.').next().and_then(|major| major.parse().ok());
        let old = !kit.is_emulated() && major.is_some_and(|major| major < 525);
        let says = match old {
            true => format!("driver {version} is older than 525, the oldest that Divvy was written for"),
            false => format!("driver {version}"),
        };
        kit.found(&Finding::promise("facts.driver", !old, says))?;
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
    kit.found(&Finding::fact(
        "facts.cuda",
        format!(
            "the driver serves CUDA {}.{}",
            version / 1000,
            version % 1000 / 10
        ),
    ))?;
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

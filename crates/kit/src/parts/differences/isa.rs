//! Each instruction, bit for bit. What the emulated device answered was written down when the kit was packed.

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::json;

use crate::finding::{Failure, Finding, Unit};
use crate::gpu::{Gpu, Kernel, Module, Shape};
use crate::kit::{Kit, beside};
use crate::scrub::foreign;

/// One kernel: an instruction between loads and stores, a lane for each set of operands.
#[derive(Debug, Deserialize)]
struct Case {
    /// The instruction.
    name: String,
    /// The kernel, whose entry is `probe`: the number of lanes, then the operands' and the results' memory.
    ptx: String,
    /// For each operand, its value in each lane.
    inputs: Vec<Vec<u64>>,
    results: Vec<Answers>,
}

/// What the emulated device answered.
#[derive(Debug, Deserialize)]
struct Answers {
    #[serde(rename = "type")]
    of: String,
    /// In each lane.
    bits: Vec<u64>,
    /// `1` for each lane in which the ISA says which bits it has to be; `0` where it leaves them open.
    exact: String,
}

/// How many lanes differ, and the first of them.
#[derive(Debug, Default)]
struct Difference {
    exact: usize,
    open: usize,
    first: Option<serde_json::Value>,
}

/// Where the cases are: beside the programs of an archive, unless the developer says where.
fn cases_file() -> PathBuf {
    std::env::var_os("KIT_CASES").map_or_else(|| beside("../cases/isa.jsonl"), PathBuf::from)
}

pub(super) fn run(kit: &mut Kit) -> Result<(), Failure> {
    let Ok(file) = File::open(cases_file()) else {
        return kit.found(&Finding::skipped(
            "differences.isa",
            "this kit was packed without the cases",
        ));
    };
    // Whatever becomes of the cases: the next look at the card is another program's.
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(why) => return kit.found(&Finding::skipped("differences.isa", foreign(&why))),
    };
    let outcome = cases(kit, &gpu, file);
    let _closed = gpu.close();
    outcome
}

fn cases(kit: &mut Kit, gpu: &Gpu, file: File) -> Result<(), Failure> {
    const MAJOR: u32 = 75;
    const MINOR: u32 = 76;
    let of_card = |number| gpu.attribute(number).map_err(|error| error.to_string());
    let capability = of_card(MAJOR)? * 10 + of_card(MINOR)?;
    let mut as_recorded = false;
    let (mut same, mut other, mut open, mut refused) = (0_u32, 0_u32, 0_u32, Vec::new());
    for line in BufReader::new(file).lines() {
        let line = line.map_err(|error| error.to_string())?;
        let case: Case =
            serde_json::from_str(&line).map_err(|error| format!("a case is damaged: {error}"))?;
        if kit.left().as_secs() < 3 {
            kit.no_time("differences.rest")?;
            break;
        }
        match compare(gpu, &case, capability, &mut as_recorded) {
            Err(Stop::Refused(why)) => refused.push(json!({"instruction": case.name, "why": why})),
            Err(Stop::Broken(why)) => {
                // After an error of a kernel, the context answers every call with it.
                let says = format!("`{}`: {why}; the cases after it were not tried", case.name);
                return kit.found(&Finding::promise("differences.isa.broken", false, says));
            }
            Ok(difference) if difference.exact > 0 => {
                other += 1;
                let says = format!("`{}` differs in {} lanes", case.name, difference.exact);
                let finding = Finding::promise(format!("differences.isa.{other}"), false, says);
                kit.found(&finding.details(json!({"first": difference.first})))?;
            }
            Ok(difference) => {
                same += 1;
                if difference.open > 0 {
                    open += 1;
                    let says = format!(
                        "`{}` differs in {} lanes, in which the ISA leaves the bits open",
                        case.name, difference.open
                    );
                    let finding = Finding::fact(format!("differences.open.{open}"), says);
                    kit.found(&finding.details(json!({"first": difference.first})))?;
                }
            }
        }
    }
    if !refused.is_empty() {
        let says = format!(
            "the card refuses {} kernels that the emulated device runs",
            refused.len()
        );
        // An older driver or card does not know all of them. One that takes others as they are knows these too.
        let finding = match as_recorded {
            true => Finding::promise("differences.refused", false, says),
            false => Finding::skipped("differences.refused", says),
        };
        kit.found(&finding.details(json!(refused)))?;
    }
    if same + other == 0 {
        let why = "the card has taken none of the cases";
        return kit.found(&Finding::skipped("differences.isa", why));
    }
    kit.found(
        &Finding::promise(
            "differences.isa",
            other == 0 && same > 0,
            format!("{same} instructions answer the same on both, {other} do not"),
        )
        .figure(f64::from(other), Unit::Count),
    )
}

/// Why a case was not compared.
enum Stop {
    /// The driver does not take the kernel.
    Refused(Failure),
    /// A call failed that takes the context with it.
    Broken(Failure),
}

/// The same kernel for an older driver or card: the version of PTX that R520 knows, and what the card can do.
fn for_older(ptx: &str, capability: i32) -> String {
    let target = format!(".target sm_{}", capability.min(90));
    ptx.replacen(".version 8.5", ".version 7.8", 1)
        .replacen(".target sm_90", &target, 1)
}

/// Loads a case's kernel, as it was recorded if the card takes it so.
fn load(gpu: &Gpu, case: &Case, capability: i32, as_recorded: &mut bool) -> Result<(Module, Kernel), Stop> {
    let text = |ptx: &str| CString::new(ptx).map_err(|error| Stop::Refused(error.to_string()));
    match gpu.load_kernel(&text(&case.ptx)?, c"probe") {
        Ok(loaded) => {
            *as_recorded = true;
            Ok(loaded)
        }
        Err(first) => gpu
            .load_kernel(&text(&for_older(&case.ptx, capability))?, c"probe")
            .map_err(|_| Stop::Refused(first.to_string())),
    }
}

fn compare(gpu: &Gpu, case: &Case, capability: i32, as_recorded: &mut bool) -> Result<Difference, Stop> {
    let (module, kernel) = load(gpu, case, capability, as_recorded)?;
    let difference = run_case(gpu, case, kernel).map_err(Stop::Broken)?;
    gpu.unload(module)
        .map_err(|error| Stop::Broken(error.to_string()))?;
    Ok(difference)
}

fn run_case(gpu: &Gpu, case: &Case, kernel: Kernel) -> Result<Difference, Failure> {
    const THREADS: u32 = 96;
    let words = |error: crate::gpu::CudaError| error.to_string();
    let lanes = case.inputs.first().map_or(0, Vec::len);
    let count = u32::try_from(lanes).map_err(|error| error.to_string())?;
    let mut places = Vec::new();
    for input in &case.inputs {
        let place = gpu.zeroed(lanes * 8).map_err(words)?;
        let bytes: Vec<u8> = input.iter().flat_map(|value| value.to_le_bytes()).collect();
        gpu.write(place, &bytes).map_err(words)?;
        places.push(place);
    }
    for _ in &case.results {
        places.push(gpu.zeroed(lanes * 8).map_err(words)?);
    }
    let mut parameters = vec![count.to_le_bytes().to_vec()];
    parameters.extend(places.iter().map(|place| place.to_le_bytes().to_vec()));
    let launched = gpu
        .launch(
            kernel,
            Shape::line(count.div_ceil(THREADS), THREADS),
            &mut parameters,
        )
        .and_then(|()| gpu.synchronize());
    launched.map_err(words)?;
    let mut difference = Difference::default();
    for (answers, place) in case.results.iter().zip(&places[case.inputs.len()..]) {
        let bytes = gpu.read(*place, lanes * 8).map_err(words)?;
        let got = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        for (lane, ((got, wanted), exact)) in got.zip(&answers.bits).zip(answers.exact.bytes()).enumerate() {
            if got == *wanted {
                continue;
            }
            match exact {
                b'1' => difference.exact += 1,
                _ => difference.open += 1,
            }
            difference.first.get_or_insert_with(|| {
                let operands: Vec<String> = case
                    .inputs
                    .iter()
                    .map(|input| format!("{:#x}", input[lane]))
                    .collect();
                json!({
                    "type": answers.of,
                    "operands": operands,
                    "card": format!("{got:#x}"),
                    "emulated": format!("{wanted:#x}"),
                })
            });
        }
    }
    for place in places {
        gpu.free(place).map_err(words)?;
    }
    Ok(difference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_card_is_asked_for_what_it_can_do() {
        let recorded = ".version 8.5\n.target sm_90\n.address_size 64\n";
        assert_eq!(
            for_older(recorded, 75),
            ".version 7.8\n.target sm_75\n.address_size 64\n"
        );
        assert!(for_older(recorded, 100).contains("sm_90"));
    }
}

//! Writes down what the engine answered, for `cargo xtask gpu-kit`: a machine with a card runs the same kernels on it
//! and compares bit for bit. Without `KIT_RECORD`, which names a folder, nothing is written.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use serde_json::json;

use crate::want::Want;

/// Lanes of one kernel that are written down: enough for all special values, thinned out.
const MOST: usize = 1024;

/// The first trial of each instruction.
pub fn record(
    name: &str,
    ptx: &str,
    lanes: &[Vec<u64>],
    types: &[String],
    outputs: &[Vec<u64>],
    model: &impl Fn(&[u64]) -> Vec<Want>,
) {
    let Some(folder) = std::env::var_os("KIT_RECORD") else {
        return;
    };
    let mut hasher = DefaultHasher::new();
    (name, ptx).hash(&mut hasher);
    let file = PathBuf::from(folder).join(format!("{:016x}.json", hasher.finish()));
    if file.exists() {
        return;
    }
    let step = lanes.len().div_ceil(MOST);
    let kept: Vec<usize> = (0..lanes.len()).step_by(step).collect();
    let inputs: Vec<Vec<u64>> = (0..lanes[0].len())
        .map(|operand| kept.iter().map(|lane| lanes[*lane][operand]).collect())
        .collect();
    let results: Vec<_> = (0..outputs.len())
        .map(|result| {
            let bits: Vec<u64> = kept.iter().map(|lane| outputs[result][*lane]).collect();
            // What the ISA leaves open may differ from card to card.
            let exact: String = kept
                .iter()
                .map(|lane| match model(&lanes[*lane])[result] {
                    Want::Bits(_) => '1',
                    _ => '0',
                })
                .collect();
            json!({"type": types[result], "bits": bits, "exact": exact})
        })
        .collect();
    let case = json!({"name": name, "ptx": ptx, "inputs": inputs, "results": results});
    fs::write(file, case.to_string()).expect("KIT_RECORD names a folder");
}

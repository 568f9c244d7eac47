//! Whether a driver and a toolkit go together: what runs a runtime, what reads PTX, what loads a cubin.
//!
//! Rules of NVIDIA's "CUDA Compatibility": a driver runs every runtime of its own CUDA major version and of older ones
//! (minor version compatibility, from the driver that the major version began with). It compiles PTX of its own CUDA
//! version and older. A cubin runs on devices of its own major compute capability and the same or a later minor one.

use crate::tool::{Tools, first_words};

/// A CUDA version, major and minor.
pub type CudaVersion = (u32, u32);

/// The first driver that runs a major version's runtimes.
const FIRST_DRIVERS: [(u32, (u32, u32)); 3] = [(11, (450, 80)), (12, (525, 60)), (13, (580, 65))];

/// How a driver and a toolkit get on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// Everything that the toolkit makes runs.
    Good,
    /// Its cubins run; its PTX is too new for the driver.
    NoPtx(String),
    /// Its runtime does not start on the driver.
    NoRuntime(String),
}

/// Compares a driver that offers `cuda`, itself of version `driver`, with a toolkit.
#[must_use]
pub fn compare(driver: &str, cuda: CudaVersion, toolkit: CudaVersion) -> Match {
    let shown = |(major, minor): CudaVersion| format!("{major}.{minor}");
    if toolkit <= cuda {
        return Match::Good;
    }
    let needed = FIRST_DRIVERS.iter().find(|(major, _)| *major == toolkit.0);
    let mut numbers = driver.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let own = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if toolkit.0 > cuda.0 {
        let from = needed.map_or_else(String::new, |(_, (major, minor))| {
            format!("; it wants driver {major}.{minor} or later")
        });
        return Match::NoRuntime(format!(
            "the toolkit is CUDA {}, the driver offers {}{from}",
            shown(toolkit),
            shown(cuda)
        ));
    }
    if let Some((_, first)) = needed.filter(|(_, first)| own < *first) {
        return Match::NoRuntime(format!(
            "CUDA {} wants driver {}.{} or later",
            shown(toolkit),
            first.0,
            first.1
        ));
    }
    Match::NoPtx(format!(
        "the toolkit is CUDA {}, the driver offers {}: compile for the devices themselves, not for PTX",
        shown(toolkit),
        shown(cuda)
    ))
}

/// Whether a cubin for `built` (as `9.0`) runs on a device of `device`; `specific` is an `sm_90a`.
#[must_use]
pub fn cubin_runs(built: CudaVersion, specific: bool, device: CudaVersion) -> bool {
    if specific {
        built == device
    } else {
        built.0 == device.0 && built.1 <= device.1
    }
}

/// How what a toolkit compiles gets onto a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loads {
    /// As machine code.
    Cubin,
    /// As PTX only, which the driver compiles when the program starts.
    Ptx,
    /// Not at all.
    Never,
}

/// How code of a toolkit that compiles for `codes` gets onto a device; `ptx` is whether the driver reads its PTX.
#[must_use]
pub fn loads(codes: &[(CudaVersion, bool)], ptx: bool, device: CudaVersion) -> Loads {
    let cubin = |(built, specific): &(CudaVersion, bool)| cubin_runs(*built, *specific, device);
    // PTX for a device of then runs on every later one.
    let older = |(built, specific): &(CudaVersion, bool)| !specific && *built <= device;
    match (codes.iter().any(cubin), ptx && codes.iter().any(older)) {
        (true, _) => Loads::Cubin,
        (false, true) => Loads::Ptx,
        (false, false) => Loads::Never,
    }
}

/// What the toolkit on PATH compiles for: `sm_90` is 9.0, and an `sm_90a` is for that device only.
///
/// # Errors
/// [`divvy_model::Code::Tool`] for a compiler that hangs or says what is not understood.
pub fn codes(tools: &mut dyn Tools) -> Result<Vec<(CudaVersion, bool)>, divvy_model::Fault> {
    let said = tools.run("nvcc", &["--list-gpu-code"], &[], "")?;
    let code = |word: &str| {
        let number = word.strip_prefix("sm_")?;
        let digits = number.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let value: u32 = digits.parse().ok()?;
        // `sm_100f` is for a family, of which each code is listed by itself too.
        Some(((value / 10, value % 10), digits.len() < number.len()))
    };
    let found: Vec<_> = said.split_whitespace().filter_map(code).collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(divvy_model::Fault::new(
            divvy_model::Code::Tool,
            "nvcc does not tell what it compiles for",
        )
        .cause(first_words(&said))),
    }
}

/// The toolkit on PATH, as its compiler tells; None where there is none.
///
/// # Errors
/// [`divvy_model::Code::Tool`] for a compiler that hangs or says what is not understood.
pub fn toolkit(tools: &mut dyn Tools) -> Result<Option<CudaVersion>, divvy_model::Fault> {
    let said = match tools.run("nvcc", &["--version"], &[], "") {
        Ok(said) => said,
        Err(fault) if fault.message.contains("cannot be run") => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let release = said.split_once("release ").and_then(|(_, rest)| {
        let (major, rest) = rest.split_once('.')?;
        let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some((major.trim().parse().ok()?, minor.parse().ok()?))
    });
    release.map(Some).ok_or_else(|| {
        divvy_model::Fault::new(divvy_model::Code::Tool, "nvcc does not tell its release")
            .cause(first_words(&said))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_and_toolkits() {
        let good = |driver, cuda, toolkit| compare(driver, cuda, toolkit) == Match::Good;
        assert!(good("550.54.15", (12, 4), (12, 4)));
        assert!(good("550.54.15", (12, 4), (11, 8)), "older runtimes run");
        assert!(matches!(compare("550.54.15", (12, 4), (12, 6)), Match::NoPtx(_)));
        assert!(
            matches!(compare("550.54.15", (12, 4), (13, 0)), Match::NoRuntime(why) if why.contains("580.65"))
        );
        assert!(
            matches!(compare("510.47.03", (11, 6), (12, 0)), Match::NoRuntime(why) if why.contains("525.60"))
        );
        assert!(matches!(
            compare("rubbish", (12, 0), (12, 1)),
            Match::NoRuntime(_)
        ));
    }

    #[test]
    fn cubins() {
        assert!(cubin_runs((8, 0), false, (8, 6)));
        assert!(!cubin_runs((8, 6), false, (8, 0)));
        assert!(!cubin_runs((8, 0), false, (9, 0)));
        assert!(cubin_runs((9, 0), true, (9, 0)) && !cubin_runs((10, 0), true, (10, 3)));
    }

    #[test]
    fn what_a_toolkit_compiles_gets_onto_a_device_as_machine_code_ptx_or_not() {
        let old = [((5, 0), false), ((8, 0), false)];
        assert_eq!(loads(&old, true, (8, 9)), Loads::Cubin);
        assert_eq!(loads(&old, true, (9, 0)), Loads::Ptx);
        assert_eq!(
            loads(&old, false, (9, 0)),
            Loads::Never,
            "the driver cannot read it"
        );
        assert_eq!(
            loads(&old, true, (3, 5)),
            Loads::Never,
            "the toolkit has dropped it"
        );
        assert_eq!(loads(&[((9, 0), true)], true, (10, 0)), Loads::Never);
    }

    struct Says(&'static str);

    impl Tools for Says {
        fn run(
            &mut self,
            _: &str,
            _: &[&str],
            _: &[(&str, String)],
            _: &str,
        ) -> Result<String, divvy_model::Fault> {
            Ok(self.0.into())
        }
    }

    #[test]
    fn what_the_compiler_says() {
        let said = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.4, V12.4.131\n";
        assert_eq!(toolkit(&mut Says(said)), Ok(Some((12, 4))));
        let told = codes(&mut Says("sm_50\nsm_90\nsm_90a\nsm_120f\n"));
        let expected = vec![((5, 0), false), ((9, 0), false), ((9, 0), true), ((12, 0), true)];
        assert_eq!(told, Ok(expected));
        assert!(codes(&mut Says("banana sm_ sm_x")).is_err());
        assert!(toolkit(&mut Says("banana")).is_err());
    }
}

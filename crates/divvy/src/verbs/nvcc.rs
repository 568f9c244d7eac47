//! `divvy nvcc`: NVIDIA's compiler, told to make programs that run on emulated devices too.
//!
//! Two things decide that. The program is linked with the shared runtime library, which `divvy run` can give it ours
//! for; and it carries PTX, which an emulated device runs where it cannot run a GPU's own code.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_agent::DropIns;
use divvy_model::{Code, Fault};

use crate::context::Context;

/// Flags of `divvy nvcc`.
#[derive(Debug, clap::Args)]
#[command(
    disable_version_flag = true,
    before_help = "Examples:
  divvy nvcc -o saxpy saxpy.cu && divvy run -- ./saxpy
  divvy nvcc -O3 -arch=sm_90 -c kernels.cu"
)]
pub struct Args {
    /// What nvcc is told, as nvcc's own documentation says
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "NVCC-ARGUMENT"
    )]
    arguments: Vec<OsString>,
}

/// The words of `divvy nvcc …` with `--` before nvcc's own: its `-o` is a file, and ours a format. None for other verbs,
/// and where our help is asked for.
pub fn words() -> Option<Vec<OsString>> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let is_ours = words.get(1).is_some_and(|verb| verb == "nvcc")
        && words
            .get(2)
            .is_some_and(|word| !["--help", "-h", "--"].map(OsStr::new).contains(&word.as_os_str()));
    is_ours.then(|| {
        words.insert(2, "--".into());
        words
    })
}

/// Runs nvcc; its exit status.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let compiler = Compiler::find()?;
    let links = compiler.links(&context.run_dir()?.path().join("nvcc"))?;
    let told = arguments(&args.arguments, &links, compiler.library.as_deref());
    if let Some(remark) = &told.remark {
        eprintln!("divvy nvcc: {remark}");
    }
    let status = Command::new(&compiler.program)
        .args(&told.arguments)
        .status()
        .map_err(|error| {
            Fault::new(
                Code::CudaCompiler,
                format!("`{}` does not start", compiler.program.display()),
            )
            .because(&error)
        })?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1))
}

/// NVIDIA's compiler on this machine.
struct Compiler {
    program: PathBuf,
    /// The toolkit's folder with a shared runtime library, for programs that run on a GPU.
    library: Option<PathBuf>,
    /// Of CUDA.
    major: u32,
}

impl Compiler {
    /// Looks in PATH, CUDA_HOME, the active Python environment and the usual place.
    fn find() -> Result<Self, Fault> {
        let mut looked = Vec::new();
        for folder in folders() {
            let program = folder.join("nvcc");
            if program.is_file() {
                return Self::at(program);
            }
            looked.push(folder.display().to_string());
        }
        Err(Fault::new(Code::CudaCompiler, "there is no nvcc on this machine")
            .cause(format!("looked in {}", looked.join(", ")))
            .hint(
                "install the CUDA toolkit, or in a Python environment `pip install nvidia-cuda-nvcc \
                 nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl nvidia-nvvm`; CUDA_HOME names another toolkit",
            ))
    }

    fn at(program: PathBuf) -> Result<Self, Fault> {
        let refuse = |why: String| {
            Fault::new(
                Code::CudaCompiler,
                format!("`{}` does not tell its version", program.display()),
            )
            .cause(why)
        };
        let output = Command::new(&program)
            .arg("--version")
            .output()
            .map_err(|error| refuse(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let major = release(&text).ok_or_else(|| refuse(text.trim().to_owned()))?;
        // A link of PATH may lead elsewhere than where the toolkit lies.
        let real = program.canonicalize().unwrap_or_else(|_| program.clone());
        let toolkit = real.parent().and_then(Path::parent);
        let library = toolkit.and_then(|toolkit| {
            [
                "lib64",
                "lib",
                "targets/x86_64-linux/lib",
                "targets/sbsa-linux/lib",
            ]
            .iter()
            .map(|folder| toolkit.join(folder))
            .find(|folder| folder.join(format!("libcudart.so.{major}")).exists())
        });
        Ok(Self {
            program,
            library,
            major,
        })
    }

    /// A folder in which the linker finds a libcudart.so: the toolkit's own, or ours where the toolkit has none.
    fn links(&self, folder: &Path) -> Result<PathBuf, Fault> {
        let name = format!("libcudart.so.{}", self.major);
        let own = || {
            DropIns::find()?
                .runtime(self.major)
                .map(Path::to_owned)
                .ok_or_else(|| {
                    Fault::new(
                        Code::CudaCompiler,
                        format!("there is no runtime library of CUDA {}", self.major),
                    )
                    .hint("Divvy has those of CUDA 12 and 13")
                })
        };
        let library = match &self.library {
            Some(toolkit) => toolkit.join(&name),
            None => own()?,
        };
        let folder = folder.join(format!("cuda-{}", self.major));
        let mut links = vec![("libcudart.so", library)];
        // What `-lcuda` and `-lnvidia-ml` find: libraries with the driver's names and symbols. The program then asks for
        // `libcuda.so.1`, whichever that is where it starts. A toolkit's own stubs would do too; PyPI's has none. An
        // installation without our drivers still compiles what does not ask for them.
        if let Ok(drop_ins) = DropIns::find() {
            let drivers = drop_ins.emulated.links();
            links.extend(drivers.map(|(name, driver)| (name, driver.to_owned())));
        }
        for (name, library) in links {
            link(&folder, name, &library).map_err(|error| {
                Fault::new(Code::RunDir, format!("cannot make `{}`", folder.display())).because(&error)
            })?;
        }
        Ok(folder)
    }
}

/// Makes `folder/name` a link to `library`, in one step: two compilers may run at once.
fn link(folder: &Path, name: &str, library: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let link = folder.join(name);
    if fs::read_link(&link).is_ok_and(|target| target == library) {
        return Ok(());
    }
    let aside = folder.join(format!("{name}.{}", std::process::id()));
    let _ = fs::remove_file(&aside);
    std::os::unix::fs::symlink(library, &aside)?;
    fs::rename(&aside, &link)
}

/// Where an nvcc may lie, in order.
fn folders() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let mut folders: Vec<PathBuf> = variable("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    folders.retain(|folder| folder.is_absolute());
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        folders.extend(variable(name).map(|home| Path::new(&home).join("bin")));
    }
    if let Some(environment) = variable("VIRTUAL_ENV") {
        folders.extend(of_python(Path::new(&environment)));
    }
    folders.push("/usr/local/cuda/bin".into());
    folders
}

/// Where NVIDIA's packages put the compiler in a Python environment.
fn of_python(environment: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(environment.join("lib"))
        .into_iter()
        .flatten()
        .flatten()
        .flat_map(|version| {
            let nvidia = version.path().join("site-packages/nvidia");
            ["cu13/bin", "cuda_nvcc/bin"].map(|folder| nvidia.join(folder))
        })
        .collect();
    found.sort();
    found
}

/// The major number in "Cuda compilation tools, release 13.5, V13.5.37".
fn release(text: &str) -> Option<u32> {
    text.split_once("release ")?
        .1
        .split('.')
        .next()?
        .trim()
        .parse()
        .ok()
}

/// What nvcc is told, and what the user is.
struct Told {
    arguments: Vec<OsString>,
    remark: Option<&'static str>,
}

/// The user's arguments, then ours: the shared runtime and where it is, and PTX where the user's architectures have none.
fn arguments(given: &[OsString], links: &Path, library: Option<&Path>) -> Told {
    let mut arguments = given.to_vec();
    let mut remark = None;
    let words: Vec<&str> = given.iter().filter_map(|word| word.to_str()).collect();
    match value(&words, &["-cudart", "--cudart"]) {
        None => arguments.extend(["-cudart".into(), "shared".into()]),
        Some("shared") => {}
        Some(_) => {
            remark = Some(
                "a program that is not linked with the shared runtime runs over NVIDIA's driver only, and on no \
                 emulated device",
            );
        }
    }
    let mut folder = OsString::from("-L");
    folder.push(links);
    arguments.push(folder);
    if let Some(library) = library {
        // Searched after LD_LIBRARY_PATH, where `divvy run` puts ours for an emulated device.
        let mut path = OsString::from("-rpath=");
        path.push(library);
        arguments.extend([OsStr::new("-Xlinker").to_owned(), path]);
    }
    arguments.extend(ptx(&words).map(OsString::from));
    Told { arguments, remark }
}

/// The value of the last of these flags: behind it, or in it after `=`.
fn value<'a>(words: &[&'a str], names: &[&str]) -> Option<&'a str> {
    let mut found = None;
    for (at, word) in words.iter().enumerate() {
        for name in names {
            match word.strip_prefix(name) {
                Some("") => found = words.get(at + 1).copied(),
                Some(rest) => found = rest.strip_prefix('=').or(found),
                None => {}
            }
        }
    }
    found
}

/// The flag that embeds PTX, where all that the user asks for is code of GPUs. nvcc's own default has PTX, and so has
/// `-arch=sm_90`.
fn ptx(words: &[&str]) -> Option<String> {
    let mut lowest: Option<&str> = None;
    for (at, word) in words.iter().enumerate() {
        let given =
            ["-gencode", "--generate-code"]
                .iter()
                .find_map(|name| match word.strip_prefix(name)? {
                    "" => words.get(at + 1).copied(),
                    rest => rest.strip_prefix('='),
                });
        let Some(given) = given else { continue };
        let (_, code) = given.split_once("code=")?;
        if code.contains("compute_") {
            return None;
        }
        let architecture = given
            .split(',')
            .find_map(|part| part.trim_start_matches(['"', '\'']).strip_prefix("arch="))?;
        let number = |architecture: &str| -> u32 {
            architecture
                .trim_start_matches("compute_")
                .trim_end_matches(|c: char| !c.is_ascii_digit())
                .parse()
                .unwrap_or(u32::MAX)
        };
        if lowest.is_none_or(|lowest| number(architecture) < number(lowest)) {
            lowest = Some(architecture);
        }
    }
    lowest.map(|architecture| format!("-gencode=arch={architecture},code={architecture}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(given: &[&str]) -> String {
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        let told = arguments(&given, Path::new("/links"), Some(Path::new("/toolkit/lib")));
        let words: Vec<String> = told
            .arguments
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        words.join(" ")
    }

    #[test]
    fn the_runtime_is_shared_unless_the_user_says_otherwise() {
        assert_eq!(
            told(&["-o", "a", "a.cu"]),
            "-o a a.cu -cudart shared -L/links -Xlinker -rpath=/toolkit/lib"
        );
        assert!(!told(&["--cudart=shared"]).contains("-cudart shared"));
        let given = ["-cudart", "static"].map(OsString::from);
        let told = arguments(&given, Path::new("/links"), None);
        assert!(told.remark.is_some());
        assert!(!told.arguments.contains(&"shared".into()));
    }

    #[test]
    fn ptx_is_added_where_there_would_be_none() {
        for with in [
            vec!["-arch=sm_90"],
            vec!["-gencode", "arch=compute_80,code=[sm_80,compute_80]"],
            vec![
                "-gencode=arch=compute_80,code=sm_80",
                "-gencode=arch=compute_90,code=compute_90",
            ],
            vec!["-o", "gencode"],
        ] {
            assert_eq!(ptx(&with), None, "{with:?}");
        }
        assert_eq!(
            ptx(&[
                "-gencode",
                "arch=compute_90a,code=sm_90a",
                "-gencode=arch=compute_80,code=sm_80"
            ])
            .as_deref(),
            Some("-gencode=arch=compute_80,code=compute_80")
        );
    }

    #[test]
    fn the_release_is_read() {
        let text = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.5, V13.5.37\n";
        assert_eq!(release(text), Some(13));
        assert_eq!(release("clang version 19"), None);
    }
}

//! Programs that the machine's own nvcc makes of the kit's sources: with the runtime linked statically, and with a fatbin that
//! is loaded by the driver's functions. The kit cannot bring them: the runtime is NVIDIA's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::ended::within;
use crate::finding::Failure;
use crate::kit::Kit;
use crate::place::own_file;

/// Where it is by default, for users whose PATH does not have it.
const USUAL: &str = "/usr/local/cuda/bin/nvcc";
/// How long one call of it may take: it starts a C++ compiler twice.
const COMPILE: Duration = Duration::from_secs(60);

const STATIC: &str = include_str!("../../cuda/static.cu");
const KERNEL: &str = include_str!("../../cuda/kernel.cu");
const LOAD: &str = include_str!("../../cuda/load.cu");

/// The programs: the name of each, and how it is made in a folder.
type Make = fn(&Nvcc, &Path) -> Result<Command, Failure>;
pub(super) const PROGRAMS: [(&str, Make); 2] = [("nvcc.static", static_runtime), ("nvcc.fatbin", fatbin)];

/// The compiler.
pub(super) struct Nvcc {
    program: PathBuf,
    limit: Duration,
}

impl Nvcc {
    /// The machine's, or why there is none to use.
    pub fn of_machine(kit: &Kit) -> Result<Self, Failure> {
        let mut why = String::new();
        for program in ["nvcc", USUAL] {
            match within(Command::new(program).arg("--version"), kit.left()) {
                Ok(ended) if ended.is_well() => {
                    return Ok(Self {
                        program: program.into(),
                        limit: COMPILE.min(kit.left()),
                    });
                }
                Ok(ended) => why = format!("nvcc does not run: {}", ended.why()),
                Err(_) if why.is_empty() => why = "nvcc is not installed".to_owned(),
                Err(_) => {}
            }
        }
        Err(why)
    }

    fn compile(&self, flags: &[&str], source: &Path, to: &Path) -> Result<(), Failure> {
        let mut command = Command::new(&self.program);
        command.args(flags).arg("-o").arg(to).arg(source);
        // What it makes on its way lies where no other user can put anything.
        command.envs(to.parent().map(|folder| ("TMPDIR", folder)));
        let ended = within(&mut command, self.limit)?;
        match ended.is_well() && to.exists() {
            true => Ok(()),
            false => Err(format!("nvcc makes no program: {}", ended.why())),
        }
    }
}

/// A new folder of this part's own.
pub(super) fn folder() -> Result<PathBuf, Failure> {
    let folder = own_file("nvcc").ok_or("this part has no place of its own")?;
    match fs::create_dir(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.to_string()),
        _ => Ok(folder),
    }
}

fn source(folder: &Path, name: &str, text: &str) -> Result<PathBuf, Failure> {
    let file = folder.join(name);
    fs::write(&file, text).map_err(|error| error.to_string())?;
    Ok(file)
}

fn static_runtime(nvcc: &Nvcc, folder: &Path) -> Result<Command, Failure> {
    let program = folder.join("static");
    nvcc.compile(
        &["-cudart", "static"],
        &source(folder, "static.cu", STATIC)?,
        &program,
    )?;
    Ok(Command::new(program))
}

fn fatbin(nvcc: &Nvcc, folder: &Path) -> Result<Command, Failure> {
    let (image, program) = (folder.join("kernel.fatbin"), folder.join("load"));
    nvcc.compile(&["-fatbin"], &source(folder, "kernel.cu", KERNEL)?, &image)?;
    // It needs no runtime, and links the driver's library alone.
    let flags = ["-cudart", "none", "-lcuda"];
    nvcc.compile(&flags, &source(folder, "load.cu", LOAD)?, &program)?;
    let mut command = Command::new(program);
    command.arg(image);
    Ok(command)
}

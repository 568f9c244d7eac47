//! Staging: the folders of links through which the dynamic loader finds a drop-in.
//!
//! A stage holds `<$LIB of this machine>/libcuda.so.1` and `libcuda.so` as links to the drop-in, and a harmless
//! library where a loader of another word size will look. A stage is named after the very file it links to: a new
//! version gets a new stage, and nothing that a running program has mapped is ever overwritten.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_model::{Code, Fault};

use crate::RunDir;
use crate::elf::empty_i386;

/// The limiter's file, as cargo and the packages name it.
const LIMITER: &str = "libdivvy_limit_cuda.so";
/// The emulated driver's file.
const EMULATED: &str = "libdivvy_emulated_cuda.so";

/// What `$LIB` may stand for in a 32-bit x86 process: Debian's multiarch, Debian's bi-arch, everybody else's. `lib`
/// is left out where the 64-bit loader itself uses it (Arch).
const OTHER_WORD_SIZE: [&str; 3] = ["lib/i386-linux-gnu", "lib32", "lib"];

/// Where Divvy's libraries lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropIns {
    /// The limiter.
    pub limiter: PathBuf,
    /// The emulated driver.
    pub emulated: PathBuf,
}

impl DropIns {
    /// Looks where cargo puts them (beside the executable) and where packages do (`../lib/divvy`).
    ///
    /// # Errors
    /// [`Code::DropIn`] with the folders that were looked in.
    pub fn find() -> Result<Self, Fault> {
        let executable = std::env::current_exe().map_err(|error| {
            Fault::new(Code::DropIn, "cannot tell where divvy itself lies").because(&error)
        })?;
        Self::find_near(&executable)
    }

    fn find_near(executable: &Path) -> Result<Self, Fault> {
        let folders = Self::folders(executable);
        let find = |name: &str| {
            folders
                .iter()
                .map(|folder| folder.join(name))
                .find(|path| path.is_file())
                .ok_or_else(|| {
                    let looked: Vec<String> = folders
                        .iter()
                        .map(|folder| folder.display().to_string())
                        .collect();
                    Fault::new(Code::DropIn, format!("{name} is missing"))
                        .cause(format!("looked in {}", looked.join(", ")))
                        .hint("`cargo build` makes it beside the executable; `cargo run` alone does not")
                })
        };
        Ok(Self {
            limiter: find(LIMITER)?,
            emulated: find(EMULATED)?,
        })
    }

    /// The folders looked in. Tests run from `target/<profile>/deps`, one below the libraries.
    fn folders(executable: &Path) -> Vec<PathBuf> {
        let Some(beside) = executable.parent() else {
            return Vec::new();
        };
        let mut folders = vec![beside.to_path_buf()];
        if let Some(above) = beside.parent() {
            if beside.ends_with("deps") {
                folders.push(above.to_path_buf());
            }
            folders.push(above.join("lib/divvy"));
        }
        folders
    }
}

/// A stage that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// For LD_PRELOAD: holds `$LIB`, which each process's own loader expands.
    pub preload: String,
    /// For LD_LIBRARY_PATH: the folder of this machine's own word size.
    pub folder: PathBuf,
}

/// Makes the stage for `limiter`, or finds it made.
///
/// # Errors
/// [`Code::RunDir`] when the links cannot be made.
pub fn stage(run: &RunDir, limiter: &Path) -> Result<Stage, Fault> {
    let cannot = |error: &std::io::Error| {
        Fault::new(
            Code::RunDir,
            format!("cannot stage the drop-ins in `{}`", run.stages().display()),
        )
        .because(error)
    };
    let limiter = limiter.canonicalize().map_err(|error| {
        Fault::new(Code::DropIn, format!("cannot read `{}`", limiter.display())).because(&error)
    })?;
    let meta = fs::metadata(&limiter).map_err(|error| cannot(&error))?;
    let mut hasher = DefaultHasher::new();
    (
        &limiter,
        meta.dev(),
        meta.ino(),
        meta.size(),
        meta.mtime(),
        meta.mtime_nsec(),
    )
        .hash(&mut hasher);
    let done = run.stages().join(format!("{:016x}", hasher.finish()));
    let marker = done.join("lib-folder");
    let lib = match fs::read_to_string(&marker) {
        Ok(lib) => lib,
        Err(_) => {
            let lib = lib_folder();
            build(&done, &limiter, &lib).map_err(|error| cannot(&error))?;
            lib
        }
    };
    Ok(Stage {
        preload: format!("{}/$LIB/libcuda.so.1", done.display()),
        folder: done.join(lib),
    })
}

/// Builds aside and renames: a program never sees half a stage, and two builders do no harm to each other.
fn build(done: &Path, limiter: &Path, lib: &str) -> std::io::Result<()> {
    let aside = done.with_extension(format!("{}", std::process::id()));
    match fs::remove_dir_all(&aside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let native = aside.join(lib);
    fs::create_dir_all(&native)?;
    for name in ["libcuda.so.1", "libcuda.so"] {
        symlink(limiter, native.join(name))?;
    }
    if cfg!(target_arch = "x86_64") {
        for other in OTHER_WORD_SIZE.into_iter().filter(|other| *other != lib) {
            fs::create_dir_all(aside.join(other))?;
            fs::write(aside.join(other).join("libcuda.so.1"), empty_i386())?;
        }
    }
    fs::write(aside.join("lib-folder"), lib)?;
    match fs::rename(&aside, done) {
        Err(_) if done.join("lib-folder").exists() => fs::remove_dir_all(&aside),
        other => other,
    }
}

/// What `$LIB` stands for in a program of this machine's own word size. glibc 2.33 and later tell it themselves;
/// before, Debian's multiarch folder is used where the loader lies in one.
fn lib_folder() -> String {
    let loader = if cfg!(target_arch = "x86_64") {
        "/lib64/ld-linux-x86-64.so.2"
    } else {
        "/lib/ld-linux-aarch64.so.1"
    };
    let told = Command::new(loader)
        .arg("--list-diagnostics")
        .env_clear()
        .output()
        .ok()
        .and_then(|output| told_by(&String::from_utf8_lossy(&output.stdout)));
    told.unwrap_or_else(|| {
        let multiarch = if cfg!(target_arch = "x86_64") {
            "lib/x86_64-linux-gnu"
        } else {
            "lib/aarch64-linux-gnu"
        };
        if Path::new("/").join(multiarch).is_dir() {
            multiarch.into()
        } else {
            "lib64".into()
        }
    })
}

fn told_by(diagnostics: &str) -> Option<String> {
    let lib = diagnostics
        .lines()
        .find_map(|line| line.strip_prefix("dl_dst_lib=\"")?.strip_suffix('"'))?;
    let plain = !lib.is_empty()
        && lib
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"/_-".contains(&b));
    plain.then(|| lib.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_made_once_per_version_of_the_file() {
        let base = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&base.path().join("run")).expect("a run directory");
        let limiter = base.path().join("liblimit.so");
        fs::write(&limiter, "one").expect("written");
        let first = stage(&run, &limiter).expect("staged");
        assert_eq!(stage(&run, &limiter).expect("found"), first);
        for name in ["libcuda.so.1", "libcuda.so"] {
            let target = first.folder.join(name).canonicalize().expect("a link");
            assert_eq!(target, limiter.canonicalize().expect("a file"));
        }
        fs::remove_file(&limiter).expect("removed");
        fs::write(&limiter, "another").expect("written");
        let second = stage(&run, &limiter).expect("staged anew");
        assert_ne!(second.folder, first.folder);
        assert!(first.folder.exists(), "programs that run keep their stage");
    }

    #[test]
    fn the_loader_tells_its_folder() {
        let told = "dl_dl_origin_path=\"\"\ndl_dst_lib=\"lib/x86_64-linux-gnu\"\n";
        assert_eq!(told_by(told).as_deref(), Some("lib/x86_64-linux-gnu"));
        assert_eq!(told_by("dl_dst_lib=\"../$ORIGIN\"\n"), None);
        assert_eq!(told_by(""), None);
    }

    #[test]
    fn missing_drop_ins_say_where_they_were_looked_for() {
        let base = tempfile::tempdir().expect("a folder");
        let fault = DropIns::find_near(&base.path().join("bin/divvy")).expect_err("none there");
        assert_eq!(fault.code, Code::DropIn);
        assert!(fault.causes[0].contains("lib/divvy"), "{fault:?}");
        fs::create_dir_all(base.path().join("lib/divvy")).expect("a folder");
        for name in [LIMITER, EMULATED] {
            fs::write(base.path().join("lib/divvy").join(name), "").expect("a file");
        }
        DropIns::find_near(&base.path().join("bin/divvy")).expect("a package's layout");
    }
}

//! Staging: the folders through which the dynamic loader finds the drop-ins.
//!
//! A stage holds one drop-in as `<$LIB of this machine>/libcuda.so.1` and `libcuda.so`, and the NVML that goes with it
//! as `libnvidia-ml.so.1` and `libnvidia-ml.so`. It also has harmless libraries where a loader of another word size
//! will look, and empty stand-ins for NVIDIA's libraries that take device memory past libcuda. A drop-in is a hard link
//! to the installed file, or a copy. So an upgrade leaves it alone: a program that runs keeps its file, and a worker
//! that it starts later finds the same. A stage is named after the very files from which it was made; a new version
//! gets a new stage.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_ledger::Bypass;
use divvy_model::{Code, Fault};

use crate::files::Folder;
use crate::launch::elf::{empty_i386, library};
use crate::start::rundir::RunDir;

/// The limiter's files, CUDA driver and NVML, as cargo and the packages name them.
const LIMITER: [&str; 2] = ["libdivvy_limit_cuda.so", "libdivvy_limit_nvml.so"];
/// The emulated device's.
const EMULATED: [&str; 2] = ["libdivvy_emulated_cuda.so", "libdivvy_emulated_nvml.so"];

/// The split driver's, for programs without a device.
const REMOTE: [&str; 2] = ["libdivvy_remote_cuda.so", "libdivvy_remote_nvml.so"];

/// The limiter as a layer of OpenCL's loader: the name in a stage, and the file.
const LAYER: (&str, &str) = ("libdivvy-opencl.so.1", "libdivvy_limit_opencl.so");

/// Our CUDA runtimes, by the release of CUDA: the name that programs ask for, and the file.
const RUNTIMES: [(u32, &str, &str); 2] = [
    (12, "libcudart.so.12", "libdivvy_cudart_12.so"),
    (13, "libcudart.so.13", "libdivvy_cudart_13.so"),
];

/// What `$LIB` may stand for in a 32-bit x86 process: Debian's multiarch, Debian's bi-arch, and other distributions'
/// form. `lib` is left out where the 64-bit loader itself uses it (Arch).
const OTHER_WORD_SIZE: [&str; 3] = ["lib/i386-linux-gnu", "lib32", "lib"];

/// A CUDA driver and the NVML that shows the same devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// A libcuda.so.1.
    pub cuda: PathBuf,
    /// A libnvidia-ml.so.1.
    pub nvml: PathBuf,
}

impl Pair {
    /// The links of a stage with both.
    #[must_use]
    pub fn links(&self) -> [Link<'_>; 2] {
        [("libcuda.so", &self.cuda), self.nvml_link()]
    }

    /// The links of a stage with the NVML alone.
    #[must_use]
    pub fn nvml_link(&self) -> Link<'_> {
        ("libnvidia-ml.so", &self.nvml)
    }
}

/// The unversioned name of a library, and the drop-in for it. A name with a version stands in a stage as it is.
pub type Link<'a> = (&'static str, &'a Path);

/// The folder with Divvy's libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropIns {
    /// The limiter.
    pub limiter: Pair,
    /// The limiter in front of OpenCL's drivers.
    pub layer: PathBuf,
    /// The emulated device.
    pub emulated: Pair,
    /// The split driver, where this installation has it.
    pub remote: Option<Pair>,
    /// Our CUDA runtimes, where this installation has them.
    pub runtimes: Vec<(&'static str, PathBuf)>,
}

impl DropIns {
    /// Looks where cargo puts them (beside the executable) and where packages do (`../lib/divvy`).
    ///
    /// # Errors
    /// [`Code::DropIn`] with the folders that were looked in.
    pub fn find() -> Result<Self, Fault> {
        Self::find_near(&Self::executable()?)
    }

    /// A library of Divvy's by its file's name, in the same folders.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn library(name: &str) -> Result<PathBuf, Fault> {
        Self::find_one(&Self::folders(&Self::executable()?), name)
    }

    fn executable() -> Result<PathBuf, Fault> {
        std::env::current_exe()
            .map_err(|error| Fault::new(Code::DropIn, "cannot tell where divvy itself lies").because(&error))
    }

    fn find_one(folders: &[PathBuf], name: &str) -> Result<PathBuf, Fault> {
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
    }

    fn find_near(executable: &Path) -> Result<Self, Fault> {
        let folders = Self::folders(executable);
        let find = |name: &str| Self::find_one(&folders, name);
        let pair = |[cuda, nvml]: [&str; 2]| -> Result<Pair, Fault> {
            Ok(Pair {
                cuda: find(cuda)?,
                nvml: find(nvml)?,
            })
        };
        Ok(Self {
            limiter: pair(LIMITER)?,
            layer: find(LAYER.1)?,
            emulated: pair(EMULATED)?,
            remote: pair(REMOTE).ok(),
            runtimes: RUNTIMES
                .iter()
                .filter_map(|(_, name, file)| Some((*name, find(file).ok()?)))
                .collect(),
        })
    }

    /// The link of a stage with the layer.
    #[must_use]
    pub fn layer_link(&self) -> Link<'_> {
        (LAYER.0, &self.layer)
    }

    /// The links of a stage with our CUDA runtimes.
    #[must_use]
    pub fn runtime_links(&self) -> Vec<Link<'_>> {
        self.runtimes
            .iter()
            .map(|(name, file)| (*name, file.as_path()))
            .collect()
    }

    /// Our runtime of a release of CUDA, where this installation has it.
    #[must_use]
    pub fn runtime(&self, major: u32) -> Option<&Path> {
        let (_, wanted, _) = RUNTIMES.iter().find(|(release, ..)| *release == major)?;
        let (_, file) = self.runtimes.iter().find(|(name, _)| name == wanted)?;
        Some(file)
    }

    /// The links of a stage with the split driver.
    ///
    /// # Errors
    /// [`Code::DropIn`] where this installation does not have it.
    pub fn remote_links(&self) -> Result<[Link<'_>; 2], Fault> {
        let remote = self.remote.as_ref().ok_or_else(|| {
            Fault::new(Code::DropIn, format!("{} is missing", REMOTE.join(" or ")))
                .hint("the `enforced` isolation needs both beside the other libraries")
        })?;
        Ok(remote.links())
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
    /// For LD_PRELOAD, in the order of the links: holds `$LIB`, which each process's own loader expands.
    pub preload: String,
    /// For LD_LIBRARY_PATH: the folder of this machine's own word size.
    pub folder: PathBuf,
    /// For LD_LIBRARY_PATH under a strict policy: stand-ins in which a program finds nothing.
    pub refusals: PathBuf,
}

/// Makes the stage for `links`, or finds the existing one.
///
/// # Errors
/// [`Code::RunDir`] when the links cannot be made.
pub fn stage(run: &RunDir, links: &[Link<'_>]) -> Result<Stage, Fault> {
    let (done, lib) = find_or_build(run, links, "", &lib_folder)?;
    let preload: Vec<String> = links
        .iter()
        .map(|(name, _)| format!("{}/$LIB/{name}.1", done.display()))
        .collect();
    Ok(Stage {
        preload: preload.join(":"),
        folder: done.join(lib),
        refusals: done.join(REFUSALS),
    })
}

/// What `$LIB` may stand for in a 64-bit process of a container, whose image may be of any distribution: Debian's
/// multiarch, then that of Red Hat and SUSE, then Arch's. Red Hat's 32-bit `lib` is the same as Arch's 64-bit one: a
/// 32-bit program there is told that the file is of the wrong class, and runs.
#[cfg(target_arch = "x86_64")]
const OF_IMAGES: &str = "lib/x86_64-linux-gnu,lib64,lib";
#[cfg(not(target_arch = "x86_64"))]
const OF_IMAGES: &str = "lib/aarch64-linux-gnu,lib64,lib";

/// The library that has the unversioned name of another, `libcuda.so`, for its SONAME. Where it is loaded, a program
/// that opens that name finds the other, whatever LD_LIBRARY_PATH leads to. Images set that to folders with drivers of
/// their own.
#[must_use]
pub fn second_name(name: &str) -> String {
    name.replace(".so", "-name.so")
}

/// The folder to be mounted into containers for `links`, made or found: a stage for images of any distribution, whose
/// first folder, of Debian's name, is returned beside it.
///
/// # Errors
/// As [`stage`].
pub fn stage_for_containers(run: &RunDir, links: &[Link<'_>]) -> Result<(PathBuf, PathBuf), Fault> {
    let (done, lib) = find_or_build(run, links, "-images", &|| OF_IMAGES.into())?;
    let first = lib.split(',').next().unwrap_or_default();
    Ok((done.clone(), done.join(first)))
}

/// Finds the stage of these very files, or makes it; `lib` tells its folders for programs of this machine's word size.
fn find_or_build(
    run: &RunDir,
    links: &[Link<'_>],
    suffix: &str,
    lib: &dyn Fn() -> String,
) -> Result<(PathBuf, String), Fault> {
    let cannot = |error: &std::io::Error| {
        Fault::new(
            Code::RunDir,
            format!("cannot stage the drop-ins in `{}`", run.stages().display()),
        )
        .because(error)
        .hint("DIVVY_RUN_DIR names another run directory; one that no agent uses any more may be removed")
    };
    let mut real = Vec::new();
    let mut hasher = DefaultHasher::new();
    for (name, file) in links {
        let file = file.canonicalize().map_err(|error| {
            Fault::new(Code::DropIn, format!("cannot read `{}`", file.display())).because(&error)
        })?;
        let meta = fs::metadata(&file).map_err(|error| cannot(&error))?;
        (
            name,
            &file,
            meta.dev(),
            meta.ino(),
            meta.size(),
            meta.mtime(),
            meta.mtime_nsec(),
        )
            .hash(&mut hasher);
        real.push((*name, file));
    }
    let name = format!("{:016x}{suffix}", hasher.finish());
    let done = run.stages().join(&name);
    #[expect(
        clippy::disallowed_methods,
        reason = "of a run directory that was checked, be it another user's"
    )]
    let marker = fs::read_to_string(done.join(MARKER));
    let lib = match marker {
        Ok(lib) => lib,
        Err(_) => {
            let lib = lib();
            build(run, &name, &real, &lib).map_err(|error| cannot(&error))?;
            lib
        }
    };
    Ok((done, lib))
}

/// The SONAME of the empty libraries that stand where NVIDIA's would, so that a program finds nothing in them.
const STAND_IN_SONAME: &str = "libdivvy-stand-in.so";

/// Writes down for which folders a stage was made, once it is whole.
const MARKER: &str = "lib-folder";

/// The folder of the stand-ins, in a stage.
const REFUSALS: &str = "refusals";

/// `lib` may name several folders, with commas. Builds aside and renames: a program never sees half a stage, and two
/// builders do no harm to each other.
fn build(run: &RunDir, done: &str, links: &[(&str, PathBuf)], lib: &str) -> std::io::Result<()> {
    let stages = run.stages_folder()?;
    let aside = format!("{done}.{}", std::process::id());
    stages.remove_all(&aside)?;
    let stage = stages.folder(&aside, READABLE)?;
    let natives: Vec<&str> = lib.split(',').collect();
    for (name, file) in links {
        if name.contains(".so.") {
            for native in &natives {
                deep(&stage, native)?.link_or_copy(file, name)?;
            }
            continue;
        }
        let with_version = format!("{name}.1");
        let mut first: Option<PathBuf> = None;
        for native in &natives {
            let native = deep(&stage, native)?;
            native.link_or_copy(first.as_deref().unwrap_or(file), &with_version)?;
            // A link and not a second copy, which the loader would take for another library.
            native.symlink(&with_version, name)?;
            native.write(
                &second_name(name),
                &library(name, Some(&with_version)),
                OF_A_LIBRARY,
            )?;
            first.get_or_insert(native.path().join(&with_version));
        }
        if cfg!(target_arch = "x86_64") {
            for other in OTHER_WORD_SIZE
                .into_iter()
                .filter(|other| !natives.contains(other))
            {
                let other = deep(&stage, other)?;
                for name in [&with_version, &second_name(name)] {
                    other.write(name, &empty_i386(), OF_A_LIBRARY)?;
                }
            }
        }
    }
    let refusals = stage.folder(REFUSALS, READABLE)?;
    // OpenCL's drivers are not kept away: the layer limits them.
    for name in Bypass::library_names().filter(|name| Bypass::by_library(name) != Some(Bypass::OpenCl)) {
        refusals.write(&name, &library(STAND_IN_SONAME, None), OF_A_LIBRARY)?;
    }
    stage.write(MARKER, lib.as_bytes(), OF_A_LIBRARY)?;
    match stages.rename(&aside, done) {
        Err(_) if stages.below(done).is_ok_and(|stage| stage.has(MARKER)) => stages.remove_all(&aside),
        other => other,
    }
}

/// The mode of files that every user's loader reads.
const READABLE: u32 = 0o755;
const OF_A_LIBRARY: u32 = 0o644;

/// A folder some names below another.
fn deep(folder: &Folder, path: &str) -> std::io::Result<Folder> {
    let mut names = path.split('/');
    let first = folder.folder(names.next().unwrap_or_default(), READABLE)?;
    names.try_fold(first, |folder, name| folder.folder(name, READABLE))
}

/// Makes all stages that programs of other users will need, because they cannot make them here.
///
/// # Errors
/// As [`stage`].
pub fn stage_for_others(run: &RunDir) -> Result<(), Fault> {
    let found = DropIns::find()?;
    stage(run, &found.limiter.links())?;
    stage(run, &[found.layer_link()])?;
    stage(run, &found.emulated.links())?;
    stage(run, &[found.emulated.nvml_link()])?;
    stage(run, &found.runtime_links())?;
    if found.remote.is_some() {
        stage(run, &found.remote_links()?)?;
    }
    Ok(())
}

/// What `$LIB` stands for in a program of this machine's own word size. The loader of glibc 2.33 and later tells it;
/// for older ones, Debian's multiarch folder is used where the loader lies in one.
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
        let limiter = Pair {
            cuda: base.path().join("liblimit.so"),
            nvml: base.path().join("liblimit-nvml.so"),
        };
        fs::write(&limiter.cuda, "one").expect("written");
        fs::write(&limiter.nvml, "another").expect("written");
        let first = stage(&run, &limiter.links()).expect("staged");
        assert_eq!(stage(&run, &limiter.links()).expect("found"), first);
        let staged = |name: &str| fs::read_to_string(first.folder.join(name)).expect("a file");
        for (name, content) in [
            ("libcuda.so.1", "one"),
            ("libcuda.so", "one"),
            ("libnvidia-ml.so.1", "another"),
            ("libnvidia-ml.so", "another"),
        ] {
            assert_eq!(staged(name), content);
        }
        assert!(first.refusals.join("libnvcuvid.so.1").is_file());
        fs::remove_file(&limiter.nvml).expect("removed");
        fs::write(&limiter.nvml, "a third").expect("written");
        let second = stage(&run, &limiter.links()).expect("staged again");
        assert_ne!(second.folder, first.folder);
        assert_eq!(
            staged("libnvidia-ml.so.1"),
            "another",
            "a worker that starts late finds what its parents have"
        );
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
        for name in [LIMITER, EMULATED].concat().into_iter().chain([LAYER.1]) {
            fs::write(base.path().join("lib/divvy").join(name), "").expect("a file");
        }
        DropIns::find_near(&base.path().join("bin/divvy")).expect("a package's layout");
    }
}

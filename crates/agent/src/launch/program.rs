//! The program named on the command line: whether it exists, whether it can be run, and the error if not. The rules are
//! a shell's.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};
use rustix::fs::{Access, access};

/// The program of a command line.
pub(super) fn first(command: &[OsString]) -> Result<&OsStr, Fault> {
    command.first().map(OsString::as_os_str).ok_or_else(|| {
        Fault::new(Code::Usage, "no program was named").hint("divvy run --memory 4GiB -- PROGRAM")
    })
}

/// Whether the program can be run at all, before anything is reserved for it. The rules are `execvp`'s.
pub(super) fn check_program(program: &OsStr) -> Result<(), Fault> {
    let path = Path::new(program);
    if program.is_empty() {
        // Joined to a folder of PATH, the name would mean the folder itself.
        return Err(not_found(program));
    }
    if path.components().count() > 1 || program.to_string_lossy().contains('/') {
        return check_file(path);
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refusal = Err(not_found(program));
    for folder in std::env::split_paths(&folders) {
        let file = folder.join(program);
        if file.exists() {
            match check_file(&file) {
                Ok(()) => return Ok(()),
                Err(fault) => refusal = Err(fault),
            }
        }
    }
    refusal
}

fn check_file(path: &Path) -> Result<(), Fault> {
    let meta = std::fs::metadata(path).map_err(|error| cannot_run(path.as_os_str(), &error))?;
    let cannot = |why: &str| {
        Err(Fault::new(
            Code::ProgramCannotRun,
            format!("cannot execute `{}`", path.display()),
        )
        .cause(why))
    };
    if meta.is_dir() {
        return cannot("it is a directory");
    }
    if access(path, Access::EXEC_OK).is_err() {
        return cannot("it lacks the execute permission");
    }
    Ok(())
}

fn not_found(program: &OsStr) -> Fault {
    Fault::new(
        Code::ProgramNotFound,
        format!("no program `{}` was found", program.to_string_lossy()),
    )
    .hint("give a path, or a name that is on PATH")
}

/// The kernel also says "not found" for an existing script whose interpreter is missing.
#[expect(clippy::disallowed_methods, reason = "the program is the caller's own")]
fn no_interpreter(program: &OsStr) -> Option<Fault> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let path = match program.as_bytes().contains(&b'/') {
        true => PathBuf::from(program),
        false => std::env::split_paths(&folders)
            .map(|folder| folder.join(program))
            .find(|file| file.is_file())?,
    };
    let mut start = Vec::new();
    std::fs::File::open(&path)
        .and_then(|file| file.take(256).read_to_end(&mut start))
        .ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let interpreter = line.split_whitespace().next()?;
    let message = format!(
        "the interpreter `{interpreter}` of `{}` was not found",
        path.display()
    );
    Some(Fault::new(Code::ProgramNotFound, message).hint("install it, or correct the script's first line"))
}

/// The system did not run it.
pub(super) fn cannot_run(program: &OsStr, error: &std::io::Error) -> Fault {
    match error.kind() {
        std::io::ErrorKind::NotFound => no_interpreter(program).unwrap_or_else(|| not_found(program)),
        _ => Fault::new(
            Code::ProgramCannotRun,
            format!("cannot execute `{}`", program.to_string_lossy()),
        )
        .because(error),
    }
}

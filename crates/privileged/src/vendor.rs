//! Vendors' tools: fixed names in fixed folders, words that are made here of numbers, an environment of our own, a time limit.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use divvy_model::TimeSlice;
use rustix::io::Errno;

use crate::answer::{Answer, MOST_WORDS};
use crate::folders::{self, User};
use crate::request::{Device, MigWord, MpsWord};
use crate::rules::Rules;

/// How long a tool may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

const MPS: &str = "nvidia-cuda-mps-control";
const SMI: &str = "nvidia-smi";

/// A word to the daemon of a user's slices on a device.
pub(crate) fn mps(user: User, device: &Device, word: &MpsWord, rules: &Rules) -> Result<Answer, Answer> {
    let daemon = folders::of_daemon(user, device, rules)?;
    let say = |line: &str| mps_control(user, device, &[], line, rules);
    match word {
        MpsWord::MakeFolders => folders::make(&daemon, user).map(|()| Answer::Yes),
        MpsWord::Start { partitioned } => {
            let words: &[&str] = if *partitioned { &["-d", "-S"] } else { &["-d"] };
            mps_control(user, device, words, "", rules)
        }
        MpsWord::Servers => say("get_server_list\n"),
        MpsWord::Clients { server } => say(&format!("get_client_list {server}\n")),
        MpsWord::AddPartition { chunks } => say(&format!("sm_partition add {device} {chunks}\n")),
        MpsWord::RemovePartition { name } => say(&format!("sm_partition rm {}\n", name.as_str())),
        MpsWord::Quit => say("quit -t 10\n"),
        MpsWord::RemoveFolders => {
            empty(user, &daemon)?;
            folders::remove(&daemon)
        }
    }
}

fn mps_control(
    user: User,
    device: &Device,
    words: &[&str],
    input: &str,
    rules: &Rules,
) -> Result<Answer, Answer> {
    let folder = rules
        .run
        .join("mps")
        .join(format!("user-{}", user.uid))
        .join(device.to_string());
    let mut command = tool(MPS, rules)?;
    command
        .uid(user.uid)
        .gid(user.gid)
        .args(words)
        .env("CUDA_MPS_PIPE_DIRECTORY", folder.join("pipe"))
        .env("CUDA_MPS_LOG_DIRECTORY", folder.join("log"));
    if !words.is_empty() {
        command.env("CUDA_VISIBLE_DEVICES", device.to_string());
    }
    run(command, input)
}

/// Has a process of the user empty the daemon's folders. It cannot remove the folders themselves: their parents are not
/// its own.
fn empty(user: User, daemon: &OwnedFd) -> Result<(), Answer> {
    // By the descriptor, which the child has until it executes: the agent may give the name to another folder meanwhile.
    let place = format!("/proc/self/fd/{}", daemon.as_raw_fd());
    let mut command = Command::new("/bin/rm");
    command
        .args(["-rf", "--"])
        .args(folders::NAMES)
        .env_clear()
        .uid(user.uid)
        .gid(user.gid)
        .current_dir(place);
    // It complains of the two that stay.
    match run(command, "")? {
        Answer::Words(_) | Answer::ToolFailed(_) => Ok(()),
        other => Err(other),
    }
}

/// Sets the length of the hardware's turns.
pub(crate) fn set_time_slice(device: &Device, length: TimeSlice, rules: &Rules) -> Result<Answer, Answer> {
    let mut command = tool(SMI, rules)?;
    command
        .args(["compute-policy", "-i"])
        .arg(device.to_string())
        .arg(format!("--set-timeslice={}", length.code()));
    run(command, "")
}

/// Changes a GPU's MIG instances.
pub(crate) fn mig(device: &Device, word: MigWord, rules: &Rules) -> Result<Answer, Answer> {
    let uuid = device.to_string();
    let smi = |words: &[&str]| {
        let mut command = tool(SMI, rules)?;
        command.args(words);
        run(command, "")
    };
    match word {
        MigWord::SetMode { on } => smi(&["-i", &uuid, "-mig", if on { "1" } else { "0" }]),
        MigWord::Create { profile, start } => {
            smi(&["mig", "-i", &uuid, "-cgi", &format!("{profile}:{start}"), "-C"])
        }
        MigWord::Destroy { instance } => {
            let instance = instance.to_string();
            match smi(&["mig", "-i", &uuid, "-dci", "-gi", &instance])? {
                Answer::Words(_) => smi(&["mig", "-i", &uuid, "-dgi", "-gi", &instance]),
                failed => Ok(failed),
            }
        }
    }
}

/// A tool by its name, with nothing in its environment but where programs lie.
fn tool(name: &str, rules: &Rules) -> Result<Command, Answer> {
    let file = rules
        .tools
        .iter()
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    let file: PathBuf = file.ok_or(Answer::Failed(Errno::NOENT))?;
    let mut command = Command::new(file);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/");
    Ok(command)
}

fn run(mut command: Command, input: &str) -> Result<Answer, Answer> {
    let failed = |error: std::io::Error| Answer::Failed(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that does not read has its reasons, which its status tells.
        let _closed = stdin.write_all(input.as_bytes());
    }
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let Some(status) = wait(&mut child, TIMEOUT).map_err(failed)? else {
        return Ok(Answer::ToolFailed(format!(
            "it did not end within {} s",
            TIMEOUT.as_secs()
        )));
    };
    // A daemon that the tool started may keep the pipe open: the output until now is enough.
    let said = |receiver: Receiver<Vec<u8>>| {
        let bytes = receiver.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (out, err) = (said(out), said(err));
    if status.success() {
        return Ok(Answer::Words(out));
    }
    let words = if err.trim().is_empty() { out } else { err };
    Ok(Answer::ToolFailed(format!("it ended with {status}: {words}")))
}

/// Reads to the end in a thread, so that neither a full pipe nor a silent tool holds us up.
fn reader(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _partly = pipe.by_ref().take(MOST_WORDS as u64 / 2).read_to_end(&mut bytes);
            let _rest = std::io::copy(&mut pipe, &mut std::io::sink());
        }
        let _gone = sender.send(bytes);
    });
    receiver
}

/// None where it did not end in time; it is killed then.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            let _gone = child.kill();
            let _reaped = child.wait();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

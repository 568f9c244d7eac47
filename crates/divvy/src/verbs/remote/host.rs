//! What `divvy remote serve` asks of its own host: the devices, and slices for clients.

use std::ffi::OsString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use divvy_agent::api::{Document, Items};
use divvy_model::{Bytes, Code, Compute, DeviceRecord, Fault, Isolation, MemoryAmount, Selector};
use divvy_tunnel::far::{Host, Slot};
use divvy_tunnel::{Allowance, Wanted};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use super::accounts::{Accounts, Amounts, Charge, Named};
use crate::report::remark;

/// A slice's process that does not answer within this time has no worker to hand over.
const TIME_LIMIT: Duration = Duration::from_secs(15);
/// How often a client that waits for its slice is looked after.
const TICK: Duration = Duration::from_millis(100);

/// This host, and what its clients may have of it.
pub struct ThisHost {
    run_dir: PathBuf,
    device: Option<Selector>,
    memory: Option<MemoryAmount>,
    compute: Option<Compute>,
    isolation: Isolation,
    slices: AtomicU64,
    accounts: Arc<Accounts>,
    starter: Starter,
}

impl ThisHost {
    pub fn new(
        run_dir: PathBuf,
        device: Option<Selector>,
        memory: Option<MemoryAmount>,
        compute: Option<Compute>,
        isolation: Isolation,
    ) -> Self {
        Self {
            run_dir,
            device,
            memory,
            compute,
            isolation,
            slices: AtomicU64::new(1),
            accounts: Arc::default(),
            starter: Starter::default(),
        }
    }

    fn divvy(&self) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg("--run-dir").arg(&self.run_dir);
        command
    }

    /// What a client's slice is to have of what the server gives one slice.
    fn amounts(&self, wanted: &Wanted) -> Result<Amounts, Fault> {
        let asked: Option<Compute> = wanted.compute.as_deref().map(str::parse).transpose()?;
        let compute = match (asked, self.compute) {
            (Some(asked), Some(most)) => Some(asked.min(most)),
            (asked, most) => asked.or(most),
        };
        Ok(Amounts {
            memory: self.memory(wanted.memory.as_deref())?,
            compute,
        })
    }

    /// Charges a slice to its client. A client that waits in the queue waits for its own slices as well; `wanted` then
    /// says how long it still waits.
    fn charge(
        &self,
        client: &str,
        allowance: &dyn Fn() -> Result<Allowance, Fault>,
        wanted: &mut Wanted,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(Charge, Amounts), Fault> {
        let asked = self.amounts(wanted)?;
        let device = self.device_bytes(asked.memory, &wanted.device)?;
        let named = Named {
            memory: wanted.memory.is_some(),
            compute: wanted.compute.is_some(),
        };
        let began = Instant::now();
        loop {
            let waited = began.elapsed().as_secs();
            let refused = match self.accounts.charge(client, &allowance()?, asked, named, device) {
                Ok(charged) => {
                    // The rest of the time is for the queue. 0 would be without an end.
                    let rest = |limit: u64| {
                        if limit == 0 {
                            0
                        } else {
                            limit.saturating_sub(waited).max(1)
                        }
                    };
                    wanted.wait = wanted.wait.map(rest);
                    return Ok(charged);
                }
                Err(refused) => refused,
            };
            let goes_on_waiting = wanted.wait.is_some_and(|limit| limit == 0 || waited < limit);
            if !goes_on_waiting {
                return Err(refused);
            }
            if !goes_on() {
                return Err(Fault::new(Code::Internal, "the client has gone"));
            }
            self.accounts.wait(TICK);
        }
    }

    /// The command of a client's slice.
    fn slice(&self, client: &str, wanted: &Wanted, amounts: Amounts) -> Result<Command, Fault> {
        let number = self.slices.fetch_add(1, Ordering::Relaxed);
        let mut command = Command::new("/proc/self/exe");
        let server = std::process::id().to_string();
        command.args(["remote", "within", &server, "--", "--run-dir"]);
        command.arg(&self.run_dir);
        command.args(["-o", "json", "run", "--isolation", &self.isolation.to_string()]);
        command.args(["--name", &format!("remote-{client}-{}-{number}", wanted.pid)]);
        if let Some(device) = self.device(&wanted.device)? {
            command.args(["--device", &device.to_string()]);
        }
        if let Some(memory) = amounts.memory {
            command.args(["--memory", &exactly(memory)]);
        }
        if let Some(compute) = amounts.compute {
            command.args(["--compute", &compute.to_string()]);
        }
        match wanted.wait {
            None => {}
            Some(0) => drop(command.arg("--wait")),
            Some(seconds) => drop(command.arg(format!("--wait={seconds}s"))),
        }
        command.args(["--", "/proc/self/exe", "remote", "hand-over"]);
        Ok(command)
    }

    fn device(&self, asked: &str) -> Result<Option<Selector>, Fault> {
        let asked: Option<Selector> = match asked {
            "" => None,
            text => Some(text.parse()?),
        };
        match (&self.device, asked) {
            (Some(served), Some(asked)) if *served != asked => Err(Fault::new(
                Code::UnknownDevice,
                format!("this server serves device {served}, not {asked}"),
            )
            .hint("`divvy remote list` shows what there is")),
            // A client of another host makes no devices here.
            (None, Some(Selector::Emulated(_) | Selector::Remote(_))) => Err(Fault::new(
                Code::Usage,
                "a client names a device of the server by its index, UUID or PCI address",
            )),
            (served, asked) => Ok(served.clone().or(asked)),
        }
    }

    /// The memory of the largest device that a slice may get, in bytes: what a slice has that names no bytes. It is asked
    /// for only then.
    fn device_bytes(&self, memory: Option<MemoryAmount>, asked: &str) -> Result<Bytes, Fault> {
        if let Some(MemoryAmount::Bytes(bytes)) = memory {
            return Ok(bytes);
        }
        let devices: Vec<DeviceRecord> = serde_json::from_value(self.devices()?)
            .map_err(|error| Fault::new(Code::Internal, "the devices cannot be listed").because(&error))?;
        let chosen = self.device(asked)?.map(|device| device.choose(&devices).cloned());
        Ok(match chosen {
            Some(Ok(device)) => device.memory_usable_bytes(),
            // The run says what is wrong with the name.
            Some(Err(_)) => Bytes(0),
            None => devices
                .iter()
                .map(DeviceRecord::memory_usable_bytes)
                .max()
                .unwrap_or_default(),
        })
    }

    /// An amount and a share of the device cannot be compared here: the server's own counts then.
    fn memory(&self, asked: Option<&str>) -> Result<Option<MemoryAmount>, Fault> {
        let asked: Option<MemoryAmount> = asked.map(str::parse).transpose()?;
        Ok(match (asked, self.memory) {
            (Some(MemoryAmount::Bytes(asked)), Some(MemoryAmount::Bytes(most))) => {
                super::at_most(Some(asked), Some(most)).map(MemoryAmount::Bytes)
            }
            (_, Some(most)) => Some(most),
            (asked, None) => asked,
        })
    }
}

impl Host for ThisHost {
    fn devices(&self) -> Result<serde_json::Value, Fault> {
        let failed = |error: &dyn std::error::Error| {
            Fault::new(Code::Internal, "the devices cannot be listed").because(error)
        };
        let listed = self
            .divvy()
            .args(["-o", "json", "devices"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(&error))?;
        if !listed.status.success() {
            return Err(told(&listed.stderr));
        }
        let list: Items<serde_json::Value> =
            serde_json::from_slice(&listed.stdout).map_err(|error| failed(&error))?;
        Ok(list.items.into())
    }

    fn open(
        &self,
        client: &str,
        allowance: &(dyn Fn() -> Result<Allowance, Fault> + Sync),
        wanted: &Wanted,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Box<dyn Slot>, Fault> {
        let failed =
            |error: std::io::Error| Fault::new(Code::Internal, "a slice cannot be made").because(&error);
        let mut wanted = wanted.clone();
        let (charge, amounts) = self.charge(client, allowance, &mut wanted, goes_on)?;
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_read_timeout(Some(TICK)).map_err(failed)?;
        let mut command = self.slice(client, &wanted, amounts)?;
        command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = self.starter.start(command).map_err(failed)?;
        let mut slice = Slice {
            socket: Mutex::new(ours),
            child,
            _charge: charge,
        };
        slice.wait(goes_on)?;
        self.log(&format!("{client}: a slice for process {}", wanted.pid));
        Ok(Box::new(slice))
    }

    fn log(&self, text: &str) {
        remark(&in_one_line(text));
    }
}

/// A command, and the way of its child back.
type Order = (Command, SyncSender<io::Result<Child>>);

/// A thread that starts slices, as long as the server lives. Linux ends a process with the thread that started it, where
/// the process asks for that.
#[derive(Default)]
struct Starter(Mutex<Option<Sender<Order>>>);

impl Starter {
    fn start(&self, command: Command) -> io::Result<Child> {
        let lost = || io::Error::other("the thread that starts slices has ended");
        let (made, child) = sync_channel(1);
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (orders, ordered) = channel::<Order>();
            std::thread::Builder::new()
                .name("starter".into())
                .spawn(move || {
                    for (mut command, made) in ordered {
                        let _unheard = made.send(command.spawn());
                    }
                })?;
            *thread = Some(orders);
        }
        let orders = thread.as_ref().ok_or_else(lost)?;
        orders.send((command, made)).map_err(|_| lost())?;
        drop(thread);
        child.recv().map_err(|_| lost())?
    }
}

/// Becomes a `divvy` with these arguments, which ends with the server.
pub fn within(server: u32, words: &[OsString]) -> Result<u8, Fault> {
    let failed =
        |error: io::Error| Fault::new(Code::Internal, "the process of a slice cannot start").because(&error);
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|errno| failed(errno.into()))?;
    let parent = rustix::process::getppid().map(Pid::as_raw_nonzero);
    if parent.and_then(|pid| u32::try_from(pid.get()).ok()) != Some(server) {
        return Err(Fault::new(Code::Internal, "the server has gone"));
    }
    Err(failed(Command::new("/proc/self/exe").args(words).exec()))
}

/// A `divvy run` of this host, with a process in it that hands workers over.
struct Slice {
    socket: Mutex<UnixStream>,
    child: Child,
    /// Given back when the process has ended.
    _charge: Charge,
}

impl Slice {
    /// Waits until the slice is there.
    fn wait(&mut self, goes_on: &dyn Fn() -> bool) -> Result<(), Fault> {
        let mut ready = [0; 1];
        loop {
            let socket = self.socket.get_mut().unwrap_or_else(PoisonError::into_inner);
            match socket.read(&mut ready) {
                Ok(1) => {
                    let _set = socket.set_read_timeout(Some(TIME_LIMIT));
                    // What the slice's process says from now on is for no client.
                    if let Some(mut said) = self.child.stderr.take() {
                        let _drained =
                            std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && goes_on() => {}
                Ok(_) | Err(_) if goes_on() => {
                    let mut said = Vec::new();
                    if let Some(stderr) = self.child.stderr.take() {
                        let _read = stderr.take(1 << 16).read_to_end(&mut said);
                    }
                    return Err(told(&said));
                }
                _ => return Err(Fault::new(Code::Internal, "the client has gone")),
            }
        }
    }
}

impl Slot for Slice {
    fn connect(&self) -> Result<OwnedFd, Fault> {
        let none = || Fault::new(Code::Busy, "the slice has no worker for another program");
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        rustix::net::send(&*socket, b"c", SendFlags::NOSIGNAL).map_err(|_| none())?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0; 1];
        let received = rustix::net::recvmsg(
            &*socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        if received.map_err(|_| none())?.bytes != 1 {
            return Err(none());
        }
        let fds = control.drain().filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        fds.last().ok_or_else(none)
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        let socket = self.socket.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Its process ends then, and the slice with it.
        let _closed = socket.shutdown(std::net::Shutdown::Both);
        let asked = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(TICK);
            if let Some(pid) = asked.filter(|_| std::time::Instant::now() > deadline) {
                // It may be waiting in the queue.
                let _ended = kill_process(pid, Signal::TERM);
            }
        }
    }
}

/// An amount for a command line. As text for people it is rounded.
fn exactly(memory: MemoryAmount) -> String {
    match memory {
        MemoryAmount::Bytes(bytes) => format!("{}B", bytes.0),
        share @ MemoryAmount::Share(_) => share.to_string(),
    }
}

/// Text of a client's writes no line of its own into the log.
fn in_one_line(text: &str) -> String {
    use std::fmt::Write as _;
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() {
            let _written = write!(line, "\\u{{{:x}}}", u32::from(letter));
        } else {
            line.push(letter);
        }
    }
    line
}

/// The failure that a `divvy` of ours printed.
fn told(stderr: &[u8]) -> Fault {
    let text = String::from_utf8_lossy(stderr);
    let begin = text.find("{\n").or_else(|| text.find('{'));
    let document = begin.and_then(|begin| {
        let mut documents = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Document<Fault>>();
        documents.next()?.ok()
    });
    match document {
        Some(document) => document.body,
        None => Fault::new(Code::Internal, "the server could not make the slice")
            .cause(text.lines().last().unwrap_or("it said nothing").to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> ThisHost {
        ThisHost::new(
            "/run/divvy".into(),
            None,
            Some("4GiB".parse().expect("an amount")),
            Some("30%".parse().expect("a share")),
            Isolation::Enforced,
        )
    }

    const NOTHING: Amounts = Amounts {
        memory: None,
        compute: None,
    };

    fn words(host: &ThisHost, wanted: &Wanted) -> String {
        let amounts = host.amounts(wanted).expect("amounts");
        let command = host.slice("laptop", wanted, amounts).expect("a command");
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn a_client_gets_no_more_than_the_server_gives() {
        let wanted = |memory: &str, compute: &str| Wanted {
            device: "0".into(),
            memory: Some(memory.into()),
            compute: Some(compute.into()),
            wait: Some(20),
            pid: 7,
        };
        let host = host();
        let line = words(&host, &wanted("8GiB", "50%"));
        assert!(
            line.contains("--device 0 --memory 4294967296B --compute 30%"),
            "{line}"
        );
        assert!(
            line.contains("--compute 30%") && line.contains("--wait=20s"),
            "{line}"
        );
        assert!(
            line.contains("--isolation enforced --name remote-laptop-7-1"),
            "{line}"
        );
        let line = words(&host, &wanted("1GiB", "10%"));
        assert!(
            line.contains("--compute 10%") && line.contains("--memory 1073741824B"),
            "{line}"
        );
        let line = words(&host, &Wanted::default());
        assert!(
            line.contains("--memory") && line.contains("--compute 30%") && !line.contains("--wait"),
            "{line}"
        );
    }

    #[test]
    fn a_client_names_a_device_that_is_there_and_no_flag() {
        let host = host();
        for device in ["emulated:h100", "tcp://a:1/0", "--observe", "0 1"] {
            let wanted = Wanted {
                device: device.into(),
                ..Wanted::default()
            };
            assert!(host.slice("laptop", &wanted, NOTHING).is_err(), "{device}");
        }
        let wanted = Wanted {
            memory: Some("--whole".into()),
            ..Wanted::default()
        };
        assert!(host.amounts(&wanted).is_err());
    }

    #[test]
    fn a_log_entry_is_one_line() {
        assert_eq!(in_one_line("a\nb\u{1b}[1m ü"), "a\\u{a}b\\u{1b}[1m ü");
    }

    #[test]
    fn the_reason_is_passed_on() {
        let fault = Fault::new(Code::DeviceFull, "no room").hint("wait");
        let text = serde_json::to_string_pretty(&Document::new("Error", fault.clone())).expect("text");
        assert_eq!(told(format!("divvy: a remark\n{text}\n").as_bytes()), fault);
        assert_eq!(told(b"something else").code, Code::Internal);
    }
}

//! `divvy agent metrics`: the agent's figures for Prometheus over TCP. It is a process of its own, which asks the agent as
//! any user may: the agent itself has no socket of the network.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use divvy_agent::RunDir;
use divvy_model::{Code, Fault};
use rustix::fs::OFlags;

use crate::context::Context;
use crate::output;

/// Flags of `divvy agent metrics`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to listen: an address and a port, 0 for any free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9445")]
    listen: SocketAddr,
    /// The file with the token that a caller must have, mode 0600; made where it is missing [default: metrics.token in
    /// the run directory, or in /etc/divvy where that directory is another user's]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// The largest request, in bytes.
const LARGEST: usize = 8 << 10;
/// The longest token file, in bytes.
const LONGEST: u64 = 4 << 10;
/// How long a caller, and the agent, may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Callers at once. More are sent away.
const AT_ONCE: usize = 8;

/// Serves until it is ended.
///
/// # Errors
/// [`Code::AgentStart`] where it cannot listen; [`Code::Config`] for a token that others can read.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let run = context.run_dir()?;
    // The user of root's agent may write in its run directory: root looks for nothing there.
    let is_own =
        fs::symlink_metadata(run.path()).is_ok_and(|run| run.uid() == rustix::process::geteuid().as_raw());
    let file = match &args.token_file {
        Some(file) => file.clone(),
        None if is_own => run.path().join("metrics.token"),
        None => PathBuf::from("/etc/divvy/metrics.token"),
    };
    let run = run.clone();
    serve_figures(args.listen, &file, Arc::new(move || figures(&run)))
}

/// What is served: figures in Prometheus' text format.
pub(crate) type Figures = Arc<dyn Fn() -> io::Result<String> + Send + Sync>;

/// Serves these figures to callers with the token in this file, until it is ended.
///
/// # Errors
/// As [`run`].
pub(crate) fn serve_figures(address: SocketAddr, file: &Path, figures: Figures) -> Result<u8, Fault> {
    token(file)?;
    let cannot = |error: &io::Error| cannot_listen(address, error);
    let listener = TcpListener::bind(address).map_err(|error| cannot(&error))?;
    let address = listener.local_addr().map_err(|error| cannot(&error))?;
    output::print(&format!(
        "http://{address}/metrics for callers with the token in {}",
        file.display()
    ))?;
    let callers = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // No descriptor is left for another caller.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if callers.fetch_add(1, Ordering::Relaxed) >= AT_ONCE {
            callers.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (its, figures, file) = (callers.clone(), figures.clone(), file.to_owned());
        let served = std::thread::Builder::new().spawn(move || {
            let _caller_is_gone = serve(stream, &figures, &file);
            its.fetch_sub(1, Ordering::Relaxed);
        });
        if served.is_err() {
            callers.fetch_sub(1, Ordering::Relaxed);
        }
    }
    Ok(0)
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> Fault {
    let hint = "--listen chooses another address or port, and a scraper has to ask there";
    match error.kind() {
        io::ErrorKind::AddrInUse => Fault::new(
            Code::AgentStart,
            format!("cannot listen on {address}: another program listens there, perhaps another user's"),
        ),
        _ => Fault::new(Code::AgentStart, format!("cannot listen on {address}")).because(error),
    }
    .hint(hint)
}

/// The token, read again for each caller: it can be replaced at any time.
fn token(file: &Path) -> Result<String, Fault> {
    let fault = |what: &str| {
        Fault::new(
            Code::Config,
            format!("{what} the token file `{}`", file.display()),
        )
    };
    let cannot = |error: io::Error| fault("cannot use").because(&error);
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file);
    match made {
        Ok(mut made) => {
            let mut random = [0_u8; 32];
            let mut source = fs::File::open("/dev/urandom").map_err(cannot)?;
            source.read_exact(&mut random).map_err(cannot)?;
            let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
            made.write_all(text.as_bytes()).map_err(cannot)?;
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(cannot(error)),
    }
    // What is looked at is what is read, and neither a link nor a device nor a pipe is opened for long.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(i32::try_from(flags.bits()).unwrap_or_default())
        .open(file)
        .map_err(cannot)?;
    let meta = opened.metadata().map_err(cannot)?;
    if !meta.is_file() || meta.uid() != rustix::process::geteuid().as_raw() || meta.len() > LONGEST {
        return Err(fault("no file of this user's and of 4 KiB at most is")
            .hint("remove it, and another one is made, or choose another by --token-file"));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(fault("others can read").hint("give it mode 0600 and another content"));
    }
    let mut text = String::new();
    opened.take(LONGEST).read_to_string(&mut text).map_err(cannot)?;
    let text = text.trim().to_owned();
    if text.len() < 16 {
        return Err(fault("there are fewer than 16 characters in").hint("remove it, and another one is made"));
    }
    Ok(text)
}

fn serve(mut stream: TcpStream, figures: &Figures, file: &Path) -> io::Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    // In all, however the request comes in parts.
    let deadline = Instant::now() + TIMEOUT;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < LARGEST {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            count => request.extend_from_slice(&part[..count]),
        }
    }
    let request = String::from_utf8_lossy(&request);
    let (status, body) = answer(&request, &token(file), || figures());
    let more = if status.starts_with("401") {
        "WWW-Authenticate: Bearer\r\n"
    } else {
        ""
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n{more}Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// The status and the body. Without the token a caller learns nothing, not even which paths there are.
fn answer(
    request: &str,
    token: &Result<String, Fault>,
    figures: impl FnOnce() -> io::Result<String>,
) -> (&'static str, String) {
    let mut lines = request.lines();
    let asked = lines.next().unwrap_or_default();
    let given = lines.take_while(|line| !line.is_empty()).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let given = name.eq_ignore_ascii_case("authorization").then(|| value.trim())?;
        given.strip_prefix("Bearer ")
    });
    let Ok(token) = token else {
        return ("503 Service Unavailable", "the token cannot be read\n".into());
    };
    if !given.is_some_and(|given| is_same(given.as_bytes(), token.as_bytes())) {
        return ("401 Unauthorized", "a token is needed\n".into());
    }
    let mut words = asked.split(' ');
    match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => match figures() {
            Ok(text) => ("200 OK", text),
            Err(_) => ("503 Service Unavailable", "no agent answers\n".into()),
        },
        (Some("GET"), _) => ("404 Not Found", "the figures are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", String::new()),
    }
}

/// Compares without telling by its time how much is right.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differs = one
        .iter()
        .zip(other)
        .fold(0, |sum, (one, other)| sum | (one ^ other));
    one.len() == other.len() && differs == 0
}

/// What the agent's socket says.
///
/// # Errors
/// No agent listens, or it does not answer in time.
pub(crate) fn figures(run: &RunDir) -> io::Result<String> {
    let mut agent = UnixStream::connect(run.socket())?;
    agent.set_read_timeout(Some(TIMEOUT))?;
    agent.write_all(b"GET /metrics HTTP/1.1\r\nHost: divvy\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    agent.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_caller_with_the_token_learns_anything() {
        let token = Ok("0123456789abcdef".to_owned());
        let status = |request: &str| answer(request, &token, || Ok("figures".into())).0;
        let with =
            |what: &str, token: &str| format!("{what} HTTP/1.1\r\nHost: x\r\nauthorization: {token}\r\n\r\n");
        assert_eq!(status(&with("GET /metrics", "Bearer 0123456789abcdef")), "200 OK");
        assert_eq!(
            status(&with("GET /other", "Bearer 0123456789abcdef")),
            "404 Not Found"
        );
        assert_eq!(
            status(&with("POST /metrics", "Bearer 0123456789abcdef")),
            "405 Method Not Allowed"
        );
        for wrong in [
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcde",
            "Bearer ",
            "0123456789abcdef",
        ] {
            for path in ["/metrics", "/other"] {
                assert_eq!(
                    status(&with(&format!("GET {path}"), wrong)),
                    "401 Unauthorized",
                    "{wrong}"
                );
            }
        }
        assert_eq!(
            status("GET /metrics HTTP/1.1\r\n\r\nAuthorization: Bearer 0123456789abcdef"),
            "401 Unauthorized"
        );
        assert_eq!(status(""), "401 Unauthorized");
    }

    #[test]
    fn a_token_is_its_users_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        let made = token(&file).expect("made");
        assert_eq!((made.len(), token(&file).expect("read")), (64, made));
        assert_eq!(fs::metadata(&file).expect("a file").mode() & 0o777, 0o600);
        let open = |mode| {
            fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("a mode");
        };
        open(0o640);
        assert!(token(&file).is_err(), "others can read it");
        open(0o600);
        fs::write(&file, "short").expect("written");
        assert!(token(&file).is_err());
        fs::write(&file, "0".repeat(5000)).expect("written");
        assert!(token(&file).is_err(), "too long");
        fs::write(&file, "0".repeat(64)).expect("written");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        assert!(token(&link).is_err(), "a link is not followed");
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .expect("a pipe");
        assert!(token(&pipe).is_err(), "a pipe holds nothing up");
    }
}

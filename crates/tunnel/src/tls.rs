//! TLS between the two sides, each with a certificate of the same authority.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use divvy_model::{Code, Fault};
use divvy_remote::stream::{Frames, Stream};
use rustix::net::sockopt;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, ServerConfig,
    ServerConnection, StreamOwned, version,
};

use crate::certificate::{Identity, SERVER};
use crate::talk::{Greeting, MOST, PROTOCOL, hear};

/// A side that says nothing for so long while a connection is made is not there.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(10);
/// A side whose kernel confirms nothing for so long is gone.
pub(crate) const GONE: Duration = Duration::from_secs(20);

/// TLS over TCP.
#[derive(Debug)]
pub(crate) struct Tls<C: Side>(StreamOwned<C, Socket>);

/// TCP, with one deadline over all reads and writes while a connection is made.
#[derive(Debug)]
pub(crate) struct Socket {
    tcp: TcpStream,
    deadline: Cell<Option<Instant>>,
}

impl Socket {
    fn new(tcp: TcpStream) -> Self {
        Self {
            tcp,
            deadline: Cell::new(Instant::now().checked_add(TIME_LIMIT)),
        }
    }

    fn remaining(&self) -> io::Result<Option<Duration>> {
        let Some(deadline) = self.deadline.get() else {
            return Ok(None);
        };
        match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(left) = self.remaining()? {
            self.tcp.set_read_timeout(Some(left))?;
        }
        self.tcp.read(into)
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if let Some(left) = self.remaining()? {
            self.tcp.set_write_timeout(Some(left))?;
        }
        self.tcp.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

/// The client's side, or the server's.
pub(crate) trait Side: Sized {
    fn stream(stream: &mut StreamOwned<Self, Socket>) -> &mut dyn ReadWrite;
    fn plaintext(&mut self) -> bool;
}

pub(crate) trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

macro_rules! sides {
    ($($side:ty),*) => {$(
        impl Side for $side {
            fn stream(stream: &mut StreamOwned<Self, Socket>) -> &mut dyn ReadWrite {
                stream
            }

            fn plaintext(&mut self) -> bool {
                let state = self.process_new_packets();
                state.is_ok_and(|state| state.plaintext_bytes_to_read() != 0)
            }
        }
    )*};
}

sides!(ClientConnection, ServerConnection);

impl<C: Side> Read for Tls<C> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        C::stream(&mut self.0).read(into)
    }
}

impl<C: Side> Write for Tls<C> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        C::stream(&mut self.0).write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        C::stream(&mut self.0).flush()
    }
}

impl<C: Side> Stream for Tls<C> {
    fn has_more(&mut self) -> bool {
        self.0.conn.plaintext() || self.0.sock.tcp.has_more()
    }
}

impl<C: Side> Tls<C> {
    /// The connection below: to wait for it, or to end it from another thread.
    pub fn socket(&self) -> &TcpStream {
        &self.0.sock.tcp
    }

    /// The connection is made: from now on each read and each write has its own limit.
    pub fn made(&self) -> io::Result<()> {
        self.0.sock.deadline.set(None);
        self.socket().set_read_timeout(Some(TIME_LIMIT))?;
        self.socket().set_write_timeout(Some(GONE))
    }

    /// The connection carries a thread's calls, which take as long as they want. The heartbeat of the slice's own
    /// connection notices a side that is gone, and so does keepalive: a stream that is busy for long is alive.
    pub fn carries(&self) -> io::Result<()> {
        self.made()?;
        self.socket().set_read_timeout(None)?;
        self.socket().set_write_timeout(None)?;
        sockopt::set_tcp_user_timeout(self.socket(), 0)?;
        Ok(())
    }
}

impl Tls<ServerConnection> {
    /// The certificate that the client showed.
    pub fn client_certificate(&self) -> Option<&rustls::pki_types::CertificateDer<'static>> {
        self.0.conn.peer_certificates()?.first()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn unusable(error: &dyn std::error::Error) -> Fault {
    Fault::new(Code::RemoteIdentity, "a certificate cannot be used")
        .because(error)
        .hint("have this host invited again: `divvy remote invite NAME` on the GPU's host")
}

fn roots(identity: &Identity) -> Result<Arc<RootCertStore>, Fault> {
    let mut roots = RootCertStore::empty();
    roots
        .add(identity.authority().clone())
        .map_err(|error| unusable(&error))?;
    Ok(Arc::new(roots))
}

fn key(identity: &Identity) -> Result<rustls::pki_types::PrivateKeyDer<'static>, Fault> {
    identity
        .key()
        .ok_or_else(|| Fault::new(Code::RemoteIdentity, "a private key cannot be used"))
}

/// What a server accepts, and how it shows itself.
///
/// # Errors
/// [`Code::RemoteIdentity`].
pub fn server(identity: &Identity) -> Result<Arc<ServerConfig>, Fault> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(identity)?, provider())
        .build()
        .map_err(|error| unusable(&error))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|error| unusable(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![identity.certificate().clone()], key(identity)?)
        .map_err(|error| unusable(&error))?;
    // No connection is resumed, and a side that waits finds nothing but answers.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The same for a client.
///
/// # Errors
/// [`Code::RemoteIdentity`].
pub(crate) fn client(identity: &Identity) -> Result<Arc<ClientConfig>, Fault> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|error| unusable(&error))?
        .with_root_certificates(roots(identity)?)
        .with_client_auth_cert(vec![identity.certificate().clone()], key(identity)?)
        .map_err(|error| unusable(&error))?;
    Ok(Arc::new(config))
}

/// Messages leave at once, and a side that is cut off is noticed in every state.
fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(TIME_LIMIT))?;
    socket.set_write_timeout(Some(GONE))?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    sockopt::set_tcp_user_timeout(socket, GONE.as_millis() as u32)?;
    Ok(())
}

/// The server's end of a new connection, once the client has shown its certificate.
pub(crate) fn accepted(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Tls<ServerConnection>> {
    tune(&socket)?;
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, Socket::new(socket));
    while stream.conn.is_handshaking() {
        if let Err(error) = stream.conn.complete_io(&mut stream.sock) {
            // The client is told why, and reads that before the end.
            let _told = stream.sock.flush();
            let _end = stream.sock.tcp.shutdown(Shutdown::Write);
            return Err(error);
        }
    }
    Ok(Tls(stream))
}

/// Connects to a server, and hears its greeting.
///
/// # Errors
/// [`Code::RemoteUnreachable`], [`Code::RemoteIdentity`], [`Code::RemoteVersion`].
pub(crate) fn connect(
    address: &str,
    config: &Arc<ClientConfig>,
) -> Result<Frames<Tls<ClientConnection>>, Fault> {
    let unreachable = |error: &dyn std::error::Error| {
        Fault::new(Code::RemoteUnreachable, format!("{address} does not answer"))
            .because(error)
            .hint("`divvy remote serve` has to run there, and no firewall may be between")
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    let mut socket = None;
    for address in address.to_socket_addrs().map_err(|error| unreachable(&error))? {
        match TcpStream::connect_timeout(&address, TIME_LIMIT) {
            Ok(made) => {
                socket = Some(made);
                break;
            }
            Err(error) => last = error,
        }
    }
    let socket = socket.ok_or_else(|| unreachable(&last))?;
    tune(&socket).map_err(|error| unreachable(&error))?;
    let name = ServerName::try_from(SERVER).map_err(|error| unusable(&error))?;
    let connection = ClientConnection::new(Arc::clone(config), name).map_err(|error| unusable(&error))?;
    let mut frames = Frames::new(Tls(StreamOwned::new(connection, Socket::new(socket))), MOST);
    let greeting: Greeting = hear(&mut frames).map_err(|error| explain(address, &error))?;
    if greeting.protocol != PROTOCOL {
        return Err(Fault::new(
            Code::RemoteVersion,
            format!(
                "{address} runs Divvy {}, which speaks version {} of the protocol; this host speaks {PROTOCOL}",
                greeting.version, greeting.protocol
            ),
        )
        .hint("install the same version of Divvy on both hosts"));
    }
    frames.stream().made().map_err(|error| unreachable(&error))?;
    Ok(frames)
}

/// Why a connection was not made, for the client's user.
fn explain(address: &str, error: &io::Error) -> Fault {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let identity = |message: String, hint: &str| Fault::new(Code::RemoteIdentity, message).hint(hint);
    let again = "have this host invited again: `divvy remote invite NAME` on the GPU's host, then `divvy remote join`";
    match tls {
        Some(rustls::Error::InvalidCertificate(why)) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => identity(
                format!("the certificate of {address} has expired, by this host's clock"),
                "compare the clocks of both hosts; `divvy remote serve` makes a new certificate when it starts",
            ),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => identity(
                format!("the certificate of {address} is not valid yet, by this host's clock"),
                "compare the clocks of both hosts",
            ),
            CertificateError::UnknownIssuer | CertificateError::BadSignature => identity(
                format!(
                    "{address} is not the server that this host joined: its certificate is of another authority"
                ),
                again,
            ),
            other => identity(format!("the certificate of {address} is not accepted"), again)
                .cause(other.to_string()),
        },
        Some(rustls::Error::AlertReceived(why)) => match why {
            AlertDescription::CertificateExpired => identity(
                format!("{address} says that this host's certificate is not valid now"),
                "compare the clocks of both hosts; if they agree, the certificate has expired: have this host invited again",
            ),
            AlertDescription::UnknownCA | AlertDescription::DecryptError => identity(
                format!("{address} does not know the authority of this host's certificate"),
                again,
            ),
            AlertDescription::CertificateRequired => {
                identity(format!("{address} asks for a certificate and got none"), again)
            }
            other => identity(
                format!("{address} does not accept this host's certificate"),
                again,
            )
            .cause(format!("{other:?}")),
        },
        Some(other) => Fault::new(
            Code::RemoteUnreachable,
            format!("{address} does not speak Divvy's protocol"),
        )
        .because(other)
        .hint("check the port: `divvy remote serve` prints its own"),
        None => Fault::new(
            Code::RemoteUnreachable,
            format!("{address} ended the connection before it said anything"),
        )
        .because(error)
        .hint("check the port, and the log of `divvy remote serve` there"),
    }
}

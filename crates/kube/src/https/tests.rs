use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;

struct Echo(AtomicUsize);

impl Answer for Echo {
    fn largest(&self) -> usize {
        100
    }

    fn answer(&self, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        (
            200,
            format!("{path} {}", String::from_utf8_lossy(body)).into_bytes(),
        )
    }
}

/// A certificate authority, and a certificate for `localhost` that it signed.
struct Signed {
    certificate: String,
    key: String,
    authority: CertificateDer<'static>,
}

fn signed() -> Signed {
    let authority_key = rcgen::KeyPair::generate().expect("a key");
    let mut authority = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = authority.self_signed(&authority_key).expect("a root");
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let leaf = rcgen::CertificateParams::new(vec!["localhost".into()]).expect("parameters");
    Signed {
        certificate: leaf.signed_by(&key, &issuer).expect("a certificate").pem(),
        key: key.serialize_pem(),
        authority: root.der().clone(),
    }
}

fn write(folder: &Path, signed: &Signed) -> TlsFiles {
    let files = TlsFiles {
        certificate: folder.join("tls.crt"),
        key: folder.join("tls.key"),
        client_ca: None,
    };
    std::fs::write(&files.certificate, &signed.certificate).expect("written");
    std::fs::write(&files.key, &signed.key).expect("written");
    files
}

/// Serves on a thread of its own, until the sender goes.
fn started(tls: Option<TlsFiles>) -> (SocketAddr, tokio::sync::oneshot::Sender<()>) {
    started_for(tls, Callers::All)
}

fn started_for(tls: Option<TlsFiles>, callers: Callers) -> (SocketAddr, tokio::sync::oneshot::Sender<()>) {
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a loop");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
            tell.send(listener.local_addr().expect("an address"))
                .expect("told");
            let answer = Arc::new(Echo(AtomicUsize::new(0)));
            let ended = async { drop(stopped.await) };
            serve(listener, tls, callers, answer, Arc::new(|_: &str| {}), ended)
                .await
                .expect("served");
        });
    });
    (told.recv().expect("started"), stop)
}

fn ask(stream: &mut (impl Read + Write), method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes())?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if answer.is_empty() => Err(error),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

/// A client that trusts this authority only.
fn shaken(address: SocketAddr, trusted: &CertificateDer<'static>) -> std::io::Result<String> {
    shaken_as(address, trusted, None)
}

/// The same with a certificate of its own.
fn shaken_as(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
    own: Option<&Signed>,
) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some(own) => {
            let chain = CertificateDer::from_pem_slice(own.certificate.as_bytes()).expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("PEM");
            config.with_client_auth_cert(vec![chain], key).expect("usable")
        }
    };
    let name = "localhost".try_into().expect("a name");
    let connection = rustls::ClientConnection::new(Arc::new(config), name).expect("a connection");
    let socket = std::net::TcpStream::connect(address)?;
    let mut stream = rustls::StreamOwned::new(connection, socket);
    ask(&mut stream, "POST", "/mutate", "hello")
}

#[test]
fn only_bounded_posts_are_answered() {
    let (address, _stop) = started(None);
    let of = |method: &str, path: &str, body: &str| {
        let mut stream = std::net::TcpStream::connect(address).expect("connected");
        ask(&mut stream, method, path, body).expect("answered")
    };
    assert!(of("POST", "/x", "hello").ends_with("/x hello"));
    assert!(of("POST", "/x", &"a".repeat(101)).starts_with("HTTP/1.1 413"));
    assert!(of("GET", "/healthz", "").starts_with("HTTP/1.1 200"));
    assert!(of("GET", "/x", "").starts_with("HTTP/1.1 405"));
}

#[test]
fn certificates_that_change_are_served_without_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (signed(), signed());
    let files = write(folder.path(), &first);
    let (address, _stop) = started(Some(files.clone()));
    assert!(
        shaken(address, &first.authority)
            .expect("trusted")
            .ends_with("/mutate hello")
    );
    assert!(
        shaken(address, &second.authority).is_err(),
        "another authority's certificate is not trusted"
    );
    write(folder.path(), &second);
    // The files' times may not have changed within the clock's step; their contents are what counts in the end.
    let newer = SystemTime::now() + Duration::from_secs(5);
    std::fs::File::options()
        .write(true)
        .open(&files.key)
        .expect("open")
        .set_modified(newer)
        .expect("touched");
    assert!(
        shaken(address, &second.authority)
            .expect("trusted now")
            .ends_with("/mutate hello")
    );
    // A file that is half written leaves what was served before.
    std::fs::write(&files.certificate, "-----BEGIN CERT").expect("written");
    assert!(shaken(address, &second.authority).is_ok());
}

/// One authority often signs for a whole cluster: its signature alone is not enough.
#[test]
fn callers_are_known_by_the_names_in_their_certificates() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = signed();
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = parameters.self_signed(&key).expect("a root");
    let issuer = rcgen::Issuer::new(parameters, key);
    let client = |name: &str| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut leaf = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        leaf.distinguished_name.push(rcgen::DnType::CommonName, name);
        Signed {
            certificate: leaf.signed_by(&key, &issuer).expect("a certificate").pem(),
            key: key.serialize_pem(),
            authority: root.der().clone(),
        }
    };
    let mut files = write(folder.path(), &server);
    files.client_ca = Some(folder.path().join("ca.crt"));
    std::fs::write(folder.path().join("ca.crt"), root.pem()).expect("written");
    let (scheduler, other) = (client("system:kube-scheduler"), client("system:node:a"));
    let named = Callers::Named(vec!["system:kube-scheduler".into()]);
    for (callers, of_scheduler, of_other) in [(named, true, false), (Callers::Signed, true, true)] {
        let (address, _stop) = started_for(Some(files.clone()), callers);
        let is_answered = |own: Option<&Signed>| {
            let answer = shaken_as(address, &server.authority, own).expect("answered");
            assert!(
                answer.ends_with("/mutate hello") != answer.starts_with("HTTP/1.1 403"),
                "{answer}"
            );
            answer.ends_with("/mutate hello")
        };
        assert_eq!(is_answered(Some(&scheduler)), of_scheduler);
        assert_eq!(is_answered(Some(&other)), of_other);
        assert!(!is_answered(None));
    }
    // Of another authority, whatever its name.
    let (address, _stop) = started_for(Some(files), Callers::Signed);
    assert!(shaken_as(address, &server.authority, Some(&signed())).is_err());
}

/// One address cannot take all connections.
#[test]
fn connections_of_one_address_have_an_end() {
    let (address, _stop) = started(None);
    let mut held = Vec::new();
    let turned_away = loop {
        let mut stream = std::net::TcpStream::connect(address).expect("connected");
        write!(
            stream,
            "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na"
        )
        .expect("written");
        let mut head = [0; 12];
        if stream.read_exact(&mut head).is_err() {
            break held.len();
        }
        held.push(stream);
        assert!(held.len() < 1000, "there is no end");
    };
    assert_eq!(turned_away, 64);
    // One that ends makes room.
    held.pop();
    let again = || {
        let mut stream = std::net::TcpStream::connect(address).ok()?;
        ask(&mut stream, "POST", "/x", "a").ok()
    };
    assert!((0..1000).any(|_| again().is_some_and(|answer| answer.ends_with("/x a"))));
}

/// Many that announce much and send little keep no honest one waiting.
#[test]
fn bodies_take_room_as_they_come() {
    let (address, _stop) = started(None);
    let mut held = Vec::new();
    for _ in 0..40 {
        let mut stream = std::net::TcpStream::connect(address).expect("connected");
        write!(
            stream,
            "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
        )
        .expect("written");
        held.push(stream);
    }
    let mut stream = std::net::TcpStream::connect(address).expect("connected");
    assert!(
        ask(&mut stream, "POST", "/x", "hello")
            .expect("answered")
            .ends_with("/x hello")
    );
    // Their bodies come in the end, and are answered too.
    for mut stream in held {
        stream.write_all(&[b'a'; 100]).expect("written");
        let mut head = [0; 12];
        stream.read_exact(&mut head).expect("answered");
        assert_eq!(&head, b"HTTP/1.1 200");
    }
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, other) = (signed(), signed());
    let files = write(folder.path(), &one);
    files.read().expect("usable");
    std::fs::write(&files.key, &other.key).expect("written");
    let mixed = files.read().expect_err("another key");
    assert!(
        mixed.causes[0].contains("the certificate and the key"),
        "{mixed:?}"
    );
    std::fs::write(&files.key, "").expect("written");
    assert!(files.read().expect_err("empty").message.contains("tls.key"));
    std::fs::remove_file(&files.certificate).expect("removed");
    assert!(files.read().expect_err("gone").message.contains("tls.crt"));
}

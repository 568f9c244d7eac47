//! The server's certificate authority, and what a client holds of it.
//!
//! The authority signs two kinds of certificates: the server's own, and one for each client that the administrator invites.
//! Client and server trust this authority alone. The name of a host does not count: a client knows its server by the
//! authority, and a server knows its client by the certificate that it keeps a copy of.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use divvy_model::{Code, Fault};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::allowance::Allowance;

/// The name in the server's certificate. It is the same for each server: the authority tells them apart.
pub(crate) const SERVER: &str = "server.divvy.internal";
/// The end of a client's name in its certificate.
const CLIENT: &str = ".client.divvy.internal";
/// How long a certificate holds.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// A certificate holds from a little before it was made: clocks differ.
const SKEW: Duration = Duration::from_secs(3600);
/// Bytes of the largest file that is read.
const MOST: u64 = 1 << 16;

/// From when until when a certificate holds.
pub type Period = (SystemTime, SystemTime);

/// A year from now.
#[must_use]
pub fn a_year() -> Period {
    let now = SystemTime::now();
    (now - SKEW, now + YEAR)
}

/// The server's authority, in a folder.
pub struct Authority {
    folder: PathBuf,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.folder.display())
    }
}

/// A side's certificate, its private key, and the authority that it trusts. As text: three blocks of PEM.
#[derive(Clone)]
pub struct Identity {
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    key: String,
    text: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

fn internal(what: &str, error: &dyn std::error::Error) -> Fault {
    Fault::new(Code::Internal, format!("cannot make {what}")).because(error)
}

fn unusable(path: &Path, error: &dyn std::error::Error) -> Fault {
    Fault::new(
        Code::RemoteIdentity,
        format!("`{}` cannot be used", path.display()),
    )
    .because(error)
    .hint("its user and its rights have to let this program read and write it")
}

/// The parameters of an authority with this key. They follow from the key, so the authority is the same again when its
/// key is read from its file.
fn parameters(key: &KeyPair) -> Result<CertificateParams, Fault> {
    let mut parameters =
        CertificateParams::new(Vec::new()).map_err(|error| internal("an authority", &error))?;
    let mark: String = key
        .public_key_raw()
        .iter()
        .skip(1)
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    parameters
        .distinguished_name
        .push(DnType::CommonName, format!("Divvy remote {mark}"));
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(parameters)
}

impl Authority {
    /// The authority in this folder, which is made where it is not there yet.
    ///
    /// # Errors
    /// [`Code::RemoteIdentity`] for a folder or a file that cannot be used.
    pub fn open(folder: &Path) -> Result<Self, Fault> {
        let clients = folder.join("clients");
        let mut made = fs::DirBuilder::new();
        made.recursive(true).mode(0o700);
        made.create(&clients)
            .map_err(|error| unusable(&clients, &error))?;
        // Two programs that make it at once would leave the key of one and the certificate of the other.
        let lock_file = folder.join("lock");
        let locked = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_file)
            .and_then(|file| {
                file.lock()?;
                Ok(file)
            })
            .map_err(|error| unusable(&lock_file, &error))?;
        let (key_file, file) = (folder.join("authority.key"), folder.join("authority.pem"));
        if !file.exists() {
            let key = KeyPair::generate().map_err(|error| internal("a key", &error))?;
            let mut own = parameters(&key)?;
            let (from, until) = a_year();
            // Clients would have to be invited again when it ends.
            (own.not_before, own.not_after) = (from.into(), (until + 19 * YEAR).into());
            let certificate = own
                .self_signed(&key)
                .map_err(|error| internal("an authority", &error))?;
            write(&key_file, &key.serialize_pem())?;
            write(&file, &certificate.pem())?;
        }
        drop(locked);
        let key = read(&key_file)?;
        let key = KeyPair::from_pem(&key).map_err(|error| unusable(&key_file, &error))?;
        let certificate = read(&file)?;
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|error| unusable(&file, &error))?;
        let public = key.public_key_raw();
        if !der.windows(public.len()).any(|part| part == public) {
            return Err(Fault::new(
                Code::RemoteIdentity,
                format!(
                    "`{}` and `{}` do not belong together",
                    key_file.display(),
                    file.display()
                ),
            )
            .hint("remove both, start the server again, and have each host invited again"));
        }
        Ok(Self {
            folder: folder.to_owned(),
            certificate,
            issuer: Issuer::new(parameters(&key)?, key),
        })
    }

    /// The server's own identity, new each time.
    ///
    /// # Errors
    /// [`Code::Internal`].
    pub fn server(&self, period: Period) -> Result<Identity, Fault> {
        self.issue(SERVER.to_owned(), ExtendedKeyUsagePurpose::ServerAuth, period)
    }

    /// A client's identity. A copy of its certificate stays here; an earlier one of that name does not count any more.
    ///
    /// # Errors
    /// [`Code::Usage`] for what is no name, [`Code::RemoteIdentity`] where the copy cannot be written.
    pub fn invite(&self, name: &str, period: Period) -> Result<Identity, Fault> {
        let identity = self.draft(name, period)?;
        self.admit(name, &identity, &Allowance::default())?;
        Ok(identity)
    }

    /// A client's identity that does not count yet: [`Authority::admit`] makes it count.
    ///
    /// # Errors
    /// [`Code::Usage`] for what is no name.
    pub fn draft(&self, name: &str, period: Period) -> Result<Identity, Fault> {
        self.client_file(name)?;
        self.issue(
            format!("{name}{CLIENT}"),
            ExtendedKeyUsagePurpose::ClientAuth,
            period,
        )
    }

    /// From now on this identity is the client's, and an earlier one of that name does not count any more. All its slices
    /// together have no more than `allowance`.
    ///
    /// # Errors
    /// [`Code::Usage`] for what is no name, [`Code::RemoteIdentity`] where the copy cannot be written.
    pub fn admit(&self, name: &str, identity: &Identity, allowance: &Allowance) -> Result<(), Fault> {
        let kept = format!("{}\n{allowance}", hex(&identity.certificate));
        write(&self.client_file(name)?, &kept)
    }

    /// What all slices of an invited client have together at most.
    ///
    /// # Errors
    /// [`Code::RemoteIdentity`]: it is not invited any more, or its file cannot be understood.
    pub fn allowance(&self, name: &str) -> Result<Allowance, Fault> {
        let file = self.client_file(name)?;
        let kept = read(&file)?;
        let (_certificate, amounts) = kept.split_once('\n').unwrap_or((&kept, ""));
        amounts.parse().map_err(|error| unusable(&file, &error))
    }

    /// From now on the certificate of this client is not accepted. Whether there was one.
    ///
    /// # Errors
    /// [`Code::Usage`] for what is no name, [`Code::RemoteIdentity`].
    pub fn forget(&self, name: &str) -> Result<bool, Fault> {
        let file = self.client_file(name)?;
        match fs::remove_file(&file) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(unusable(&file, &error)),
        }
    }

    /// The name of the client that shows this certificate, if it was invited and not forgotten.
    #[must_use]
    pub fn client(&self, certificate: &CertificateDer<'_>) -> Option<String> {
        let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
        let name = parsed
            .valid_dns_names()
            .find_map(|name| name.strip_suffix(CLIENT))?;
        let kept = read(&self.client_file(name).ok()?).ok()?;
        let kept = kept.lines().next()?;
        (kept.trim() == hex(certificate)).then(|| name.to_owned())
    }

    /// Whether a client of this name was invited and not forgotten.
    #[must_use]
    pub fn is_invited(&self, name: &str) -> bool {
        self.client_file(name).is_ok_and(|file| file.is_file())
    }

    fn client_file(&self, name: &str) -> Result<PathBuf, Fault> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let edge = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
        let bytes = name.as_bytes();
        let good = bytes.len() <= 40
            && bytes.iter().all(|byte| plain(*byte))
            && edge(bytes.first())
            && edge(bytes.last());
        if !good {
            return Err(
                Fault::new(Code::Usage, format!("`{name}` is no name of a client"))
                    .hint("1 to 40 lower-case letters, digits and `-`, as `workstation-3`"),
            );
        }
        Ok(self.folder.join("clients").join(name))
    }

    fn issue(&self, name: String, usage: ExtendedKeyUsagePurpose, period: Period) -> Result<Identity, Fault> {
        let failed = |error: rcgen::Error| internal("a certificate", &error);
        let key = KeyPair::generate().map_err(failed)?;
        let mut parameters = CertificateParams::new(vec![name.clone()]).map_err(failed)?;
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.extended_key_usages = vec![usage];
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        (parameters.not_before, parameters.not_after) = (period.0.into(), period.1.into());
        let certificate = parameters.signed_by(&key, &self.issuer).map_err(failed)?;
        Identity::read(&format!(
            "{}{}{}",
            certificate.pem(),
            self.certificate,
            key.serialize_pem()
        ))
    }
}

impl Identity {
    /// Reads the text of an identity.
    ///
    /// # Errors
    /// [`Code::RemoteIdentity`]: it is none.
    pub fn read(text: &str) -> Result<Self, Fault> {
        let none = || {
            Fault::new(Code::RemoteIdentity, "this is no invitation")
                .hint("`divvy remote invite NAME` on the GPU's host prints one; it is needed whole")
        };
        let mut certificates = CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok);
        let (Some(certificate), Some(authority)) = (certificates.next(), certificates.next()) else {
            return Err(none());
        };
        PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| none())?;
        Ok(Self {
            certificate,
            authority,
            key: text.to_owned(),
            text: text.to_owned(),
        })
    }

    /// Reads the identity that [`Identity::write`] stored.
    ///
    /// # Errors
    /// [`Code::RemoteIdentity`]: there is none, or other users can read it.
    pub fn load(path: &Path) -> Result<Self, Fault> {
        let mode = fs::metadata(path)
            .map_err(|error| unusable(path, &error))?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            return Err(Fault::new(
                Code::RemoteIdentity,
                format!(
                    "`{}` holds a private key, and other users can read it",
                    path.display()
                ),
            )
            .hint(format!("chmod 600 {}", path.display())));
        }
        Self::read(&read(path)?)
    }

    /// Stores it where its user alone can read it.
    ///
    /// # Errors
    /// [`Code::RemoteIdentity`]: the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Fault> {
        write(path, &self.text)
    }

    /// The text, with the private key.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(crate) fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    pub(crate) fn key(&self) -> Option<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).ok()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file that its user alone can read, whole or not at all.
fn write(path: &Path, text: &str) -> Result<(), Fault> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let written = || -> std::io::Result<()> {
        let _left = fs::remove_file(&new);
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    written().map_err(|error| unusable(path, &error))
}

fn read(path: &Path) -> Result<String, Fault> {
    let mut text = String::new();
    let file = File::options().read(true).open(path);
    file.and_then(|file| file.take(MOST).read_to_string(&mut text))
        .map_err(|error| unusable(path, &error))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_the_same_when_it_is_read_again_and_its_keys_are_closed_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let first = Authority::open(&state).unwrap();
        let again = Authority::open(&state).unwrap();
        assert_eq!(first.certificate, again.certificate);
        let invited = again.invite("laptop", a_year()).unwrap();
        assert_eq!(first.client(invited.certificate()).as_deref(), Some("laptop"));
        for file in ["authority.key", "authority.pem", "clients/laptop"] {
            let mode = fs::metadata(state.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        assert!(
            !fs::read_to_string(state.join("clients/laptop"))
                .unwrap()
                .contains("KEY")
        );
    }

    #[test]
    fn a_key_of_another_authority_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        Authority::open(&one).unwrap();
        Authority::open(&other).unwrap();
        fs::copy(one.join("authority.key"), other.join("authority.key")).unwrap();
        assert_eq!(Authority::open(&other).unwrap_err().code, Code::RemoteIdentity);
    }

    #[test]
    fn a_client_counts_until_it_is_forgotten_or_invited_again() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path()).unwrap();
        let old = authority.invite("laptop", a_year()).unwrap();
        let new = authority.invite("laptop", a_year()).unwrap();
        assert_eq!(authority.client(old.certificate()), None);
        assert_eq!(authority.client(new.certificate()).as_deref(), Some("laptop"));
        let server = authority.server(a_year()).unwrap();
        assert_eq!(authority.client(server.certificate()), None);
        assert!(
            authority.is_invited("laptop") && !authority.is_invited("other") && !authority.is_invited("")
        );
        assert_eq!(authority.forget("laptop"), Ok(true));
        assert!(!authority.is_invited("laptop"));
        assert_eq!(authority.client(new.certificate()), None);
        assert_eq!(authority.forget("laptop"), Ok(false));
        for wrong in ["", "../x", "A", "a.b", "-a", "a-", &"a".repeat(41)] {
            assert!(authority.invite(wrong, a_year()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_clients_allowance_is_the_last_invitations_and_one_that_is_not_understood_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path()).unwrap();
        let identity = authority.invite("laptop", a_year()).unwrap();
        assert_eq!(authority.allowance("laptop"), Ok(Allowance::default()));
        let allowance = Allowance {
            memory: Some(divvy_model::Bytes(1 << 30)),
            compute: None,
        };
        authority.admit("laptop", &identity, &allowance).unwrap();
        assert_eq!(authority.allowance("laptop"), Ok(allowance));
        assert_eq!(
            authority.client(identity.certificate()).as_deref(),
            Some("laptop")
        );
        let file = folder.path().join("clients/laptop");
        // As earlier versions wrote it.
        fs::write(&file, hex(identity.certificate())).unwrap();
        assert_eq!(authority.allowance("laptop"), Ok(Allowance::default()));
        fs::write(&file, format!("{}\nslices 2\n", hex(identity.certificate()))).unwrap();
        assert_eq!(
            authority.allowance("laptop").unwrap_err().code,
            Code::RemoteIdentity
        );
        authority.forget("laptop").unwrap();
        assert_eq!(
            authority.allowance("laptop").unwrap_err().code,
            Code::RemoteIdentity
        );
    }

    #[test]
    fn half_an_invitation_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Authority::open(folder.path())
            .unwrap()
            .invite("a", a_year())
            .unwrap();
        let path = folder.path().join("stored");
        identity.write(&path).unwrap();
        assert_eq!(Identity::load(&path).unwrap().text(), identity.text());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(Identity::load(&path).unwrap_err().code, Code::RemoteIdentity);
        for end in [0, 10, identity.text().len() / 2, identity.text().len() - 40] {
            assert!(Identity::read(&identity.text()[..end]).is_err(), "{end}");
        }
    }
}

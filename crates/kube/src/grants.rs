//! A pod's grants: which parts of which devices its containers have. The extender signs them, and a node's device plugin makes
//! slices of signed ones only. A pod's author can write any annotation, but has no key.
//!
//! What is signed names the pod by its UID and its node, so that grants of one pod mean nothing on another.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use divvy_model::{Code, Fault};
use divvy_placement::fallback::Grant;
use k8s_openapi::api::core::v1::Pod;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use serde::{Deserialize, Serialize};

/// The annotation of a pod with what it has, which comes with its node in one write: the Binding's annotations are the pod's.
pub const GRANTS: &str = "gpu.divvy.dev/grants";
/// The annotation with the signature of the other's text, in base64.
pub const SIGNATURE: &str = "gpu.divvy.dev/grants-signature";
/// The longest annotation that is read: Kubernetes' bound on all of an object's.
const LONGEST: usize = 256 << 10;
/// The largest file of keys.
const LARGEST_FILE: u64 = 64 << 10;
/// The most keys of a file.
const MOST_KEYS: usize = 16;
/// Comes before what is signed, so that a signature for one purpose serves no other.
const PURPOSE: &[u8] = b"gpu.divvy.dev/grants v1\n";
/// What comes before an Ed25519 key in SubjectPublicKeyInfo (RFC 8410): the algorithm, and the length of the key.
const PUBLIC: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// What is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Granted {
    /// The pod's UID.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// By container and device.
    pub grants: Vec<Grant>,
}

/// Grants as the annotations have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signed {
    /// For [`GRANTS`].
    pub text: String,
    /// For [`SIGNATURE`].
    pub signature: String,
}

/// Signs grants. Only the extender has it.
pub struct Signer(Ed25519KeyPair);

/// Keys whose grants are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Believed(Vec<[u8; 32]>);

/// The files of an extender's keys, and what tells that one has changed.
#[derive(Debug)]
pub struct KeyFiles {
    signer: PathBuf,
    earlier: Option<PathBuf>,
    stamp: Vec<Option<Stamp>>,
}

/// When a file was written, its length in bytes and its inode: a Secret's new files are other ones, perhaps of the same second.
type Stamp = (i64, i64, u64, u64);

impl KeyFiles {
    /// The file of the key that signs, and perhaps one of public keys that signed before. Nothing is read yet.
    #[must_use]
    pub fn new(signer: PathBuf, earlier: Option<PathBuf>) -> Self {
        Self {
            signer,
            earlier,
            stamp: Vec::new(),
        }
    }

    /// The keys, where a file has changed since the last call. A file that is half written has another stamp when it is whole.
    ///
    /// # Errors
    /// As [`Signer::read`] and [`Believed::read`], once for each change.
    pub fn changed(&mut self) -> Option<Result<(Signer, Believed), Fault>> {
        let of = |path: &PathBuf| {
            let facts = std::fs::metadata(path).ok()?;
            Some((facts.mtime(), facts.mtime_nsec(), facts.len(), facts.ino()))
        };
        // Before they are read: a change meanwhile is found by the next call.
        let stamp: Vec<Option<Stamp>> = [Some(&self.signer), self.earlier.as_ref()]
            .into_iter()
            .flatten()
            .map(of)
            .collect();
        if stamp == self.stamp {
            return None;
        }
        self.stamp = stamp;
        Some(self.read())
    }

    fn read(&self) -> Result<(Signer, Believed), Fault> {
        let signer = Signer::read(&self.signer)?;
        let earlier = self.earlier.as_deref().map(Believed::read).transpose()?;
        Ok((signer, earlier.unwrap_or_default()))
    }
}

impl Signer {
    /// Makes a key: its file, and that of its public key, both PEM.
    ///
    /// # Errors
    /// [`Code::Internal`] where the kernel gives no random bytes.
    pub fn make() -> Result<(String, String), Fault> {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let made = made.map_err(|_| Fault::new(Code::Internal, "no key could be made"))?;
        let pair = Ed25519KeyPair::from_pkcs8(made.as_ref())
            .map_err(|_| Fault::new(Code::Internal, "the key that was made is none"))?;
        let public = [&PUBLIC[..], pair.public_key().as_ref()].concat();
        Ok((pem("PRIVATE KEY", made.as_ref()), pem("PUBLIC KEY", &public)))
    }

    /// Of PEM text, PKCS#8, as [`Self::make`] and `openssl genpkey -algorithm ed25519` write it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of(text: &[u8]) -> Result<Self, String> {
        let key = PrivatePkcs8KeyDer::from_pem_slice(text).map_err(|error| error.to_string())?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der());
        pair.map(Self)
            .map_err(|error| format!("it is no Ed25519 key: {error}"))
    }

    /// Of a file.
    ///
    /// # Errors
    /// [`Code::Usage`] with the file and what is wrong with it: also where others may read it, for each of them could grant.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        contents(path, 0o027).and_then(|text| Self::of(&text).map_err(|why| wrong(path, &why)))
    }

    /// Signs what a pod has.
    ///
    /// # Errors
    /// None that can happen: grants are always JSON.
    pub fn sign(&self, granted: &Granted) -> Result<Signed, String> {
        let text = serde_json::to_string(granted).map_err(|error| error.to_string())?;
        let signature = self.0.sign(&[PURPOSE, text.as_bytes()].concat());
        Ok(Signed {
            text,
            signature: STANDARD.encode(signature.as_ref()),
        })
    }

    /// Its own public key.
    #[must_use]
    pub fn believed(&self) -> Believed {
        Believed(self.0.public_key().as_ref().try_into().into_iter().collect())
    }
}

impl Believed {
    /// Of PEM text with one or more public keys.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of(text: &[u8]) -> Result<Self, String> {
        let mut keys = Vec::new();
        for key in SubjectPublicKeyInfoDer::pem_slice_iter(text) {
            let key = key.map_err(|error| error.to_string())?;
            let plain = key.strip_prefix(&PUBLIC).and_then(|key| key.try_into().ok());
            keys.push(plain.ok_or("one of its keys is no Ed25519 key")?);
        }
        match keys.len() {
            0 => Err("it has no public key".into()),
            1..=MOST_KEYS => Ok(Self(keys)),
            _ => Err(format!("it has more than {MOST_KEYS} keys")),
        }
    }

    /// Of a file.
    ///
    /// # Errors
    /// [`Code::Usage`] with the file and what is wrong with it: also where others may write it, for each of them could grant.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        contents(path, 0o022).and_then(|text| Self::of(&text).map_err(|why| wrong(path, &why)))
    }

    /// These keys too.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// What the pod was granted; none where nothing was written.
    ///
    /// # Errors
    /// Why what is written there counts for nothing.
    pub fn granted(&self, pod: &Pod) -> Result<Option<Granted>, String> {
        let annotation = |name: &str| pod.metadata.annotations.as_ref().and_then(|all| all.get(name));
        let Some(text) = annotation(GRANTS) else {
            return Ok(None);
        };
        let signature = annotation(SIGNATURE).ok_or("its grants are not signed, and count for nothing")?;
        if text.len() > LONGEST {
            return Err(format!("{GRANTS} is too long"));
        }
        let forged = || "its grants are not what the extender signed, and count for nothing".to_owned();
        let signature = STANDARD.decode(signature).map_err(|_| forged())?;
        let message = [PURPOSE, text.as_bytes()].concat();
        let is_its = |key: &[u8; 32]| {
            UnparsedPublicKey::new(&ED25519, key)
                .verify(&message, &signature)
                .is_ok()
        };
        if !self.0.iter().any(is_its) {
            return Err(forged());
        }
        let granted: Granted = serde_json::from_str(text).map_err(|error| format!("{GRANTS}: {error}"))?;
        if pod.metadata.uid.as_deref() != Some(&*granted.pod) {
            return Err("its grants are another pod's, and count for nothing".into());
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        match node == Some(&*granted.node) {
            true => Ok(Some(granted)),
            false => Err("its grants are for another node, and count for nothing".into()),
        }
    }
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<String> = text
        .as_bytes()
        .chunks(64)
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    format!(
        "-----BEGIN {what}-----\n{}\n-----END {what}-----\n",
        lines.join("\n")
    )
}

/// A file's bytes. It is root's or the caller's, and has none of these permissions.
fn contents(path: &Path, forbidden: u32) -> Result<Vec<u8>, Fault> {
    let failed = |error: std::io::Error| wrong(path, &error.to_string());
    let facts = std::fs::metadata(path).map_err(failed)?;
    if !facts.is_file() || facts.len() > LARGEST_FILE {
        return Err(wrong(path, "it is no file of a key's size"));
    }
    let file = std::fs::File::open(path).map_err(failed)?;
    // What was looked at may be another file by now: this one counts.
    let facts = file.metadata().map_err(failed)?;
    let is_owners = facts.uid() == 0 || facts.uid() == rustix::process::geteuid().as_raw();
    if !is_owners || facts.mode() & forbidden != 0 {
        let fault = Fault::new(
            Code::Usage,
            format!("`{}` cannot be used for grants", path.display()),
        );
        return Err(fault
            .cause(format!(
                "user {} has it, and its permissions are {:03o}",
                facts.uid(),
                facts.mode() & 0o777
            ))
            .hint(
                "chown root FILE; chmod 640 a private key, 644 a public one. In a pod: `defaultMode: 0440` of the Secret, and `fsGroup`",
            ));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn wrong(path: &Path, why: &str) -> Fault {
    Fault::new(
        Code::Usage,
        format!("`{}` cannot be used for grants", path.display()),
    )
    .cause(why)
    .hint("`divvy k8s grant-key` makes both files: Ed25519, as PEM")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, node: &str, signed: &Signed) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"uid": uid, "annotations": {GRANTS: signed.text, SIGNATURE: signed.signature}},
            "spec": {"nodeName": node, "containers": []},
        }))
        .expect("a pod")
    }

    fn made() -> (Signer, Believed) {
        let (private, public) = Signer::make().expect("a key");
        let signer = Signer::of(private.as_bytes()).expect("a key");
        let believed = Believed::of(public.as_bytes()).expect("a key");
        assert_eq!(signer.believed(), believed);
        (signer, believed)
    }

    #[test]
    fn only_what_was_signed_for_this_pod_on_this_node_counts() {
        let (signer, believed) = made();
        let granted = Granted {
            pod: "u-1".into(),
            node: "a".into(),
            grants: vec![Grant {
                container: "c".into(),
                uuid: "GPU-1".into(),
                memory_mib: 10,
                cores: 5,
                whole: false,
            }],
        };
        let signed = signer.sign(&granted).expect("signed");
        assert_eq!(
            believed.granted(&pod("u-1", "a", &signed)),
            Ok(Some(granted.clone()))
        );
        assert_eq!(believed.granted(&Pod::default()), Ok(None));
        let with = |text: String, signature: &str| Signed {
            text,
            signature: signature.to_owned(),
        };
        let (other, _) = made();
        let larger = signed.text.replace("\"memoryMiB\":10", "\"memoryMiB\":99");
        assert_ne!(larger, signed.text);
        for (forged, words) in [
            (pod("u-2", "a", &signed), "another pod's"),
            (pod("u-1", "b", &signed), "another node"),
            (
                pod("u-1", "a", &with(larger, &signed.signature)),
                "not what the extender signed",
            ),
            (
                pod("u-1", "a", &with(signed.text.clone(), "")),
                "not what the extender signed",
            ),
            (
                pod("u-1", "a", &with(signed.text.clone(), "!")),
                "not what the extender signed",
            ),
            (
                pod("u-1", "a", &other.sign(&granted).expect("signed")),
                "not what the extender signed",
            ),
        ] {
            let said = believed.granted(&forged).expect_err(words);
            assert!(said.contains(words), "{said}");
        }
        let mut unsigned = pod("u-1", "a", &signed);
        unsigned
            .metadata
            .annotations
            .as_mut()
            .expect("some")
            .remove(SIGNATURE);
        assert!(
            believed
                .granted(&unsigned)
                .expect_err("unsigned")
                .contains("not signed")
        );
        // A key that takes the place of another: both are believed for a while.
        let both = other.believed().and(believed);
        assert!(both.granted(&pod("u-1", "a", &signed)).is_ok());
    }

    #[test]
    fn a_key_that_others_could_use_or_replace_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (private, public) = Signer::make().expect("a key");
        let path = folder.path().join("key");
        let with = |text: &str, mode: u32| {
            std::fs::write(&path, text).expect("written");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, mode).expect("a mode");
            path.as_path()
        };
        for mode in [0o600, 0o400, 0o440, 0o640] {
            assert!(Signer::read(with(&private, mode)).is_ok(), "{mode:o}");
        }
        for mode in [0o644, 0o604, 0o660, 0o602] {
            let fault = Signer::read(with(&private, mode))
                .err()
                .expect("others may use it");
            assert!(fault.causes[0].contains("permissions"), "{mode:o} {fault:?}");
        }
        assert!(Believed::read(with(&public, 0o644)).is_ok());
        for mode in [0o664, 0o646, 0o666] {
            assert!(Believed::read(with(&public, mode)).is_err(), "{mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(with(&public, 0o644), Some(1000), None).expect("given away");
            assert!(Believed::read(&path).is_err(), "another user's");
        }
    }

    #[test]
    fn keys_are_read_again_when_their_files_change_and_not_otherwise() {
        let folder = tempfile::tempdir().expect("a folder");
        let (key, earlier) = (folder.path().join("key"), folder.path().join("earlier"));
        // As a Secret's files come: another one takes the place of the first.
        let put = |path: &Path, text: &str, mode: u32| {
            let new = path.with_extension("new");
            std::fs::write(&new, text).expect("written");
            std::fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .expect("a mode");
            std::fs::rename(&new, path).expect("in place");
        };
        let ((one, one_public), (two, two_public)) =
            (Signer::make().expect("a key"), Signer::make().expect("a key"));
        put(&key, &one, 0o600);
        put(&earlier, &two_public, 0o644);
        let mut files = KeyFiles::new(key.clone(), Some(earlier.clone()));
        let read = |files: &mut KeyFiles| {
            let (signer, earlier) = files.changed().expect("a change").expect("keys");
            (signer.believed(), earlier)
        };
        let of = |text: &str| Believed::of(text.as_bytes()).expect("a key");
        assert_eq!(read(&mut files), (of(&one_public), of(&two_public)));
        assert!(files.changed().is_none());
        put(&key, &two, 0o600);
        put(&earlier, &one_public, 0o644);
        assert_eq!(read(&mut files), (of(&two_public), of(&one_public)));
        // Each of these is said once, and the one after it is read.
        put(&key, "half a k", 0o600);
        assert!(files.changed().expect("a change").is_err());
        assert!(files.changed().is_none());
        put(&key, &one, 0o644);
        let said = files
            .changed()
            .expect("a change")
            .err()
            .expect("others may read it");
        assert!(said.causes[0].contains("permissions"), "{said:?}");
        std::fs::remove_file(&key).expect("removed");
        assert!(files.changed().expect("a change").is_err());
        put(&key, &one, 0o600);
        assert_eq!(read(&mut files).0, of(&one_public));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let (private, public) = Signer::make().expect("a key");
        for text in ["", "x", &public, &private[..40]] {
            assert!(Signer::of(text.as_bytes()).is_err(), "{text}");
        }
        let rsa = pem(
            "PUBLIC KEY",
            &[
                0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01,
            ],
        );
        for text in ["", &private, &rsa, &public.repeat(17)] {
            assert!(Believed::of(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(Believed::of(public.repeat(2).as_bytes()).expect("two").0.len(), 2);
        let missing = Signer::read(Path::new("/nowhere/key")).err().expect("no file");
        assert_eq!(missing.code, Code::Usage);
    }
}

//! The image for container engines and Kubernetes, from nothing: the program and its libraries, the C library that they
//! need, and the certificates of public authorities. It has no shell and no other program.
//!
//! The file is an archive of the OCI image layout (image-spec v1.1): `podman load --input FILE`, `skopeo copy
//! oci-archive:FILE …`. The same files give the same bytes, so the same digests.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::archive::{self, Effort, Entry};
use super::layout::Layout;
use crate::cargo::{finish, workspace_root};
use crate::debian::{self, Release};

/// Where programs on Linux look for the certificates of authorities; Debian's own place.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// The libraries of glibc and GCC that Rust's programs load, or that older programs name.
const LIBRARIES: [&str; 6] = [
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];

/// What OCI calls this machine's architecture, what Debian calls its folder, and the loader's place in the image.
const MACHINE: (&str, &str, &str) = if cfg!(target_arch = "aarch64") {
    ("arm64", "aarch64-linux-gnu", "lib/ld-linux-aarch64.so.1")
} else {
    ("amd64", "x86_64-linux-gnu", "lib64/ld-linux-x86-64.so.2")
};

/// Writes `out/divvy-VERSION-ARCH.oci.tar`.
///
/// # Errors
/// Debian's packages cannot be had, or a file is missing.
pub fn pack(out: &Path, version: &str, layout: &Layout, effort: Effort) -> anyhow::Result<PathBuf> {
    let stage = tempfile::tempdir_in(out).context("Cannot make a folder to pack in")?;
    let mut entries: Vec<Entry> = Vec::new();
    let authorities = stage.path().join("authorities");
    fs::write(
        &authorities,
        certificates(&debian::unpack("ca-certificates", Release::Own, "main")?)?,
    )?;
    entries.push(Entry::text(CERTIFICATES.to_owned(), authorities));
    entries.extend(libraries(
        &debian::unpack("libc6", Release::Own, "main")?,
        &debian::unpack("libgcc-s1", Release::Own, "main")?,
    )?);
    for program in &layout.programs {
        entries.push(Entry::program(
            format!("usr/{}", program.path()),
            program.from().to_owned(),
        ));
    }
    let license = workspace_root().join("LICENSE");
    entries.push(Entry::text("usr/share/doc/divvy/LICENSE".to_owned(), license));
    let packed = out.join(format!("divvy-{version}-{}.oci.tar", MACHINE.0));
    write(&packed, stage.path(), version, &entries, effort)?;
    Ok(packed)
}

/// All certificates that Debian's package has, in one text.
fn certificates(package: &Path) -> anyhow::Result<String> {
    let folder = package.join("usr/share/ca-certificates/mozilla");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .with_context(|| format!("Cannot read {}", folder.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<anyhow::Result<_>>()?;
    files.sort();
    let mut text = String::new();
    for file in files {
        text.push_str(fs::read_to_string(&file)?.trim_end());
        text.push('\n');
    }
    if !text.starts_with("-----BEGIN CERTIFICATE-----") {
        bail!("{} has no certificates", folder.display());
    }
    Ok(text)
}

/// The loader and the libraries, out of Debian's packages.
fn libraries(libc: &Path, libgcc: &Path) -> anyhow::Result<Vec<Entry>> {
    let (_, folder, loader) = MACHINE;
    // Packages of Debian 13 have them below usr.
    let find = |name: &str| {
        let places = [libc, libgcc]
            .into_iter()
            .flat_map(|package| ["lib", "usr/lib"].map(|above| package.join(above).join(folder).join(name)));
        let found = places.into_iter().find(|place| place.exists());
        found.with_context(|| format!("Debian's packages have no {name}"))
    };
    let name = loader.rsplit('/').next().unwrap_or(loader);
    let mut entries = vec![Entry::program(loader.to_owned(), find(name)?)];
    for library in LIBRARIES {
        entries.push(Entry::program(format!("lib/{folder}/{library}"), find(library)?));
    }
    Ok(entries)
}

/// Writes the image of these files.
fn write(
    packed: &Path,
    stage: &Path,
    version: &str,
    entries: &[Entry],
    effort: Effort,
) -> anyhow::Result<()> {
    let root = stage.join("root");
    archive::lay_out(&root, entries)?;
    // The run directory goes below /run; programs of users need /tmp.
    for folder in ["run", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    archive::plain_folders(&root)?;
    fs::set_permissions(root.join("tmp"), Permissions::from_mode(0o1777))?;

    let layer = stage.join("layer.tar");
    tar(&layer, &root)?;
    let contents = sum(&layer)?;
    finish(
        Command::new("gzip")
            .args(["--no-name", effort.of_gzip()])
            .arg(&layer),
    )?;
    let image = stage.join("image");
    let layer = blob(&image, &stage.join("layer.tar.gz"))?;

    let labels = json!({
        "org.opencontainers.image.title": "divvy",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
    });
    let config = blob_of(
        &image,
        stage,
        &json!({
            "architecture": MACHINE.0,
            "os": "linux",
            "config": {
                "Entrypoint": ["/usr/bin/divvy"],
                "Env": ["PATH=/usr/bin", format!("SSL_CERT_FILE=/{CERTIFICATES}")],
                "Labels": labels,
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{contents}")] },
            "history": [{ "created_by": "cargo xtask dist" }],
        }),
    )?;
    let manifest = blob_of(
        &image,
        stage,
        &json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.described("application/vnd.oci.image.config.v1+json"),
            "layers": [layer.described("application/vnd.oci.image.layer.v1.tar+gzip")],
        }),
    )?;
    let mut described = manifest.described("application/vnd.oci.image.manifest.v1+json");
    described["annotations"] = json!({ "org.opencontainers.image.ref.name": format!("divvy:{version}") });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [described],
    });
    for (name, document) in [
        ("index.json", index),
        ("oci-layout", json!({ "imageLayoutVersion": "1.0.0" })),
    ] {
        let file = image.join(name);
        fs::write(&file, document.to_string())?;
        fs::set_permissions(&file, Permissions::from_mode(0o644))?;
    }
    archive::plain_folders(&image)?;
    tar(packed, &image)
}

/// An archive of what is in a folder: no time, user or group of this machine.
fn tar(to: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut names: Vec<_> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<anyhow::Result<_>>()?;
    names.sort();
    finish(
        Command::new("tar")
            .args(["--create", "--sort=name", "--mtime=@0", "--format=gnu"])
            .args(["--owner=0", "--group=0", "--numeric-owner"])
            .arg("--file")
            .arg(to)
            .arg("--directory")
            .arg(folder)
            .args(names),
    )
}

/// A file of the image, under its checksum.
struct Blob {
    sum: String,
    bytes: u64,
}

impl Blob {
    /// What another file of the image says of it.
    fn described(&self, kind: &str) -> Value {
        json!({ "mediaType": kind, "digest": format!("sha256:{}", self.sum), "size": self.bytes })
    }
}

fn blob(image: &Path, file: &Path) -> anyhow::Result<Blob> {
    let sum = sum(file)?;
    let folder = image.join("blobs/sha256");
    fs::create_dir_all(&folder)?;
    let bytes = fs::copy(file, folder.join(&sum))?;
    fs::set_permissions(folder.join(&sum), Permissions::from_mode(0o644))?;
    Ok(Blob { sum, bytes })
}

fn blob_of(image: &Path, stage: &Path, document: &Value) -> anyhow::Result<Blob> {
    let file = stage.join("document.json");
    fs::write(&file, document.to_string())?;
    blob(image, &file)
}

/// A file's SHA-256, in hexadecimal.
fn sum(file: &Path) -> anyhow::Result<String> {
    let output = Command::new("sha256sum")
        .arg(file)
        .output()
        .context("Cannot start sha256sum")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.split_whitespace().next() {
        Some(sum) if output.status.success() => Ok(sum.trim_start_matches('\\').to_owned()),
        _ => bail!("sha256sum: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image of two stand-ins, unpacked.
    fn image(folder: &Path) -> Vec<u8> {
        let file = |name: &str| {
            let path = folder.join(name);
            fs::write(&path, name).expect("written");
            path
        };
        let entries = [
            Entry::program("usr/bin/divvy".to_owned(), file("divvy")),
            Entry::text(CERTIFICATES.to_owned(), file("authorities")),
        ];
        let packed = folder.join("divvy.oci.tar");
        let stage = tempfile::tempdir_in(folder).expect("a folder");
        write(&packed, stage.path(), "1.2.3", &entries, Effort::Quick).expect("packed");
        fs::read(packed).expect("an image")
    }

    fn read(image: &Path, described: &Value) -> Vec<u8> {
        let digest = described["digest"].as_str().expect("a digest");
        let file = image
            .join("blobs/sha256")
            .join(digest.trim_start_matches("sha256:"));
        assert_eq!(format!("sha256:{}", sum(&file).expect("a sum")), digest);
        let bytes = fs::read(&file).expect("a blob");
        assert_eq!(described["size"], bytes.len());
        bytes
    }

    #[test]
    fn each_file_is_named_by_its_checksum_and_the_same_files_give_the_same_image() {
        let (one, other) = (
            tempfile::tempdir().expect("a folder"),
            tempfile::tempdir().expect("a folder"),
        );
        assert!(image(one.path()) == image(other.path()));

        let opened = one.path().join("opened");
        fs::create_dir(&opened).expect("a folder");
        let extract = |from: &Path, to: &Path| {
            let mut tar = Command::new("tar");
            finish(tar.arg("-xpf").arg(from).arg("-C").arg(to)).expect("unpacked");
        };
        extract(&one.path().join("divvy.oci.tar"), &opened);
        let parsed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
        let index = parsed(&fs::read(opened.join("index.json")).expect("an index"));
        let [described] = index["manifests"].as_array().expect("a list").as_slice() else {
            panic!("one manifest: {index}");
        };
        assert_eq!(
            described["annotations"]["org.opencontainers.image.ref.name"],
            "divvy:1.2.3"
        );
        let manifest = parsed(&read(&opened, described));
        let config = parsed(&read(&opened, &manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"], json!(["/usr/bin/divvy"]));
        let layer = one.path().join("layer.tar.gz");
        fs::write(&layer, read(&opened, &manifest["layers"][0])).expect("written");
        finish(Command::new("gzip").arg("--decompress").arg(&layer)).expect("a layer");
        let layer = one.path().join("layer.tar");
        let contents = format!("sha256:{}", sum(&layer).expect("a sum"));
        assert_eq!(config["rootfs"]["diff_ids"], json!([contents]));
        let root = one.path().join("root");
        fs::create_dir(&root).expect("a folder");
        extract(&layer, &root);
        let mode = |path: &str| fs::metadata(root.join(path)).expect(path).permissions().mode() & 0o7777;
        assert_eq!(
            (mode("usr/bin/divvy"), mode(CERTIFICATES), mode("tmp")),
            (0o755, 0o644, 0o1777)
        );
    }
}

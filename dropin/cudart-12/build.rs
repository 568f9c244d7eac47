//! The vendor's SONAME, and the version that its symbols have: a program that was linked with NVIDIA's library asks for
//! both. It keeps what programs registered, so it is never unmapped.
use std::path::Path;

const NAME: &str = "libcudart.so.12";

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let script = Path::new(&out).join("versions.map");
    std::fs::write(
        &script,
        format!("{NAME} {{ global: cuda*; __cuda*; local: *; }};\n"),
    )
    .expect("the folder is ours");
    for arg in [
        format!("-Wl,-soname,{NAME}"),
        format!("-Wl,--version-script={}", script.display()),
        "-Wl,-Bsymbolic".to_owned(),
        "-Wl,-z,relro,-z,now,-z,noexecstack,-z,nodelete".to_owned(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

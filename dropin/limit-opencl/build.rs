//! The loader opens the layer by its path; the SONAME tells tools what it is. It stays loaded: its threads do.
fn main() {
    for arg in [
        "-Wl,-soname,libdivvy-opencl.so.1",
        "-Wl,-Bsymbolic",
        "-Wl,-z,relro,-z,now,-z,noexecstack,-z,nodelete",
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

//! The vendor's SONAME is what lets this library answer every later request for libcuda.so.1. It keeps threads and
//! a fork handler, so it is never unmapped.
fn main() {
    for arg in [
        "-Wl,-soname,libcuda.so.1",
        "-Wl,-Bsymbolic",
        "-Wl,-z,relro,-z,now,-z,noexecstack,-z,nodelete",
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

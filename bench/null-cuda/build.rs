//! The vendor's SONAME is what lets this library answer every later request for libcuda.so.1.
fn main() {
    for arg in [
        "-Wl,-soname,libcuda.so.1",
        "-Wl,-Bsymbolic",
        "-Wl,-z,relro,-z,now,-z,noexecstack",
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

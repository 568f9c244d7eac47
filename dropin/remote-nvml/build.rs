//! The vendor's SONAME is what lets this library answer every later request for libnvidia-ml.so.1.
fn main() {
    for arg in [
        "-Wl,-soname,libnvidia-ml.so.1",
        "-Wl,-Bsymbolic",
        "-Wl,-z,relro,-z,now,-z,noexecstack",
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

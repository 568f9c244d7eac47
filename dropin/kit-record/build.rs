//! The loader uses the library as it is. All names are bound at the start, so that nothing is looked up while a program
//! looks something up.
fn main() {
    for arg in ["-Wl,-Bsymbolic", "-Wl,-z,relro,-z,now,-z,noexecstack"] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

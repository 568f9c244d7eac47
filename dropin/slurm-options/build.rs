//! Slurm's programs load the library as it is. What it calls of Slurm's it looks up by itself.
fn main() {
    for arg in ["-Wl,-Bsymbolic", "-Wl,-z,relro,-z,now,-z,noexecstack"] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

//! What the scenarios in containers begin with.

use divvy_tests::clients::{attacker, probe};
use divvy_tests::containers::{Image, Podman};
use divvy_tests::host::{Host, finish, succeeded};

/// As hardened as an engine makes a container that still has its slice.
pub const HARDENED: [&str; 3] = ["--cap-drop=all", "--security-opt", "no-new-privileges"];

/// An image with the attacker and a tenant in it.
pub fn image(host: &Host) -> Image {
    let image = Image::new(host);
    image.program(&attacker(), "/bin/attacker");
    image.program(&probe(), "/bin/probe");
    image
}

/// Makes a slice of root's for containers of this podman; the name of its CDI device.
pub fn slice(host: &Host, podman: &Podman<'_>, name: &str, memory: &str) -> String {
    let mut make = host.divvy(["cdi", "slice", "--memory", memory, "--name", name, "--directory"]);
    succeeded(&finish(make.arg(podman.cdi()))).trim().to_owned()
}

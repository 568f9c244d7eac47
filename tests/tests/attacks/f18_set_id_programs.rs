//! F18. Read in the old code: the limiter is loaded into programs with other rights than their caller's too, by
//! /etc/ld.so.preload, and wrote its log where the caller's DIVVY_LOG said.

use divvy_tests::containers::Podman;
use divvy_tests::host::finish;
use divvy_tests::system::System;

use super::containers::{image, slice};

#[test]
fn f18_a_set_id_program_writes_no_log_where_its_caller_says() {
    let Some(system) = System::new() else { return };
    let Some(podman) = Podman::new(&system) else {
        return;
    };
    let (image, device) = (image(&system), slice(&system, &podman, "own", "1GiB"));
    image.file(&divvy_tests::clients::probe(), "/bin/as-root");
    let set_id = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(image.root().join("bin/as-root"), set_id).expect("a mode");
    let victim = system.victim("shadow");
    let volume = format!("{}:/victim", victim.path().display());
    // A refusal is logged.
    let attack = "echo allocate 2147483648 | DIVVY_LOG=/victim /bin/as-root; id -u; \
                  echo allocate 2147483648 | DIVVY_LOG=/victim /bin/as-root";
    let flags = ["--user", "1000:1000", "--device", &device, "--volume", &volume];
    let output = finish(&mut podman.run(&flags, &image, &["/bin/sh", "-c", attack]));
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{seen}");
    assert!(
        seen.contains("CUDA_ERROR_OUT_OF_MEMORY") && seen.contains("1000\n"),
        "the program works, by another user: {output:?}"
    );
    victim.is_unharmed();
    system.holds();
}

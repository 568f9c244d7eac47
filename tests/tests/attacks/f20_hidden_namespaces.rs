//! F20. Read in the old code: of a container's processes sixteen were asked what is mounted there. Sixteen of low numbers that
//! have changed their root hid a program that the limiter cannot be loaded into.

use std::path::Path;
use std::time::{Duration, Instant};

use divvy_tests::clients::compiler;
use divvy_tests::containers::{Podman, opens};
use divvy_tests::host::{Host, finish};
use divvy_tests::processes;

use super::containers::{image, slice};

#[test]
fn f20_processes_that_changed_their_root_hide_no_program_past_the_limiter() {
    let Some(compiler) = compiler() else { return };
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let (image, device) = (image(&host), slice(&host, &podman, "own", "1GiB"));
    let program = opens(&host, &compiler);
    image.file(&program, "/bin/hidden-opens");
    image.program(Path::new("/usr/sbin/chroot"), "/bin/chroot");
    for file in [
        "/lib64/ld-linux-x86-64.so.2",
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/bin/sleep",
    ] {
        image.file(
            &std::fs::canonicalize(file).expect("a file"),
            &format!("/jail{file}"),
        );
    }
    // The container's first process changes its root too, and becomes the program's elder.
    let attack = "n=0; while [ $n -lt 24 ]; do chroot /jail /bin/sleep 600 & n=$((n+1)); done; sleep 1; \
                  /bin/hidden-opens & exec chroot /jail /bin/sleep 600";
    let flags = ["--device", &device, "--cap-add", "SYS_CHROOT"];
    let mut run = podman.run(&flags, &image, &["/bin/sh", "-c", attack]);
    let hidden = divvy_tests::hostile::Hostile::start(&mut run);
    let opened = hidden.line().expect("it says what it opened");
    println!("{opened}");
    // Its elder reaps nothing: one that was ended is a zombie.
    let lives = || processes::named("hidden-opens").any(processes::is_alive);
    let begin = Instant::now();
    while lives() && begin.elapsed() < Duration::from_secs(15) {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(opened, "opened 2");
    assert!(
        !lives(),
        "a program past the limiter was let run, hidden by 24 others"
    );
    drop(hidden);
    let _gone = finish(&mut podman.command(&["rm", "--all", "--force", "--time", "0"]));
}

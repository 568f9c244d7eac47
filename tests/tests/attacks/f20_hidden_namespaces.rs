//! F20. Read in the old code: of a container's processes sixteen were asked what is mounted there. Sixteen of low numbers that
//! have changed their root hid a program that the limiter cannot be loaded into.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use divvy_tests::clients::compiler;
use divvy_tests::containers::Podman;
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::processes;

use super::containers::{image, slice};

/// Opens what a container has of the emulated device, and stays.
const OPENS: &str = r#"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    DIR *folder = opendir("/run/divvy/device");
    struct dirent *entry;
    char path[512];
    int opened = 0;
    while (folder && (entry = readdir(folder)))
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "/run/divvy/device/%s", entry->d_name);
            opened += open(path, O_RDWR | O_CLOEXEC) >= 0;
        }
    printf("opened %d\n", opened);
    fflush(stdout);
    sleep(600);
    return 0;
}
"#;

#[test]
fn f20_processes_that_changed_their_root_hide_no_program_past_the_limiter() {
    let Some(compiler) = compiler() else { return };
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let (image, device) = (image(&host), slice(&host, &podman, "own", "1GiB"));
    let (source, program) = (host.folder().join("opens.c"), host.folder().join("hidden-opens"));
    std::fs::write(&source, OPENS).expect("written");
    succeeded(&finish(
        Command::new(compiler)
            .arg("-static")
            .arg("-o")
            .arg(&program)
            .arg(&source),
    ));
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
    // Where a container has no file of the device to open there is nothing to be ended for.
    assert!(
        !lives() || opened == "opened 0",
        "a program past the limiter was let run, hidden by 24 others"
    );
    drop(hidden);
    let _gone = finish(&mut podman.command(&["rm", "--all", "--force", "--time", "0"]));
}

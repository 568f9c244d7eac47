//! Programs in containers that nothing can be preloaded into.

use std::path::Path;
use std::process::Command;

use divvy_tests::clients::compiler;
use divvy_tests::containers::{Image, Podman};
use divvy_tests::host::{Host, finish, stderr, succeeded};

use crate::containers::image;

/// A program that opens what a container has of the emulated device, says so, and stays.
const OPENS: &str = r#"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void) {
    DIR *folder = opendir("/run/divvy/device");
    struct dirent *entry;
    char path[512];
    int opened = 0;
    while (folder && (entry = readdir(folder)))
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "granted")) {
            snprintf(path, sizeof path, "/run/divvy/device/%s", entry->d_name);
            opened += open(path, O_RDWR | O_CLOEXEC) >= 0;
        }
    printf("opened %d\n", opened);
    fflush(stdout);
    sleep(600);
    return 0;
}
"#;

/// The program, static, in the image.
fn put(host: &Host, image: &Image, compiler: &Path) {
    let (source, program) = (host.folder().join("opens.c"), host.folder().join("opens"));
    std::fs::write(&source, OPENS).expect("written");
    let mut compile = Command::new(compiler);
    compile.arg("-static").arg("-o").arg(&program).arg(&source);
    succeeded(&finish(&mut compile));
    image.file(&program, "/bin/opens");
}

/// Where the image is seen it is refused before it starts: by the wrapper, and by `divvy podman run`.
#[test]
fn a_static_program_is_refused_before_it_starts_where_it_is_seen() {
    let Some(compiler) = compiler() else { return };
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    put(&host, &image, &compiler);
    let flags = ["--annotation", "divvy.dev/memory=1GiB"];
    for mut run in [
        podman.run_over_wrapper(&[], &flags, &image, &["/bin/opens"]),
        podman.run_by_divvy(&["--memory", "1GiB"], &image, &["/bin/opens"]),
    ] {
        let output = finish(&mut run);
        let said = stderr(&output);
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        assert!(
            said.contains("D0022") && said.contains("linked statically"),
            "{said}"
        );
        assert!(host.slices().is_empty());
    }
}

//! Programs in containers that nothing can be preloaded into.

use std::path::Path;

use divvy_tests::clients::compiler;
use divvy_tests::containers::{Image, Podman, goes_below, opens};
use divvy_tests::host::{Host, finish, stderr, succeeded};

use divvy_tests::wait::until;

use crate::containers::{image, slice};

/// The program, static, in the image.
fn put(host: &Host, image: &Image, compiler: &Path) {
    let program = opens(host, compiler);
    image.file(&program, "/bin/opens");
}

/// The driver's account tells of it: its slice's ledger does not.
#[test]
fn a_containers_program_that_goes_past_the_limiter_in_it_is_ended() {
    let Some(compiler) = compiler() else { return };
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    let program = goes_below(&host, &compiler);
    image.program(&program, "/bin/below");
    // What it takes is within the limit: supervision would end it for more, and either of the two might come first.
    let ended = finish(&mut podman.run_by_divvy(&["--memory", "4GiB"], &image, &["/bin/below"]));
    assert!(!ended.status.success(), "{}", stderr(&ended));
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "took it: 1\n");
    let said = events(&host);
    assert!(
        said.contains("uses a device without being counted") && said.contains("it is ended"),
        "{said}"
    );
}

fn events(host: &Host) -> String {
    succeeded(&finish(&mut host.divvy(["events"])))
}

/// By a bare `--device` the image is not checked before it runs, and names tell nothing: the agent ends what uses the
/// device outside the slice, and says so. It does not where the policy lets it be, but counts it.
#[test]
fn a_static_program_that_opens_the_device_is_ended_whatever_its_name() {
    let Some(compiler) = compiler() else { return };
    for runtime in ["runc", "crun"] {
        let host = Host::new();
        let Some(podman) = Podman::over(&host, runtime) else {
            return;
        };
        let image = image(&host);
        put(&host, &image, &compiler);
        for name in ["/bin/exe", "/bin/tini", "/bin/runc"] {
            image.file(&host.folder().join("opens"), name);
        }
        let device = slice(&host, &podman, "strict", "1GiB");
        for program in ["/bin/opens", "/bin/tini"] {
            let ended = finish(&mut podman.run(&["--device", &device], &image, &[program]));
            let out = String::from_utf8_lossy(&ended.stdout).into_owned();
            assert!(!ended.status.success(), "{program}: {}", stderr(&ended));
            assert!(
                out.starts_with("opened ") && !out.starts_with("opened 0"),
                "{program}: {out}"
            );
        }
        let said = events(&host);
        let ended = said
            .lines()
            .filter(|line| line.contains("static, or of musl: it is ended"));
        assert_eq!(ended.count(), 2, "{said}");

        let mut make = host.divvy(["cdi", "slice", "--memory", "1GiB", "--name", "let"]);
        make.args(["--policy", "best-effort", "--directory"])
            .arg(podman.cdi());
        succeeded(&finish(&mut make));
        let flags = ["-d", "--name", "box", "--device", "divvy.dev/slice=let"];
        succeeded(&finish(&mut podman.run(&flags, &image, &["/bin/opens"])));
        until("it is counted", || {
            let shown = host.json(["ps"])["items"].clone();
            let slices = shown.as_array().expect("slices");
            let slice = slices.iter().find(|slice| slice["name"] == "let")?;
            slice["bypasses"][0].is_string().then_some(())
        });
        let running = podman_says(&podman, "{{.State.Running}}", "box");
        assert_eq!(running, "true\n", "it is let be");
    }
}

/// An image of the engine's store is not seen before it runs. The status says that its program is refused, `divvy events` says
/// why, and the slice is gone: the container cannot be started again. A name as a runtime's changes nothing.
#[test]
fn a_static_program_is_refused_in_the_background_and_stays_away() {
    let Some(compiler) = compiler() else { return };
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    put(&host, &image, &compiler);
    image.file(&host.folder().join("opens"), "/bin/exe");
    for (name, program) in [("one", "/bin/opens"), ("two", "/bin/exe")] {
        podman.import(&image, name, program);
        let flags = ["-d", "--name", name, "--memory", "1GiB"];
        let refused = finish(&mut podman.imported_by_divvy(&flags, name));
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(125), "{said}");
        assert!(
            said.contains("error[D0022]") && said.contains("linked statically"),
            "{said}"
        );
        assert!(host.slices().is_empty(), "{program}");
        let told = events(&host);
        let of = |line: &str| line.contains("refused") && line.contains(program);
        assert!(told.lines().any(of), "{told}");
        let again = finish(&mut podman.command(&["start", name]));
        assert!(!again.status.success(), "it has no slice");
        let running = podman_says(&podman, "{{.State.Running}}", name);
        assert_eq!(running, "false\n");
    }
    // In the foreground, too.
    let refused = finish(&mut podman.imported_by_divvy(&["--rm", "--memory", "1GiB"], "two"));
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(said.contains("linked statically"), "{said}");
    assert!(host.slices().is_empty());
}

fn podman_says(podman: &Podman<'_>, format: &str, name: &str) -> String {
    succeeded(&finish(
        &mut podman.command(&["inspect", "--format", format, name]),
    ))
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

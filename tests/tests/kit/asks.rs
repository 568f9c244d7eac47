//! The programs of nvcc, with a script in its place: the compiler is NVIDIA's.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use divvy_tests::clients::system_python;
use divvy_tests::host::finish;
use serde_json::json;

use super::Kit;

/// A compiler that makes programs of its own, whatever the source: they bind one name and end with 0.
fn script(python: &str) -> String {
    format!(
        "#!/bin/sh\n\
         [ \"$1\" = --version ] && exit 0\n\
         last=; for w; do [ \"$last\" = -o ] && out=$w; last=$w; done\n\
         [ -s \"$last\" ] || exit 1\n\
         echo '{python} -c \"import ctypes; ctypes.CDLL(\\\"libcuda.so.1\\\").cuInit(0)\"' | \
         {{ echo '#!/bin/sh'; cat; }} >\"$out\"\n\
         chmod +x \"$out\"\n"
    )
}

#[test]
fn programs_of_the_machines_own_nvcc_are_made_and_recorded() {
    let Some(python) = system_python() else { return };
    let kit = Kit::new(None);
    let bin = kit.home.join("fake");
    fs::create_dir(&bin).expect("a folder");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
    let run = |text: &str| {
        fs::write(bin.join("nvcc"), text).expect("written");
        fs::set_permissions(bin.join("nvcc"), Permissions::from_mode(0o755)).expect("a mode");
        let mut command = kit.command(&["--part", "asks"]);
        // Without Python's clients.
        let output = finish(command.env("PATH", &path).env("KIT_PYTHON", "/nowhere/python3"));
        assert_eq!(output.status.code(), Some(0));
    };
    run(&script(python.to_str().expect("text")));
    for program in ["static", "fatbin"] {
        let found = kit.finding("asks", &format!("asks.nvcc.{program}"));
        assert_eq!(found["details"]["symbols"], json!(["cuInit"]), "{found}");
        let says = found["says"].as_str().expect("a sentence");
        assert!(!says.contains("ended early"), "{says}");
    }
    // One that makes nothing, and one that is not there.
    run("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho no host compiler >&2; exit 2\n");
    let found = kit.finding("asks", "asks.nvcc.static");
    assert_eq!(found["verdict"], "skipped", "{found}");
    assert!(found["says"].to_string().contains("no host compiler"), "{found}");
    run("#!/bin/sh\nexit 127\n");
    assert_eq!(kit.verdict("asks", "asks.nvcc"), "skipped");
}

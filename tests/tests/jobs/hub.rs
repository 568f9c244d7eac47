//! JupyterHub with configurable-http-proxy, both as they are published. docs/jupyterhub.md.

use std::process::Command;

use divvy_tests::clients::{hub_proxy, jobs_python};
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::isolation;
use divvy_tests::system::System;

use crate::python;

#[test]
fn each_user_s_kernels_are_in_a_slice() {
    let (Some(python), Some(proxy)) = (jobs_python(), hub_proxy()) else {
        return;
    };
    let host = Host::new();
    python::tests(&host, &python, "test_jupyterhub.py", |pytest| {
        pytest.env("DIVVY_TEST_PROXY", proxy).env(
            "PYTHONPATH",
            [python::folder(), python::folder().join("tests")]
                .map(|path| path.display().to_string())
                .join(":"),
        );
    });
}

/// Opens folders of the repository to other users, below one that they may enter: for this process and what it starts only.
const OPEN: &str = "for name in base env python; do mkdir -p $DIVVY_TEST_OPEN/$name; done
mount --bind $DIVVY_TEST_BASE $DIVVY_TEST_OPEN/base
mount --bind $DIVVY_TEST_ENV $DIVVY_TEST_OPEN/env
mount --bind $DIVVY_TEST_PYTHON $DIVVY_TEST_OPEN/python
exec \"$@\"";

/// The hub is root, and its users are users of this machine, made for this and removed after it.
#[test]
fn users_of_the_machine_have_slices_of_their_own() {
    let (Some(interpreter), Some(proxy)) = (jobs_python(), hub_proxy()) else {
        return;
    };
    // The level is the agent's to choose here.
    if isolation::asked_for().is_some() {
        return;
    }
    let Some(system) = System::new() else { return };
    let base = "import sys; print(sys.base_prefix)";
    let base = succeeded(&finish(Command::new(&interpreter).args(["-c", base])));
    let environment = interpreter.ancestors().nth(2).expect("an environment").to_owned();
    let users = [&system.users.alice, &system.users.bob].map(|user| user.name.clone());
    let before = ["unshare", "--mount", "sh", "-ec", OPEN, "sh"];
    python::tests_behind(&system, &interpreter, &before, "test_hub_users.py", |pytest| {
        let programs = system.program("divvy");
        let programs = programs.parent().expect("a folder").display();
        let path = std::env::var("PATH").unwrap_or_default();
        pytest
            .env("DIVVY_TEST_PROXY", proxy)
            .env("DIVVY_TEST_USERS", users.join(","))
            .env("DIVVY_TEST_OPEN", system.folder().join("open"))
            .env("DIVVY_TEST_BASE", base.trim())
            .env("DIVVY_TEST_ENV", environment)
            .env("DIVVY_TEST_PYTHON", python::folder())
            .env("PATH", format!("{programs}:{path}"))
            .env(
                "PYTHONPATH",
                [python::folder(), python::folder().join("tests")]
                    .map(|path| path.display().to_string())
                    .join(":"),
            );
    });
}

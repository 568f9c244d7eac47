//! JupyterHub with configurable-http-proxy, both as they are published. docs/jupyterhub.md.

use divvy_tests::clients::{hub_proxy, jobs_python};
use divvy_tests::host::Host;

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

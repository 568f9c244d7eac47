//! What is packed for pip.

use divvy_tests::build::workspace;

#[test]
fn each_module_says_what_it_is_for_and_is_short() {
    let mut folders = vec![crate::python::folder().join("divvy_jobs")];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "py") {
                let text = std::fs::read_to_string(&path).expect("text");
                assert!(text.starts_with("\"\"\""), "{}", path.display());
                assert!(text.lines().count() < 400, "{}", path.display());
                count += 1;
            }
        }
    }
    assert!(count > 10, "{count}");
}

#[test]
fn the_pages_name_the_plugin_as_it_is() {
    let page = std::fs::read_to_string(workspace().join("docs/ray.md")).expect("a page");
    let module =
        std::fs::read_to_string(crate::python::folder().join("divvy_jobs/ray/__init__.py")).expect("text");
    let named = "[{\"class\": \"divvy_jobs.ray.plugin.Plugin\"}]";
    assert!(page.contains(named) && module.contains(named));
}

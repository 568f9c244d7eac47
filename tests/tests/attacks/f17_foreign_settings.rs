//! F17. Read in the old code: configuration files were read whichever user they belonged to. As root, with a user's
//! HOME or XDG_CONFIG_HOME (`sudo -E`, `su` without `-`), `driver` of that user's file was loaded and `oci_runtime`
//! executed.

use divvy_tests::host::finish;
use divvy_tests::system::System;

#[test]
fn f17_root_takes_no_settings_from_a_file_that_is_another_users() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let write = "mkdir -p .config/divvy && printf 'driver = \"/tmp/evil.so\"\noci_runtime = \"/tmp/evil\"\n' \
                 > .config/divvy/config.toml";
    assert!(system.script_as(alice, write, &[]).status.success());
    // Hers it is: for her it counts.
    let own = finish(&mut system.divvy_as(alice, ["config", "show"]));
    assert!(
        String::from_utf8_lossy(&own.stdout).contains("/tmp/evil.so"),
        "{own:?}"
    );
    for variable in ["HOME", "XDG_CONFIG_HOME"] {
        let mut show = system.divvy(["config", "show"]);
        show.env_remove("HOME").env_remove("XDG_CONFIG_HOME");
        match variable {
            "HOME" => show.env("HOME", &alice.home),
            _ => show
                .env("HOME", "/root")
                .env(variable, alice.home.join(".config")),
        };
        let shown = finish(&mut show);
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(
            !text.contains("/tmp/evil"),
            "by {variable} root took alice's settings: {text}"
        );
    }
    // A file of root's that others may write to is theirs too.
    let folder = system.folder().join("loose/divvy");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("config.toml"), "driver = \"/tmp/evil.so\"\n").expect("written");
    let loose = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(folder.join("config.toml"), loose).expect("a mode");
    let mut show = system.divvy(["config", "show"]);
    let shown = finish(show.env("XDG_CONFIG_HOME", system.folder().join("loose")));
    assert!(
        !String::from_utf8_lossy(&shown.stdout).contains("/tmp/evil"),
        "root took settings that everybody may write"
    );
    system.holds();
}

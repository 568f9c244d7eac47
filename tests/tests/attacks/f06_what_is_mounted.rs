//! F6. Seen on the old code: the folder that containers have at /run/divvy/slice lay in the folder of the slice's
//! owner. bob put a link to a folder of root's there, and a container of his slice saw what was in it.

use divvy_tests::containers::Podman;
use divvy_tests::host::finish;
use divvy_tests::system::System;

use super::containers::image;

#[test]
fn f06_a_link_in_the_place_of_the_box_is_mounted_into_no_container() {
    let Some(system) = System::new() else { return };
    let Some(podman) = Podman::new(&system) else {
        return;
    };
    let bob = &system.users.bob;
    let image = image(&system);
    let id = system.slice_of(bob, "bobs", "1GiB");
    let secret = system.folder().join("secret");
    std::fs::create_dir(&secret).expect("a folder");
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("a mode");
    std::fs::write(secret.join("hostsecret"), "hostsecret\n").expect("written");
    let attack = "cd \"$1/slices/$2\" 2>/dev/null && mv box x; ln -s \"$3\" box; \
                  cd \"$1/boxes\" 2>/dev/null && mv \"$2\" x && ln -s \"$3\" \"$2\"; true";
    system.script_as(bob, attack, &[&system.run_directory(), id.as_ref(), &secret]);
    for name in ["bobs", &id] {
        let annotation = format!("divvy.dev/slice={name}");
        let look = [
            "/bin/sh",
            "-c",
            "ls /run/divvy/slice; cat /run/divvy/slice/hostsecret",
        ];
        let mut run = podman.run_over_wrapper(&[], &["--annotation", &annotation], &image, &look);
        let output = finish(&mut run);
        let seen = String::from_utf8_lossy(&output.stdout);
        assert!(
            !seen.contains("hostsecret"),
            "a container sees a folder of root's: {seen}"
        );
    }
    system.holds();
}

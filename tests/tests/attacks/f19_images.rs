//! F19. Read in the old code: every PTX file of an image was unpacked when it was loaded, each up to 256 MiB, without a bound on
//! their sum.

use divvy_tests::clients::attacker;
use divvy_tests::host::{Host, finish, succeeded};

#[test]
fn f19_an_image_that_is_large_once_unpacked_is_not_unpacked_whole() {
    let host = Host::new();
    let mut run = host.run("1GiB", attacker());
    let said = succeeded(&finish(run.args(["fatbin", "4", "120"])));
    println!("{said}");
    let grown: u64 = said
        .lines()
        .last()
        .and_then(|line| line.parse().ok())
        .expect("bytes");
    // A device can run one file of it. All of them are 480 MiB.
    assert!(
        grown < 300 << 20,
        "an image of 2 MB made its program {grown} bytes larger"
    );
}

//! `divvy guest relay` with a program in the place of QEMU.

use std::io::Read;
use std::process::{Command, Stdio};

/// A machine that sends what is no frame is killed. It would say that it outlived the relay.
#[test]
fn a_machine_that_says_what_it_may_not_is_killed() {
    let machine = "
for word; do case $word in socket,*fd=*) fd=${word##*fd=};; esac; done
printf %040d 0 >&$fd
read -r _
echo outlived
";
    let mut relay = Command::new(env!("CARGO_BIN_EXE_divvy"));
    relay
        .args(["guest", "relay", "web", "--shared-memory", "32MiB", "--"])
        .args(["bash", "-c", machine, "qemu"])
        .env("DIVVY_REMOTE", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut relay = relay.spawn().expect("divvy starts");
    let stdin = relay.stdin.take();
    let status = relay.wait().expect("it ends");
    drop(stdin);
    let [mut said, mut why] = [String::new(), String::new()];
    relay
        .stdout
        .take()
        .expect("piped")
        .read_to_string(&mut said)
        .expect("text");
    relay
        .stderr
        .take()
        .expect("piped")
        .read_to_string(&mut why)
        .expect("text");
    assert_eq!((status.success(), said.as_str()), (false, ""), "{why}");
    assert!(why.contains("was killed"), "{why}");
}

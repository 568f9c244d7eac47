//! A user with subordinate numbers has one quota.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use divvy_host::Nvidia;
use divvy_model::{Bytes, Code, Compute, Fault, MemoryAmount, SliceRequest};

use crate::accounts::Accounts;
use crate::api::{CreateSlice, CreatedSlice};
use crate::daemon::Daemon;
use crate::start::rundir::RunDir;
use crate::start::settings::Settings;
use crate::system::peer::Peer;

const GIB: u64 = 1 << 30;
/// Users of the machine.
const USERS: &str = "root:x:0:0::/:/\nalice:x:64321:64321::/:/\nbob:x:64322:64322::/:/\n";
const ALICE: u32 = 64_321;
const BOB: u32 = 64_322;

struct Host {
    folder: tempfile::TempDir,
    daemon: Daemon,
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

fn write(path: &Path, text: &str, mode: u32) {
    // A new file takes the place of the one before, as usermod(8) does it.
    let fresh = path.with_extension("+");
    std::fs::write(&fresh, text).expect("written");
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(mode)).expect("a mode");
    std::fs::rename(&fresh, path).expect("in place");
}

impl Host {
    fn new(ranges: &str, settings: Settings) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
        let settings = Settings {
            admit_others: true,
            emulated: Some("h100".into()),
            ..settings
        };
        let no_page_server = |_: &RunDir, _: &str| std::process::Command::new("false");
        let minute = Duration::from_secs(60);
        let nvidia = Nvidia::over(|| super::devices::Fake("GPU-none".into()), minute, minute);
        let daemon = Daemon::start_over(run, settings, no_page_server, nvidia).expect("it starts");
        let host = Self { folder, daemon };
        host.give(ranges, 0o644);
        let accounts = Accounts::by(&host.ranges(), &host.folder.path().join("passwd"));
        host.daemon.state.lock().accounts = Arc::new(accounts);
        host
    }

    fn ranges(&self) -> PathBuf {
        self.folder.path().join("subuid")
    }

    fn give(&self, ranges: &str, mode: u32) {
        write(&self.folder.path().join("passwd"), USERS, 0o644);
        write(&self.ranges(), ranges, mode);
    }

    fn ask(&self, uid: u32, gib: u64, share: Option<u16>) -> Result<CreatedSlice, Fault> {
        let accounts = self.daemon.state.lock().accounts.clone();
        accounts.prepare(uid);
        let mut request = SliceRequest {
            memory: Some(MemoryAmount::Bytes(Bytes(gib * GIB))),
            ..SliceRequest::default()
        };
        request.terms.compute.share = share.map(Compute);
        let ask = CreateSlice {
            request,
            lasting: true,
            ..CreateSlice::default()
        };
        let mut state = self.daemon.state.lock();
        let wanted = crate::admission::wanted::Wanted {
            ask,
            parent: None,
            then_join: false,
        };
        let peer = Peer::new(uid, std::process::id());
        let ahead = crate::decide::queue::Ahead::default();
        self.daemon
            .admission
            .try_create(&mut state, peer, &wanted, &ahead)
    }

    fn code(&self, uid: u32, gib: u64, share: Option<u16>) -> Result<(), Code> {
        self.ask(uid, gib, share).map(drop).map_err(|fault| fault.code)
    }
}

#[test]
fn subordinate_users_have_the_quota_of_the_user_they_belong_to() {
    if !is_root() {
        return;
    }
    let settings = Settings {
        user_memory: Some(MemoryAmount::Bytes(Bytes(10 * GIB))),
        user_slices: Some(3),
        user_compute: Some(Compute(5000)),
        ..Settings::default()
    };
    let host = Host::new("alice:100000:65536\nbob:165536:65536\n", settings);
    let first = host.ask(ALICE, 4, Some(2000)).expect("within").slice;
    assert_eq!((first.uid, first.account_uid), (ALICE, None));
    let second = host.ask(100_001, 4, Some(2000)).expect("within").slice;
    assert_eq!((second.uid, second.account_uid), (100_001, Some(ALICE)));
    let refusal = host.ask(100_002, 3, None).expect_err("of memory");
    assert_eq!(refusal.code, Code::QuotaFull);
    let says = format!("by /etc/subuid user 100002 counts as user {ALICE}");
    assert!(refusal.causes.contains(&says), "{refusal:?}");
    assert_eq!(host.code(165_535, 1, Some(2000)), Err(Code::QuotaFull), "of time");
    assert_eq!(host.code(100_003, 11, None), Err(Code::OverQuota));
    assert_eq!(host.code(100_003, 1, None), Ok(()));
    assert_eq!(host.code(100_004, 1, None), Err(Code::QuotaFull), "of slices");
    assert_eq!(host.code(165_536, 10, Some(5000)), Ok(()), "bob's are bob's");
    assert_eq!(host.code(BOB, 1, None), Err(Code::QuotaFull));
}

#[test]
fn a_number_of_two_users_gets_no_slice_and_each_is_told_why() {
    if !is_root() {
        return;
    }
    let host = Host::new("alice:100000:65536\n", Settings::default());
    assert_eq!(host.code(100_000, 1, None), Ok(()));
    host.give("alice:100000:65536\nbob:100000:65536\n", 0o644);
    let refusal = host.ask(100_000, 1, None).expect_err("whose is it?");
    assert_eq!(refusal.code, Code::UnclearAccount);
    assert_eq!(
        refusal.message,
        format!("user 100000 is a subordinate user of users {ALICE} and {BOB}")
    );
    assert_eq!(
        (host.code(ALICE, 1, None), host.code(BOB, 1, None)),
        (Ok(()), Ok(())),
        "their own"
    );
    let tenants = host.daemon.state.lock().tenants();
    let of = |uid: u32| {
        tenants
            .0
            .iter()
            .filter(move |tenant| tenant.accounts.contains(&uid))
    };
    assert_eq!(
        (of(ALICE).count(), of(BOB).count()),
        (2, 2),
        "what there is counts for both"
    );
}

#[test]
fn a_file_that_changes_or_cannot_be_believed_frees_no_one_of_a_quota() {
    if !is_root() {
        return;
    }
    let settings = Settings {
        user_slices: Some(1),
        ..Settings::default()
    };
    let host = Host::new("alice:100000:65536\n", settings);
    assert_eq!(host.code(ALICE, 1, None), Ok(()));
    let stays = |why: &str| assert_eq!(host.code(100_007, 1, None), Err(Code::QuotaFull), "{why}");
    stays("as it was");
    std::fs::write(host.ranges(), "").expect("emptied");
    stays("in the middle of a write");
    std::fs::remove_file(host.ranges()).expect("removed");
    stays("not there");
    host.give("alice:100000:65536\n", 0o666);
    stays("writable by all");
    assert_eq!(host.code(3_000_000, 1, None), Ok(()), "a number of no one");
    assert_eq!(
        host.code(3_000_001, 1, None),
        Err(Code::QuotaFull),
        "and all others like it"
    );
    host.give(&"#\n".repeat(3 << 20), 0o644);
    stays("too long to be read");
    std::fs::remove_file(host.ranges()).expect("removed");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        host.ranges(),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a pipe");
    stays("no file, and no delay");
    host.give("bob:100000:65536\n", 0o644);
    assert_eq!(host.code(100_007, 1, None), Ok(()), "bob's by now");
    assert_eq!(host.code(BOB, 1, None), Err(Code::QuotaFull));
}

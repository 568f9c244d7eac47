//! Requests: each kind as its bytes, and the fuzz target's corpus on stable, as it is and mutated.

#[path = "../../../fuzz/src/privileged.rs"]
mod drive;

use std::path::PathBuf;

use divvy_model::TimeSlice;
use divvy_privileged::answer::{Answer, MOST_WORDS, Refusal};
use divvy_privileged::request::{
    CdiFolder, Device, MOST_FILES, MOST_PROCESSES, MigWord, MpsWord, Owner, PartitionName, Process, Request,
    View,
};
use rustix::io::Errno;
use rustix::process::Signal;

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus/privileged_request"]
        .iter()
        .collect()
}

fn device() -> Device {
    Device::parse("GPU-00112233-4455-6677-8899-aabbccddeeff").expect("a device")
}

/// One of each kind.
fn requests() -> Vec<(&'static str, Request)> {
    let process = Process {
        pid: 4711,
        start_ticks: 123_456,
        owner: Owner::User(1000),
    };
    let mps = |word| Request::Mps {
        uid: 1000,
        device: device(),
        word,
    };
    let mig = |word| Request::Mig {
        device: device(),
        word,
    };
    let name = PartitionName::parse("GPU-00112233/Aw1").expect("a name");
    vec![
        ("hello", Request::Hello),
        (
            "signal",
            Request::Signal {
                process,
                signal: Signal::TERM,
            },
        ),
        ("may_signal", Request::MaySignal { process }),
        (
            "open",
            Request::Open {
                process: Process {
                    owner: Owner::Container,
                    ..process
                },
                view: View::Maps,
            },
        ),
        (
            "environment",
            Request::Open {
                process,
                view: View::Environment,
            },
        ),
        (
            "mount_namespaces",
            Request::MountNamespaces {
                pids: (1..=128).collect(),
            },
        ),
        (
            "has_open",
            Request::HasOpen {
                process,
                nodes: vec![49_920, 49_921],
                files: vec![(2049, 131), (2049, u64::MAX)],
            },
        ),
        (
            "look",
            Request::Look {
                path: b"/var/lib/containers/storage/overlay-containers/0123/userdata".to_vec(),
            },
        ),
        (
            "remove_cdi",
            Request::RemoveCdi {
                folder: CdiFolder::Dynamic,
                slice: 0x0123_abcd,
            },
        ),
        ("mps_folders", mps(MpsWord::MakeFolders)),
        ("mps_start", mps(MpsWord::Start { partitioned: true })),
        ("mps_servers", mps(MpsWord::Servers)),
        ("mps_clients", mps(MpsWord::Clients { server: 7 })),
        ("mps_add", mps(MpsWord::AddPartition { chunks: 4 })),
        ("mps_remove", mps(MpsWord::RemovePartition { name })),
        ("mps_quit", mps(MpsWord::Quit)),
        ("mps_tidy", mps(MpsWord::RemoveFolders)),
        (
            "time_slice",
            Request::SetTimeSlice {
                device: device(),
                length: TimeSlice::Long,
            },
        ),
        ("mig_mode", mig(MigWord::SetMode { on: true })),
        ("mig_create", mig(MigWord::Create { profile: 9, start: 4 })),
        ("mig_destroy", mig(MigWord::Destroy { instance: 1 })),
        (
            "start_worker",
            Request::StartWorker {
                slice: 0x0123_abcd,
                uid: 70_001,
                memory: 4 << 30,
            },
        ),
    ]
}

#[test]
fn each_kind_is_in_the_corpus_as_it_is_written() {
    for (name, request) in requests() {
        let bytes = request.encode(77);
        assert_eq!(Request::decode(&bytes), Ok((77, request)), "{name}");
        let kept = folder().join(name);
        if std::env::var_os("DIVVY_WRITE_CORPUS").is_some() {
            std::fs::write(&kept, &bytes).expect("written");
        }
        let kept = std::fs::read(&kept).expect("DIVVY_WRITE_CORPUS=1 writes it");
        assert_eq!(kept, bytes, "{name}: another layout is another version");
        for end in 0..bytes.len() {
            assert!(
                Request::decode(&bytes[..end]).is_err(),
                "{name} cut short at {end}"
            );
        }
        assert!(
            Request::decode(&[bytes, vec![0]].concat()).is_err(),
            "{name} and more"
        );
    }
}

#[test]
fn each_answer_is_read_as_it_was_written() {
    let refusals = [Refusal::Malformed, Refusal::Root, Refusal::TooMuch].map(Answer::Refused);
    let others = [
        Answer::Yes,
        Answer::No,
        Answer::Gone,
        Answer::Failed(Errno::ACCESS),
        Answer::Numbers((0..MOST_PROCESSES as u64).collect()),
        Answer::Words("0\n".into()),
        Answer::ToolFailed("no".into()),
        Answer::Opened,
    ];
    for answer in refusals.into_iter().chain(others) {
        assert_eq!(Answer::decode(&answer.encode(5)), Ok((5, answer)));
    }
    let long = Answer::Words("ä".repeat(MOST_WORDS)).encode(1);
    let Ok((1, Answer::Words(words))) = Answer::decode(&long) else {
        panic!("words");
    };
    assert_eq!(
        words,
        "ä".repeat(MOST_WORDS / 2),
        "as much as fits, whole characters"
    );
}

#[test]
fn what_is_beyond_the_bounds_or_the_list_is_refused() {
    let process = Process {
        pid: 2,
        start_ticks: 1,
        owner: Owner::User(0),
    };
    let refused = |request: Request| assert!(Request::decode(&request.encode(1)).is_err(), "{request:?}");
    refused(Request::MountNamespaces {
        pids: vec![1; MOST_PROCESSES + 1],
    });
    refused(Request::HasOpen {
        process,
        nodes: vec![1; MOST_FILES + 1],
        files: vec![],
    });
    for signal in [Signal::SEGV, Signal::CHILD, Signal::WINCH] {
        refused(Request::Signal { process, signal });
    }
    for path in ["", "relative", "/a/../etc/shadow", "/..", "/a\0b"] {
        refused(Request::Look {
            path: path.as_bytes().to_vec(),
        });
    }
    refused(Request::Look {
        path: vec![b'/'; 1025],
    });
}

#[test]
fn a_device_is_named_as_nvidia_does_and_in_no_other_way() {
    for name in [
        "GPU-00112233-4455-6677-8899-aabbccddeeff",
        "MIG-00112233-4455-6677-8899-aabbccddeeff",
    ] {
        assert_eq!(Device::parse(name).expect("a device").to_string(), name);
    }
    for name in [
        "",
        "GPU-",
        "0",
        "--help",
        "GPU-00112233-4455-6677-8899-aabbccddeef",
        "GPU-00112233-4455-6677-8899-aabbccddeeff ",
        "GPU-00112233-4455-6677-8899-aabbccddeeff/0",
        "GPU-00112233-4455-6677-8899-AABBCCDDEEFF",
        "GPU-+0112233-4455-6677-8899-aabbccddeeff",
        "GPU-0011223344-55-6677-8899-aabbccddeeff",
        "gpu-00112233-4455-6677-8899-aabbccddeeff",
        "GPÜ-00112233-4455-6677-8899-aabbccddeef",
    ] {
        assert_eq!(Device::parse(name), None, "{name}");
    }
    assert!(PartitionName::parse("GPU-1/Aw1").is_some());
    for name in ["", "a b", "a\nquit", "ä", &"a".repeat(65)] {
        assert_eq!(PartitionName::parse(name), None, "{name}");
    }
}

/// A small generator of numbers (xorshift64): what fails, fails again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end.max(1) as u64).unwrap_or(0)
    }
}

#[test]
fn the_corpus_and_mutations_of_it_mean_one_thing_or_nothing() {
    let entries = std::fs::read_dir(folder()).expect("a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() >= requests().len());
    let (mut dice, mut read) = (Dice(31), 0);
    for path in paths {
        let input = std::fs::read(&path).expect("an input");
        read += u32::from(drive::message(&input));
        for _ in 0..3000 {
            let mut mutant = input.clone();
            for _ in 0..=dice.below(3) {
                let at = dice.below(mutant.len());
                match dice.below(4) {
                    0 => mutant[at] ^= 1 << dice.below(8),
                    1 => mutant.truncate(at.max(1)),
                    2 => mutant[at] = [0, 1, 0x7f, 0xff][dice.below(4)],
                    _ => mutant.insert(at, [0, b'/', b'.', 0xff][dice.below(4)]),
                }
            }
            read += u32::from(drive::message(&mutant));
        }
    }
    assert!(read > 500, "{read} were requests");
}

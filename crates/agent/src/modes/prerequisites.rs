//! The needs of sharing modes on a device before the first slice, and their undoing after the last: MPS's daemons and
//! partitions, and the length of the hardware's turns.
//!
//! Each setting is noted in a file under the run directory, so that the successor of a dead agent undoes it. Nothing
//! here holds the state's lock: the vendors' tools take their time.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use divvy_host::mps::{Mps, chunks, set_time_slice};
use divvy_host::tool::Tools;
use divvy_model::{Code, DeviceKind, DeviceRecord, Fault, Mode, SliceRecord, TimeSlice};

use crate::decide::held::is_partitioned;
use crate::decide::in_use::InUse;
use crate::files::Folder;
use crate::system::privilege;

/// Prepares a device for a slice; settings that are ready stay. Returns the name of the slice's static partition, where
/// it gets one.
///
/// # Errors
/// [`Code::Tool`] where the driver or its tools refuse or do not answer; [`Code::RunDir`].
pub fn prepare(
    run: &Path,
    record: &SliceRecord,
    device: &DeviceRecord,
    tools: &mut dyn Tools,
) -> Result<Option<String>, Fault> {
    match record.terms.sharing.mode {
        Mode::Lease | Mode::Mig => Ok(None),
        Mode::Timeslice => {
            if let Some(length) = record.terms.sharing.time_slice {
                set_turns(run, &device.uuid, length, tools)?;
            }
            Ok(None)
        }
        Mode::Mps => {
            let mps = Mps::of_user(&device.uuid, run, record.uid);
            let emulated = device.kind == DeviceKind::Emulated;
            make_folders(run, &mps, record.uid, emulated)?;
            let partitioned = is_partitioned(record.terms.sharing.mode, record.terms.compute.cap);
            mps.start(tools, partitioned)
                .map_err(|fault| without_mps(fault, partitioned))?;
            let Some(share) = record.terms.compute.share.filter(|_| partitioned) else {
                return Ok(None);
            };
            if record.mps_partition.is_some() {
                return Ok(record.mps_partition.clone());
            }
            let chunks = chunks(device, share);
            let name = match mps.add_partition(tools, chunks) {
                // The daemon may be that of slices without partitions, the last of which has ended just now. A slice that still
                // needs it would have kept this one out.
                Err(_) if has_no_partition(run, &mps) => mps
                    .stop(tools, false)
                    .and_then(|()| mps.start(tools, true))
                    .and_then(|()| mps.add_partition(tools, chunks)),
                said => said,
            };
            let name = name.map_err(|fault| without_mps(fault, true))?;
            let noted = held(run, &mps).and_then(|held| held.write(&record.id, name.as_bytes(), NOTE));
            if let Err(error) = noted {
                let _back = mps.remove_partition(tools, &name);
                return Err(cannot("write in", &mps.folder().join(HELD), &error));
            }
            Ok(Some(name))
        }
    }
}

fn has_no_partition(run: &Path, mps: &Mps) -> bool {
    held(run, mps)
        .and_then(|held| held.names())
        .is_ok_and(|names| names.is_empty())
}

fn without_mps(fault: Fault, partitioned: bool) -> Fault {
    let fault = Fault { hint: None, ..fault };
    fault.hint(match partitioned {
        true => "multiprocessors are set apart by drivers of CUDA 13.1 and later, on Ampere and later; without --cap hard \
                 MPS limits them and sets none apart",
        false => "MPS needs NVIDIA's control program; --share lease needs nothing",
    })
}

/// Whether any setting was made that may have to be undone.
#[must_use]
pub fn is_in_use(run: &Path) -> bool {
    !names(turns(run)).is_empty() || !daemons(run).is_empty()
}

/// Undoes the settings that no slice needs any more. `tools_of` has the tools for a device and a user. Goes on after a
/// failure; the first one is returned.
///
/// # Errors
/// [`Code::Tool`], [`Code::MigBusy`] where a program is still a client, [`Code::RunDir`].
pub fn put_back(
    run: &Path,
    in_use: &InUse,
    tools_of: &dyn Fn(&str, u32) -> Box<dyn Tools>,
) -> Result<(), Fault> {
    let mut first = Ok(());
    for (uid, device) in daemons(run) {
        let mps = Mps::of_user(&device, run, uid);
        let mut tools = tools_of(&device, uid);
        let outcome = match in_use.needs_daemon(uid, &device) {
            true => give_partitions_back(run, &mps, in_use, tools.as_mut()),
            false => mps
                .stop(tools.as_mut(), false)
                .and_then(|()| remove_folders(run, &mps, uid)),
        };
        first = first.and(outcome);
    }
    for device in names(turns(run)) {
        if in_use.needs_turns(&device) {
            continue;
        }
        let outcome = set_time_slice(tools_of(&device, 0).as_mut(), &device, TimeSlice::Default);
        let forget = || turns(run)?.remove(&device);
        let outcome =
            outcome.and_then(|()| forget().map_err(|error| cannot("remove", &note(run, &device), &error)));
        first = first.and(outcome);
    }
    first
}

fn give_partitions_back(run: &Path, mps: &Mps, in_use: &InUse, tools: &mut dyn Tools) -> Result<(), Fault> {
    let unreadable = |error: &io::Error| cannot("read", &mps.folder().join(HELD), error);
    let held = held(run, mps).map_err(|error| unreadable(&error))?;
    for id in held.names().map_err(|error| unreadable(&error))? {
        if in_use.needs_partition(&id) {
            continue;
        }
        let name = held.read_text(&id).map_err(|error| unreadable(&error))?;
        mps.remove_partition(tools, &name)?;
        held.remove(&id)
            .map_err(|error| cannot("remove", &held.path().join(&id), &error))?;
    }
    Ok(())
}

/// Sets how long the hardware's turns are on a device.
fn set_turns(run: &Path, device: &str, length: TimeSlice, tools: &mut dyn Tools) -> Result<(), Fault> {
    let failed = |error: &io::Error| cannot("write", &note(run, device), error);
    let notes = Folder::open(run)
        .and_then(|run| run.folder(TURNS, READABLE))
        .map_err(|error| failed(&error))?;
    if notes.read_text(device).is_ok_and(|noted| noted == length.name()) {
        return Ok(());
    }
    // The note comes first: a setting without a note would never be undone.
    notes.write(device, b"", NOTE).map_err(|error| failed(&error))?;
    set_time_slice(tools, device, length)?;
    notes
        .write(device, length.name().as_bytes(), NOTE)
        .map_err(|error| failed(&error))
}

/// The folders of a user's daemon. All above its pipe and its log belong to the agent, so that the user can replace
/// none of them. The pipe and the log are the user's alone, and the agent does nothing there. An emulated daemon is no
/// process: the agent writes its state, in folders of its own, which the user may read.
fn make_folders(run: &Path, mps: &Mps, uid: u32, emulated: bool) -> Result<(), Fault> {
    let failed = |error: io::Error| cannot("make", mps.folder(), &error);
    let make = || {
        let own = descend(run, mps.folder(), |folder, name| folder.folder(name, READABLE))?;
        own.folder(HELD, 0o700)?;
        Ok(own)
    };
    let own = make().map_err(failed)?;
    if !emulated && uid != rustix::process::getuid().as_raw() {
        return privilege::mps_folders(uid, &mps.device, true);
    }
    let mode = if emulated { READABLE } else { 0o700 };
    DAEMONS_OWN
        .iter()
        .try_for_each(|name| own.folder(name, mode).map(drop))
        .map_err(failed)
}

const DAEMONS_OWN: [&str; 2] = ["pipe", "log"];

/// Removes the folders of a daemon that has ended. A process of the user's removes the content of the user's own.
fn remove_folders(run: &Path, mps: &Mps, uid: u32) -> Result<(), Fault> {
    let own = rustix::process::getuid().as_raw();
    let is_others = |name: &&str| {
        std::fs::symlink_metadata(mps.folder().join(name)).is_ok_and(|folder| folder.uid() != own)
    };
    if DAEMONS_OWN.iter().any(is_others) {
        privilege::mps_folders(uid, &mps.device, false)?;
    }
    let (Some(user), Some(name)) = (mps.folder().parent(), mps.folder().file_name()) else {
        return Ok(());
    };
    descend(run, user, Folder::below)
        .and_then(|user| user.remove_all(&name.to_string_lossy()))
        .map_err(|error| cannot("remove", mps.folder(), &error))
}

/// The daemons that were started for slices: user and device.
fn daemons(run: &Path) -> Vec<(u32, String)> {
    let all = || Folder::open(run)?.below("mps");
    let users = names(all())
        .into_iter()
        .filter_map(|name| Some((name.strip_prefix("user-")?.parse().ok()?, name)));
    users
        .flat_map(|(uid, name): (u32, String)| {
            let devices = names(all().and_then(|all| all.below(&name)));
            devices.into_iter().map(move |device| (uid, device))
        })
        .collect()
}

/// A file for each slice with a static partition, which holds the partition's name.
const HELD: &str = "held";
/// A file for each device whose turns were set.
const TURNS: &str = "timeslice";
/// The mode of a folder that others may list, and the mode of a note.
const READABLE: u32 = 0o755;
const NOTE: u32 = 0o600;

fn held(run: &Path, mps: &Mps) -> io::Result<Folder> {
    descend(run, mps.folder(), Folder::below)?.below(HELD)
}

/// From a run directory down to a folder below it, a name at a time.
fn descend(run: &Path, to: &Path, next: impl Fn(&Folder, &str) -> io::Result<Folder>) -> io::Result<Folder> {
    let below = to.strip_prefix(run).map_err(io::Error::other)?;
    let names = below.components().map(|part| part.as_os_str().to_string_lossy());
    names.fold(Folder::open(run), |folder, name| next(&folder?, &name))
}

fn turns(run: &Path) -> io::Result<Folder> {
    Folder::open(run)?.below(TURNS)
}

fn note(run: &Path, device: &str) -> PathBuf {
    run.join(TURNS).join(device)
}

/// The names in a folder; none where it is not there.
fn names(folder: io::Result<Folder>) -> Vec<String> {
    folder.and_then(|folder| folder.names()).unwrap_or_default()
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Fault {
    Fault::new(Code::RunDir, format!("cannot {what} `{}`", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::fs;
    use std::rc::Rc;

    use divvy_model::Compute;

    /// A test's driver tools: their recorded calls, and whether they hang.
    #[derive(Clone, Default)]
    struct Fake {
        said: Rc<RefCell<Vec<String>>>,
        hangs: bool,
        old: bool,
    }

    impl Tools for Fake {
        fn run(
            &mut self,
            tool: &str,
            words: &[&str],
            environment: &[(&str, String)],
            input: &str,
        ) -> Result<String, Fault> {
            if self.hangs {
                return Err(
                    Fault::new(Code::Tool, format!("`{tool}` failed")).cause("it did not end within 20 s")
                );
            }
            let line = format!("{} {input}", words.join(" ")).trim().to_owned();
            self.said.borrow_mut().push(line.clone());
            let mut pipes = environment
                .iter()
                .filter(|(name, _)| *name == "CUDA_MPS_PIPE_DIRECTORY");
            let control = pipes.next().map(|(_, pipe)| Path::new(pipe).join("control"));
            match (control, line.as_str()) {
                (Some(control), "-d" | "-d -S") => fs::write(control, &line).expect("it listens"),
                (Some(control), "quit -t 10") => fs::remove_file(control).expect("it listened"),
                (Some(control), line) if line.starts_with("sm_partition add") => {
                    let is_for_them = fs::read_to_string(control).is_ok_and(|started| started == "-d -S");
                    let answer = if self.old || !is_for_them {
                        "Unknown command"
                    } else {
                        "GPU-1a2b3c4d/Aw1\n"
                    };
                    return Ok(answer.into());
                }
                (None, _) => return Ok("Successfully set TimeSlice value".into()),
                _ => {}
            }
            Ok(String::new())
        }
    }

    fn record(mode: &str, more: &serde_json::Value) -> SliceRecord {
        let mut record = serde_json::json!({
            "id": "0123abcd", "name": "a", "uid": rustix::process::getuid().as_raw(), "device_uuid": "GPU-1a2b3c4d",
            "memory_limit_bytes": 1 << 30, "memory_used_bytes": 0, "isolation": "cooperative", "policy": "strict",
            "created_at": "", "processes": [], "share_mode": mode,
        });
        let fields = more.as_object().expect("fields").clone();
        record.as_object_mut().expect("a record").extend(fields);
        serde_json::from_value(record).expect("a record")
    }

    fn device() -> DeviceRecord {
        serde_json::from_value(serde_json::json!({
            "index": 0, "uuid": "GPU-1a2b3c4d", "name": "test", "kind": "gpu", "pci_address": "0000:01:00.0",
            "memory_total_bytes": 80_u64 << 30, "memory_used_bytes": 0, "sm_count": 132, "compute_capability": "9.0",
        }))
        .expect("a device")
    }

    fn tidy(run: &Path, records: &[SliceRecord], tools: &Fake) -> Result<(), Fault> {
        let tools_of = |_: &str, _: u32| Box::new(tools.clone()) as Box<dyn Tools>;
        put_back(run, &InUse::by(records), &tools_of)
    }

    #[test]
    fn a_daemon_that_slices_without_partitions_left_is_started_again_for_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path();
        let mut tools = Fake::default();
        let soft = record("mps", &serde_json::json!({"id": "89ab"}));
        prepare(run, &soft, &device(), &mut tools).expect("prepared");
        let hard = record(
            "mps",
            &serde_json::json!({"compute": 2500, "compute_cap": "hard"}),
        );
        let partition = prepare(run, &hard, &device(), &mut tools).expect("prepared");
        assert_eq!(partition.as_deref(), Some("GPU-1a2b3c4d/Aw1"));
        let said = tools.said.borrow().join("; ");
        assert!(said.contains("quit -t 10; -d -S;"), "{said}");
    }

    #[test]
    fn what_the_last_slice_leaves_is_put_back_and_not_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path();
        let mut tools = Fake::default();
        assert!(!is_in_use(run));
        let hard = record(
            "mps",
            &serde_json::json!({"compute": 2500, "compute_cap": "hard"}),
        );
        let partition = prepare(run, &hard, &device(), &mut tools).expect("prepared");
        assert_eq!(partition.as_deref(), Some("GPU-1a2b3c4d/Aw1"));
        let turns = record(
            "timeslice",
            &serde_json::json!({"id": "4567", "time_slice": "long"}),
        );
        for _ in 0..2 {
            prepare(run, &turns, &device(), &mut tools).expect("prepared");
        }
        let expected = [
            "-d -S",
            "get_server_list",
            "sm_partition add GPU-1a2b3c4d 4",
            "compute-policy -i GPU-1a2b3c4d --set-timeslice=3",
        ];
        assert_eq!(*tools.said.borrow(), expected, "and nothing twice");
        tools.said.borrow_mut().clear();
        tidy(run, &[hard.clone(), turns.clone()], &tools).expect("nothing to do");
        assert!(tools.said.borrow().is_empty() && is_in_use(run));
        // Another slice still needs the daemon.
        let other = record("mps", &serde_json::json!({"id": "89ab"}));
        tidy(run, &[other], &tools).expect("put back");
        assert_eq!(
            *tools.said.borrow(),
            [
                "sm_partition rm GPU-1a2b3c4d/Aw1",
                "compute-policy -i GPU-1a2b3c4d --set-timeslice=0"
            ]
        );
        tools.said.borrow_mut().clear();
        tidy(run, &[], &tools).expect("put back");
        assert_eq!(*tools.said.borrow(), ["get_server_list", "quit -t 10"]);
        assert!(!is_in_use(run));
    }

    #[test]
    fn a_tool_that_hangs_or_refuses_is_told_and_tried_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path();
        let mut tools = Fake::default();
        let soft = record("mps", &serde_json::json!({"compute": 2500}));
        prepare(run, &soft, &device(), &mut tools).expect("prepared");
        tools.hangs = true;
        let fault = tidy(run, &[], &tools).expect_err("it hangs");
        assert_eq!(
            (fault.code, is_in_use(run)),
            (Code::Tool, true),
            "it is noted still"
        );
        let turns = record(
            "timeslice",
            &serde_json::json!({"id": "4567", "time_slice": "long"}),
        );
        prepare(run, &turns, &device(), &mut tools).expect_err("it hangs");
        tools.hangs = false;
        tidy(run, &[], &tools).expect("put back");
        assert!(!is_in_use(run), "turns that may have been set too");
        tools.old = true;
        let hard = record(
            "mps",
            &serde_json::json!({"compute": 2500, "compute_cap": "hard"}),
        );
        let fault = prepare(run, &hard, &device(), &mut tools).expect_err("an old driver");
        assert!(fault.hint.expect("a hint").contains("CUDA 13.1"));
    }

    #[test]
    fn chunks_come_nearest_from_below() {
        let of = |capability: &str, parts| {
            let device = DeviceRecord {
                compute_capability: capability.into(),
                ..device()
            };
            chunks(&device, Compute(parts))
        };
        assert_eq!([of("9.0", 10_000), of("9.0", 2500), of("9.0", 1)], [16, 4, 1]);
        assert_eq!(of("8.6", 2500), 8);
    }
}

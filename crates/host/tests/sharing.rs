//! MPS, time slices, AMD's partitions and virtual GPUs, against tools and trees that can refuse.

use std::collections::HashMap;
use std::path::PathBuf;

use divvy_host::amd::{self, Partitioning, unit_masks};
use divvy_host::built::Built;
use divvy_host::machine::{self, Sysroot};
use divvy_host::mps::{ClientLimits, Mps, TimeSlice, set_time_slice};
use divvy_host::tool::Tools;
use divvy_host::vgpu;
use divvy_model::{Bytes, Code, Compute, Fault};

/// A control program that keeps a daemon in memory.
#[derive(Default)]
struct Fake {
    pipe: Option<PathBuf>,
    said: Vec<String>,
    answers: HashMap<String, String>,
    hangs: bool,
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
        let pipe = environment
            .iter()
            .find(|(name, _)| *name == "CUDA_MPS_PIPE_DIRECTORY");
        if words.contains(&"-d") {
            assert!(
                environment
                    .iter()
                    .any(|(name, _)| *name == "CUDA_VISIBLE_DEVICES")
            );
            let pipe = PathBuf::from(&pipe.expect("a folder of its own").1);
            std::fs::write(pipe.join("control"), "").expect("the daemon listens");
            self.pipe = Some(pipe);
        }
        if input.starts_with("quit") {
            let pipe = self.pipe.take().expect("a daemon");
            std::fs::remove_file(pipe.join("control")).expect("it listened");
        }
        let line = if input.is_empty() {
            words.join(" ")
        } else {
            input.trim().to_owned()
        };
        self.said.push(line.clone());
        Ok(self.answers.get(&line).cloned().unwrap_or_default())
    }
}

#[test]
fn a_daemon_for_each_device_from_start_to_stop() {
    let folder = tempfile::tempdir().expect("a folder");
    let mps = Mps::of("GPU-1", folder.path());
    let mut tools = Fake::default();
    assert!(!mps.state(&mut tools).expect("none runs").running);
    mps.start(&mut tools, false).expect("it starts");
    mps.start(&mut tools, false).expect("it runs already");
    assert_eq!(tools.said.iter().filter(|line| *line == "-d").count(), 1);
    let limits = ClientLimits {
        compute: Some(Compute(3050)),
        memory: Some(Bytes(4 << 30)),
    };
    mps.limit(&mut tools, limits).expect("limits");
    assert!(
        tools
            .said
            .contains(&"set_default_active_thread_percentage 30.50".to_owned())
    );
    assert!(
        tools
            .said
            .contains(&"set_default_device_pinned_mem_limit 0 4096M".to_owned())
    );
    let client = mps.client_environment(limits);
    assert_eq!(client[2], ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30.50".into()));
    assert_ne!(Mps::of("GPU-2", folder.path()).environment(), mps.environment());

    tools.answers.insert("get_server_list".into(), "71\n".into());
    tools
        .answers
        .insert("get_client_list 71".into(), "4711\n4712\n".into());
    assert_eq!(mps.state(&mut tools).expect("a state").clients, [4711, 4712]);
    let refusal = mps.stop(&mut tools, false).expect_err("clients run");
    assert!(refusal.message.contains("4711"), "{refusal:?}");
    mps.stop(&mut tools, true).expect("by force");
    assert!(!mps.state(&mut tools).expect("ended").running);
    mps.stop(&mut tools, false).expect("nothing to stop");
}

#[test]
fn a_daemon_that_hangs_or_prints_rubbish() {
    let folder = tempfile::tempdir().expect("a folder");
    let mps = Mps::of("GPU-1", folder.path());
    let mut tools = Fake::default();
    mps.start(&mut tools, true).expect("it starts");
    assert!(tools.said.contains(&"-d -S".to_owned()), "for static partitions");
    tools
        .answers
        .insert("get_server_list".into(), "\u{1b}[2Jbanana".into());
    let rubbish = mps.state(&mut tools).expect_err("no list");
    assert_eq!(rubbish.code, Code::Tool);
    assert!(!rubbish.causes[0].contains('\u{1b}'), "{rubbish:?}");
    tools
        .answers
        .insert("sm_partition add GPU-1 2".into(), "Unknown command".into());
    assert!(
        mps.add_partition(&mut tools, 2).is_err(),
        "of a driver without partitions"
    );
    tools
        .answers
        .insert("sm_partition add GPU-1 2".into(), "GPU-1/Aw1\n".into());
    assert_eq!(mps.add_partition(&mut tools, 2), Ok("GPU-1/Aw1".into()));
    tools.hangs = true;
    assert!(mps.state(&mut tools).expect_err("it hangs").causes[0].contains("did not end"));
}

#[test]
fn time_slices() {
    let mut tools = Fake::default();
    let words = "compute-policy -i GPU-1 --set-timeslice=3";
    tools
        .answers
        .insert(words.into(), "Successfully set TimeSlice value to Long".into());
    set_time_slice(&mut tools, "GPU-1", TimeSlice::Long).expect("set");
    let refusal = set_time_slice(&mut tools, "GPU-1", TimeSlice::Short).expect_err("no word of success");
    assert_eq!(refusal.code, Code::Tool);
    assert!("never".parse::<TimeSlice>().is_err());
}

#[test]
fn a_node_is_partitioned_whole_and_idle() {
    let folder = tempfile::tempdir().expect("a folder");
    let built = Built::mi300x(folder.path(), 1);
    let root = Sysroot::at(built.root());
    let wanted: Partitioning = "cpx".parse().expect("a mode");
    assert_eq!(wanted.memory, "NPS4");
    let writes = amd::plan(&root, &machine::read(&root).devices, &wanted).expect("a plan");
    assert_eq!(writes.len(), 16);
    amd::write(&root, &writes).expect("written");
    let again = amd::plan(&root, &machine::read(&root).devices, &wanted).expect("a plan");
    assert_eq!(again, [], "nothing to do the second time");
    // The driver refuses the last: all of it is taken back.
    let back: Partitioning = "SPX/NPS1".parse().expect("a mode");
    let writes = amd::plan(&root, &machine::read(&root).devices, &back).expect("a plan");
    let last = writes.last().expect("16 writes").file.clone();
    built.unreadable(&last);
    amd::write(&root, &writes).expect_err("refused");
    assert_eq!(root.text(&writes[0].file).as_deref(), Some("NPS4"));

    let other = tempfile::tempdir().expect("a folder");
    let built = Built::mi300x(other.path(), 1);
    built.file("sys/class/kfd/kfd/proc/4711/vram_10005", "1\n");
    let root = Sysroot::at(built.root());
    let refusal = amd::plan(&root, &machine::read(&root).devices, &wanted).expect_err("a process is there");
    assert!(
        refusal.code == Code::MigBusy && refusal.message.contains("4711"),
        "{refusal:?}"
    );
    let unknown: Partitioning = "TPX/NPS1".parse().expect("a mode");
    assert_eq!(
        amd::plan(&root, &machine::read(&root).devices, &unknown)
            .expect_err("not offered")
            .code,
        Code::Partition
    );
    assert!("XPX".parse::<Partitioning>().is_err());
    let empty = Sysroot::at(other.path().join("nothing"));
    assert_eq!(
        amd::plan(&empty, &[], &wanted).expect_err("no device").code,
        Code::Partition
    );
}

#[test]
fn a_share_of_compute_units() {
    let masks = |units, share| unit_masks(0, units, Compute(share));
    assert_eq!(masks(304, 5000)[0], ("HSA_CU_MASK", "0:0-151".into()));
    assert_eq!(
        masks(304, 5000)[1],
        ("ROC_GLOBAL_CU_MASK", format!("0x{}", "f".repeat(38)))
    );
    assert_eq!(masks(304, 1)[0].1, "0:0-1", "never nothing");
    assert_eq!(masks(38, 10_000)[1].1, "0x3fffffffff");
    assert_eq!(masks(1, 5000)[0].1, "0:0-0");
    assert_eq!(unit_masks(2, 96, Compute(1000))[0].1, "2:0-9");
}

#[test]
fn virtual_gpus_are_made_and_freed_unless_a_machine_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let built = Built::at(folder.path());
    let root = Sysroot::at(built.root());
    let kind = "sys/class/mdev_bus/0000:3b:00.0/mdev_supported_types/nvidia-558";
    built.file(&format!("{kind}/name"), "GRID A40-4Q\n");
    built.file(&format!("{kind}/available_instances"), "1\n");
    built.file(&format!("{kind}/create"), "");
    let vf = "sys/bus/pci/devices/0000:41:00.4/nvidia";
    built.file(
        &format!("{vf}/creatable_vgpu_types"),
        "ID    : vGPU Name\n1148  : NVIDIA L40S-1Q\n",
    );
    built.file(&format!("{vf}/current_vgpu_type"), "0\n");
    assert_eq!(vgpu::types(&root).len(), 2);
    assert_eq!(vgpu::list(&root), []);
    let uuid = "c73f1fa6-489e-4834-9476-d70dabd98c40";
    vgpu::create(&root, "0000:3b:00.0", "GRID A40-4Q", uuid, false).expect("made");
    assert_eq!(root.text(&format!("{kind}/create")).as_deref(), Some(uuid));
    built.file(&format!("{kind}/available_instances"), "0\n");
    let none = vgpu::create(&root, "0000:3b:00.0", "nvidia-558", uuid, false).expect_err("none left");
    assert!(
        none.code == Code::Vgpu && none.message.contains("no GRID A40-4Q is left"),
        "{none:?}"
    );
    assert!(vgpu::create(&root, "0000:3b:00.0", "nvidia-1", uuid, false).is_err());

    vgpu::create(&root, "0000:41:00.4", "1148", "", false).expect("made");
    let there = vgpu::list(&root);
    assert_eq!((there.len(), there[0].kind.as_str()), (1, "1148"));
    assert!(
        vgpu::create(&root, "0000:41:00.4", "1148", "", false).is_err(),
        "it is one already"
    );
    built.link(
        "sys/bus/pci/devices/0000:41:00.4/iommu_group",
        "../../../kernel/iommu_groups/77",
    );
    built.link("proc/4711/fd/12", "/dev/vfio/77");
    let held = vgpu::free(&root, "0000:41:00.4", None).expect_err("a machine runs");
    assert!(held.message.contains("process 4711"), "{held:?}");
    built.remove("proc/4711/fd/12");
    assert!(
        vgpu::free(&root, "0000:41:00.4", Some("1150")).is_err(),
        "it was made again"
    );
    vgpu::free(&root, "0000:41:00.4", Some("1148")).expect("freed");
    assert_eq!(vgpu::list(&root), []);
    assert!(vgpu::free(&root, "0000:41:00.4", None).is_err(), "there is none");
}

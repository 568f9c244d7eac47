//! Manifests that other systems publish, by their names: accepted, or why not. The manifests here are ours, with the same shapes.
//! The table of docs/kubernetes.md says the same.

use divvy_kube::migrate::{migrate, replicas};
use divvy_kube::names::Terms;
use divvy_kube::webhook::rewrite::Target;

/// What has to come out.
enum Verdict {
    /// A template whose name begins so.
    Template(&'static str),
    /// Refused, with these words.
    Refused(&'static str),
}

use Verdict::{Refused, Template};

fn pod(annotation: &str, limits: &str) -> String {
    let annotations = match annotation {
        "" => String::new(),
        one => format!("\n  annotations:\n    {one}"),
    };
    let limits: String = limits.split(", ").map(|one| format!("\n        {one}")).collect();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: gpu-pod{annotations}\nspec:\n  containers:\n  - name: main # the one\n    \
         image: cuda:12\n    resources:\n      limits:{limits}\n"
    )
}

fn holds(name: &str, manifest: &str, terms: &Terms, verdict: &Verdict) {
    for target in [Target::Claims, Target::Extender] {
        match (migrate(manifest, terms, target), verdict) {
            (Ok(done), Template(begins)) => {
                assert_eq!(done.rewritten, 1, "{name}");
                assert!(done.text.contains("# the one"), "{name}: {}", done.text);
                let has = done.text.contains(&format!("name: divvy-{begins}"));
                assert_eq!(has, target == Target::Claims, "{name}: {}", done.text);
            }
            (Err(why), Refused(words)) => assert!(why.contains(words), "{name}: {why}"),
            (Ok(done), Refused(_)) => panic!("{name} was accepted: {}", done.text),
            (Err(why), Template(_)) => panic!("{name} was refused: {why}"),
        }
    }
}

#[test]
fn hamis_examples() {
    let terms = Terms {
        device_mib: Some(40_000),
        ..Terms::default()
    };
    let sized = "nvidia.com/gpu: 2, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30";
    for (name, annotation, limits, verdict) in [
        ("default_use", "", sized, Template("2x-3000mi-30c-")),
        (
            "default_use_legacy",
            "",
            "nvidia.com/gpu: 2",
            Template("2x-whole-"),
        ),
        ("use_as_normal", "", "nvidia.com/gpu: 1", Template("1x-whole-")),
        (
            "example",
            "",
            "nvidia.com/gpu: 1, nvidia.com/gpumem: 3000",
            Template("1x-3000mi-0c-"),
        ),
        (
            "specify_card_type_to_use",
            "nvidia.com/use-gputype: A100,V100",
            sized,
            Template("2x-3000mi-30c-"),
        ),
        (
            "specify_card_type_not_use",
            "nvidia.com/nouse-gputype: 1080,2080",
            sized,
            Template("2x-3000mi-30c-"),
        ),
        (
            "specify_uuid_to_use",
            "nvidia.com/use-gpuuuid: GPU-0a1b2c3d,GPU-4e5f",
            sized,
            Template("2x-3000mi-30c-"),
        ),
        (
            "specify_uuid_not_use",
            "nvidia.com/nouse-gpuuuid: GPU-0a1b2c3d",
            sized,
            Template("2x-3000mi-30c-"),
        ),
        (
            "specify_scheduling_policy",
            "hami.io/gpu-scheduler-policy: binpack",
            sized,
            Template("2x-3000mi-30c-"),
        ),
        (
            "use_memory_fraction",
            "",
            "nvidia.com/gpu: 2, nvidia.com/gpumem-percentage: 50, nvidia.com/gpucores: 30",
            Template("2x-20000mi-30c-"),
        ),
        (
            "use_exclusive_card",
            "",
            "nvidia.com/gpu: 2, nvidia.com/gpumem-percentage: 100, nvidia.com/gpucores: 100",
            Template("2x-all-100c-"),
        ),
        (
            "use_sharing_card",
            "",
            "nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 40, nvidia.com/gpucores: 60",
            Template("1x-16000mi-60c-"),
        ),
        (
            "vllm_cross_vgpu",
            "",
            "nvidia.com/gpu: 2, nvidia.com/gpumem-percentage: 30, nvidia.com/gpucores: 30",
            Template("2x-12000mi-30c-"),
        ),
        (
            "dynamic_mig_example",
            "nvidia.com/vgpu-mode: mig",
            "nvidia.com/gpu: 2, nvidia.com/gpumem: 8000",
            Template("2x-8000mi-0c-"),
        ),
        (
            "mig_example",
            "",
            "nvidia.com/mig-3g.20gb: 1",
            Refused("mig-3g.20gb"),
        ),
    ] {
        holds(name, &pod(annotation, limits), &terms, &verdict);
    }
}

#[test]
fn gpushares_samples() {
    for name in ["samples/1", "samples/2", "samples/3"] {
        holds(
            name,
            &pod("", "aliyun.com/gpu-mem: 2"),
            &Terms::default(),
            &Template("1x-2048mi-0c-"),
        );
    }
    let mib = Terms {
        gpushare_in_mib: true,
        ..Terms::default()
    };
    holds(
        "samples/4",
        &pod("", "aliyun.com/gpu-mem: 16276"),
        &mib,
        &Template("1x-16276mi-0c-"),
    );
}

#[test]
fn elastic_gpus_and_gpu_admissions() {
    for (limits, begins) in [
        ("elasticgpu.io/gpu-memory: 256", "1x-256mi-0c-"),
        ("elasticgpu.io/gpu-core: 200", "2x-whole-"),
        (
            "tencent.com/vcuda-core: 50, tencent.com/vcuda-memory: 30",
            "1x-7680mi-50c-",
        ),
    ] {
        holds(limits, &pod("", limits), &Terms::default(), &Template(begins));
    }
}

#[test]
fn nvidias_configurations() {
    for way in ["timeSlicing", "mps"] {
        let config = format!(
            "version: v1\nflags:\n  migStrategy: none\nsharing:\n  {way}:\n    renameByDefault: false\n    resources:\n    \
             - name: nvidia.com/gpu\n      replicas: 10\n"
        );
        let terms = Terms {
            device_mib: Some(80_000),
            replicas: Some(replicas(&config).expect("replicas")),
            ..Terms::default()
        };
        holds(
            way,
            &pod("", "nvidia.com/gpu: 1"),
            &terms,
            &Template("1x-8000mi-10c-"),
        );
        holds(
            way,
            &pod("", "nvidia.com/gpu.shared: 1"),
            &terms,
            &Template("1x-8000mi-10c-"),
        );
        holds(
            way,
            &pod("", "nvidia.com/gpu: 2"),
            &terms,
            &Refused("more than one replica"),
        );
    }
    assert!(replicas("version: v1\nflags: {migStrategy: mixed}\n").is_err());
}

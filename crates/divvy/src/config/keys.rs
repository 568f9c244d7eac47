//! Every setting: its name, default and meaning.

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name in the files; in the environment it is `DIVVY_` and the name in capitals.
    pub name: &'static str,
    /// What it says.
    pub about: &'static str,
    /// The default value, as shown.
    pub default: &'static str,
    /// Whether ./divvy.toml may say it. A folder's file decides what is asked for, never what code is loaded.
    pub in_folder: bool,
}

const fn key(name: &'static str, default: &'static str, in_folder: bool, about: &'static str) -> Key {
    Key {
        name,
        about,
        default,
        in_folder,
    }
}

/// Every setting.
pub const KEYS: [Key; 32] = [
    key(
        "memory",
        "",
        true,
        "Memory of a slice: 4GiB, 50% (of the device); the whole device by default",
    ),
    key("compute", "", true, "Compute share of a slice: 30%"),
    key(
        "share",
        "lease",
        true,
        "How slices share a device: lease, timeslice, mps, mig",
    ),
    key(
        "device",
        "",
        true,
        "Devices: index, UUID or prefix, PCI address, emulated:h100; 0,1 for two",
    ),
    key(
        "isolation",
        "",
        true,
        "Isolation: env, cooperative, supervised, enforced, hardware, vm",
    ),
    key(
        "policy",
        "strict",
        true,
        "Where a limit cannot be enforced: strict, best-effort",
    ),
    key(
        "driver",
        "",
        false,
        "The driver below the limiter, by path; found by itself by default",
    ),
    key(
        "emulated",
        "",
        false,
        "Emulated devices in the place of the machine's own: h100, a100-40gb*2,l4",
    ),
    key(
        "run_dir",
        "",
        false,
        "The run directory: the agent's socket, log and slices",
    ),
    key(
        "output",
        "table",
        false,
        "Output of the lists: table, wide, json, yaml, name",
    ),
    key(
        "oversubscription",
        "1",
        false,
        "How many times a device's memory may be promised",
    ),
    key("max_slices", "64", false, "The most slices of a device"),
    key(
        "context_memory",
        "",
        false,
        "What a program's context costs, inside its slice; 512MiB on a GPU by default",
    ),
    key(
        "idle_timeout",
        "60s",
        false,
        "How long an agent without slices stays: 60s, 5min",
    ),
    key(
        "admit_others",
        "false",
        false,
        "Whether users other than the agent's own may have slices: true, false",
    ),
    key(
        "agent_user",
        "",
        false,
        "The user as which root's agent serves, beside a helper that stays root; `divvy` where others are admitted",
    ),
    key(
        "helper_socket",
        "",
        false,
        "Where the helper listens for an agent that a service manager started as that user",
    ),
    key(
        "user_memory",
        "",
        false,
        "The most memory of a device that one user's slices may have together: 8GiB, 25%",
    ),
    key(
        "user_compute",
        "",
        false,
        "The most of a device's time that one user's slices may be promised together: 25%",
    ),
    key(
        "worker_memory",
        "",
        false,
        "Of host memory, the most that all workers of one enforced slice have, beside its emulated devices: 4GiB",
    ),
    key("user_slices", "", false, "The most slices that one user may have"),
    key(
        "user_ttl",
        "",
        false,
        "The longest that a user's slice may live, and does without --ttl: 4h; its programs are ended then",
    ),
    key(
        "idle_ttl",
        "",
        false,
        "How long a user's lasting slice stays while nothing runs in it: 30min; until it is deleted by default",
    ),
    key(
        "least_isolation",
        "",
        false,
        "The weakest isolation that a slice may have: cooperative, supervised; any by default",
    ),
    key(
        "least_on_overuse",
        "",
        false,
        "The mildest that a supervised slice may ask for: end, freeze, report; any by default",
    ),
    key(
        "quantum",
        "5ms",
        false,
        "How long a slice runs before the next may, where several want a device: 1ms to 30ms",
    ),
    key(
        "timeslice_replicas",
        "4",
        false,
        "Into how many parts the hardware's turns divide a device by default",
    ),
    key(
        "mig_instances",
        "false",
        false,
        "Whether `--share mig` may make instances, and MIG mode on idle GPUs, and remove them after: true, false",
    ),
    key(
        "default_slice",
        "",
        false,
        "Memory of the lasting slice that a user's runs share where they ask for none: 2GiB, 3%",
    ),
    key(
        "container_preload",
        "",
        false,
        "Libraries of images that containers of slices preload before the limiter: /opt/probe.so",
    ),
    key(
        "container_requests",
        "annotations",
        false,
        "How unprivileged containers may ask `divvy container oci-runtime`: annotations, mounts too, variables too",
    ),
    key(
        "oci_runtime",
        "",
        false,
        "The OCI runtime below `divvy container oci-runtime`; the first of runc, crun and youki by default",
    ),
];

/// The settings that an agent goes by, whichever command starts it. What holds is what the agent has.
pub const AGENTS: [&str; 18] = [
    "admit_others",
    "context_memory",
    "default_slice",
    "emulated",
    "idle_timeout",
    "idle_ttl",
    "least_isolation",
    "least_on_overuse",
    "max_slices",
    "mig_instances",
    "oversubscription",
    "quantum",
    "timeslice_replicas",
    "user_compute",
    "user_memory",
    "user_slices",
    "user_ttl",
    "worker_memory",
];

impl Key {
    /// The variable of this setting.
    pub fn variable(&self) -> String {
        format!("DIVVY_{}", self.name.to_ascii_uppercase())
    }
}

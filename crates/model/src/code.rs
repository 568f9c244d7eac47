//! Error codes: one table of what can go wrong, what it means, and the exit status it ends the command with.
//!
//! A code is stable: scripts match on it, `divvy explain` prints its explanation. Codes are added, never reused.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Exit status of a verb that failed for a reason the user can act on.
const ACT: u8 = 1;
/// Exit status of a command line that makes no sense.
const USAGE: u8 = 2;
/// Exit status when the agent cannot be reached.
const AGENT: u8 = 3;
/// Exit status when the caller may not.
const PERMISSION: u8 = 4;
/// Exit status when there is no device to use.
const NO_DEVICE: u8 = 5;

macro_rules! codes {
    ($($number:literal $name:ident $exit:ident $title:literal $story:literal)*) => {
        /// What went wrong, by its stable number. Each variant's text is its title in `divvy explain`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $(#[doc = $title] $name = $number,)*
        }

        impl Code {
            /// Every code, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// A few words.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// What happened and what to do, for `divvy explain`.
            #[must_use]
            pub fn story(self) -> &'static str {
                match self { $(Self::$name => $story,)* }
            }

            /// Exit status of a verb other than `run` that ends with this code.
            #[must_use]
            pub fn exit_status(self) -> u8 {
                match self { $(Self::$name => $exit,)* }
            }
        }
    };
}

codes! {
    1 Usage USAGE "the command line makes no sense"
        "A flag or a verb is unknown, or an argument is missing. `divvy help VERB` shows examples."
    2 Quantity USAGE "a size or a share was not understood"
        "Sizes carry a unit: `4GiB`, `4Gi`, `4096MiB`, `4GB` (decimal), or a share of the device such as `50%`. A bare number is refused, because one program's default unit is another's surprise. Zero is refused too: a slice of nothing cannot run anything."
    3 Config USAGE "a setting was not understood"
        "A configuration file or a DIVVY_ variable holds a value or a key that Divvy does not know. `divvy config show --origin` tells where each value comes from."
    4 Selector USAGE "a device selector was not understood"
        "A device is named by its index in PCI bus order (`0`), its UUID or a unique prefix of it (`GPU-1a2b`), its PCI address (`65:00.0`), or an emulated product (`emulated:h100`). `divvy devices` lists them."
    10 NoDevice NO_DEVICE "no usable GPU"
        "A GPU is in this machine, or its device node or library is, and does not answer: its driver is not loaded, is another version's, or the GPU is another vendor's. Nothing is emulated in its place. The message says why and what to load; `divvy doctor` shows it too. `--device emulated:h100` or DIVVY_EMULATED=h100 asks for an emulated device. `divvy run` ends with 5 as well."
    11 UnknownDevice ACT "there is no such device"
        "The selector fits no device of this machine. `divvy devices` lists those there are."
    12 DeviceFull ACT "the device has not that much memory left"
        "The memory promised to slices and what other programs hold leave too little, or others stand in line for it. The message says what is free and who holds the rest. Ask for less, wait with `--wait`, `divvy kill` a slice or `divvy resize` one; `oversubscription` in the configuration raises the total."
    13 OverDevice ACT "more memory than the device has"
        "A slice is a share of one device, so it can never be larger than the device, whatever the oversubscription."
    14 TooManySlices ACT "the device holds its maximum number of slices"
        "`max_slices` in the configuration says how many slices a device may be divided into."
    15 DeviceTaken ACT "another agent owns the device"
        "A device has one owner on a host, so that its memory is promised once. The message names the owner's process and user. Use that agent (its DIVVY_RUN_DIR), or stop it with `divvy agent stop`."
    16 AmbiguousDevice ACT "a selector fits several devices"
        "A prefix of a UUID must fit one device only: type more of it."
    17 QuotaFull ACT "the user's quota is used up"
        "`user_memory`, `user_compute` and `user_slices` in the agent's configuration say how much of a device one user's slices may have, and how many there may be. The message says what is left of it; `--wait` waits until slices of the same user have ended."
    18 NotVisible ACT "the device is not among the visible ones"
        "CUDA_VISIBLE_DEVICES, which Slurm and other schedulers set, says which devices are meant for this shell. `divvy run` takes none but those. `divvy env explain` shows how the variable is read."
    19 WaitOver ACT "the wait was in vain"
        "`divvy run --wait=10m` stands in line for that long. The message says what was still lacking when the time was up."
    20 UnknownSlice ACT "there is no such slice"
        "No slice has that name or id. A slice ends with its program; `divvy ps` lists those that live."
    21 NameTaken ACT "the name is taken"
        "A user's slices have different names, on one agent. Leave `--name` out and one is made up."
    22 NotEnforceable ACT "a limit cannot be enforced here"
        "Divvy is strict by default: what it cannot enforce it refuses, rather than let a program run under a limit that does not hold. `--policy best-effort` runs it anyway and counts the bypass in the slice's record."
    23 SliceName USAGE "a name of a slice was not understood"
        "A name is 1 to 63 letters, digits, `-`, `_` or `.`, and begins with a letter or a digit. `refused` stands for a slice that was not made, and is no slice's name."
    24 SliceGone ACT "the slice or its pages are gone"
        "Either the slice ended, or was deleted, before the request was served: start again. Or it is there and its pages are not: they cannot be had from its page server (which is stopped, or died together with the agent), or they are damaged. Then what the slice holds is not known: its programs keep running under their limit, all of that limit counts as taken, and it can be neither changed nor joined nor divided. The message and `divvy inspect` say which it is; it ends with its processes, which `divvy kill` ends."
    25 BadMemory ACT "the slice cannot have that much memory"
        "A slice is like a smaller GPU: its programs' contexts are inside it, so it has space for one at least (`context_memory` in the configuration says what one costs). A live slice may shrink below what its programs hold (they keep it, and get no more until they fall below the limit), but not below what slices inside it have. A whole device is neither more nor less."
    26 SliceBusy ACT "programs run in the slice"
        "A lasting slice is deleted when nothing runs in it. End the programs first, or let `divvy slice delete --yes` end them."
    27 NotLasting ACT "the slice is not a lasting one"
        "`divvy run --slice` joins slices that `divvy slice create` made, and `divvy slice delete` deletes them. The slice of a plain `divvy run` belongs to that run and ends with it; `divvy kill` ends it."
    28 SliceFull ACT "the slice has no room for another inside it"
        "A `divvy run` inside a slice takes its memory and its compute out of that slice: never more than is free there, and no run overtakes one that waits for it. The message says what its programs and the slices inside it hold."
    29 OutsideSlice ACT "a slice cannot be left from inside"
        "What runs inside a slice gets no memory from outside it: neither of another device nor of another slice, no lasting one is made there, and the limits of the slice itself, or of another that is not inside it, are not changed there. Start it from a shell that is in no slice. A run that goes into your default slice stays on that slice's device, too; `--memory` asks for a slice elsewhere."
    30 AgentUnreachable AGENT "the agent does not answer"
        "The agent of this run directory does not answer on its socket. It is started on demand by `divvy run`; `divvy agent status` and the log in the run directory tell more."
    31 AgentStart AGENT "the agent did not start"
        "The agent was started and did not begin to listen in time. Its log lies in the run directory as agent.log."
    32 AgentVersion AGENT "the agent speaks another version"
        "The agent was started by another version of Divvy whose API differs. `divvy agent stop` ends it (tenants keep their limits); the next `divvy run` starts this version's."
    33 NotAllowed PERMISSION "only the owner or root may do that"
        "Every user may look; a slice is changed by the user who holds it, or by root. An agent makes slices for its own user and root, unless its configuration says `admit_others = true`, and makes emulated devices for these alone. A pod or container joins a lasting slice by an annotation where `divvy slice create --pods` made it so. A process that has ended changes nothing either, though another goes on with its connection."
    34 OneSlice ACT "these devices cannot be in one slice"
        "A slice of several devices is one program's under one driver: each device once, all real or all of one specification of emulated ones, and no MIG instance, beside which CUDA shows a program nothing else."
    35 OverQuota ACT "more than one user may have"
        "What is asked for is more of one device than `user_memory` or `user_compute` in the agent's configuration lets a user have in all, so it does not fit even when no other slice of that user is left, and waiting is of no use. Ask for at most what the message says, or have the quota raised (agent's configuration, then `divvy agent stop`). A run that waits when the quota becomes smaller than it is refused in this way too."
    36 OverSlice ACT "more memory than the slice around it has"
        "A `divvy run` inside a slice takes its memory out of that slice. This one asks for more than that slice's own limit, so it does not fit even when nothing else is left in it, and waiting is of no use. Ask for less, or raise the outer slice's limit first with `divvy resize`. A run that waits when the outer slice is resized below it is refused in this way too."
    37 ComputeFull ACT "the device has not that much compute left"
        "The shares of a device's time sum to 100 % at most as soon as one of its slices has a hard cap or is latency-critical: such a share is promised, and a promise that is made twice cannot be kept. While all are soft and best-effort they may sum to more; they are weights then. The message says what is free and who has the rest. Ask for less, wait with `--wait`, or `divvy resize NAME --compute` another."
    38 BadCompute ACT "the slice cannot have such compute"
        "A share is above 0 % and at most 100 %. A hard cap and the latency class are promises, so they need a share; a weight is for slices without one. Inside another slice, a share is a part of that one's, its cap binds, and none is latency-critical unless that one is. Not every user may give a weight above 100."
    39 OtherMode ACT "the device is shared in another way"
        "A device is shared in one way at a time: by leases, by the hardware's turns, under MPS, or by MIG instances. The message says who shares it how. Share it so too, choose another device, or wait with `--wait` until those slices have ended. `divvy explain sharing` compares the ways."
    40 RunDir PERMISSION "the run directory cannot be used"
        "Divvy keeps its socket and the slices' records in a run directory: DIVVY_RUN_DIR, else /run/divvy for root, $XDG_RUNTIME_DIR/divvy or /tmp/divvy-UID for a user. It must belong to the caller, to root, or to a user that root put there (all folders above it are root's), and be writable by its owner only. What answers on its socket must be its owner's or root's: any user may make a folder in /tmp."
    41 RunDirPath ACT "the run directory's path cannot be used"
        "The dynamic loader splits LD_PRELOAD at spaces and colons, and a socket's path has at most 107 bytes: the run directory's path must have no such characters and be short."
    42 SharedMemory ACT "shared memory cannot be made"
        "A slice's pages, and an emulated device's, are memory files with locks of open file descriptions. Either the system's limits forbid them, or the kernel is not Linux's own: gVisor has no such locks."
    43 EngineMissing ACT "the container engine is not there"
        "`divvy podman run` and `divvy docker run` translate into the engine's own command, which has to be installed and on the PATH; so has the OCI runtime (runc, crun or youki) that `divvy container oci-runtime` calls."
    44 EngineOld ACT "the engine gives out no CDI devices"
        "Slices reach containers as CDI devices, which podman knows since 4.1, docker since 25 (turned on by default since 28.2), containerd since 1.7 and CRI-O since 1.23. Older engines, and those that have it turned off, use the runtime wrapper: `divvy container runtime configure` writes their configuration."
    45 Bundle ACT "the container's bundle cannot be used"
        "An engine hands its OCI runtime a folder with a config.json. It has to be a plain file of at most 4 MiB that holds one JSON object as the OCI runtime specification has it; `divvy container oci-runtime` follows no link to it."
    46 EngineConfig PERMISSION "the engine's configuration cannot be changed"
        "`divvy container runtime configure` changes the file in which an engine lists its runtimes: it has to be readable in its format and writable, root's on most hosts. The old file stays beside the new one as FILE.before-divvy, and `--undo` puts it back. `--dry-run` prints the new text and writes nothing."
    47 CdiDirectory PERMISSION "the CDI directory cannot be used"
        "Engines read CDI files from /etc/cdi and /var/run/cdi, which belong to root on most hosts. `--directory` names another directory, which the engine has to be told of."
    48 CdiName ACT "a CDI name is taken or cannot be"
        "A CDI device is called `vendor.com/class=name`. Where two files claim one name, engines give it to no container. `divvy container cdi list` shows who claims what."
    49 Nri ACT "the container runtime's plugin interface cannot be used"
        "`divvy container nri` is a plugin of containerd (1.7 and later) and CRI-O: it connects to /var/run/nri/nri.sock, or the runtime starts it. containerd 1.7 has NRI turned off: `disable = false` in the part `io.containerd.nri.v1.nri` of its configuration turns it on. A plugin that answers too late is dropped by the runtime; plugin_request_timeout there says how long it waits."
    50 DropIn ACT "a drop-in library is missing"
        "Divvy's libraries lie beside the executable or in ../lib/divvy. `cargo build` makes both; `divvy doctor` says where it looked."
    51 Driver ACT "there is no driver below"
        "The limiter stands in front of another libcuda.so.1: `--driver PATH` or DIVVY_DRIVER names it, else NVIDIA's is looked for in the usual places. Or NVIDIA's library does not answer: the driver hangs, as after an Xid error (`dmesg` shows those). The agent goes on without it, `divvy ps` says `driver silent` of its slices, and no slices are made there until it answers."
    52 ProgramNotFound ACT "the program was not found"
        "No file of that name is on PATH or at that path. `divvy run` exits with 127, as a shell does."
    53 ProgramCannotRun ACT "the program cannot be executed"
        "It is a directory, it lacks the execute permission, or its format is not known to the kernel. `divvy run` exits with 126, as a shell does."
    54 DropInLoad ACT "the drop-in does not load"
        "A test program that opens libcuda.so.1 under Divvy's environment failed. `divvy doctor` shows what the loader said."
    55 MigMode ACT "the device is in MIG mode"
        "Of a GPU in MIG mode only its instances can be used. `divvy devices` lists them as devices of their own; name one with `--device MIG-…`, make them with `divvy gpu mig apply`, or turn the mode off with `divvy gpu mig apply --instances none`."
    56 VmHost ACT "this machine cannot pass devices through"
        "A virtual machine gets a device through the IOMMU and VFIO, and one of them is off or missing. `divvy vm doctor` looks at all that is needed, and says for each what fixes it on this distribution."
    57 VmGroup ACT "an IOMMU group cannot be handed over as it is"
        "The functions of a group go to a virtual machine together. What is part of the GPU's card, such as its sound, goes along without a question. Functions of other cards do only where `divvy vm bind --with ADDRESS` names them, and the display of the machine's console where `--boot-display` is given. `divvy vm status` shows the groups."
    58 VmHeld ACT "a device that is to be handed over is in use"
        "A program, a slice, a mounted disk, a network link or a virtual machine uses a function of the group. Drivers wait for their last user, so nothing was changed. The message names the user and what ends it. Or another `divvy vm` is at work: let it end."
    59 VmBind ACT "the kernel refused to hand a device over"
        "A step failed, and the first drivers are back, or the message says which are not. `divvy vm status` shows how the group stands, and `divvy vm restore` puts back what a crash or a failure left half done. The kernel's log says why a driver refused a device."
    60 PageVersion ACT "a page of another version"
        "A slice's grant or ledger was made by another version of Divvy, or is no such page at all. Divvy never guesses: what runs in the slice goes on; delete the slice and make it again."
    61 LedgerCorrupt ACT "the ledger is damaged"
        "A slice's ledger holds values no limiter writes. The slice's programs keep running under their limit; the agent takes no number from that page any more."
    62 Attach ACT "the slice's pages could not be handed over"
        "The page server of a slice (its `divvy run`) and the agent pass the pages through a socket in the slice's directory, and one of them failed."
    63 Annotation ACT "a pod's annotations mean nothing"
        "A pod asks for a slice by divvy.dev/memory, /compute, /device, /isolation or /slice, which is for all its containers together, and for one container by memory.divvy.dev/container.NAME and the like. An annotation of divvy.dev that Divvy does not know is refused, because a limit that is misspelt must not be none; so is a mount over the places where the limiter lies."
    64 Overuse ACT "a process took more than its slice has"
        "The slice is supervised: what the device's driver says of its processes counts, whatever they say themselves. It held more than its limit for over a second, so the process that took the memory was ended, as under a cgroup's limit. `divvy run` ends with 137 (128 and SIGKILL's number) where that was its program. `--on-overuse freeze` or `report` ends nothing. `divvy explain isolation` compares the levels."
    66 BelowLeast PERMISSION "less isolation than this host's minimum"
        "The administrator of this host says by `least_isolation` and `least_on_overuse` in the agent's configuration how weakly a slice may be isolated at most, and what at least follows when its programs take more than it has. Leave `--isolation` and `--on-overuse` out to have the minimum or more. `divvy config show --origin` shows both, and `divvy explain isolation` compares the levels."
    67 Guest ACT "a virtual machine cannot be served"
        "`divvy guest run` shares memory and a control channel with a machine, and needs a slice whose programs have workers. The message says what is lacking. A machine with the kit of another version is not served: `divvy guest kit DIR` writes the kit of this one."
    68 Claim ACT "a claim cannot be prepared"
        "The kubelet asked the DRA driver of this node for the devices of a ResourceClaim, and the claim, its parameters or the driver's records do not allow it. The pod's events show the message. The kubelet asks again until the pod is deleted. Nothing of the claim is left on the node meanwhile. docs/kubernetes.md lists the parameters."
    69 Cluster ACT "the Kubernetes API server was not reached or refused"
        "`divvy k8s dra-plugin` publishes this node's devices and reads claims. It needs Kubernetes 1.34 or later, and the right to read its node and claims, and to read and write ResourceSlices. The message says what the server answered."
    70 DoctorFailed ACT "doctor found a failure"
        "At least one check failed; each says what to do."
    71 EmulatedRuntime ACT "NVIDIA's CUDA runtime on an emulated device"
        "The program uses NVIDIA's CUDA runtime (libcudart, or a library that carries it inside: PyTorch, CuPy, JAX, cuBLAS, cuDNN). That runtime asks the driver to prove that it is NVIDIA's, which an emulated device does not answer, so its first call fails: error 801 (not supported) with CUDA 13, error 103 with earlier ones. NVIDIA's shared libcudart is refused as well as the static one. Compile a program of your own with `divvy nvcc`, which links it with the shared runtime: `divvy run` gives it Divvy's. Or use a client of the driver API (numba-cuda, Taichi, Dr.Jit, Halide, tinygrad, cudarc and cuda-python's driver bindings run unmodified), or a machine with an NVIDIA GPU, where all of these programs run in slices. DIVVY_NOTICES=off turns the line on standard error off. docs/emulated-device.md says more."
    72 EmulatedMachineCode ACT "code without PTX on an emulated device"
        "A module that the program loads holds machine code for some GPUs and no PTX, and an emulated device runs PTX only. The load fails with error 209 (no binary for GPU). Build it with PTX (`nvcc -gencode arch=compute_75,code=compute_75`). For numba-cuda, install it without the package nvidia-nvjitlink, with which it compiles to machine code: `pip install numba-cuda nvidia-nvvm nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl`. DIVVY_NOTICES=off turns the line on standard error off."
    73 EmulatedInstruction ACT "an instruction that the emulated device lacks"
        "A kernel of the program has a PTX instruction that the emulated device does not run, such as those of tensor cores, so its launch fails with error 801 (not supported). The line names the instruction and the kernel; other kernels of the module run. docs/emulated-device.md lists what is lacking. DIVVY_NOTICES=off turns the line on standard error off."
    74 Kubelet ACT "the kubelet's sockets cannot be used"
        "The DRA driver listens in the kubelet's folder, /var/lib/kubelet on most nodes, as root. `divvy k8s dra-plugin --kubelet-dir DIR` names another one."
    75 Findings ACT "something is wrong with the program's kernels"
        "`divvy emulate check` found races, reads of memory that nothing has written, accesses outside of allocations, or barriers that only a part of a warp reaches. Its report names each place. It ends with 1 then, whatever the program's own exit status is."
    76 OutputFile ACT "a file cannot be written"
        "The command line names a file for what is to be written, and the file, or the disk that it is on, does not take it: its folder is missing, it is a folder, its rights forbid it, or the disk is full. The message says which."
    80 Visible ACT "no variables show these devices"
        "Each runtime reads its own variables and shows its own vendor's devices, and a CUDA program sees one MIG device at most. `divvy env explain` tells step by step what an environment shows."
    81 MigRequest USAGE "a MIG request was not understood"
        "A MIG instance is asked for by its profile's name (`1g.10gb`), its id (`19`), and where it matters its place (`1g.10gb:2`). `divvy gpu mig list` shows what each device offers."
    82 MigFit ACT "the MIG instances do not fit"
        "No layout holds the instances asked for beside those in use. The message names the request that cannot fit and what would make it fit."
    83 MigBusy ACT "a MIG instance is in use"
        "Divvy never changes an instance, or a device's MIG mode, while a program runs there. The message names who runs; wait for it or end it, then apply again."
    84 NoMig ACT "the device has no MIG"
        "Only some products (A30, A100, H100, H200, B200 and their kin) can be cut into MIG instances, and on those MIG mode must be on: `divvy gpu mig apply` turns it on where nothing runs."
    85 MigDriver ACT "the driver refused a MIG change"
        "What was changed before the refusal has been put back, or the message says what could not be. `divvy gpu mig list` shows what is there."
    86 Privilege PERMISSION "the system does not permit it"
        "Changing how a device is divided needs the right to do so, on most hosts root's."
    87 Tool ACT "a vendor's tool failed"
        "A tool that Divvy calls is missing, did not end in time, or said what Divvy does not understand. The message holds its first words."
    88 Partition ACT "the device cannot be divided so"
        "The partition, the mask or the share asked for is none that the device offers."
    89 Vgpu ACT "the virtual GPU cannot be changed"
        "There is no such type, none is left of it, or a virtual machine holds the device."
    90 Busy AGENT "the agent has too much at hand"
        "Each user has so many connections to the agent, and so many requests in flight, so that one user cannot keep the others waiting. Something of this user's fills them: many event streams, or a `divvy run` that is stopped while the agent waits for it. Commands try again by themselves for some seconds."
    91 QueueFull ACT "the queue has no place left"
        "A user has 8 places in the queue, a process one of them, and there are 256 in all, some of which are kept for root. Those that wait keep their places. Try again when one of them has been served."
    92 TooLarge USAGE "the request is too large or too slow"
        "The agent reads requests of up to 1 MiB of root and of its own user, of up to 64 KiB of others, and waits ten seconds for one. Commands send less."
    93 RemoteUnreachable ACT "the host of the device does not answer"
        "`divvy run --device tcp://HOST:PORT/0` and `divvy remote list` need `divvy remote serve` on the device's host. Check the address, the port and the firewall between. The server's log says which connections it refused."
    94 RemoteIdentity ACT "a certificate was not accepted"
        "Both sides of a connection show a certificate of the server's own authority. On the device's host `divvy remote invite NAME` prints an invitation, and `divvy remote join HOST:PORT FILE` stores it on the client's host. An invitation holds for a year; a new one of the same name replaces the old one. A certificate that is expired or not valid yet may also mean that the clocks of the two hosts differ."
    95 RemoteVersion ACT "the other host has another version"
        "The two hosts speak different versions of the protocol. Install the same version of Divvy on both."
    96 RemoteAllowance ACT "the host has all that it was invited to"
        "An invitation can say how much memory and compute all runs of a host have together (`divvy remote invite --memory SIZE --compute SHARE`). The host's other runs leave too little of it for this one. Ask for less, end another run, or wait with `--wait`. The administrator of the GPU's host can invite the host again with other amounts."
    97 CudaCompiler ACT "there is no CUDA compiler to use"
        "`divvy nvcc` runs NVIDIA's nvcc, which is not part of Divvy. It is looked for in PATH, in CUDA_HOME, in the active Python environment and in /usr/local/cuda. The CUDA toolkit has it, and so have NVIDIA's packages for Python: `pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl nvidia-nvvm`. It needs g++ as well."
    98 Job ACT "a job of a workload manager does not start here"
        "`divvy slurm prolog` gives a job the slice that Slurm counted for it, and could not. The message says why. What an administrator has to repair fails the prolog, and Slurm drains the node: the slurmd log has the sentence. A job that has to be changed is held, or ended where it cannot be held. A job that may start later is put back into the queue. `divvy slurm setup` names what is wrong with a node's configuration."
    99 Internal ACT "something unforeseen"
        "The operating system refused something Divvy had no reason to expect. The message and the agent's log say what."
    100 UnclearAccount ACT "it is not clear whose quota a slice counts for"
        "A user with subordinate numbers in /etc/subuid has one quota, by whichever of them it asks. Ranges of several users have the number of the user that asks. Ask as your own user, or have the administrator set the ranges in /etc/subuid apart."
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "D{:04}", *self as u16)
    }
}

impl FromStr for Code {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| format!("`{text}` is no code of Divvy's"))
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // A newer agent may send a code this version does not know: the message still tells.
        Ok(text.parse().unwrap_or(Self::Internal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A code whose refusal was dropped would keep an explanation that no command prints.
    #[test]
    fn every_code_is_raised_somewhere() {
        fn sources(folder: &std::path::Path, text: &mut String) {
            for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    sources(&path, text);
                } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("code.rs") {
                    text.push_str(&std::fs::read_to_string(&path).expect("a source file"));
                }
            }
        }
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut text = String::new();
        for room in [
            "model",
            "device",
            "host",
            "container",
            "agent",
            "tunnel",
            "jobs",
            "kube",
            "vm",
            "divvy",
        ] {
            sources(&crates.join(room).join("src"), &mut text);
        }
        for code in Code::ALL {
            assert!(text.contains(&format!("Code::{code:?}")), "{code} {code:?}");
        }
    }

    #[test]
    fn codes_round_trip_and_ascend() {
        assert!(Code::ALL.is_sorted());
        for code in Code::ALL {
            assert_eq!(code.to_string().parse(), Ok(*code));
            assert!(!code.title().is_empty() && code.story().ends_with('.'), "{code}");
        }
        assert_eq!(Code::DeviceFull.to_string(), "D0012");
        assert!("D9999".parse::<Code>().is_err());
    }
}

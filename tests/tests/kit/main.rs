//! The kit for machines with a GPU, over the emulated device: all of it, and with faults that the report has to find.
//!
//! A fault stands between the kit and `divvy`: a script of that name, as which the kit calls it.

mod asks;
mod faults;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use divvy_tests::build::binaries;
use divvy_tests::clients::{python, tools_python};
use divvy_tests::host::{Host, finish};
use divvy_tests::wait;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// An archive's folders, with programs as they were built.
struct Kit {
    host: Host,
    home: PathBuf,
}

/// What the emulated device answers to one instruction, and the kernel that asks it.
fn case(wanted: u64) -> Value {
    let ptx = ".version 8.5\n.target sm_90\n.address_size 64\n\
        .visible .entry probe(.param .u32 n, .param .u64 pa, .param .u64 pd) {\n\
        .reg .pred %p; .reg .b32 %n, %i, %t, %a; .reg .b64 %at, %pa, %pd;\n\
        mov.u32 %i, %ctaid.x; mov.u32 %t, %tid.x; mad.lo.s32 %i, %i, 96, %t;\n\
        ld.param.u32 %n, [n]; setp.ge.u32 %p, %i, %n; @%p bra DONE;\n\
        mul.wide.u32 %at, %i, 8; ld.param.u64 %pa, [pa]; add.s64 %pa, %pa, %at;\n\
        ld.param.u64 %pd, [pd]; add.s64 %pd, %pd, %at;\n\
        ld.global.u32 %a, [%pa]; add.u32 %a, %a, 1; st.global.u32 [%pd], %a;\n\
        DONE: ret; }\n";
    let result = json!({"type": "U32", "bits": [8, wanted, 10], "exact": "111"});
    json!({"name": "add.u32 {d}, {a}, 1;", "ptx": ptx, "inputs": [[7, 8, 9]], "results": [result]})
}

impl Kit {
    /// With `divvy` as it is, or with a script in its place, which finds the real one as `$DIVVY`.
    fn new(script: Option<&str>) -> Self {
        let host = Host::new();
        let home = host.folder().join("kit");
        let bin = home.join("bin");
        for folder in [&bin, &home.join("cases")] {
            fs::create_dir_all(folder).expect("a folder");
        }
        for entry in fs::read_dir(binaries()).expect("what was built").flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|kind| kind == "so") {
                symlink(&path, bin.join(entry.file_name())).expect("a link");
            }
        }
        // Which file a program is, is what it takes for its own place: no link.
        fs::copy(binaries().join("divvy-kit"), bin.join("divvy-kit")).expect("copied");
        let divvy = bin.join("divvy");
        match script {
            None => drop(fs::copy(binaries().join("divvy"), &divvy).expect("copied")),
            Some(script) => {
                let real = binaries().join("divvy");
                // Faults are for the parts: the kit's own look at the device finds it well.
                let text = format!(
                    "#!/bin/sh\nDIVVY={}\ngrep -qz '^part$' /proc/$PPID/cmdline || exec $DIVVY \"$@\"\n{script}\n",
                    real.display()
                );
                fs::write(&divvy, text).expect("written");
                fs::set_permissions(&divvy, Permissions::from_mode(0o755)).expect("a mode");
            }
        }
        let kernels = divvy_tests::build::workspace().join("crates/ptx/tests/kernels");
        symlink(kernels, home.join("kernels")).expect("a link");
        let kit = Self { host, home };
        kit.write_cases(&format!("{}\n", case(9)));
        kit
    }

    fn write_cases(&self, text: &str) {
        fs::write(self.home.join("cases/isa.jsonl"), text).expect("written");
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.host.command(self.home.join("bin/divvy-kit"));
        command
            .args(["run", "--device", "emulated:h100", "--out"])
            .arg(self.home.join("results"))
            .args(words)
            .env(
                "KIT_PROGRAMS",
                divvy_tests::build::workspace().join("crates/kit/python"),
            );
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        finish(&mut self.command(words))
    }

    /// The emulated device as the machine's card: no `--device`, NVIDIA's names, and contexts that cost what a card's do.
    fn as_a_card(&self, words: &[&str]) -> Command {
        let mut command = self.host.command(self.home.join("bin/divvy-kit"));
        command
            .args(["run", "--out"])
            .arg(self.home.join("results"))
            .args(words)
            .env("KIT_AS_A_CARD", "h100,context=512MiB");
        command
    }

    /// What fails in a part, by its check.
    fn failing(&self, part: &str) -> Vec<String> {
        let part = self.part(part);
        let findings = part["findings"].as_array().expect("findings").iter();
        findings
            .filter(|finding| finding["verdict"] == "fails")
            .map(|finding| finding["check"].as_str().expect("a name").to_owned())
            .collect()
    }

    fn report(&self) -> Value {
        let text = fs::read_to_string(self.home.join("results/report.json")).expect("a report");
        serde_json::from_str(&text).expect("JSON")
    }

    fn part(&self, name: &str) -> Value {
        let report = self.report();
        let parts = report["parts"].as_array().expect("parts");
        let mut named = parts.iter().filter(|part| part["name"] == name);
        named.next().expect("this part").clone()
    }

    fn finding(&self, part: &str, check: &str) -> Value {
        let part = self.part(part);
        let findings = part["findings"].as_array().expect("findings");
        let found = findings.iter().find(|finding| finding["check"] == check);
        found.cloned().unwrap_or_default()
    }

    fn verdict(&self, part: &str, check: &str) -> Value {
        self.finding(part, check)["verdict"].clone()
    }
}

#[test]
fn the_whole_kit_finds_no_fault_on_the_emulated_device_and_names_no_user() {
    let kit = Kit::new(None);
    let mut command = kit.command(&[]);
    if let Some(python) = python() {
        command.env("KIT_PYTHON", python);
    }
    let output = finish(&mut command);
    let page = fs::read_to_string(kit.home.join("results/report.md")).expect("a page");
    assert_eq!(output.status.code(), Some(0), "{page}");
    for part in kit.report()["parts"].as_array().expect("parts") {
        assert_eq!(part["outcome"]["ending"], "done", "{part}");
        assert!(
            !part["findings"].as_array().expect("findings").is_empty(),
            "{part}"
        );
    }
    assert_eq!(kit.verdict("clients", "clients.numba.refused"), "holds");
    // Two at once: shares are not judged where the device computes on the clients' own processors.
    let together = kit.finding("clients", "clients.together.numba.30-70.soft");
    assert_eq!(together["verdict"], "fact", "{together}");
    let steps = together["details"]["steps"].as_array().expect("both");
    assert!(steps.iter().all(|steps| steps.as_f64() > Some(0.0)), "{together}");
    // Where others have the processors it may tell nothing, and says so.
    let race = kit.finding("compute", "compute.30-70.1ms");
    let waited = race["details"]["waited_percent"].as_f64().expect("a figure");
    assert!(
        race["verdict"] == "holds" || (race["verdict"] == "skipped" && waited > 20.0),
        "{race}"
    );
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for name in [kit.home.to_str().expect("text"), "GPU-8", &host] {
        // A host may be called by a word that stands in the page for something else.
        assert!(name.len() < 4 || !page.contains(name), "{name} is in {page}");
    }
    // A part that has run is not run again.
    let again = kit.run(&[]);
    assert!(!String::from_utf8_lossy(&again.stdout).contains("memory:"));
}

#[test]
fn contexts_that_cost_what_a_cards_do_leave_room_for_each_part() {
    let kit = Kit::new(None);
    let words = [
        "--part", "facts", "--part", "memory", "--part", "deaths", "--limit", "40",
    ];
    finish(&mut kit.as_a_card(&words));
    for part in ["memory", "deaths"] {
        assert_eq!(kit.failing(part), [""; 0], "{}", kit.part(part));
    }
    // The emulated driver's own version is older than NVIDIA's.
    assert_eq!(kit.failing("facts"), ["facts.driver"]);
    let context = kit.finding("facts", "facts.context");
    assert_eq!(context["figure"]["value"], f64::from(512 << 20), "{context}");
    assert_eq!(kit.verdict("memory", "memory.plain.limit"), "holds");
    assert_eq!(kit.verdict("deaths", "deaths.memory"), "holds");
}

/// Each fault, the part that has to find it, the finding, and its verdict.
#[test]
fn planted_faults_are_found_by_the_right_line_of_the_report() {
    // The program behind `--`, without a slice.
    const BARE: &str = "if [ \"$1\" = run ]; then while [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"; fi\n\
                        exec $DIVVY \"$@\"";
    // Each word by itself, so that one can be put in the place of another.
    let swap = |from: &str, to: &str| {
        format!(
            "n=$#; while [ $n -gt 0 ]; do w=$1; shift; [ \"$w\" = {from} ] && w={to}; set -- \"$@\" \"$w\"; n=$((n-1)); done\n\
             exec $DIVVY \"$@\""
        )
    };
    let with =
        |flag: &str| format!("[ \"$1\" = run ] || exec $DIVVY \"$@\"; shift; exec $DIVVY run {flag} \"$@\"");
    let faults = [
        ("there is no limiter", BARE.to_owned(), "memory", "memory.plain.total"),
        ("there is no gate", BARE.to_owned(), "compute", "compute.30-70.1ms"),
        ("the slice is too large", swap("4GiB", "5GiB"), "memory", "memory.pool.limit"),
        ("the slice is too small", swap("4GiB", "3GiB"), "memory", "memory.array.total"),
        ("managed memory goes past the limit", with("--oversubscribe"), "memory", "memory.managed.limit"),
        ("shares are exchanged", swap("70%", "30%"), "compute", "compute.30-70.1ms"),
        (
            "slices are left behind",
            "case \"$1\" in ps) echo '{\"items\": [{\"name\": \"left\"}]}';; *) exec $DIVVY \"$@\";; esac".to_owned(),
            "deaths",
            "deaths.slices",
        ),
        (
            "memory is left behind",
            "[ \"$1\" = run ] && [ ! -e \"$DIVVY_RUN_DIR/once\" ] && : >\"$DIVVY_RUN_DIR-once\" && \
             (exec sleep 600 | $DIVVY run --device emulated:h100 --memory 2GiB -- \"${0%/*}/divvy-kit\" tenant churn \
             >/dev/null 2>&1 &)\n\
             exec $DIVVY \"$@\""
                .to_owned(),
            "deaths",
            "deaths.memory",
        ),
    ];
    for (fault, script, part, check) in faults {
        let kit = Kit::new(Some(&script));
        // Enough for the first of many races.
        let limit = if part == "deaths" { "40" } else { "20" };
        let output = kit.run(&["--part", part, "--limit", limit]);
        let page = fs::read_to_string(kit.home.join("results/report.md")).expect("a page");
        assert_eq!(kit.verdict(part, check), "fails", "{fault}: {page}");
        assert_eq!(output.status.code(), Some(1), "{fault}");
    }
}

#[test]
fn a_wrong_result_of_an_instruction_is_found_with_its_operands() {
    let kit = Kit::new(None);
    kit.write_cases(&format!("{}\n{}\n", case(9), case(13)));
    kit.run(&["--part", "differences"]);
    assert_eq!(kit.verdict("differences", "differences.isa"), "fails");
    let found = kit.part("differences")["findings"][0].clone();
    assert_eq!(
        found["details"]["first"],
        json!({"type": "U32", "operands": ["0x8"], "card": "0x9", "emulated": "0xd"})
    );
    // A driver that answers otherwise, as another product's does, and a kernel that computes otherwise there.
    let kernels = kit.home.join("kernels-of-a-fault");
    let whole = divvy_tests::build::workspace().join("crates/ptx/tests/kernels");
    fs::create_dir(&kernels).expect("a folder");
    for entry in fs::read_dir(whole).expect("kernels").flatten() {
        symlink(entry.path(), kernels.join(entry.file_name())).expect("a link");
    }
    let saxpy = kernels.join("saxpy.ptx");
    let text = fs::read_to_string(&saxpy).expect("a kernel");
    let wrong = text.replacen(
        "st.global.f32 \t[%rd7], %f4;",
        "mov.u32 %r1, %nsmid; cvt.rn.f32.u32 %f4, %r1; st.global.f32 [%rd7], %f4;",
        1,
    );
    assert_ne!(text, wrong);
    fs::remove_file(&saxpy).expect("a link");
    fs::write(&saxpy, wrong).expect("written");
    let mut command = kit.command(&["--part", "differences"]);
    finish(command.env("KIT_AGAINST", "l4").env("KIT_KERNELS", &kernels));
    assert_eq!(kit.verdict("differences", "differences.attribute"), "fails");
    assert_eq!(kit.verdict("differences", "differences.error"), "holds");
    assert_eq!(kit.verdict("differences", "differences.kernel.scan"), "holds");
    assert_eq!(kit.verdict("differences", "differences.kernel.saxpy"), "fails");
    assert_eq!(
        kit.verdict("differences", "differences.kernel.saxpy_strided"),
        "holds"
    );
    kit.write_cases("{\"name\":");
    let output = kit.run(&["--part", "differences"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        kit.verdict("differences", "differences.ended"),
        "fails",
        "a damaged case"
    );
}

/// Told to end, and killed: its programs end with it, and the next run does the part again.
#[test]
fn a_run_that_is_cut_off_leaves_no_program_and_is_gone_on_with() {
    let kit = Kit::new(None);
    let running = || {
        let home = kit.home.to_str().expect("text").to_owned();
        let all = fs::read_dir("/proc").expect("/proc").flatten();
        all.filter(|entry| {
            let words = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            words.contains(&home)
        })
        .count()
    };
    let begin = || {
        let mut command = kit.command(&["--part", "compute"]);
        let mut started = command.stdout(Stdio::null()).spawn().expect("started");
        // The runner, the part, and two tenants at least.
        wait::until("tenants run", || {
            let ended = started.try_wait().expect("a child");
            assert!(ended.is_none(), "{ended:?}: {}", kit.part("compute"));
            (running() >= 4).then_some(())
        });
        started
    };
    let mut told = begin();
    let second = kit.run(&["--part", "facts"]);
    assert!(String::from_utf8_lossy(&second.stderr).contains("another run is at work there"));
    assert_eq!(second.status.code(), Some(2));
    let pid = Pid::from_child(&told);
    kill_process(pid, Signal::TERM).expect("told");
    assert_eq!(told.wait().expect("ended").code(), Some(143));
    assert_eq!(running(), 0);
    assert_eq!(kit.part("compute")["outcome"]["ending"], "cut");

    let mut killed = begin();
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    wait::until("nothing is left", || (running() == 0).then_some(()));
    assert_eq!(kit.failing("compute"), [""; 0]);
}

/// The next part runs, whatever became of the one before.
#[test]
fn a_part_that_dies_or_hangs_is_a_line_of_the_report() {
    let kit = Kit::new(Some("[ \"$1\" = run ] && kill -SEGV $PPID; exec $DIVVY \"$@\""));
    kit.run(&["--part", "deaths", "--part", "sharing", "--part", "differences"]);
    assert_eq!(kit.part("deaths")["outcome"]["ending"], "crashed");
    assert_eq!(kit.part("differences")["outcome"]["ending"], "done");
    let kit = Kit::new(Some("[ \"$1\" = run ] && exec sleep 600; exec $DIVVY \"$@\""));
    kit.run(&["--part", "cost", "--part", "differences", "--limit", "15"]);
    assert_eq!(kit.part("cost")["outcome"]["ending"], "timed_out");
    // What was known by then is kept.
    let known = kit.finding("cost", "cost.cuMemGetInfo");
    assert!(
        known["says"].to_string().contains("not measured with it"),
        "{known}"
    );
    assert_eq!(kit.part("differences")["outcome"]["ending"], "done");
}

#[test]
fn what_people_watch_gpus_with_shows_the_slice_inside_and_all_outside() {
    let Some(python) = tools_python() else { return };
    let kit = Kit::new(None);
    finish(kit.command(&["--part", "tools"]).env("KIT_PYTHON", &python));
    for check in [
        "gpustat.inside",
        "gpustat.outside",
        "nvitop.inside",
        "nvitop.outside",
    ] {
        let check = format!("tools.{check}");
        assert_eq!(
            kit.verdict("tools", &check),
            "holds",
            "{}",
            kit.finding("tools", &check)
        );
    }
    assert_eq!(kit.verdict("tools", "tools.nvidia-smi"), "skipped");
    // Without a slice around them, tools show all inside too.
    let bare = "[ \"$1\" = run ] || exec $DIVVY \"$@\"\n\
                case \"$*\" in *4057MiB*) while [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\";; esac\n\
                exec $DIVVY \"$@\"";
    let kit = Kit::new(Some(bare));
    let output = finish(kit.command(&["--part", "tools"]).env("KIT_PYTHON", &python));
    assert_eq!(kit.verdict("tools", "tools.gpustat.inside"), "fails");
    assert_eq!(kit.verdict("tools", "tools.nvitop.inside"), "fails");
    assert_eq!(output.status.code(), Some(1));
}

/// The names that numba 0.68 calls to add two vectors (bound by cuda-bindings 13, which asks for every name by
/// `cuGetProcAddress`).
const ASKED_BY_NUMBA: [&str; 10] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent",
    "cuLinkCreate",
    "cuLibraryLoadData",
    "cuMemAlloc",
    "cuLaunchKernelEx",
];

#[test]
fn what_programs_ask_the_driver_for_is_found_out() {
    let Some(python) = python() else { return };
    let kit = Kit::new(None);
    finish(kit.command(&["--part", "asks"]).env("KIT_PYTHON", &python));
    let numba = kit.finding("asks", "asks.numba");
    assert_eq!(numba["verdict"], "fact", "{numba}");
    let symbols = numba["details"]["symbols"].as_array().expect("names");
    assert!(symbols.contains(&json!("cuGetProcAddress_v2")), "{symbols:?}");
    let entries = numba["details"]["entries"].as_array().expect("entries");
    for name in ASKED_BY_NUMBA {
        let mut named = entries.iter().filter(|entry| entry["name"] == name);
        assert!(named.any(|entry| entry["found"] == true), "{name}");
    }
    assert_eq!(numba["details"]["tables"], json!([]), "{numba}");
    let unknown = kit.finding("asks", "asks.numba.unknown");
    assert_eq!(unknown["details"]["names"], json!([]));
    // The kit's own program binds each name of our table.
    let own = kit.finding("asks", "asks.calls");
    let symbols = own["details"]["symbols"].as_array().expect("names");
    assert!(symbols.contains(&json!("cuMemGetInfo_v2")), "{own}");
    assert_eq!(kit.verdict("asks", "asks.torch"), "skipped");

    // A program in numba's place that asks for what no library has, and for tables: by the name, and by the driver's
    // answer.
    let programs = kit.home.join("programs");
    fs::create_dir(&programs).expect("a folder");
    let program = "import ctypes\n\
        cuda, nvml = ctypes.CDLL('libcuda.so.1'), ctypes.CDLL('libnvidia-ml.so.1')\n\
        table, address = ctypes.c_void_p(), ctypes.c_void_p()\n\
        assert cuda.cuInit(0) == 0 and nvml.nvmlInit_v2() == 0\n\
        assert cuda.cuGetExportTable(ctypes.byref(table), bytes(range(16))) == 801 and not table\n\
        def ask(name): return cuda.cuGetProcAddress_v2(name, ctypes.byref(address), 12000, ctypes.c_uint64(0), None)\n\
        ask(b'cuNoSuchThing')\n\
        assert not address and ask(b'cuGetExportTable') == 0\n\
        tables = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(address.value)\n\
        assert tables(ctypes.addressof(table), bytes([255] * 16)) == 801 and not table\n\
        raise SystemExit(3)\n";
    fs::write(programs.join("numba_in_a_slice.py"), program).expect("written");
    let mut command = kit.command(&["--part", "asks"]);
    finish(command.env("KIT_PYTHON", &python).env("KIT_PROGRAMS", &programs));
    let found = kit.finding("asks", "asks.numba");
    assert_eq!(
        found["details"],
        json!({
            "symbols": ["cuGetExportTable", "cuGetProcAddress_v2", "cuInit", "nvmlInit_v2"],
            "entries": [
                {"name": "cuGetExportTable", "version": 12000, "flags": 0, "found": true},
                {"name": "cuNoSuchThing", "version": 12000, "flags": 0, "found": false},
            ],
            "tables": [
                {"uuid": "000102030405060708090a0b0c0d0e0f", "answered": false},
                {"uuid": "ffffffffffffffffffffffffffffffff", "answered": false},
            ],
        })
    );
    let says = found["says"].as_str().expect("a sentence");
    assert!(says.contains("it ended early, exit status: 3"), "{says}");
    assert_eq!(
        kit.finding("asks", "asks.numba.unknown")["details"]["names"],
        json!([{"name": "cuNoSuchThing", "found": false}])
    );

    // Without the recorder, and with one that the loader does not take.
    let recorder = kit.home.join("bin/libdivvy_kit_record.so");
    fs::remove_file(&recorder).expect("a link");
    kit.run(&["--part", "asks"]);
    assert_eq!(kit.verdict("asks", "asks.recorder"), "skipped");
    fs::write(&recorder, "no library").expect("written");
    let output = kit.run(&["--part", "asks"]);
    assert_eq!(kit.verdict("asks", "asks.calls"), "skipped");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_it_cannot_do_is_said_in_a_sentence() {
    let kit = Kit::new(None);
    let unknown = kit.run(&["--part", "nonsense"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there is no part `nonsense`"));
    let mut elsewhere = kit.host.command(kit.home.join("bin/divvy-kit"));
    // The last folder counts: the archive's `run` names one of its own first.
    let refused = finish(elsewhere.args(["run", "--out", "/tmp", "--out", "/proc/divvy"]));
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--out"));
    // No Python is no fault.
    let mut command = kit.command(&["--part", "clients"]);
    let output = finish(command.env("KIT_PYTHON", "/nowhere/python3"));
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(kit.verdict("clients", "clients.torch"), "skipped");
    // A machine without a card, and none named.
    let mut bare = kit.host.command(kit.home.join("bin/divvy-kit"));
    let none = finish(
        bare.args(["run", "--part", "facts", "--out"])
            .arg(kit.home.join("none")),
    );
    assert_eq!(none.status.code(), Some(2));
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(
        said.contains("libcuda.so.1 does not load") && said.contains("--device emulated:h100"),
        "{said}"
    );
}

#[test]
fn the_selftest_prints_a_line_for_each_promise_and_writes_a_report() {
    let host = Host::new();
    let file = host.folder().join("report.md");
    let mut command = host.divvy(["selftest", "--device", "emulated:h100", "--report"]);
    let output = finish(command.arg(&file));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("holds    memory.plain.limit"), "{said}");
    assert!(said.contains("compute.30-70.1ms"), "{said}");
    let page = fs::read_to_string(file).expect("a page");
    assert!(page.contains("No promise that was tried fails"), "{page}");
    // It reports at once what it cannot do, and emulates nothing in a card's place.
    for (words, status, sentence) in [
        (&["selftest"][..], 5, "libcuda.so.1 does not load"),
        (&["selftest", "--device", "emulated:nosuch"], 5, "nosuch"),
        (&["selftest", "--report", "/nowhere/report.md"], 2, "cannot write"),
    ] {
        let refused = finish(&mut host.divvy(words.iter().copied()));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(sentence) && said.contains("hint:"), "{said}");
        assert_eq!(refused.status.code(), Some(status), "{said}");
        assert!(refused.stdout.is_empty());
    }
}

//! Every environment variable Divvy reads or sets, in one place.

/// One variable.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub about: &'static str,
}

/// Variables that people set. Those with a key of the configuration come from the same table: see `config::KEYS`.
pub const READ: [Variable; 7] = [
    Variable {
        name: "NO_COLOR",
        about: "Set to anything, it turns colours off; CLICOLOR_FORCE turns them on where there is no terminal",
    },
    Variable {
        name: "DIVVY_AGENT_LOG",
        about: "What the agent logs, as in `info` or `divvy_agent=debug`",
    },
    Variable {
        name: "DIVVY_LOG",
        about: "A file, or `stderr`: where the limiter and the emulated driver in each program say what went wrong",
    },
    Variable {
        name: "DIVVY_LOG_LEVEL",
        about: "`all`: the limiter also logs each function that it leaves to the driver as it is",
    },
    Variable {
        name: "DIVVY_NOTICES",
        about: "`off`: the emulated driver does not say on standard error why it refuses a program",
    },
    Variable {
        name: "DIVVY_SYSROOT",
        about: "A folder with `sys`, `proc` and `dev` in the place of this machine's, to try what another machine does",
    },
    Variable {
        name: "DIVVY_SYSTEM_RUN_DIR",
        about: "The system agent's run directory, /run/divvy where it is unset",
    },
];

/// Variables that Divvy sets for the programs it runs.
pub const SET: [Variable; 11] = [
    Variable {
        name: "DIVVY_SLICE",
        about: "Where the slice's page server gives out its pages",
    },
    Variable {
        name: "DIVVY_DRIVER",
        about: "The driver below the limiter, by absolute path",
    },
    Variable {
        name: "DIVVY_NVML",
        about: "The NVML below the limiter's, by absolute path, where it is not NVIDIA's in its usual place",
    },
    Variable {
        name: "DIVVY_EMULATED",
        about: "The devices that the emulated driver and its NVML show",
    },
    Variable {
        name: "DIVVY_RUN_DIR",
        about: "The run directory of the slice's agent",
    },
    Variable {
        name: "DIVVY_CHECK",
        about: "A folder: the emulated driver checks the program, and writes there what it finds",
    },
    Variable {
        name: "DIVVY_PROFILE",
        about: "A folder: the emulated driver counts what the program's kernels do, and writes it there",
    },
    Variable {
        name: "LD_PRELOAD",
        about: "What was there, then the limiter",
    },
    Variable {
        name: "LD_LIBRARY_PATH",
        about: "The limiter's folder, in front of what was there",
    },
    Variable {
        name: "CUDA_VISIBLE_DEVICES",
        about: "The slice's device",
    },
    Variable {
        name: "CUDA_DEVICE_ORDER",
        about: "PCI_BUS_ID, the order that `divvy devices` shows",
    },
];

/// The end of `divvy config --help` and of the manual page.
pub fn help() -> String {
    use std::fmt::Write;
    let mut text = String::from("Environment, read:\n");
    let keys = crate::config::KEYS.iter().map(|key| (key.variable(), key.about));
    let others = READ
        .iter()
        .map(|variable| (variable.name.to_owned(), variable.about));
    for (name, about) in keys.chain(others) {
        let _ = writeln!(text, "  {name:<24} {about}");
    }
    text.push_str("\nEnvironment, set for programs:\n");
    for variable in SET {
        let _ = writeln!(text, "  {:<24} {}", variable.name, variable.about);
    }
    text.push_str(
        "\nExit status: 0 fine, 1 failed for a reason you can act on, 2 usage, 3 no agent, 4 not allowed,\n",
    );
    text.push_str(
        "5 no usable GPU. `divvy run`: the program's own, 128+n for signal n, 125 Divvy itself failed,\n",
    );
    text.push_str("126 the program cannot be executed, 127 it was not found.");
    text
}

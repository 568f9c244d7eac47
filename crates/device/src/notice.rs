//! One line on standard error, at most once in a process: why the emulated device refuses this program for good.
//!
//! A drop-in prints nothing, and this is the one exception (docs/adr/0050). CUDA's own error does not say what a user can
//! do, and the user has not asked for a log yet. The line is left out where standard error may be something else, and
//! where writing to it could block or raise a signal.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use divvy_model::Code;

use crate::log;

/// The variable that turns the line off with `off`.
const SETTING: &str = "DIVVY_NOTICES";
/// Writes of at most this many bytes to a pipe that poll(2) calls writable do not block: POSIX's PIPE_BUF.
const LONGEST: usize = 512;
const STDERR: libc::c_int = 2;

/// Says that the program has NVIDIA's CUDA runtime, which asked for NVIDIA's private tables.
pub fn runtime() {
    say(
        Code::EmulatedRuntime,
        "this program uses NVIDIA's CUDA runtime, which an emulated device cannot serve (CUDA error 801 or 103)",
    );
}

/// Says that the program's code is machine code alone.
pub fn machine_code() {
    say(
        Code::EmulatedMachineCode,
        "this program's code has no PTX, and an emulated device cannot run machine code (CUDA error 209)",
    );
}

/// Says that a kernel has an instruction that the engine lacks.
pub fn instruction(what: impl fmt::Display) {
    say(
        Code::EmulatedInstruction,
        format_args!("an emulated device cannot run this kernel (CUDA error 801): {what}"),
    );
}

/// Writes the line, if it is the process's first and is not turned off.
fn say(code: Code, what: impl fmt::Display) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) || is_off() {
        return;
    }
    let text = line(code, what);
    if takes_a_line(STDERR) {
        // SAFETY: the pointer and the length are one string's. A descriptor that was closed meanwhile gives an error.
        let _written = unsafe { libc::write(STDERR, text.as_ptr().cast(), text.len()) };
    }
}

/// A set-id program reads no variable of its caller's: it says nothing.
fn is_off() -> bool {
    log::is_secure() || std::env::var_os(SETTING).is_some_and(|value| value == "off")
}

/// The line with its end. What an instruction is called comes from the program's PTX, so its length is limited and
/// control characters, which could change the terminal, are left out.
fn line(code: Code, what: impl fmt::Display) -> String {
    let end = format!("; see `divvy explain {code}`\n");
    let mut text = format!("divvy: {what}").replace(char::is_control, "?");
    let mut most = LONGEST - end.len();
    if text.len() > most {
        while !text.is_char_boundary(most) {
            most -= 1;
        }
        text.truncate(most);
    }
    text + &end
}

/// Whether a descriptor is likely the program's standard error, and takes a line at once.
fn takes_a_line(descriptor: libc::c_int) -> bool {
    // SAFETY: these calls read the flags of a descriptor by its number, which need not be open.
    let (own, open) = unsafe {
        (
            libc::fcntl(descriptor, libc::F_GETFD),
            libc::fcntl(descriptor, libc::F_GETFL),
        )
    };
    // Standard error came through execve(2). What the program opened in its place since has FD_CLOEXEC in most cases.
    if own < 0 || own & libc::FD_CLOEXEC != 0 || open < 0 || open & libc::O_ACCMODE == libc::O_RDONLY {
        return false;
    }
    let mut asked = libc::pollfd {
        fd: descriptor,
        events: libc::POLLOUT,
        revents: 0,
    };
    // A pipe without readers has POLLERR: a write would raise SIGPIPE. One that is full has no POLLOUT.
    // SAFETY: one entry, which lives until the call returns at once.
    let ready = unsafe { libc::poll(&raw mut asked, 1, 0) };
    ready == 1 && asked.revents & (libc::POLLOUT | libc::POLLERR | libc::POLLHUP) == libc::POLLOUT
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_line_is_short_and_holds_nothing_that_changes_a_terminal() {
        let text = line(Code::EmulatedInstruction, "a\x1b[2J\nkernel");
        assert_eq!(text, "divvy: a?[2J?kernel; see `divvy explain D0073`\n");
        let text = line(Code::EmulatedInstruction, "é".repeat(1000));
        assert!(
            text.len() <= LONGEST && text.len() > LONGEST - 3,
            "{}",
            text.len()
        );
        assert!(text.ends_with("; see `divvy explain D0073`\n"));
    }

    #[test]
    fn only_what_takes_a_line_at_once_gets_one() {
        let set = |descriptor: i32, flags: i32| {
            // SAFETY: it changes a descriptor of this test.
            assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_SETFD, flags) }, 0);
        };
        let (mut reader, writer) = pipe().expect("a pipe");
        let number = writer.as_raw_fd();
        assert!(!takes_a_line(number), "the program's own, as FD_CLOEXEC says");
        set(number, 0);
        assert!(takes_a_line(number));
        set(reader.as_raw_fd(), 0);
        assert!(!takes_a_line(reader.as_raw_fd()), "for reading");
        // A full pipe.
        // SAFETY: it changes a descriptor of this test.
        unsafe { libc::fcntl(number, libc::F_SETFL, libc::O_NONBLOCK) };
        let block = [0_u8; 4096];
        // SAFETY: the block is as long as the call says.
        while unsafe { libc::write(number, block.as_ptr().cast(), block.len()) } > 0 {}
        assert!(!takes_a_line(number), "full");
        reader.read_exact(&mut [0; 65536]).expect("what was written");
        assert!(takes_a_line(number));
        drop(reader);
        assert!(!takes_a_line(number), "a write would raise SIGPIPE");
        drop(writer);
        assert!(!takes_a_line(i32::MAX), "not open");
    }
}

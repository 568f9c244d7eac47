//! Vendors' tools, called with a time limit: some hang, some print what cannot be parsed.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use divvy_model::{Code, Fault};

/// No honest answer is longer.
const LONGEST: usize = 1 << 20;

/// What a tool is asked, and what it says. The privileged boundary of MPS and of AMD's and NVIDIA's settings.
pub trait Tools {
    /// Runs a tool with these words and this standard input; what it printed.
    ///
    /// # Errors
    /// [`Code::Tool`] where it is missing, fails, or does not end in time.
    fn run(
        &mut self,
        tool: &str,
        words: &[&str],
        environment: &[(&str, String)],
        input: &str,
    ) -> Result<String, Fault>;
}

/// The tools of this machine.
#[derive(Clone, Copy, Debug)]
pub struct HostTools {
    /// How long one may take.
    pub limit: Duration,
    /// The user and group of the process; the caller's own where none is named.
    pub user: Option<(u32, u32)>,
}

impl Default for HostTools {
    fn default() -> Self {
        Self {
            limit: Duration::from_secs(20),
            user: None,
        }
    }
}

impl Tools for HostTools {
    fn run(
        &mut self,
        tool: &str,
        words: &[&str],
        environment: &[(&str, String)],
        input: &str,
    ) -> Result<String, Fault> {
        let failed = |why: String| Fault::new(Code::Tool, format!("`{tool}` failed")).cause(why);
        let mut command = Command::new(tool);
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        let mut child = command
            .args(words)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                Fault::new(Code::Tool, format!("`{tool}` cannot be run"))
                    .because(&error)
                    .hint("it comes with the vendor's driver; is it installed, and on PATH?")
            })?;
        if let Some(mut stdin) = child.stdin.take() {
            // Why a tool does not read is in its exit status.
            let _closed = stdin.write_all(input.as_bytes());
        }
        let out = reader(child.stdout.take());
        let err = reader(child.stderr.take());
        let status = wait(&mut child, self.limit).map_err(|why| {
            // Readers end with the pipes, which a grandchild may hold: they are left behind.
            failed(why).hint("it may wait for a driver that hangs: look at the kernel's log")
        })?;
        let said = |receiver: std::sync::mpsc::Receiver<Vec<u8>>| {
            // A daemon that the tool started may keep the pipe open: the output until now is enough.
            let bytes = receiver.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (out, err) = (said(out), said(err));
        if !status.success() {
            let words = if err.trim().is_empty() { &out } else { &err };
            return Err(failed(format!("it ended with {status}: {}", first_words(words))));
        }
        Ok(out)
    }
}

/// Reads to the end in a thread, so that neither a full pipe nor a silent tool holds us up.
fn reader(pipe: Option<impl Read + Send + 'static>) -> std::sync::mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _partly = pipe.by_ref().take(LONGEST as u64).read_to_end(&mut bytes);
            let _rest = std::io::copy(&mut pipe, &mut std::io::sink());
        }
        let _gone = sender.send(bytes);
    });
    receiver
}

fn wait(child: &mut Child, limit: Duration) -> Result<std::process::ExitStatus, String> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                let _gone = child.kill();
                let _reaped = child.wait();
                return Err(format!("it did not end within {} s", limit.as_secs_f32()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The first line of what a tool said, shortened, without control characters.
#[must_use]
pub fn first_words(text: &str) -> String {
    let line = text
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("nothing");
    let clean: String = line.trim().chars().take(200).collect();
    clean.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_hangs_fails_or_is_missing() {
        let mut tools = HostTools {
            limit: Duration::from_millis(200),
            ..HostTools::default()
        };
        let hung = tools.run("sleep", &["600"], &[], "").expect_err("too long");
        assert!(
            hung.code == Code::Tool && hung.causes[0].contains("did not end within"),
            "{hung:?}"
        );
        let failed = tools
            .run("sh", &["-c", "echo broken >&2; exit 3"], &[], "")
            .expect_err("a failure");
        assert!(failed.causes[0].ends_with(": broken"), "{failed:?}");
        let missing = tools
            .run("divvy-no-such-tool", &[], &[], "")
            .expect_err("missing");
        assert!(missing.message.contains("cannot be run"));
        let said = tools.run("cat", &[], &[], "hello").expect("cat works");
        assert_eq!(said, "hello");
        assert_eq!(first_words("\n\x1b[31mred\n"), "?[31mred");
    }
}

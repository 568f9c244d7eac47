//! Which of the engines' flags take no value. All others take one, in the same word or in the next one. Without this
//! table it is not possible to tell where the image's name is.
//!
//! Sources: podman-run(1) of podman 4.3 to 5.6 and the reference of `docker container run` of 20.10 to 28; both parse
//! as github.com/spf13/pflag does, with flags before the image only.

/// Flags of `run` that take no value.
const ALONE: [&str; 27] = [
    "detach",
    "disable-content-trust",
    "env-host",
    "help",
    "http-proxy",
    "init",
    "interactive",
    "no-healthcheck",
    "no-hostname",
    "no-hosts",
    "oom-kill-disable",
    "passwd",
    "privileged",
    "publish-all",
    "quiet",
    "read-only",
    "read-only-tmpfs",
    "replace",
    "rm",
    "rmi",
    "rootfs",
    "sig-proxy",
    "tls-verify",
    "tty",
    "unsetenv-all",
    "use-api-socket",
    "no-trunc",
];

/// Their single letters.
const LETTERS: [char; 5] = ['d', 'i', 't', 'P', 'q'];

/// Flags of the engines themselves, before `run`, that take no value.
const ALONE_BEFORE: [&str; 9] = [
    "debug",
    "help",
    "noout",
    "remote",
    "syslog",
    "tls",
    "tlsverify",
    "transient-store",
    "version",
];
const LETTERS_BEFORE: [char; 4] = ['D', 'r', 'v', 'h'];

/// Whether a flag `--name` of `run` takes no value.
pub fn stands_alone(name: &str) -> bool {
    ALONE.contains(&name)
}

/// Whether a flag `--name` before `run` takes no value.
pub fn stands_alone_before(name: &str) -> bool {
    ALONE_BEFORE.contains(&name)
}

/// Whether the word of single letters, `-it` or `-p`, wants the next word as its last letter's value.
pub fn wants_next(word: &str, before: bool) -> bool {
    let letters: &[char] = if before { &LETTERS_BEFORE } else { &LETTERS };
    let mut rest = word.trim_start_matches('-').chars();
    // The text after a letter that takes a value is the value.
    match rest.find(|letter| !letters.contains(letter)) {
        None => false,
        Some(_) => rest.as_str().is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_take_values_as_getopt_has_them() {
        for (word, wants) in [
            ("-d", false),
            ("-it", false),
            ("-p", true),
            ("-itp", true),
            ("-p80:80", false),
            ("-itv/a:/b", false),
            ("-m", true),
        ] {
            assert_eq!(wants_next(word, false), wants, "{word}");
        }
        assert!(wants_next("-H", true) && !wants_next("-D", true));
    }
}

//! Which container a process is in, as the host's kernel and the engine tell. Nothing that the container says of itself
//! counts: it can write neither the first part of its cgroup's path nor the processes above its own.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use divvy_model::ContainerRecord;

/// Processes as a folder shows them: `/proc`, or one that a test made.
#[derive(Clone, Debug)]
pub struct Processes {
    proc: PathBuf,
}

impl Default for Processes {
    fn default() -> Self {
        Self { proc: "/proc".into() }
    }
}

/// More of a file of /proc than any that we want has.
const MOST: u64 = 64 << 10;
/// Processes above one that are looked at: a container's first has its engine's monitor right above it.
const ABOVE: usize = 64;

impl Processes {
    /// The processes that this folder shows.
    #[must_use]
    pub fn at(proc: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into() }
    }

    fn read(&self, pid: u32, file: &str) -> Option<Vec<u8>> {
        let file = fs::File::open(self.proc.join(pid.to_string()).join(file)).ok()?;
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The engine and the id of the container that the process is in.
    fn place(&self, pid: u32) -> Option<(&'static str, String)> {
        let text = String::from_utf8_lossy(&self.read(pid, "cgroup")?).into_owned();
        // `hierarchy:controllers:path`
        let paths = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        paths()
            .find_map(of_engine)
            .or_else(|| paths().find_map(of_bare_id))
    }

    /// The container that a process of the host is in, if any.
    #[must_use]
    pub fn container(&self, pid: u32) -> Option<ContainerRecord> {
        let (engine, id) = self.place(pid)?;
        let name = self.name(pid, engine, &id);
        Some(ContainerRecord {
            engine: engine.into(),
            id,
            name,
        })
    }

    /// The processes that are in this container.
    #[must_use]
    pub fn of_container(&self, id: &str) -> Vec<u32> {
        let entries = fs::read_dir(&self.proc).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| self.place(*pid).is_some_and(|(_, place)| place == id))
            .collect()
    }

    fn parent(&self, pid: u32) -> Option<u32> {
        let stat = String::from_utf8_lossy(&self.read(pid, "stat")?).into_owned();
        // The command's name may hold anything, parentheses too: it ends at the last one.
        let rest = stat.rsplit_once(") ")?.1;
        rest.split_whitespace()
            .nth(1)?
            .parse()
            .ok()
            .filter(|parent| *parent != 0)
    }

    /// The container's name: podman's is an argument of the monitor above it, docker's is in docker's own file.
    fn name(&self, pid: u32, engine: &str, id: &str) -> Option<String> {
        match engine {
            "podman" => {
                let above = std::iter::successors(Some(pid), |pid| self.parent(*pid)).take(ABOVE);
                // The first process that is in no container, or in another one: the engine's own.
                let mut outside =
                    above.skip_while(|pid| self.place(*pid).is_some_and(|(_, place)| place == id));
                self.of_monitor(outside.next()?, id)
            }
            "docker" => {
                let file = format!("/var/lib/docker/containers/{id}/config.v2.json");
                of_docker(&fs::read(file).ok()?)
            }
            _ => None,
        }
        .filter(|name| is_name(name))
    }

    fn of_monitor(&self, pid: u32, id: &str) -> Option<String> {
        let line = self.read(pid, "cmdline")?;
        let words: Vec<_> = line
            .split(|byte| *byte == 0)
            .map(String::from_utf8_lossy)
            .collect();
        let program = Path::new(words.first()?.as_ref()).file_name()?.to_owned();
        let after = |flag: &str| {
            let at = words.iter().position(|word| word == flag)?;
            words.get(at + 1).map(ToString::to_string)
        };
        (program == "conmon" && after("-c").as_deref() == Some(id))
            .then(|| after("-n"))
            .flatten()
    }
}

/// The outermost part of a cgroup's path that an engine has given its name to: `libpod-ID`, `docker-ID.scope`, the bare id
/// right below `/docker` or anywhere below a kubelet's or containerd's own root. A container makes its cgroups further in.
fn of_engine(path: &str) -> Option<(&'static str, String)> {
    const KINDS: [(&str, &str); 5] = [
        // With `--cgroups=split`.
        ("libpod-payload-", "podman"),
        ("libpod-", "podman"),
        ("docker-", "docker"),
        ("cri-containerd-", "containerd"),
        ("crio-", "cri-o"),
    ];
    let (mut before, mut of_pods) = ("", false);
    for part in path.split('/') {
        let named = part.strip_suffix(".scope").unwrap_or(part);
        let by_name = KINDS
            .iter()
            .find_map(|(start, engine)| Some((*engine, named.strip_prefix(start)?)));
        let found = match before {
            _ if by_name.is_some() => by_name,
            "docker" => Some(("docker", part)),
            _ if of_pods => Some(("containerd", part)),
            _ => None,
        };
        if let Some((engine, id)) = found.filter(|(_, id)| is_id(id)) {
            return Some((engine, id.to_owned()));
        }
        of_pods |= matches!(part, "kubepods" | "k8s.io");
        before = part;
    }
    None
}

/// The innermost bare id, as docker has it below a parent that a user named: the parent's name may look like one.
fn of_bare_id(path: &str) -> Option<(&'static str, String)> {
    let id = path.rsplit('/').find(|part| is_id(part))?;
    Some(("docker", id.to_owned()))
}

fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The name in docker's file of a container, which begins with a slash there.
fn of_docker(text: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct File {
        #[serde(rename = "Name")]
        name: String,
    }
    let file: File = serde_json::from_slice(text).ok()?;
    Some(file.name.trim_start_matches('/').to_owned())
}

/// A name as engines allow them: other characters are not shown on a terminal.
fn is_name(name: &str) -> bool {
    let first = name.bytes().next();
    first.is_some_and(|byte| byte.is_ascii_alphanumeric())
        && name.len() <= 255
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const OTHER: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

    struct Fake(tempfile::TempDir);

    impl Fake {
        fn process(&self, pid: u32, parent: u32, cgroup: &str, line: &[&str]) {
            let folder = self.0.path().join(pid.to_string());
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("cgroup"), cgroup).expect("written");
            fs::write(folder.join("stat"), format!("{pid} (a) b) S {parent} 1 1")).expect("written");
            fs::write(folder.join("cmdline"), line.join("\0")).expect("written");
        }

        fn container(&self, pid: u32) -> Option<(String, String, Option<String>)> {
            let found = Processes::at(self.0.path()).container(pid)?;
            Some((found.engine, found.id, found.name))
        }
    }

    #[test]
    fn cgroups_of_each_engine_are_told_apart() {
        let fake = Fake(tempfile::tempdir().expect("a folder"));
        for (pid, cgroup, engine) in [
            (
                10,
                format!("11:devices:/libpod_parent/libpod-{ID}\n0::/x\n"),
                Some("podman"),
            ),
            (
                11,
                format!("0::/machine.slice/libpod-{ID}.scope/container\n"),
                Some("podman"),
            ),
            (
                12,
                format!("0::/system.slice/docker-{ID}.scope\n"),
                Some("docker"),
            ),
            (13, format!("4:memory:/docker/{ID}\n"), Some("docker")),
            (
                14,
                format!("0::/kubepods.slice/cri-containerd-{ID}.scope\n"),
                Some("containerd"),
            ),
            (15, format!("0::/kubepods.slice/crio-{ID}.scope\n"), Some("cri-o")),
            // Pods of podman's with cgroups of their own, `--cgroups=split`, and a parent that looks like an id.
            (
                20,
                format!("4:memory:/libpod_parent/{OTHER}/libpod-{ID}\n"),
                Some("podman"),
            ),
            (
                21,
                format!("0::/user.slice/box.service/libpod-payload-{ID}\n"),
                Some("podman"),
            ),
            (
                22,
                format!("4:memory:/own/{OTHER}/libpod-{ID}/in/libpod-{OTHER}\n"),
                Some("podman"),
            ),
            (23, format!("4:memory:/own/{OTHER}/{ID}\n"), Some("docker")),
            (
                24,
                format!("4:memory:/docker/{ID}/docker/{OTHER}\n"),
                Some("docker"),
            ),
            (25, format!("4:memory:/k8s.io/{ID}\n"), Some("containerd")),
            (
                26,
                format!("4:memory:/kubepods/burstable/pod1/{ID}\n"),
                Some("containerd"),
            ),
            (
                27,
                format!("11:pids:/{OTHER}\n4:memory:/libpod-{ID}\n"),
                Some("podman"),
            ),
            (16, "0::/user.slice/user-1000.slice\n".into(), None),
            (17, "0::/libpod-short.scope\n".into(), None),
            (18, format!("0::/libpod-conmon-{ID}.scope\n"), None),
        ] {
            fake.process(pid, 1, &cgroup, &["x"]);
            let found = fake.container(pid).map(|(engine, id, _)| (engine, id));
            assert_eq!(found, engine.map(|engine| (engine.into(), ID.into())), "{cgroup}");
        }
        assert_eq!(Processes::at(fake.0.path()).of_container(ID).len(), 14);
        assert!(fake.container(99).is_none());
    }

    #[test]
    fn a_container_cannot_give_itself_anothers_name() {
        let fake = Fake(tempfile::tempdir().expect("a folder"));
        let own = format!("0::/libpod-{ID}.scope\n");
        let monitor = ["/usr/bin/conmon", "-c", ID, "-r", "/usr/bin/runc", "-n", "mine"];
        fake.process(5, 1, "0::/\n", &monitor);
        fake.process(6, 5, &own, &["init"]);
        // Inside it calls itself a monitor, and makes a cgroup that is named as another container's.
        fake.process(7, 6, &own, &["conmon", "-c", ID, "-n", "another"]);
        let nested = format!("0::/libpod-{ID}.scope/libpod-{OTHER}.scope\n");
        fake.process(8, 7, &nested, &["probe"]);
        let expected = ("podman".to_owned(), ID.to_owned(), Some("mine".to_owned()));
        assert_eq!(fake.container(8), Some(expected.clone()));
        assert_eq!(fake.container(6), Some(expected));
        // A monitor of another container, or what a terminal should not see, is no name.
        fake.process(5, 1, "0::/\n", &["conmon", "-c", OTHER, "-n", "another"]);
        assert_eq!(fake.container(8).expect("still there").2, None);
        fake.process(5, 1, "0::/\n", &["conmon", "-c", ID, "-n", "\x1b[31mred"]);
        assert_eq!(fake.container(8).expect("still there").2, None);
    }

    #[test]
    fn dockers_file_names_its_container() {
        assert_eq!(of_docker(br#"{"ID":"x","Name":"/web"}"#), Some("web".into()));
        assert_eq!(of_docker(b"{"), None);
    }
}

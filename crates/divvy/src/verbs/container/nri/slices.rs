//! What the plugin does of each pod and container: slices are made, given and ended.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use divvy_agent::api::Attend;
use divvy_container::nri::{Adjustment, Container, Plugin, Pod, Synchronize, adjustment, asks};
use divvy_container::oci::{self, Request, Trust};
use divvy_container::unlimited;
use divvy_model::{Fault, Policy, SliceRecord};

use super::notes::{Note, Notes, Whose};
use crate::context::Context;
use crate::flags::policy_or_setting;
use crate::report::{line, remark};
use crate::verbs::container::engine::end;
use crate::verbs::container::given::{Additions, give, may_join, ours};

/// The slices of a runtime's pods.
pub struct Slices<'a> {
    context: &'a Context,
    notes: Notes,
    /// One at a time: two containers of a pod must not both make its slice.
    making: Mutex<()>,
    taken_on: AtomicBool,
}

impl<'a> Slices<'a> {
    /// With these notes.
    pub fn new(context: &'a Context, notes: Notes) -> Self {
        Self {
            context,
            notes,
            making: Mutex::new(()),
            taken_on: AtomicBool::new(false),
        }
    }

    /// Whether a runtime has ever synchronized with us.
    pub fn was_taken_on(&self) -> bool {
        self.taken_on.load(Ordering::Relaxed)
    }

    /// Gives the container what it asks for.
    fn give(&self, pod: &Pod, container: &Container) -> Result<Option<Adjustment>, Fault> {
        let asks = asks(pod, container)?;
        let trust = self.context.config.get::<Trust>("container_requests")?;
        let mut request =
            oci::request(&asks.container, trust.unwrap_or_default()).map_err(|fault| {
                match asks.words.as_str() {
                    "" => fault,
                    words => fault.cause(format!("the pod's annotations are {words}")),
                }
            })?;
        for ignored in &request.ignored {
            remark(&format!("{}: {ignored}", called(pod, container)));
        }
        if request.is_empty() {
            return Ok(None);
        }
        let given = match asks.of_pod && request.slice.is_some() {
            true => self.of_pod(pod, container, &mut request)?,
            false => self.of_container(pod, container, &mut request)?,
        };
        let adjusted = adjustment(&given.edits, container).inspect_err(|_| {
            given.take_back(self.context);
            self.notes.remove(Whose::Container, &container.id);
        })?;
        Ok(Some(adjusted))
    }

    /// The container's own slice, or one that is there, or whole devices, of which no note is needed.
    fn of_container(
        &self,
        pod: &Pod,
        container: &Container,
        request: &mut Request,
    ) -> Result<Additions, Fault> {
        if request.slice.is_none() && request.join.is_none() {
            return give(request, None, false, self.context);
        }
        if let Some(which) = &request.join {
            // By its id from here on: another slice may get the name meanwhile.
            request.join = Some(may_join(which, Some(&pod.namespace), self.context)?.id);
        }
        let own = request.slice.is_some();
        let slice = own.then(|| name(&[&pod.name, &container.name], &container.id));
        let note = Note {
            slice: slice.clone(),
            pod: pod.id.clone(),
        };
        self.notes.write(Whose::Container, &container.id, &note)?;
        give(request, slice, false, self.context)
            .inspect_err(|_| self.notes.remove(Whose::Container, &container.id))
    }

    /// The pod's slice, which is made with the pod's first container and stays as long as the pod.
    fn of_pod(&self, pod: &Pod, container: &Container, request: &mut Request) -> Result<Additions, Fault> {
        let note = |slice| Note {
            slice,
            pod: pod.id.clone(),
        };
        let slice = name(&[&pod.name], &pod.id);
        let noted = self.notes.read(Whose::Pod, &pod.id).is_some();
        let known = if noted { self.own(&slice)? } else { None };
        self.notes.write(Whose::Container, &container.id, &note(None))?;
        let given = if let Some(known) = known {
            request.slice = None;
            request.join = Some(known.id);
            give(request, None, false, self.context)
        } else {
            self.notes
                .write(Whose::Pod, &pod.id, &note(Some(slice.clone())))?;
            give(request, Some(slice.clone()), false, self.context)
                .inspect(|_| self.goes_with(&slice, pod.pid))
                .inspect_err(|_| self.notes.remove(Whose::Pod, &pod.id))
        };
        given.inspect_err(|_| self.notes.remove(Whose::Container, &container.id))
    }

    /// The slice of this name, if we made it: another user may call one so.
    fn own(&self, slice: &str) -> Result<Option<SliceRecord>, Fault> {
        match self.context.agent_of_slices()? {
            Some(agent) => ours(slice, &agent),
            None => Ok(None),
        }
    }

    /// Has a slice go with a process of the runtime's, if it has told one: then it ends without us, too.
    fn goes_with(&self, slice: &str, process: u32) {
        if process != 0
            && let Ok(Some(slice)) = self.own(slice)
            && let Ok(Some(agent)) = self.context.agent_of_slices()
        {
            let _told = agent.attend(&slice.id, &Attend::Process(process));
        }
    }

    /// Ends what was made for a pod or container. The note goes last: after a crash in between it is done again.
    fn take_back(&self, whose: Whose, id: &str) {
        let Some(note) = self.notes.read(whose, id) else {
            return;
        };
        if let Some(name) = note.slice
            && let Ok(Some(slice)) = self.own(&name)
        {
            end(self.context, &slice);
        }
        self.notes.remove(whose, id);
    }
}

impl Plugin for Slices<'_> {
    fn synchronize(&self, runtime: &str, all: Synchronize) {
        self.taken_on.store(true, Ordering::Relaxed);
        let alive: BTreeSet<&str> = all.containers.iter().map(|container| &*container.id).collect();
        // A sandbox that has stopped is listed until it is removed: it has no process, and no container runs.
        let in_use: BTreeSet<&str> = all.containers.iter().map(|container| &*container.pod).collect();
        let pods: BTreeSet<&str> = all
            .pods
            .iter()
            .filter(|pod| pod.pid != 0 || in_use.contains(&*pod.id))
            .map(|pod| &*pod.id)
            .collect();
        // Listed before anything is ended: slices that are made meanwhile are not among them.
        let gone = |whose, alive: &BTreeSet<&str>| -> Vec<String> {
            let ids = self.notes.ids(whose).into_iter();
            ids.filter(|id| !alive.contains(&**id)).collect()
        };
        let (containers, gone_pods) = (gone(Whose::Container, &alive), gone(Whose::Pod, &pods));
        for container in &all.containers {
            let Some(pod) = all.pods.iter().find(|pod| pod.id == container.pod) else {
                continue;
            };
            let noted = self.notes.read(Whose::Container, &container.id).is_some();
            let words = asks(pod, container).map(|asks| asks.words);
            if !noted && words.as_ref().map_or(true, |words| !words.is_empty()) {
                remark(&format!(
                    "{} was made while the plugin was away, and has neither slice nor device",
                    called(pod, container)
                ));
            }
        }
        let adopted = alive.len();
        for id in containers {
            self.take_back(Whose::Container, &id);
        }
        for id in gone_pods {
            self.take_back(Whose::Pod, &id);
        }
        remark(&format!("serving {runtime} with {adopted} containers"));
    }

    fn create(&self, pod: &Pod, container: &Container) -> Result<Option<Adjustment>, Fault> {
        let _alone = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        self.give(pod, container)
    }

    fn start(&self, container: &Container) -> Result<(), Fault> {
        let Some(note) = self.notes.read(Whose::Container, &container.id) else {
            return Ok(());
        };
        if container.pid == 0 {
            return Ok(());
        }
        if policy_or_setting(None, &self.context.config)? == Policy::Strict {
            limited(container)?;
        }
        if let Some(slice) = note.slice {
            self.goes_with(&slice, container.pid);
        }
        Ok(())
    }

    fn stopped(&self, container: &str) {
        self.take_back(Whose::Container, container);
    }

    fn pod_stopped(&self, pod: &str) {
        // A container that another plugin refused is never told to have ended.
        for id in self.notes.ids(Whose::Container) {
            if self
                .notes
                .read(Whose::Container, &id)
                .is_some_and(|note| note.pod == pod)
            {
                self.take_back(Whose::Container, &id);
            }
        }
        self.take_back(Whose::Pod, pod);
    }

    fn words(&self, fault: &Fault) -> String {
        let text = line(fault);
        remark(&text);
        text
    }
}

/// Refuses a container whose program, which stands in its root already, is one that the limiter is not loaded into.
fn limited(container: &Container) -> Result<(), Fault> {
    let process = PathBuf::from(format!("/proc/{}", container.pid));
    let folder = std::fs::read_link(process.join("cwd")).unwrap_or_else(|_| "/".into());
    let mut variables = container.environment.iter();
    let path = variables.find_map(|line| line.strip_prefix("PATH="));
    let why = unlimited::of_root(
        &process.join("root"),
        &container.arguments,
        path.unwrap_or("/usr/bin:/bin"),
        &folder.to_string_lossy(),
    );
    let program = container.arguments.first().map_or("", String::as_str);
    why.map_or(Ok(()), |why| Err(why.refusal(program)))
}

/// A pod and its container, as people call them.
fn called(pod: &Pod, container: &Container) -> String {
    format!("{}/{} {}", pod.namespace, pod.name, container.name)
}

/// The name of a slice: the pod's and the container's, and enough of the id that no other slice has it.
fn name(parts: &[&str], id: &str) -> String {
    const PLAIN: usize = 50;
    const OF_ID: usize = 12;
    let plain = parts.join(".");
    let plain = plain
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c));
    let plain: String = plain
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(PLAIN)
        .collect();
    let id: String = id
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(OF_ID)
        .collect();
    match plain.is_empty() {
        true => format!("pod-{id}"),
        false => format!("{plain}-{id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_called_as_their_pods() {
        let id = "0123456789abcdef0123";
        assert_eq!(name(&["train"], id), "train-0123456789ab");
        assert_eq!(name(&["train", "worker"], id), "train.worker-0123456789ab");
        assert_eq!(name(&["-/\u{1b}[31m"], id), "31m-0123456789ab");
        assert_eq!(name(&["", "\u{e4}"], id), "pod-0123456789ab");
        assert_eq!(name(&[&"a".repeat(300)], id).len(), 63);
    }
}

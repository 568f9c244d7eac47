//! What is wrong with a launch, in words: threads at instructions, races, and what the engine ended it for.

use super::findings::{Finding, Kind, Owner, Site};
use super::launch::Launched;
use super::race::{Raced, Who};
use divvy_ptx::{Fault, WarpAt};
use std::sync::atomic::Ordering;

impl Launched<'_> {
    /// Notes what lanes do wrong at one instruction; the first of them is named.
    pub fn report(
        &self,
        kind: Kind,
        at: &WarpAt,
        lanes: u32,
        message: impl FnOnce() -> (String, Option<Owner>),
    ) {
        let who = Who {
            block: at.block,
            thread: at.warp * 32 + lanes.trailing_zeros(),
        };
        let finding = || {
            let (message, allocation) = message();
            Finding {
                kind,
                message,
                kernel: Some(self.identity.kernel.clone()),
                site: Some(self.identity.site(who, at.instruction)),
                other: None,
                allocation,
            }
        };
        let key = (Some(self.identity.kernel.as_str()), at.instruction, 0, None);
        self.checker
            .findings
            .add(finding, kind, key, u64::from(lanes.count_ones()));
    }

    /// Notes a race.
    pub fn race(&self, at: &WarpAt, lane: usize, what: &str, is_write: bool, raced: Raced) {
        let who = Who {
            block: at.block,
            thread: at.warp * 32 + lane as u32,
        };
        let Some(other) = raced.mark.who() else { return };
        let doing = |writes: bool| if writes { "write" } else { "read" };
        let (is, was) = (doing(is_write), doing(raced.writes));
        let of_other = raced
            .launch
            .map(|number| self.checker.launches().get(&number).cloned());
        let message = match (
            &of_other,
            who.block == other.block,
            who.thread / 32 == other.thread / 32,
        ) {
            (Some(launch), ..) => {
                let kernel = launch.as_ref().map_or("another", |launch| &launch.kernel);
                format!(
                    "{is} of {what} races with a {was} by a launch of {kernel} in another stream: no event, no wait between"
                )
            }
            (None, true, true) => format!(
                "{is} of {what} races with a {was} by another thread: two threads of a warp, with no __syncwarp between"
            ),
            (None, true, false) => format!(
                "{is} of {what} races with a {was} by another thread: two threads of a block, with no barrier between"
            ),
            (None, false, _) => format!(
                "{is} of {what} races with a {was} by another thread: threads of two blocks, with nothing that orders them"
            ),
        };
        let finding = || Finding {
            kind: Kind::Race,
            message,
            kernel: Some(self.identity.kernel.clone()),
            site: Some(self.identity.site(who, at.instruction)),
            other: match &of_other {
                None => Some(self.identity.site(other, raced.mark.instruction)),
                Some(launch) => launch
                    .as_ref()
                    .map(|launch| launch.site(other, raced.mark.instruction)),
            },
            allocation: None,
        };
        let apart = raced.launch.map(|_| u64::MAX);
        let key = (
            Some(self.identity.kernel.as_str()),
            at.instruction,
            raced.mark.instruction + 1,
            apart,
        );
        self.checker.findings.add(finding, Kind::Race, key, 1);
    }

    /// What the engine ended the launch for, unless that was found already.
    pub fn fault(&self, fault: &Fault) {
        let (kind, line, what) = match fault {
            Fault::Deadlock { line, .. } => (
                Kind::Barrier,
                *line,
                "every thread of the block waits, and none can wake another".to_owned(),
            ),
            Fault::Trap { line, .. } => (Kind::Fault, *line, "the kernel executed a trap".to_owned()),
            Fault::Assert { line, .. } => (Kind::Fault, *line, "an assertion failed".to_owned()),
            Fault::IllegalAddress {
                line,
                access,
                address,
                ..
            } if !self.found.load(Ordering::Relaxed) => (
                Kind::OutOfBounds,
                *line,
                format!("{access} at {address:#x}, where nothing is"),
            ),
            Fault::MisalignedAddress {
                line,
                access,
                address,
                ..
            } if !self.found.load(Ordering::Relaxed) => (
                Kind::Misaligned,
                *line,
                format!("misaligned {access} at {address:#x}"),
            ),
            _ => return,
        };
        // Where a thread waits at a barrier, that one is named.
        let waiting = self.state().blocks.values().find_map(|running| {
            let mut arrivals = running.arrived.values().flatten();
            arrivals.find(|arrival| arrival.waits).map(|arrival| arrival.at)
        });
        if let Some(at) = waiting.filter(|_| kind == Kind::Barrier) {
            let message = || (format!("the barrier is never complete: {what}"), None);
            return self.report(kind, &at, at.lanes, message);
        }
        let finding = || {
            let place = self.identity.module().place_at_line(line);
            Finding {
                kind,
                message: what,
                kernel: Some(self.identity.kernel.clone()),
                site: Some(Site {
                    source: place
                        .as_ref()
                        .and_then(|place| place.source.as_ref())
                        .map(|(file, line)| format!("{file}:{line}")),
                    ptx_line: line,
                    instruction: place.map_or_else(String::new, |place| place.text),
                    ..Site::default()
                }),
                other: None,
                allocation: None,
            }
        };
        self.checker.findings.add(
            finding,
            kind,
            (Some(self.identity.kernel.as_str()), line, 0, Some(1)),
            1,
        );
    }
}

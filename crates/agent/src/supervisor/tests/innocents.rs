//! Random runs of the whole supervisor in a namespace of few process numbers, which are given again on purpose.
//!
//! One slice takes more memory and time than it has. Another user's is honest, and programs in no slice take what they like.
//! The driver answers late: between its answer and the look processes end, and others get their numbers.

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use divvy_model::{OnOveruse, SliceRecord};

use super::whole::{MIB, MS, Says, USER, Whole, lives, supervised};
use super::{Shell, is_stopped, until};
use crate::decide::supervise::time::Used;
use crate::supervisor::sight::since_boot;
use crate::supervisor::slices::Slices;

/// The numbers of processes in the namespace.
const NUMBERS: u32 = 400;
/// The most processes of each of the three kinds.
const MOST: usize = 12;

/// Random steps in this process's own numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Processes come and go inside two slices and outside of all, with numbers that are used again at once. None but the
/// thief's own is ever stopped or ended. DIVVY_TEST_RUNS says for how many looks.
#[test]
fn no_innocent_process_is_touched_though_numbers_are_used_again() {
    const INSIDE: &str = "DIVVY_TEST_IN_NAMESPACE";
    let name = "no_innocent_process_is_touched_though_numbers_are_used_again";
    if std::env::var_os(INSIDE).is_some() {
        let looks = std::env::var("DIVVY_TEST_RUNS").map_or(160, |looks| looks.parse().expect("a number"));
        // Drivers tell of time as sums, or as rates of the last second.
        return [false, true]
            .into_iter()
            .for_each(|rates| World::new(rates).play(looks / 2));
    }
    let again = divvy_own_process::command(name);
    let mut apart = Command::new("unshare");
    apart.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    apart.arg(again.get_program()).args(again.get_args());
    let possible = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "true"])
        .status();
    if !possible.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no namespace of processes may be made here");
        return;
    }
    let output = apart.env(INSIDE, "1").output().expect("it starts again");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    divvy_own_process::assert_passed(name, &output);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thief,
    Honest,
    Outside,
}

const KINDS: [Kind; 3] = [Kind::Thief, Kind::Honest, Kind::Outside];

/// One process, as the driver knows it.
#[derive(Debug)]
struct One {
    kind: Kind,
    held: u64,
    used: u64,
    /// It is our own child where it is in no slice.
    child: Option<Child>,
}

/// Whether a namespace of processes has a maximum of numbers of its own: since Linux 6.14.
fn has_own_maximum() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split('.');
    let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    (number(), number()) >= (Some(6), Some(14))
}

struct World {
    whole: Whole,
    rates: bool,
    dice: Dice,
    shells: [Shell; 2],
    records: [SliceRecord; 2],
    all: HashMap<u32, One>,
    /// The use by those that have ended, and the charge of each slice.
    dead: u64,
    charged: [u64; 2],
    ended: usize,
    stopped: usize,
    reused: usize,
}

impl World {
    fn new(rates: bool) -> Self {
        // An older kernel has one maximum for the whole machine.
        if has_own_maximum() {
            std::fs::write("/proc/sys/kernel/pid_max", NUMBERS.to_string()).expect("a small maximum");
        }
        let mut of_user = Command::new("sh");
        of_user.uid(USER).gid(USER);
        let shells = [Shell::start(), Shell::of(&mut of_user)];
        let mut records = [
            supervised("0123abcd", &shells[0]),
            supervised("4567cdef", &shells[1]),
        ];
        records[1].uid = USER;
        Self {
            whole: Whole::start(),
            rates,
            dice: Dice(0x9e37_79b9_7f4a_7c15),
            shells,
            records,
            all: HashMap::new(),
            dead: 0,
            charged: [0; 2],
            ended: 0,
            stopped: 0,
            reused: 0,
        }
    }

    fn play(mut self, looks: usize) {
        for kind in KINDS.into_iter().cycle().take(18) {
            self.spawn(kind);
        }
        for look in 0..looks {
            // What is done about the thief changes now and then.
            self.records[0].terms.on_overuse = match look / 20 % 2 {
                0 => OnOveruse::End,
                _ => OnOveruse::Freeze,
            };
            for _ in 0..3 {
                self.step();
            }
            let since = (20 + self.dice.below(300) as u64) * MS;
            self.compute(since);
            let says = self.says(since);
            for _ in 0..self.dice.below(3) {
                self.pass_a_number_on();
            }
            self.whole.look(&self.records, says);
            self.reap();
            self.check(look);
        }
        let (ended, stopped, reused) = (self.ended, self.stopped, self.reused);
        eprintln!(
            "{looks} looks: {ended} ended, {stopped} times one stood still, {reused} numbers used again"
        );
        assert!(
            ended > 0 && stopped > 0 && reused > 0,
            "{ended} {stopped} {reused}"
        );
        self.whole.supervisor.release();
        until(|| !self.all.keys().any(|pid| is_stopped(*pid)));
        self.check(looks);
        for one in self.all.values_mut() {
            if let Some(child) = &mut one.child {
                child.kill().expect("ours");
                child.wait().expect("reaped");
            }
        }
    }

    /// One process comes or goes.
    fn step(&mut self) {
        let kind = KINDS[self.dice.below(3)];
        let count = self.all.values().filter(|one| one.kind == kind).count();
        if count < MOST && self.dice.below(3) > 0 {
            self.spawn(kind);
        } else if let Some(pid) = self.any(|one| one.kind == kind) {
            self.end(pid);
        }
    }

    fn any(&mut self, what: impl Fn(&One) -> bool) -> Option<u32> {
        let mut found: Vec<u32> = Vec::new();
        found.extend(self.all.iter().filter(|(_, one)| what(one)).map(|(pid, _)| *pid));
        found.sort_unstable();
        found.get(self.dice.below(found.len())).copied()
    }

    fn spawn(&mut self, kind: Kind) -> u32 {
        let (pid, child) = match kind {
            Kind::Thief => (self.shells[0].spawn(), None),
            Kind::Honest => (self.shells[1].spawn(), None),
            Kind::Outside => {
                let child = Command::new("sleep").arg("600").spawn().expect("it starts");
                (child.id(), Some(child))
            }
        };
        let held = match kind {
            Kind::Thief => (1200 + self.dice.below(3000) as u64) * MIB,
            Kind::Honest => 20 * MIB,
            Kind::Outside => 9000 * MIB,
        };
        let one = One {
            kind,
            held,
            used: 0,
            child,
        };
        self.all.insert(pid, one);
        pid
    }

    /// It ends by itself, and its parent notices.
    fn end(&mut self, pid: u32) {
        let Some(one) = self.all.remove(&pid) else { return };
        self.dead += one.used;
        match (one.kind, one.child) {
            (Kind::Thief, _) => self.shells[0].end(pid),
            (Kind::Honest, _) => self.shells[1].end(pid),
            (Kind::Outside, child) => {
                let mut child = child.expect("our own");
                child.kill().expect("ours");
                child.wait().expect("reaped");
            }
        }
    }

    /// The processes use the device for so long. What stands still uses nothing.
    fn compute(&mut self, time: u64) {
        for (pid, one) in &mut self.all {
            let used = match one.kind {
                Kind::Thief if is_stopped(*pid) => 0,
                Kind::Thief => time / 4,
                Kind::Honest => time / 100,
                Kind::Outside => time / 10,
            };
            one.used += used;
            if one.kind == Kind::Honest {
                self.charged[1] += used;
            }
        }
    }

    /// The driver's answer as it is now.
    fn says(&self, since: u64) -> Says {
        let rates = self.rates;
        let rate = |pid: u32, one: &One| match one.kind {
            Kind::Thief if is_stopped(pid) => 0,
            Kind::Thief => 2500,
            Kind::Honest => 100,
            Kind::Outside => 1000,
        };
        let used = self.all.iter().map(|(pid, one)| match rates {
            true => (*pid, Used::Rate(rate(*pid, one))),
            false => (*pid, Used::Total(one.used)),
        });
        let held = self.all.iter().map(|(pid, one)| (*pid, one.held));
        let ids = self.records.iter().map(|record| record.id.clone());
        Says {
            outlasted: 0,
            memory: held.collect(),
            used: used.collect(),
            dead: (!rates).then_some(self.dead),
            charged: ids.zip(self.charged).collect(),
            asked: since_boot(),
            since,
        }
    }

    /// The driver has answered, and is not believed yet. A process ends, and one of another kind gets its number.
    fn pass_a_number_on(&mut self) {
        let Some(pid) = self.any(|one| one.kind != Kind::Honest) else {
            return;
        };
        self.end(pid);
        let kind = match self.dice.below(3) {
            0 => Kind::Outside,
            _ => Kind::Honest,
        };
        if self.all.values().filter(|one| one.kind == kind).count() > MOST * 2 {
            return;
        }
        // The next number to be given out is the one behind this. Without the right to say so it is left to chance.
        let _chance = std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string());
        if self.spawn(kind) == pid {
            self.reused += 1;
        }
    }

    /// Takes note of what the supervisor has ended.
    fn reap(&mut self) {
        let gone = self
            .all
            .iter()
            .filter(|(pid, one)| one.kind == Kind::Thief && !lives(**pid));
        let gone: Vec<u32> = gone.map(|(pid, _)| *pid).collect();
        self.ended += gone.len();
        gone.into_iter().for_each(|pid| self.end(pid));
        let thieves = self.all.iter().filter(|(_, one)| one.kind == Kind::Thief);
        self.stopped += thieves.filter(|(pid, _)| is_stopped(**pid)).count();
    }

    /// No innocent process was touched, nor is one known as the thief's.
    fn check(&mut self, look: usize) {
        let told = self.whole.events();
        let of_honest = told
            .iter()
            .find(|event| event.slice_id.as_deref() == Some("4567cdef"));
        assert!(
            of_honest.is_none(),
            "look {look}, rates {}: {of_honest:?}",
            self.rates
        );
        let shells = self.shells.iter().map(|shell| shell.child.id());
        let innocent = self.all.iter().filter(|(_, one)| one.kind != Kind::Thief);
        let innocent: Vec<u32> = innocent.map(|(pid, _)| *pid).chain(shells.clone()).collect();
        for pid in &innocent {
            assert!(lives(*pid), "look {look}: {pid} was ended");
            let one = self.all.get(pid);
            assert!(!is_stopped(*pid), "look {look}: {pid} was stopped: {one:?}");
        }
        let mut known = self.whole.supervisor.lock();
        let slices = Slices::of(&self.records, &self.whole.supervisor.members);
        let any = self.dice.below(NUMBERS as usize) as u32 + 1;
        for pid in self.all.keys().copied().chain([any, 1, std::process::id()]) {
            let found = known.register.find(pid, &slices);
            let of = found.and_then(|id| Some(known.register.get(id)?.slice.clone()));
            let expected = match self.all.get(&pid).map(|one| one.kind) {
                Some(Kind::Thief) if !lives(pid) => continue,
                Some(Kind::Thief) => Some(0),
                Some(Kind::Honest) => Some(1),
                _ => shells.clone().position(|shell| shell == pid),
            };
            let expected = expected.map(|at| self.records[at].id.clone());
            assert_eq!(of, expected, "look {look}, process {pid}");
        }
    }
}

//! A device, a clock, and tenants that follow the gate's protocol.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use divvy_arbiter::{MICROSECOND, MILLISECOND, Nanos, Settings, Share, Terms};
use divvy_ledger::attach::Pages;
use divvy_ledger::{ActivityLine, Backing, Gate, GateWord, Grant, GrantSpec, GrantView, Slot, SlotOwner};

use crate::leasing::Member;
use crate::leasing::figures::INTERVAL;
use crate::leasing::state::State;

/// The number that each tenant's process gives.
pub const A_PID: u32 = 4711;

/// How far apart two moments are.
const STEP: Nanos = 20 * MICROSECOND;

/// The length of a kernel that never ends.
const ENDLESS: Nanos = Nanos::MAX / 4;

/// A tenant's work.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// As many kernels of this length as it is allowed to launch.
    Greedy(Nanos),
    /// A request at a fixed interval, of so many kernels of such a length, one after the other.
    Requests(Nanos, u32, Nanos),
    /// One kernel that never ends.
    Endless,
    /// Nothing.
    Nothing,
}

/// A tenant: a process of a slice of its own.
pub struct Tenant {
    pub id: String,
    pub pages: Arc<Vec<Pages>>,
    pub terms: Terms,
    pub load: Load,
    /// It does not run at all, because it was stopped.
    pub stopped: bool,
    /// Device time that its kernels took, by device.
    pub ran: Nanos,
    /// The durations of its requests.
    pub latencies: Vec<Nanos>,
    slots: Vec<Slot>,
    views: Vec<GrantView>,
    in_flight: VecDeque<(Nanos, Nanos)>,
    report: GateWord,
    wants: bool,
    busy: bool,
    quiet_since: Nanos,
    launched: u64,
    completed: u64,
    requests: VecDeque<(Nanos, u32)>,
    next_request: Nanos,
}

pub struct World {
    pub state: State,
    pub now: Nanos,
    pub tenants: Vec<Tenant>,
    /// The agent was stopped: it hears nothing and does nothing.
    pub agent_stopped: bool,
    /// The user of all slices.
    pub uid: u32,
    /// The account of all slices.
    pub account: u32,
    device_free: Nanos,
    beat_at: Nanos,
}

pub const DEVICE: &str = "GPU-00112233-4455-6677-8899-aabbccddeeff";

pub fn share(percent: u16) -> Share {
    Share::new(percent * 100).expect("a share")
}

pub fn pages_of(id: &str) -> Pages {
    let spec = GrantSpec {
        memory_limit_bytes: 1 << 20,
        slice_id: id,
        slice_name: id,
        ..GrantSpec::default()
    };
    Pages::create(&spec).expect("pages")
}

fn view_of(grant: &Grant) -> GrantView {
    GrantView::map(grant.share().expect("shared").as_fd()).expect("mapped")
}

impl World {
    pub fn new() -> Self {
        let now = 1_000 * MILLISECOND;
        Self {
            state: State::new(Settings::default(), now),
            now,
            tenants: Vec::new(),
            agent_stopped: false,
            uid: 0,
            account: 0,
            device_free: 0,
            beat_at: 0,
        }
    }

    /// Adds a tenant; returns its index.
    pub fn add(&mut self, terms: Terms, load: Load) -> usize {
        let id = format!("{:08x}", self.tenants.len() + 1);
        let pages = Arc::new(vec![pages_of(&id)]);
        let mut tenant = Tenant {
            id,
            views: Vec::new(),
            slots: Vec::new(),
            pages,
            terms,
            load,
            stopped: false,
            ran: 0,
            latencies: Vec::new(),
            in_flight: VecDeque::new(),
            report: GateWord::default(),
            wants: false,
            busy: false,
            quiet_since: 0,
            launched: 0,
            completed: 0,
            requests: VecDeque::new(),
            next_request: self.now,
        };
        tenant.attach();
        self.tenants.push(tenant);
        self.sync();
        self.tenants.len() - 1
    }

    /// The slice ends.
    pub fn remove(&mut self, which: usize) {
        self.tenants.remove(which);
        self.sync();
    }

    pub fn sync(&mut self) {
        let members = self.tenants.iter().map(|tenant| Member {
            id: tenant.id.clone(),
            name: tenant.id.clone(),
            uid: self.uid,
            account: self.account,
            devices: vec![DEVICE.into()],
            pages: tenant.pages.clone(),
            terms: tenant.terms,
        });
        let members = members.collect();
        self.state.sync(members, self.now);
    }

    /// The process of a tenant is killed. What it had in flight goes with it.
    pub fn kill(&mut self, which: usize) {
        let tenant = &mut self.tenants[which];
        tenant.slots.clear();
        tenant.in_flight.clear();
        tenant.load = Load::Nothing;
        self.device_free = self.device_free.min(self.now);
    }

    /// An agent dies, and another takes the slices over.
    pub fn restart_agent(&mut self) {
        for tenant in &mut self.tenants {
            tenant.pages = Arc::new(
                tenant
                    .pages
                    .iter()
                    .map(|pages| Pages {
                        grant: Grant::succeed(&view_of(&pages.grant)).expect("a grant"),
                        ledger: {
                            let fd = pages.ledger.share().expect("shared");
                            divvy_ledger::Ledger::open(fd, Backing::Sealed).expect("opened")
                        },
                    })
                    .collect(),
            );
            tenant.views = tenant.pages.iter().map(|pages| view_of(&pages.grant)).collect();
        }
        self.state = State::new(Settings::default(), self.now);
        self.sync();
    }

    /// Runs until `time` from now.
    pub fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            for which in 0..self.tenants.len() {
                self.step(which);
            }
            if self.agent_stopped {
                continue;
            }
            if self.state.deadline().is_some_and(|at| at <= self.now) {
                self.state.tick(self.now);
            }
            if self.beat_at <= self.now {
                self.beat_at = self.now + INTERVAL;
                for tenant in &self.tenants {
                    tenant.pages[0].ledger.reap().expect("reaped");
                }
                self.state.look_at_all(self.now);
                self.state.take_samples(self.now);
            }
        }
    }

    /// The device time of each over `time` from now, in parts of 10,000.
    pub fn shares(&mut self, time: Nanos) -> Vec<u64> {
        let before: Vec<Nanos> = self.tenants.iter().map(|tenant| tenant.ran).collect();
        self.run(time);
        let of = |(tenant, before): (&Tenant, &Nanos)| (tenant.ran - before) * 10_000 / time;
        self.tenants.iter().zip(&before).map(of).collect()
    }

    pub fn ring(&mut self, which: usize) {
        if let Some(number) = self.state.number(&self.tenants[which].id) {
            self.state.look(number, self.now);
        }
    }

    fn step(&mut self, which: usize) {
        let now = self.now;
        let tenant = &mut self.tenants[which];
        // The device runs on, even if its users stop.
        while let Some(&(began, end)) = tenant.in_flight.front().filter(|(_, end)| *end <= now) {
            tenant.in_flight.pop_front();
            tenant.ran += end - began;
            tenant.completed += 1;
            tenant.quiet_since = end;
            if let (Load::Requests(..), Some(request)) = (tenant.load, tenant.requests.front_mut()) {
                request.1 -= 1;
                if request.1 == 0 {
                    tenant.latencies.push(end - request.0);
                    tenant.requests.pop_front();
                }
            }
        }
        if tenant.stopped || tenant.slots.is_empty() {
            return;
        }
        if let Load::Requests(every, kernels, _) = tenant.load
            && tenant.next_request <= now
        {
            tenant.requests.push_back((now, kernels));
            tenant.next_request = now + every;
        }
        if tenant.act(now, &mut self.device_free) && !self.agent_stopped {
            self.ring(which);
        }
    }
}

impl Tenant {
    pub fn attach(&mut self) {
        let claim = |pages: &Pages| {
            let fd = pages.ledger.share().expect("shared");
            Slot::claim(fd, Backing::Sealed, SlotOwner { host_pid: A_PID }).expect("a place")
        };
        self.slots = self.pages.iter().map(claim).collect();
        self.views = self.pages.iter().map(|pages| view_of(&pages.grant)).collect();
    }

    /// Its line in the ledger, to write anything into.
    pub fn corrupts(&self) -> &ActivityLine {
        self.slots[0].activity().expect("ours")
    }

    pub fn gate(&self) -> Gate {
        self.views[0].gate().gate()
    }

    fn has_work(&self) -> Option<Nanos> {
        match self.load {
            Load::Greedy(kernel) => Some(kernel),
            // One kernel after the other: the next is launched when the last has ended.
            Load::Requests(_, _, kernel) => {
                (!self.requests.is_empty() && self.in_flight.is_empty()).then_some(kernel)
            }
            Load::Endless => self.in_flight.is_empty().then_some(ENDLESS),
            Load::Nothing => None,
        }
    }

    /// The gate and its thread at one moment. Returns whether they ring the doorbell.
    fn act(&mut self, now: Nanos, device_free: &mut Nanos) -> bool {
        let (word, lease) = (self.views[0].gate(), self.views[0].lease());
        let mut rings = false;
        if word.gate() == Gate::Open {
            self.report = word;
        }
        while let Some(kernel) = self.has_work() {
            let ahead = self
                .in_flight
                .back()
                .map_or(0, |(_, end)| end.saturating_sub(now));
            let may = match word.gate() {
                Gate::Open => self.in_flight.len() < 4,
                Gate::Leased => {
                    let fits = ahead.saturating_add(kernel) <= lease.in_flight_ns;
                    now + ahead < lease.until_ns && (fits || ahead < lease.in_flight_ns / 64)
                }
                Gate::Closed => false,
            };
            if !may {
                if !self.wants {
                    rings |= word.gate() != Gate::Leased;
                    self.wants = true;
                }
                break;
            }
            let began = (*device_free).max(now);
            let end = began.saturating_add(kernel);
            self.in_flight.push_back((began, end));
            // Beside a kernel that never ends, the hardware's own time-slicing lets others run.
            if kernel < ENDLESS {
                *device_free = end;
            }
            self.launched += 1;
            self.wants = false;
            rings |= !self.busy && word.gate() == Gate::Leased && self.launched > 1;
            self.busy = true;
        }
        if self.has_work().is_none() {
            rings |= self.wants;
            self.wants = false;
        }
        let quiet = match word.gate() {
            Gate::Closed => 0,
            Gate::Open | Gate::Leased => 100 * MICROSECOND,
        };
        if self.busy && self.in_flight.is_empty() && now >= self.quiet_since + quiet {
            self.busy = false;
            rings = true;
        }
        if self.report != word && (word.gate() != Gate::Closed || !self.busy) {
            self.report = word;
            rings |= word.gate() == Gate::Closed;
        }
        let line = self.slots[0].activity().expect("ours");
        line.set(self.wants, self.busy);
        let kernel = match self.load {
            Load::Greedy(kernel) | Load::Requests(_, _, kernel) => kernel,
            Load::Endless | Load::Nothing => 0,
        };
        line.report(0, self.ran, kernel);
        line.count(self.launched, self.completed);
        line.acknowledge(self.report);
        rings
    }
}

//! Random events, sensible and not, against a table of which tenant may hold what.

use std::collections::{BTreeMap, HashMap};

use divvy_arbiter::{
    Arbiter, Cap, Class, Decision, DeviceId, Event, MILLISECOND, Nanos, SECOND, Settings, Share, TenantId,
    Terms,
};
use proptest::prelude::*;

const DEVICES: u32 = 3;

/// What a tenant does next.
#[derive(Clone, Debug)]
enum Act {
    Arrive(u64, Vec<u32>, Terms),
    Ready(u64),
    Idle(u64),
    /// It drains what has ended.
    Drain(u64),
    Report(u64, u32, Nanos, Nanos),
    /// A release without a request.
    Nonsense(u64, u32),
    Resize(u64, Terms),
    Die(u64),
    Thrash(u32, Nanos),
    Pass(Nanos),
    Leap(i64),
}

fn terms() -> impl Strategy<Value = Terms> {
    let share = (1u16..=60).prop_map(|percent| Share::new(percent * 100).expect("a share"));
    prop_oneof![
        3 => (1u16..5).prop_map(Terms::weight),
        3 => share.clone().prop_map(Terms::soft),
        2 => share.clone().prop_map(Terms::hard),
        1 => share.clone().prop_map(Terms::latency),
        1 => share.prop_map(|share| Terms {
            cap: Cap::Hard,
            class: Class::Latency { period: 50 * MILLISECOND },
            ..Terms::soft(share)
        }),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let tenant = || 0u64..8;
    let devices = prop_oneof![
        4 => (0..DEVICES).prop_map(|device| vec![device]),
        1 => Just(vec![0, 1]),
        1 => Just(vec![1, 2]),
        1 => Just(vec![2, 0, 1]),
    ];
    prop_oneof![
        4 => (tenant(), devices, terms()).prop_map(|(t, d, terms)| Act::Arrive(t, d, terms)),
        8 => tenant().prop_map(Act::Ready),
        3 => tenant().prop_map(Act::Idle),
        6 => tenant().prop_map(Act::Drain),
        2 => (tenant(), 0..DEVICES, 0..50 * MILLISECOND, 0..30 * MILLISECOND)
            .prop_map(|(t, d, busy, kernel)| Act::Report(t, d, busy, kernel)),
        1 => (tenant(), 0..DEVICES).prop_map(|(t, d)| Act::Nonsense(t, d)),
        2 => (tenant(), terms()).prop_map(|(t, terms)| Act::Resize(t, terms)),
        1 => tenant().prop_map(Act::Die),
        1 => (0..DEVICES, 0..20 * MILLISECOND).prop_map(|(d, refill)| Act::Thrash(d, refill)),
        12 => (0..20 * MILLISECOND).prop_map(Act::Pass),
        1 => (-(5 * SECOND as i64)..20 * SECOND as i64).prop_map(Act::Leap),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Held {
    epoch: u64,
    until: Nanos,
    /// Revoked or expired: no longer in any tenant's way.
    over: bool,
}

/// The arbiter, and what has to be true of it after the events so far.
struct Model {
    arbiter: Arbiter,
    now: Nanos,
    devices_of: BTreeMap<u64, (Vec<u32>, Terms)>,
    wants: HashMap<u64, bool>,
    held: BTreeMap<(u64, u32), Held>,
    epoch: u64,
}

impl Model {
    fn send(&mut self, event: &Event) -> bool {
        let outcome = self.arbiter.handle(self.now, event);
        // A refusal keeps decisions that time alone led to: they come with the next event.
        let (accepted, decisions) = match outcome {
            Ok(decisions) => (true, decisions),
            Err(_) => (false, self.arbiter.handle(self.now, &Event::Time).expect("time")),
        };
        if accepted {
            match event {
                Event::Arrived {
                    tenant,
                    devices,
                    terms,
                } => {
                    let devices = devices.iter().map(|device| device.0).collect();
                    self.devices_of.insert(tenant.0, (devices, *terms));
                    self.wants.insert(tenant.0, false);
                }
                Event::Ready { tenant } => drop(self.wants.insert(tenant.0, true)),
                Event::Idle { tenant } => {
                    self.wants.insert(tenant.0, false);
                    self.held.retain(|&(who, _), _| who != tenant.0);
                }
                Event::Released { tenant, device, .. } => {
                    self.held.remove(&(tenant.0, device.0));
                    self.wants.insert(tenant.0, true);
                }
                Event::Resized { tenant, terms } => {
                    self.devices_of.get_mut(&tenant.0).expect("registered").1 = *terms;
                }
                Event::Died { tenant } => {
                    self.devices_of.remove(&tenant.0);
                    self.wants.remove(&tenant.0);
                    self.held.retain(|&(who, _), _| who != tenant.0);
                }
                _ => {}
            }
        }
        self.note(&decisions);
        self.check();
        accepted
    }

    fn note(&mut self, decisions: &[Decision]) {
        let mut granted: BTreeMap<(u64, u64), Vec<u32>> = BTreeMap::new();
        for decision in decisions {
            match *decision {
                Decision::Grant {
                    tenant,
                    device,
                    epoch,
                    until,
                    ..
                } => {
                    let key = (tenant.0, device.0);
                    if let Some(held) = self.held.get_mut(&key) {
                        assert_eq!(held.epoch, epoch, "a second lease over the first");
                        held.until = until;
                        continue;
                    }
                    assert!(self.wants[&tenant.0], "a lease for one that wants none");
                    assert!(epoch >= self.epoch, "an old number");
                    self.epoch = epoch;
                    for (&(who, at), held) in &self.held {
                        assert!(at != device.0 || held.over, "{tenant:?} beside {who} on {at}");
                    }
                    let held = Held {
                        epoch,
                        until,
                        over: false,
                    };
                    self.held.insert(key, held);
                    granted.entry((tenant.0, epoch)).or_default().push(device.0);
                }
                Decision::Revoke {
                    tenant,
                    device,
                    epoch,
                }
                | Decision::Expire {
                    tenant,
                    device,
                    epoch,
                } => {
                    let held = self.held.get_mut(&(tenant.0, device.0)).expect("held");
                    assert_eq!(held.epoch, epoch);
                    held.over = true;
                }
                Decision::Overdue {
                    tenant,
                    device,
                    epoch,
                    ..
                } => {
                    assert_eq!(self.held[&(tenant.0, device.0)].epoch, epoch);
                }
            }
        }
        for ((tenant, _), mut devices) in granted {
            let mut all = self.devices_of[&tenant].0.clone();
            all.sort_unstable();
            devices.sort_unstable();
            assert_eq!(devices, all, "a gang was granted in part");
        }
    }

    fn check(&self) {
        let soft = |terms: &Terms| terms.cap == Cap::Soft;
        let wanting = |tenant: &u64| self.wants[tenant] && !self.held.keys().any(|(who, _)| who == tenant);
        for (tenant, (devices, terms)) in &self.devices_of {
            if !wanting(tenant) || !soft(terms) {
                continue;
            }
            // No tenant holds anything and some tenant wants something: that is a deadlock.
            assert!(!self.held.is_empty(), "{tenant} waits for no other");
            let gangs = |device: u32| {
                self.devices_of
                    .iter()
                    .any(|(who, (all, _))| all.len() > 1 && all.contains(&device) && self.wants[who])
            };
            let free = |device: u32| !self.held.keys().any(|&(_, at)| at == device);
            if devices.len() == 1 && free(devices[0]) {
                assert!(gangs(devices[0]), "{tenant} waits at a free device");
            }
        }
        if !self.held.is_empty() {
            assert!(self.arbiter.deadline().is_some(), "a lease that nothing ends");
        }
        assert_eq!(self.arbiter.tenants(), self.devices_of.len());
    }

    /// Releases what has ended, as a good tenant would.
    fn drain(&mut self, tenant: u64) {
        let now = self.now;
        let ended: Vec<u32> = self
            .held
            .iter()
            .filter(|&(&(who, _), held)| who == tenant && (held.over || held.until <= now))
            .map(|(&(_, device), _)| device)
            .collect();
        for device in ended {
            self.send(&Event::Released {
                tenant: TenantId(tenant),
                device: DeviceId(device),
                busy: 0,
            });
        }
    }

    fn act(&mut self, act: &Act) {
        let id = |tenant: &u64| TenantId(*tenant);
        match act {
            Act::Arrive(tenant, devices, terms) => {
                let devices = devices.iter().map(|&device| DeviceId(device)).collect();
                let has_come = self.send(&Event::Arrived {
                    tenant: id(tenant),
                    devices,
                    terms: *terms,
                });
                // Some follow others of their owner's, and some are no owner's.
                if has_come && tenant % 4 > 0 {
                    self.send(&Event::Owned {
                        tenant: id(tenant),
                        owner: tenant % 4,
                    });
                }
            }
            Act::Ready(tenant) => drop(self.send(&Event::Ready { tenant: id(tenant) })),
            Act::Idle(tenant) => drop(self.send(&Event::Idle { tenant: id(tenant) })),
            Act::Drain(tenant) => self.drain(*tenant),
            Act::Report(tenant, device, busy, kernel) => {
                self.send(&Event::Report {
                    tenant: id(tenant),
                    device: DeviceId(*device),
                    busy: *busy,
                    kernel: *kernel,
                    in_flight: *kernel,
                });
            }
            Act::Nonsense(tenant, device) => {
                self.send(&Event::Released {
                    tenant: id(tenant),
                    device: DeviceId(*device),
                    busy: 0,
                });
            }
            Act::Resize(tenant, terms) => {
                self.send(&Event::Resized {
                    tenant: id(tenant),
                    terms: *terms,
                });
            }
            Act::Die(tenant) => drop(self.send(&Event::Died { tenant: id(tenant) })),
            Act::Thrash(device, refill) => {
                self.send(&Event::Thrash {
                    device: DeviceId(*device),
                    refill: *refill,
                });
            }
            Act::Pass(by) => {
                self.now += by;
                self.send(&Event::Time);
            }
            Act::Leap(by) => {
                self.now = self.now.saturating_add_signed(*by);
                self.send(&Event::Time);
            }
        }
    }

    /// All tenants go on behaving: within a minute every tenant with a share that wants a lease has had one.
    fn everybody_runs(&mut self) {
        let tenants: Vec<u64> = self.devices_of.keys().copied().collect();
        tenants.iter().for_each(|&tenant| self.drain(tenant));
        let mut waits: Vec<u64> = tenants.into_iter().filter(|tenant| self.wants[tenant]).collect();
        // A weight is promised nothing: it waits while shares that are promised take everything.
        waits.retain(|tenant| self.devices_of[tenant].1.share().is_some());
        let end = self.now + 60 * SECOND;
        while !waits.is_empty() && self.now < end {
            let tenants: Vec<u64> = self.devices_of.keys().copied().collect();
            tenants.into_iter().for_each(|tenant| self.drain(tenant));
            waits.retain(|tenant| !self.held.keys().any(|(who, _)| who == tenant));
            let next = self.arbiter.deadline().unwrap_or(self.now + MILLISECOND);
            self.now = next.clamp(self.now + 1, self.now + 5 * MILLISECOND);
            self.send(&Event::Time);
        }
        let mut seen = String::new();
        for (tenant, (devices, _)) in &self.devices_of {
            for &device in devices {
                let view = self.arbiter.view(TenantId(*tenant), DeviceId(device));
                seen += &format!("{tenant} on {device}: {view:?}\n");
            }
        }
        assert!(waits.is_empty(), "{waits:?} never ran:\n{seen}{:?}", self.held);
    }
}

fn model() -> Model {
    Model {
        arbiter: Arbiter::new(Settings::default(), DEVICES),
        now: 100 * SECOND,
        devices_of: BTreeMap::new(),
        wants: HashMap::new(),
        held: BTreeMap::new(),
        epoch: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_two_hold_one_device_and_no_tenant_deadlocks(acts in prop::collection::vec(act(), 1..300)) {
        let mut model = model();
        for act in &acts {
            model.act(act);
        }
    }

    /// Tenants that give back what has ended owe little; the others may wait as long as their debt says.
    #[test]
    fn everybody_runs(acts in prop::collection::vec(act(), 1..150)) {
        let mut model = model();
        for act in &acts {
            if !matches!(act, Act::Leap(_) | Act::Report(..) | Act::Thrash(..)) {
                model.act(act);
                (0..8).for_each(|tenant| model.drain(tenant));
            }
        }
        model.everybody_runs();
    }
}

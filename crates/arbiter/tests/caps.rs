//! Hard caps of tenants that take what the rules of leases leave them: a gang that lets all but one device go, and a
//! latency-critical tenant that is ready whenever its neighbour's long launch runs.

use divvy_arbiter::{
    Arbiter, Cap, Decision, DeviceId, Event, MILLISECOND, Nanos, SECOND, Settings, Share, TenantId, Terms,
};

fn share(percent: u16) -> Share {
    Share::new(percent * 100).expect("a share")
}

/// What a tenant does with a lease.
#[derive(Clone, Copy)]
enum Ways {
    /// Short kernels: it gives the lease back when that is over.
    Short,
    /// One launch of so many milliseconds after the other, and true reports of what is in flight.
    Long(u64),
    /// It gives all devices but its first back at once, and says of that one that launches are in flight until its lease expires.
    OneOfAll,
}

struct Tenant {
    ways: Ways,
    devices: Vec<u32>,
    /// The end of its lease of each device.
    until: Vec<Option<Nanos>>,
    has_asked: bool,
    has_expired: bool,
    /// What is left of its launch, in nanoseconds of the device.
    left: Nanos,
    /// What it had of its first device.
    had: Nanos,
}

struct World {
    arbiter: Arbiter,
    now: Nanos,
    tenants: Vec<Tenant>,
}

impl World {
    fn new(tenants: Vec<(Ways, Terms, Vec<u32>)>) -> Self {
        let devices = tenants.iter().flat_map(|(.., devices)| devices).max();
        let mut world = Self {
            arbiter: Arbiter::new(Settings::default(), devices.expect("one") + 1),
            now: SECOND,
            tenants: Vec::new(),
        };
        for (number, (ways, terms, devices)) in tenants.into_iter().enumerate() {
            world.tenants.push(Tenant {
                ways,
                until: vec![None; devices.len()],
                devices: devices.clone(),
                has_asked: false,
                has_expired: false,
                left: 0,
                had: 0,
            });
            world.tell(&Event::Arrived {
                tenant: TenantId(number as u64),
                devices: devices.into_iter().map(DeviceId).collect(),
                terms,
            });
        }
        world
    }

    fn tell(&mut self, event: &Event) {
        for decision in self.arbiter.handle(self.now, event).expect("it is possible") {
            let place = |tenant: &Tenant, device: DeviceId| {
                let mut devices = tenant.devices.iter();
                devices.position(|one| *one == device.0).expect("one of its own")
            };
            match decision {
                Decision::Grant {
                    tenant,
                    device,
                    until,
                    ..
                } => {
                    let tenant = &mut self.tenants[tenant.0 as usize];
                    let at = place(tenant, device);
                    tenant.until[at] = Some(until);
                    (tenant.has_asked, tenant.has_expired) = (false, false);
                }
                Decision::Revoke { tenant, device, .. } => {
                    let tenant = &mut self.tenants[tenant.0 as usize];
                    let at = place(tenant, device);
                    tenant.until[at] = tenant.until[at].map(|until| until.min(self.now));
                }
                Decision::Expire { tenant, .. } => self.tenants[tenant.0 as usize].has_expired = true,
                _ => {}
            }
        }
    }

    fn release(&mut self, number: usize, place: usize) {
        let tenant = &mut self.tenants[number];
        tenant.until[place] = None;
        let device = DeviceId(tenant.devices[place]);
        self.tell(&Event::Released {
            tenant: TenantId(number as u64),
            device,
            busy: 0,
        });
    }

    fn report(&mut self, number: usize, place: usize, in_flight: Nanos) {
        let device = DeviceId(self.tenants[number].devices[place]);
        self.tell(&Event::Report {
            tenant: TenantId(number as u64),
            device,
            busy: 0,
            kernel: 0,
            in_flight,
        });
    }

    /// Whether it has work on its first device.
    fn works(&self, number: usize) -> bool {
        let tenant = &self.tenants[number];
        match tenant.ways {
            Ways::Short => tenant.until[0].is_some_and(|until| until > self.now),
            Ways::Long(_) => tenant.left > 0,
            Ways::OneOfAll => tenant.until[0].is_some(),
        }
    }

    fn act(&mut self, number: usize) {
        let tenant = &mut self.tenants[number];
        if tenant.until.iter().all(Option::is_none) && !tenant.has_asked {
            tenant.has_asked = true;
            self.tell(&Event::Ready {
                tenant: TenantId(number as u64),
            });
        }
        for place in 0..self.tenants[number].devices.len() {
            let tenant = &mut self.tenants[number];
            let Some(until) = tenant.until[place] else {
                continue;
            };
            let is_over = until <= self.now;
            match tenant.ways {
                Ways::Short if is_over => self.release(number, place),
                Ways::Long(ms) if !is_over && tenant.left == 0 => tenant.left = ms * MILLISECOND,
                Ways::Long(_) if is_over && tenant.left == 0 => self.release(number, place),
                Ways::Long(_) if is_over => {
                    let left = tenant.left;
                    self.report(number, place, left);
                }
                Ways::OneOfAll if place > 0 || tenant.has_expired => self.release(number, place),
                Ways::OneOfAll if is_over => self.report(number, place, Nanos::MAX),
                _ => {}
            }
        }
    }

    /// Plays so long. All that work on the first device have equal turns of it.
    fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        while self.now < end {
            self.now += MILLISECOND;
            while self.arbiter.deadline().is_some_and(|at| at <= self.now) {
                self.tell(&Event::Time);
            }
            let on_first = |number: &usize| self.tenants[*number].devices[0] == 0 && self.works(*number);
            let working: Vec<usize> = (0..self.tenants.len()).filter(on_first).collect();
            for number in &working {
                let turn = MILLISECOND / working.len() as u64;
                let tenant = &mut self.tenants[*number];
                tenant.had += turn;
                tenant.left = tenant.left.saturating_sub(turn);
            }
            for number in 0..self.tenants.len() {
                self.act(number);
            }
        }
    }

    /// The part of the first device that this tenant had of that time, in percent.
    fn part(&mut self, number: usize, time: Nanos) -> u64 {
        self.run(10 * SECOND);
        let before = self.tenants[number].had;
        self.run(time);
        (self.tenants[number].had - before) * 100 / time
    }
}

/// Its lease is of all of its devices, and what it keeps counts by what it keeps.
#[test]
fn a_gang_that_keeps_one_of_its_devices_has_its_cap_there() {
    for devices in [2_u32, 4, 8] {
        let mut tenants = vec![(Ways::OneOfAll, Terms::hard(share(20)), (0..devices).collect())];
        tenants.extend((0..devices).map(|device| (Ways::Short, Terms::hard(share(20)), vec![device])));
        let part = World::new(tenants).part(0, 120 * SECOND);
        assert!((15..=22).contains(&part), "{part} % of one of {devices}");
    }
}

/// It pays for the turns that the hardware gives it beside the launch, once that has outlasted its lease.
#[test]
fn a_latency_tenant_with_a_hard_cap_pays_for_its_turns_beside_a_long_launch() {
    let terms = Terms {
        cap: Cap::Hard,
        ..Terms::latency(share(10))
    };
    for length in [1000, 3000] {
        let long = (Ways::Long(length), Terms::soft(share(70)), vec![0]);
        let part = World::new(vec![(Ways::Short, terms, vec![0]), long]).part(0, 120 * SECOND);
        assert!(
            (4..=15).contains(&part),
            "{part} % beside launches of {length} ms"
        );
    }
}

//! The arbiter: its state, and what each event does to it.

use std::collections::HashMap;

use crate::bucket::Bucket;
use crate::clock::Clock;
use crate::debts::{Debts, Owed};
use crate::decision::Decision;
use crate::device::Device;
use crate::event::{Event, Refused};
use crate::longest::OfTenant;
use crate::server::Server;
use crate::settings::Settings;
use crate::tenant::{Leaseholder, Place, Tenant};
use crate::terms::{Cap, Class, Terms};
use crate::timers::Timers;
use crate::virtual_time::{Pace, VirtualTime};
use crate::{DeviceId, Nanos, TenantId};

/// Decides which tenants may run next on each of a host's devices.
///
/// An event costs O(log n) in the tenants of the devices it touches.
#[derive(Debug)]
pub struct Arbiter {
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) devices: Vec<Device>,
    pub(crate) tenants: Vec<Option<Tenant>>,
    pub(crate) vacant: Vec<usize>,
    pub(crate) numbers: HashMap<TenantId, usize>,
    pub(crate) timers: Timers,
    /// Leases given so far.
    pub(crate) epoch: u64,
    /// Claims made so far.
    pub(crate) claims: u64,
    /// Virtual time among gangs: that of the last claim that was granted.
    pub(crate) gang_floor: VirtualTime,
    /// Tenants with an unreleased lease.
    pub(crate) leases: usize,
    /// Devices to look at before the event is done with.
    pub(crate) dirty: Vec<usize>,
    pub(crate) decisions: Vec<Decision>,
    /// What owners owe for tenants that have gone.
    pub(crate) debts: Debts,
}

impl Arbiter {
    /// An arbiter of `devices` devices, numbered from 0.
    pub fn new(settings: Settings, devices: u32) -> Self {
        Self {
            settings,
            clock: Clock::default(),
            devices: (0..devices).map(|_| Device::default()).collect(),
            tenants: Vec::new(),
            vacant: Vec::new(),
            numbers: HashMap::new(),
            timers: Timers::default(),
            epoch: 0,
            claims: 0,
            gang_floor: VirtualTime::default(),
            leases: 0,
            dirty: Vec::new(),
            decisions: Vec::new(),
            debts: Debts::default(),
        }
    }

    /// One device more.
    pub fn add_device(&mut self) -> DeviceId {
        self.devices.push(Device::default());
        DeviceId(self.devices.len() as u32 - 1)
    }

    /// What an event at `now` leads to, in the order in which it is to be done.
    ///
    /// `now` need not be monotonic: time inside never goes back, and a leap ([`Settings::heartbeat`]) is charged to no
    /// tenant.
    ///
    /// # Errors
    /// The event makes no sense or asks for too much. Time has passed all the same, and the decisions it led to come
    /// with the next event's.
    pub fn handle(&mut self, now: Nanos, event: &Event) -> Result<Vec<Decision>, Refused> {
        self.pass_to(now);
        let outcome = self.apply(event);
        self.look_around();
        outcome.map(|()| std::mem::take(&mut self.decisions))
    }

    /// When to call with [`Event::Time`] if nothing happens before, on the caller's clock.
    pub fn deadline(&self) -> Option<Nanos> {
        if self.decisions.is_empty() {
            self.timers.first().map(|at| self.clock.outside(at))
        } else {
            Some(self.clock.outside(self.clock.now()))
        }
    }

    fn pass_to(&mut self, now: Nanos) {
        let heartbeat = self.settings.heartbeat;
        // Without a lease out no tenant is charged, and hours may pass between two events.
        let longest = if self.leases == 0 {
            Nanos::MAX
        } else {
            heartbeat.saturating_mul(2)
        };
        if let Some(leap) = self.clock.advance(now, longest, 0) {
            self.note_leap(leap);
            self.tell_all_again();
        }
        let now = self.clock.now();
        while let Some(tenant) = self.timers.due(now) {
            self.tick(tenant);
            self.look_around();
        }
    }

    fn apply(&mut self, event: &Event) -> Result<(), Refused> {
        match event {
            Event::Arrived {
                tenant,
                devices,
                terms,
            } => self.arrive(*tenant, devices, *terms)?,
            Event::Owned { tenant, owner } => {
                let i = self.find(*tenant)?;
                self.own(i, *owner);
            }
            Event::Ready { tenant } => {
                let i = self.find(*tenant)?;
                self.ready(i);
            }
            Event::Idle { tenant } => {
                let i = self.find(*tenant)?;
                self.idle(i);
            }
            Event::Released { tenant, device, busy } => {
                let i = self.find(*tenant)?;
                let h = self.leaseholder_of(i, *device)?;
                self.report(i, h, *busy, 0);
                self.note_change(i, h);
                let leaseholder = &mut self.tenant_mut(i).leaseholders[h];
                (leaseholder.squared, leaseholder.paid) = (leaseholder.reported, 0);
                self.give_back_shared(i, h);
                self.release(i, h);
                // It may have crossed with the end of the lease that it speaks of; its request is the same.
                if self.tenant(i).place == Place::Away {
                    self.ready(i);
                }
            }
            Event::Report {
                tenant,
                device,
                busy,
                kernel,
                in_flight,
            } => {
                let i = self.find(*tenant)?;
                let h = self.leaseholder_of(i, *device)?;
                self.report(i, h, *busy, *kernel);
                self.expect(i, h, *in_flight);
            }
            Event::Resized { tenant, terms } => {
                let i = self.find(*tenant)?;
                self.resize(i, *terms)?;
            }
            Event::Died { tenant } => {
                let i = self.find(*tenant)?;
                self.die(i);
            }
            Event::Thrash { device, refill } => {
                let device = self.devices.get_mut(device.0 as usize).ok_or(Refused::Devices)?;
                device.refill = *refill;
            }
            Event::Time => {}
        }
        Ok(())
    }

    fn find(&self, tenant: TenantId) -> Result<usize, Refused> {
        self.numbers.get(&tenant).copied().ok_or(Refused::Unknown(tenant))
    }

    fn leaseholder_of(&self, i: usize, device: DeviceId) -> Result<usize, Refused> {
        self.tenant(i)
            .leaseholders
            .iter()
            .position(|leaseholder| leaseholder.device == device.0 as usize)
            .ok_or(Refused::Devices)
    }

    /// The tenant in place `i`. The caller has the place from a list that a tenant leaves when it goes.
    pub(crate) fn tenant(&self, i: usize) -> &Tenant {
        self.tenants[i].as_ref().expect("a registered tenant")
    }

    pub(crate) fn tenant_mut(&mut self, i: usize) -> &mut Tenant {
        self.tenants[i].as_mut().expect("a registered tenant")
    }

    pub(crate) fn device_of(&self, i: usize, h: usize) -> usize {
        self.tenant(i).leaseholders[h].device
    }

    pub(crate) fn pace(&self, i: usize, h: usize) -> Pace {
        let tenant = self.tenant(i);
        Pace::of(
            &tenant.terms,
            &self.devices[tenant.leaseholders[h].device].promises,
        )
    }

    fn arrive(&mut self, id: TenantId, devices: &[DeviceId], terms: Terms) -> Result<(), Refused> {
        if self.numbers.contains_key(&id) {
            return Err(Refused::Known(id));
        }
        let places: Vec<usize> = devices.iter().map(|device| device.0 as usize).collect();
        let twice = (1..places.len()).any(|n| places[..n].contains(&places[n]));
        if places.is_empty() || twice || places.iter().any(|&d| d >= self.devices.len()) {
            return Err(Refused::Devices);
        }
        if terms.is_strict() && terms.share().is_none() {
            return Err(Refused::NoShare);
        }
        for &d in &places {
            self.devices[d].promises.admit(&terms)?;
        }
        places.iter().for_each(|&d| self.settle_holder(d));
        let leaseholders = places.iter().map(|&device| Leaseholder {
            device,
            time: self.devices[device].floor,
            owed: 0,
            held: None,
            kernel: 0,
            in_flight: 0,
            overrun: OfTenant::default(),
            reported: 0,
            squared: 0,
            paid: 0,
            is_squared: false,
            charged: 0,
            leased: 0,
            waited: 0,
            outlasted: 0,
            shared: 0,
        });
        let now = self.clock.now();
        let mut tenant = Tenant {
            id,
            owner: None,
            takes_over: 0,
            terms,
            leaseholders: leaseholders.collect(),
            wants: false,
            place: Place::Away,
            away_since: now,
            waits_since: now,
            bucket: None,
            server: None,
            lease: None,
            claim: None,
            gang_time: VirtualTime::default(),
            urgent_by: 0,
            timer: None,
        };
        self.outfit(&mut tenant);
        let i = self.vacant.pop().unwrap_or_else(|| {
            self.tenants.push(None);
            self.tenants.len() - 1
        });
        self.tenants[i] = Some(tenant);
        self.numbers.insert(id, i);
        for d in places {
            self.enrol(d, &terms);
        }
        Ok(())
    }

    /// Gives a tenant the bucket or the server that its terms need, and keeps the former one if they still need it.
    fn outfit(&self, tenant: &mut Tenant) {
        let now = self.clock.now();
        let share = tenant.terms.share();
        tenant.server = match (tenant.terms.class, share, tenant.server) {
            (Class::Latency { period }, Some(share), Some(mut server)) => {
                server.replenish(now);
                server.resize(share, period);
                Some(server)
            }
            (Class::Latency { period }, Some(share), None) => Some(Server::new(share, period, now)),
            _ => None,
        };
        // A server is a hard cap of its own when its tenant may not compete beyond it.
        let capped = tenant.terms.cap == Cap::Hard && tenant.server.is_none();
        tenant.bucket = match (share, tenant.bucket) {
            (Some(share), Some(mut bucket)) if capped => {
                bucket.refill(now, self.settings.quantum);
                bucket.resize(share);
                Some(bucket)
            }
            (Some(share), None) if capped => Some(Bucket::new(share, now, self.settings.quantum)),
            _ => None,
        };
    }

    fn enrol(&mut self, d: usize, terms: &Terms) {
        let device = &mut self.devices[d];
        device.promises.add(terms);
        device.members += 1;
        device.latency += u32::from(terms.is_latency());
        self.rebound(d);
    }

    fn strike(&mut self, d: usize, terms: &Terms) {
        let device = &mut self.devices[d];
        device.promises.remove(terms);
        device.members -= 1;
        device.latency -= u32::from(terms.is_latency());
        self.rebound(d);
    }

    fn resize(&mut self, i: usize, terms: Terms) -> Result<(), Refused> {
        if terms.is_strict() && terms.share().is_none() {
            return Err(Refused::NoShare);
        }
        let old = self.tenant(i).terms;
        let places: Vec<usize> = self
            .tenant(i)
            .leaseholders
            .iter()
            .map(|leaseholder| leaseholder.device)
            .collect();
        for &d in &places {
            let mut promises = self.devices[d].promises;
            promises.remove(&old);
            promises.admit(&terms)?;
        }
        self.settle(i);
        let waits = matches!(
            self.tenant(i).place,
            Place::Queued | Place::Urgent | Place::Throttled | Place::Claiming
        );
        if waits {
            self.leave_queues(i);
        }
        let paces: Vec<Pace> = (0..places.len()).map(|h| self.pace(i, h)).collect();
        let owned = self.tenant(i).owner.map_or(0, |_| places.len());
        let owes: Vec<(u32, Owed)> = (0..owned).map(|h| (self.parts(i, h), self.owed(i, h))).collect();
        for &d in &places {
            self.strike(d, &old);
            self.enrol(d, &terms);
        }
        let mut tenant = self.tenants[i].take().expect("a registered tenant");
        tenant.terms = terms;
        self.outfit(&mut tenant);
        for (leaseholder, old) in tenant.leaseholders.iter_mut().zip(paces) {
            let device = &self.devices[leaseholder.device];
            let new = Pace::of(&terms, &device.promises);
            leaseholder.time = leaseholder.time.repaced(device.floor, old, new);
        }
        self.tenants[i] = Some(tenant);
        self.share_debts(i, &owes);
        if waits {
            self.enter(i);
        } else if self.tenant(i).place == Place::Holding {
            self.shorten_to_terms(i);
        }
        places.into_iter().for_each(|d| self.mark(d));
        Ok(())
    }

    fn die(&mut self, i: usize) {
        self.settle(i);
        self.tenant_mut(i).wants = false;
        self.leave_queues(i);
        for h in 0..self.tenant(i).leaseholders.len() {
            self.release(i, h);
        }
        self.leave_debts(i);
        let tenant = self.tenants[i].take().expect("a registered tenant");
        self.timers.set(i, tenant.timer, None);
        self.numbers.remove(&tenant.id);
        self.vacant.push(i);
        for leaseholder in &tenant.leaseholders {
            self.strike(leaseholder.device, &tenant.terms);
            self.mark(leaseholder.device);
        }
    }
}

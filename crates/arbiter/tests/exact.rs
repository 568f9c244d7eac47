//! Short scripts of events, and word for word what the arbiter decides at each. All times are in microseconds.

use divvy_arbiter::{
    Arbiter, Decision, DeviceId, Event, FOREVER, Nanos, Settings, Share, TenantId, Terms, View,
};

const US: Nanos = 1000;

fn share(percent: u16) -> Share {
    Share::new(percent * 100).expect("a share")
}

fn time(at: Nanos) -> String {
    if at == FOREVER {
        "-".into()
    } else {
        (at / US).to_string()
    }
}

/// An arbiter with the default settings, which is told of events at times in microseconds.
struct Script(Arbiter);

impl Script {
    fn new(devices: u32) -> Self {
        Self(Arbiter::new(Settings::default(), devices))
    }

    /// What the event leads to, one decision a word: `grant:TENANT@DEVICE:UNTIL:IN_FLIGHT` and the like, where `-` is
    /// for ever.
    fn tell(&mut self, at: Nanos, event: &Event) -> String {
        let decisions = self.0.handle(at * US, event).expect("an event that is taken");
        let words: Vec<String> = decisions
            .iter()
            .map(|decision| match *decision {
                Decision::Grant {
                    tenant,
                    device,
                    until,
                    in_flight,
                    ..
                } => format!(
                    "grant:{}@{}:{}:{}",
                    tenant.0,
                    device.0,
                    time(until),
                    time(in_flight)
                ),
                Decision::Revoke { tenant, device, .. } => format!("revoke:{}@{}", tenant.0, device.0),
                Decision::Overdue {
                    tenant,
                    device,
                    ended,
                    ..
                } => format!("overdue:{}@{}:{}", tenant.0, device.0, time(ended)),
                Decision::Expire { tenant, device, .. } => format!("expire:{}@{}", tenant.0, device.0),
            })
            .collect();
        words.join(" ")
    }

    fn arrive(&mut self, at: Nanos, tenant: u64, devices: &[u32], terms: Terms) -> String {
        let devices = devices.iter().map(|&device| DeviceId(device)).collect();
        let tenant = TenantId(tenant);
        self.tell(
            at,
            &Event::Arrived {
                tenant,
                devices,
                terms,
            },
        )
    }

    fn ready(&mut self, at: Nanos, tenant: u64) -> String {
        let tenant = TenantId(tenant);
        self.tell(at, &Event::Ready { tenant })
    }

    fn idle(&mut self, at: Nanos, tenant: u64) -> String {
        let tenant = TenantId(tenant);
        self.tell(at, &Event::Idle { tenant })
    }

    fn release(&mut self, at: Nanos, tenant: u64, device: u32, busy: Nanos) -> String {
        let (tenant, device, busy) = (TenantId(tenant), DeviceId(device), busy * US);
        self.tell(at, &Event::Released { tenant, device, busy })
    }

    fn report(&mut self, at: Nanos, tenant: u64, device: u32, kernel: Nanos) -> String {
        let (tenant, device, kernel) = (TenantId(tenant), DeviceId(device), kernel * US);
        self.tell(
            at,
            &Event::Report {
                tenant,
                device,
                busy: 0,
                kernel,
                in_flight: 0,
            },
        )
    }

    fn resize(&mut self, at: Nanos, tenant: u64, terms: Terms) -> String {
        let tenant = TenantId(tenant);
        self.tell(at, &Event::Resized { tenant, terms })
    }

    fn die(&mut self, at: Nanos, tenant: u64) -> String {
        let tenant = TenantId(tenant);
        self.tell(at, &Event::Died { tenant })
    }

    fn thrash(&mut self, at: Nanos, refill: Nanos) -> String {
        let (device, refill) = (DeviceId(0), refill * US);
        self.tell(at, &Event::Thrash { device, refill })
    }

    fn pass(&mut self, at: Nanos) -> String {
        self.tell(at, &Event::Time)
    }

    /// When the arbiter wants to be called next.
    fn alarm(&self) -> Option<Nanos> {
        self.0.deadline().map(|at| at / US)
    }

    fn view(&self, tenant: u64, device: u32) -> View {
        self.0
            .view(TenantId(tenant), DeviceId(device))
            .expect("a registered tenant")
    }

    /// Where a tenant stands, its debt, and how long it has waited.
    fn stands(&self, tenant: u64, device: u32) -> String {
        let view = self.view(tenant, device);
        format!("{:?}:{}:{}", view.standing, view.debt / US, view.waiting / US)
    }

    fn charged(&self, tenant: u64) -> u128 {
        self.view(tenant, 0).charged / u128::from(US)
    }
}

/// Each step, and what comes of it.
macro_rules! check {
    ($($step:expr => $outcome:expr;)*) => { $(assert_eq!($step, $outcome, stringify!($step));)* }
}

#[test]
fn a_lease_that_outlasts_its_end_is_reported_and_then_expires() {
    let mut it = Script::new(1);
    check! {
        it.arrive(0, 1, &[0], Terms::soft(share(50))) => "";
        it.ready(0, 1) => "grant:1@0:-:-";
        it.alarm() => Some(100000);
        it.arrive(0, 2, &[0], Terms::soft(share(50))) => "grant:1@0:-:2000";
        it.ready(1000, 2) => "grant:1@0:5000:2000";
        it.alarm() => Some(4800);
        it.pass(4800) => "";
        it.alarm() => Some(35000);
        it.pass(34_999) => "";
        it.pass(35_000) => "overdue:1@0:5000";
        it.alarm() => Some(45000);
        it.pass(44_999) => "";
        it.pass(45_000) => "expire:1@0 grant:2@0:-:2000";
        it.alarm() => Some(145000);
        it.charged(1) => 45000;
        it.stands(1, 0) => "Stuck:44000:0";
        it.release(50_000, 1, 0, 60_000) => "revoke:2@0";
        it.charged(1) => 60000;
        it.charged(2) => 5000;
        it.stands(1, 0) => "Waiting:55000:0";
        it.alarm() => Some(80000);
    }
}

#[test]
fn a_holder_whose_rival_left_is_renewed() {
    let mut it = Script::new(1);
    check! {
        it.arrive(0, 1, &[0], Terms::soft(share(50))) => "";
        it.arrive(0, 2, &[0], Terms::soft(share(50))) => "";
        it.ready(0, 1) => "grant:1@0:-:2000";
        it.ready(1000, 2) => "grant:1@0:5000:2000";
        it.idle(3000, 2) => "";
        it.pass(4800) => "grant:1@0:-:2000";
        it.alarm() => Some(104800);
        it.ready(10_000, 2) => "revoke:1@0";
        it.alarm() => Some(40000);
    }
}

#[test]
fn a_rival_with_the_same_virtual_time_has_its_turn_at_the_end_of_the_quantum() {
    let mut it = Script::new(1);
    check! {
        it.arrive(0, 1, &[0], Terms::soft(share(50))) => "";
        it.arrive(0, 2, &[0], Terms::soft(share(50))) => "";
        it.arrive(0, 3, &[0], Terms::weight(1)) => "";
        it.ready(0, 1) => "grant:1@0:-:2000";
        it.ready(0, 2) => "grant:1@0:5000:2000";
        it.pass(4800) => "";
        it.release(5000, 1, 0, 5000) => "grant:2@0:10000:2000";
        it.ready(5000, 1) => "";
        it.pass(9800) => "";
        it.release(10_000, 2, 0, 5000) => "grant:1@0:15000:2000";
        it.ready(10_000, 2) => "";
        it.pass(14_800) => "";
        it.release(15_000, 1, 0, 5000) => "grant:2@0:20000:2000";
        it.stands(1, 0) => "Waiting:5000:0";
        it.stands(2, 0) => "Running:0:0";
    }
}

#[test]
fn soft_terms_that_become_hard_end_an_endless_lease() {
    let mut it = Script::new(1);
    check! {
        it.arrive(0, 1, &[0], Terms::soft(share(50))) => "";
        it.ready(0, 1) => "grant:1@0:-:-";
        it.resize(10_000, 1, Terms::hard(share(50))) => "grant:1@0:-:2000 grant:1@0:-:- grant:1@0:15000:2000";
        it.alarm() => Some(14800);
        it.resize(11_000, 1, Terms::hard(share(10))) => "grant:1@0:15000:2000 grant:1@0:15000:2000";
        it.alarm() => Some(14800);
        it.pass(14_800) => "grant:1@0:16000:2000";
        it.alarm() => Some(15800);
        it.pass(15_000) => "";
        it.alarm() => Some(15800);
        it.release(16_000, 1, 0, 16_000) => "";
        it.alarm() => Some(28500);
        it.stands(1, 0) => "Throttled:0:0";
        it.pass(40_000) => "grant:1@0:42666:2000";
        it.alarm() => Some(42466);
        it.resize(41_000, 1, Terms::soft(share(10))) => "grant:1@0:42666:2000 grant:1@0:42666:2000";
        it.alarm() => Some(42466);
    }
}

#[test]
fn a_hard_cap_repays_its_debt_while_no_lease_is_out_however_long() {
    let mut it = Script::new(1);
    check! {
        it.arrive(0, 1, &[0], Terms::hard(share(10))) => "";
        it.ready(0, 1) => "grant:1@0:5000:2000";
        it.alarm() => Some(4800);
        it.pass(5_000) => "";
        it.alarm() => Some(35000);
        it.release(25_000, 1, 0, 25_000) => "";
        it.alarm() => Some(212500);
        it.stands(1, 0) => "Throttled:17500:0";
        it.idle(26_000, 1) => "";
        it.alarm() => None;
        it.ready(10_000_000, 1) => "grant:1@0:10005000:2000";
        it.alarm() => Some(10004800);
    }
}

#[test]
fn work_in_flight_beside_a_latency_critical_tenant_is_half_a_kernel_within_bounds() {
    let mut it = Script::new(1);
    check! {
        it.arrive(0, 1, &[0], Terms::soft(share(40))) => "";
        it.ready(0, 1) => "grant:1@0:-:-";
        it.arrive(0, 2, &[0], Terms::latency(share(40))) => "grant:1@0:-:1000";
        it.report(100, 1, 0, 1600) => "";
        it.arrive(200, 3, &[0], Terms::weight(1)) => "grant:1@0:-:800";
        it.report(300, 1, 0, 20_000) => "";
        it.arrive(300, 4, &[0], Terms::weight(1)) => "grant:1@0:-:1000";
        it.report(400, 1, 0, 100) => "";
        it.arrive(400, 5, &[0], Terms::weight(1)) => "grant:1@0:-:400";
        it.report(500, 1, 0, 0) => "";
        it.arrive(500, 6, &[0], Terms::weight(1)) => "grant:1@0:-:400";
        it.ready(600, 2) => "revoke:1@0 grant:2@0:-:10000";
        it.alarm() => Some(30600);
        it.release(700, 1, 0, 700) => "grant:2@0:5700:10000";
        it.charged(1) => 700;
        it.charged(2) => 0;
        it.alarm() => Some(5500);
        it.pass(5_500) => "grant:2@0:10700:10000";
        it.alarm() => Some(10500);
        it.pass(10_500) => "grant:2@0:15700:10000";
        it.alarm() => Some(15500);
    }
}

#[test]
fn a_latency_critical_tenant_runs_by_its_budget_and_then_by_its_turn() {
    let mut it = Script::new(1);
    let terms = Terms {
        class: divvy_arbiter::Class::Latency { period: 100_000 * US },
        ..Terms::soft(share(10))
    };
    check! {
        it.arrive(0, 1, &[0], terms) => "";
        it.arrive(0, 2, &[0], Terms::soft(share(50))) => "";
        it.ready(0, 2) => "grant:2@0:-:1000";
        it.ready(1000, 1) => "revoke:2@0 grant:1@0:-:10000";
        it.alarm() => Some(31000);
        it.release(2000, 2, 0, 2000) => "grant:1@0:7000:10000";
        it.charged(1) => 0;
        it.charged(2) => 2000;
        it.ready(2000, 2) => "";
        it.alarm() => Some(6800);
        it.pass(5800) => "";
        it.alarm() => Some(6800);
        it.pass(10800) => "";
        it.alarm() => Some(37000);
        it.pass(11800) => "";
        it.alarm() => Some(37000);
        it.pass(12000) => "";
        it.alarm() => Some(37000);
        it.release(14_000, 1, 0, 14_000) => "grant:2@0:19000:1000";
        it.stands(1, 0) => "Waiting:3000:0";
        it.alarm() => Some(18800);
        it.ready(14_000, 1) => "";
        it.alarm() => Some(18800);
        it.pass(18_800) => "grant:2@0:24000:1000";
        it.alarm() => Some(23800);
        it.pass(100_000) => "expire:2@0 grant:1@0:-:2000";
        it.alarm() => Some(200000);
        it.release(101_000, 2, 0, 89_000) => "grant:1@0:107599:2000";
        it.stands(1, 0) => "Running:4000:0";
        it.stands(2, 0) => "Waiting:19000:0";
    }
}

#[test]
fn the_earlier_deadline_runs_first() {
    let mut it = Script::new(1);
    let latency = |period: Nanos| Terms {
        class: divvy_arbiter::Class::Latency { period: period * US },
        ..Terms::soft(share(20))
    };
    check! {
        it.arrive(0, 1, &[0], latency(200_000)) => "";
        it.arrive(0, 2, &[0], latency(100_000)) => "";
        it.arrive(0, 3, &[0], latency(100_000)) => "";
        it.ready(0, 1) => "grant:1@0:-:2000";
        it.ready(1000, 2) => "revoke:1@0 grant:2@0:-:2000";
        it.release(1500, 1, 0, 1500) => "grant:2@0:6500:2000";
        it.ready(1600, 1) => "";
        it.ready(2000, 3) => "";
        it.idle(3000, 2) => "grant:3@0:8000:2000";
        it.idle(4000, 3) => "grant:1@0:-:2000";
        it.charged(1) => 1500;
        it.charged(2) => 1500;
        it.charged(3) => 1000;
        it.alarm() => Some(104000);
    }
}

#[test]
fn a_waking_tenant_with_a_clearly_better_claim_ends_the_quantum_early() {
    let mut it = Script::new(1);
    check! {
        it.arrive(0, 1, &[0], Terms::soft(share(50))) => "";
        it.arrive(0, 2, &[0], Terms::soft(share(50))) => "";
        it.arrive(0, 3, &[0], Terms::weight(1)) => "";
        it.ready(0, 1) => "grant:1@0:-:2000";
        it.ready(0, 3) => "grant:1@0:5000:2000";
        it.pass(4800) => "";
        it.ready(4900, 2) => "revoke:1@0";
        it.release(5000, 1, 0, 5000) => "grant:2@0:10000:2000";
        it.ready(5000, 1) => "";
        it.idle(5500, 2) => "grant:3@0:10500:2000";
        it.release(6000, 1, 0, 500) => "";
        it.ready(6000, 1) => "";
        it.idle(6100, 3) => "grant:1@0:-:2000";
        it.ready(6500, 2) => "grant:1@0:7350:2000";
        it.alarm() => Some(7150);
        it.pass(7000) => "";
        it.pass(8000) => "";
        it.alarm() => Some(37350);
    }
}

#[test]
fn a_gang_takes_its_devices_together() {
    let mut it = Script::new(2);
    check! {
        it.arrive(0, 1, &[0], Terms::soft(share(50))) => "";
        it.arrive(0, 2, &[1], Terms::soft(share(50))) => "";
        it.arrive(0, 3, &[0, 1], Terms::soft(share(50))) => "";
        it.ready(0, 1) => "grant:1@0:-:2000";
        it.ready(0, 2) => "grant:2@1:-:2000";
        it.ready(1000, 3) => "grant:2@1:5000:2000 grant:1@0:5000:2000";
        it.alarm() => Some(4800);
        it.pass(4800) => "";
        it.alarm() => Some(35000);
        it.release(5000, 1, 0, 5000) => "";
        it.ready(5000, 1) => "";
        it.release(5200, 2, 1, 5200) => "grant:3@0:10200:2000 grant:3@1:10200:2000";
        it.ready(5200, 2) => "";
        it.alarm() => Some(10000);
        it.pass(10_000) => "";
        it.alarm() => Some(40200);
        it.release(10_200, 3, 0, 5000) => "grant:1@0:-:2000";
        it.alarm() => Some(40200);
        it.release(10_300, 3, 1, 5000) => "grant:1@0:15200:2000 grant:2@1:15200:2000";
        it.stands(3, 0) => "Waiting:0:0";
        it.stands(3, 1) => "Waiting:0:0";
        it.alarm() => Some(15000);
        it.ready(10_300, 3) => "";
        it.alarm() => Some(15000);
        it.pass(15_000) => "";
        it.alarm() => Some(45200);
        it.release(15_200, 1, 0, 10_000) => "";
        it.ready(15_300, 1) => "";
    }
}

#[test]
fn a_latency_critical_gang_waits_for_no_best_effort() {
    let mut it = Script::new(2);
    check! {
        it.arrive(0, 1, &[0], Terms::soft(share(50))) => "";
        it.arrive(0, 2, &[1], Terms::soft(share(50))) => "";
        it.arrive(0, 3, &[0, 1], Terms::latency(share(30))) => "";
        it.ready(0, 1) => "grant:1@0:-:1000";
        it.ready(0, 2) => "grant:2@1:-:1000";
        it.ready(1000, 3) => "revoke:2@1 revoke:1@0";
        it.alarm() => Some(31000);
        it.release(1100, 1, 0, 1100) => "";
        it.release(1200, 2, 1, 1200) => "grant:3@0:6200:10000 grant:3@1:6200:10000";
        it.ready(1300, 1) => "";
        it.alarm() => Some(6000);
        it.ready(1300, 2) => "";
        it.alarm() => Some(6000);
        it.pass(6_000) => "grant:3@0:11200:10000 grant:3@1:11200:10000";
        it.alarm() => Some(11000);
        it.idle(20_000, 3) => "grant:2@1:-:1000 grant:1@0:-:1000";
        it.charged(3) => 18800;
        it.stands(3, 0) => "Idle:0:0";
    }
}

#[test]
fn thrash_makes_the_quantum_ten_times_the_refill_up_to_two_seconds() {
    let mut it = Script::new(1);
    check! {
        it.arrive(0, 1, &[0], Terms::soft(share(50))) => "";
        it.arrive(0, 2, &[0], Terms::soft(share(50))) => "";
        it.thrash(0, 3000) => "";
        it.ready(0, 1) => "grant:1@0:-:2000";
        it.ready(1000, 2) => "grant:1@0:30000:2000";
        it.alarm() => Some(29800);
        it.thrash(2000, 300_000) => "";
        it.release(30_000, 1, 0, 30_000) => "grant:2@0:2030000:2000";
        it.ready(30_000, 1) => "";
        it.alarm() => Some(130000);
        it.thrash(31_000, 1) => "";
        it.release(60_000, 2, 0, 30_000) => "grant:1@0:65000:2000";
        it.ready(60_000, 2) => "";
    }
}

#[test]
fn devices_are_numbered_in_order_and_tenants_are_counted_while_they_are_there() {
    let mut it = Script::new(2);
    assert_eq!(it.0.add_device(), DeviceId(2));
    assert_eq!((it.0.tenants(), it.0.holder(DeviceId(2))), (0, None));
    check! {
        it.arrive(0, 7, &[2], Terms::soft(share(50))) => "";
        it.ready(0, 7) => "grant:7@2:-:-";
        it.arrive(0, 8, &[1], Terms::soft(share(50))) => "";
    }
    assert_eq!((it.0.tenants(), it.0.holder(DeviceId(2))), (2, Some(TenantId(7))));
    assert_eq!((it.0.holder(DeviceId(1)), it.0.holder(DeviceId(9))), (None, None));
    check! {
        it.die(0, 8) => "";
        it.die(0, 7) => "";
    }
    assert_eq!((it.0.tenants(), it.0.holder(DeviceId(2))), (0, None));
}

#[test]
fn the_bounds_on_work_in_flight_go_with_the_neighbours_that_they_are_for() {
    let mut it = Script::new(1);
    check! {
        it.arrive(0, 1, &[0], Terms::soft(share(20))) => "";
        it.ready(0, 1) => "grant:1@0:-:-";
        it.arrive(0, 2, &[0], Terms::latency(share(20))) => "grant:1@0:-:1000";
        it.arrive(0, 3, &[0], Terms::soft(share(20))) => "grant:1@0:-:1000";
        it.die(0, 2) => "grant:1@0:-:2000";
        it.die(0, 3) => "grant:1@0:-:-";
    }
}

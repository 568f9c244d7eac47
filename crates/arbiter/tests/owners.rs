//! An owner's tenants that follow each other have its share together: what one owed the next one pays, whatever it says. Honest ones
//! have their share at each.

use divvy_arbiter::{
    Arbiter, Cap, Class, Decision, DeviceId, Event, MILLISECOND as MS, Nanos, SECOND, Settings, Share,
    TenantId, Terms,
};

const DEVICE: DeviceId = DeviceId(0);

fn share(percent: u16) -> Share {
    Share::new(percent * 100).expect("a share")
}

/// What a tenant does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    /// Launches that are short, and gives its lease back at the end.
    Greedy,
    /// Launches of so many milliseconds that it knows the length of.
    Long(u64),
    /// Keeps its lease until it expires and so many milliseconds more. It says that work is in flight, or nothing.
    Keeps { says: Nanos, stuck: u64 },
    /// Has a lease that expires, uses nothing and never gives it back.
    Lump,
}

struct Tenant {
    does: Does,
    terms: Terms,
    owner: u64,
    /// Milliseconds after which it ends, and another comes 300 ms later; 0 where it ends with its lease.
    lives: u64,
    id: TenantId,
    born: u64,
    /// Away until then.
    away: u64,
    asked: bool,
    until: Option<Nanos>,
    expired: Option<u64>,
    /// Milliseconds left of its launch.
    left: u64,
    /// Microseconds of the device that it had in each millisecond.
    had: Vec<u64>,
}

fn tenant(does: Does, terms: Terms, owner: u64) -> Tenant {
    Tenant {
        does,
        terms,
        owner,
        lives: u64::MAX,
        id: TenantId(0),
        born: 0,
        away: 0,
        asked: false,
        until: None,
        expired: None,
        left: 0,
        had: Vec::new(),
    }
}

/// A device that works in turns, in steps of a millisecond.
struct World {
    arbiter: Arbiter,
    /// In milliseconds.
    now: u64,
    tenants: Vec<Tenant>,
    next: u64,
}

impl World {
    fn new(tenants: Vec<Tenant>) -> Self {
        let mut world = Self {
            arbiter: Arbiter::new(Settings::default(), 1),
            now: 1000,
            tenants,
            next: 0,
        };
        (0..world.tenants.len()).for_each(|one| world.arrive(one));
        world
    }

    fn arrive(&mut self, one: usize) {
        self.next += 1;
        let id = TenantId(self.next);
        let tenant = &mut self.tenants[one];
        (tenant.id, tenant.born) = (id, self.now);
        (tenant.asked, tenant.until, tenant.expired, tenant.left) = (false, None, None, 0);
        let (terms, owner) = (tenant.terms, tenant.owner);
        self.tell(Event::Arrived {
            tenant: id,
            devices: vec![DEVICE],
            terms,
        });
        self.tell(Event::Owned { tenant: id, owner });
    }

    /// Its slice ends, and the owner's next one begins.
    fn follow(&mut self, one: usize) {
        let tenant = self.tenants[one].id;
        self.tell(Event::Died { tenant });
        self.arrive(one);
        self.tenants[one].away = self.now + 300;
    }

    fn tell(&mut self, event: Event) {
        for decision in self.arbiter.handle(self.now * MS, &event).expect("taken") {
            let (Decision::Grant { tenant: id, .. }
            | Decision::Revoke { tenant: id, .. }
            | Decision::Overdue { tenant: id, .. }
            | Decision::Expire { tenant: id, .. }) = decision;
            let Some(tenant) = self.tenants.iter_mut().find(|tenant| tenant.id == id) else {
                continue;
            };
            match decision {
                Decision::Grant { until, .. } => {
                    (tenant.until, tenant.expired, tenant.asked) = (Some(until), None, false);
                }
                Decision::Revoke { .. } => tenant.until = tenant.until.map(|_| self.now * MS),
                Decision::Expire { .. } => tenant.expired = Some(self.now),
                Decision::Overdue { .. } => {}
            }
        }
    }

    fn act(&mut self, one: usize) {
        let now = self.now;
        let tenant = &mut self.tenants[one];
        let id = tenant.id;
        if now < tenant.away {
            return;
        }
        if tenant.lives > 0 && now - tenant.born > tenant.lives.saturating_add(300) {
            return self.follow(one);
        }
        let Some(until) = tenant.until else {
            if !std::mem::replace(&mut tenant.asked, true) {
                self.tell(Event::Ready { tenant: id });
            }
            return;
        };
        let is_over = until <= now * MS;
        if let Does::Long(length) = tenant.does
            && !is_over
            && tenant.left == 0
        {
            tenant.left = length;
        }
        let gives_back = match tenant.does {
            _ if !is_over => false,
            Does::Greedy => true,
            Does::Long(_) => tenant.left == 0,
            Does::Keeps { stuck, .. } => tenant.expired.is_some_and(|at| now - at >= stuck),
            Does::Lump => false,
        };
        let in_flight = match tenant.does {
            Does::Keeps { says, .. } => says,
            _ => tenant.left * MS,
        };
        let ends = matches!(tenant.does, Does::Keeps { .. }) && tenant.lives == 0;
        if gives_back && ends {
            self.follow(one);
        } else if gives_back {
            tenant.until = None;
            self.tell(Event::Released {
                tenant: id,
                device: DEVICE,
                busy: 0,
            });
        } else if is_over && tenant.does != Does::Lump {
            self.tell(Event::Report {
                tenant: id,
                device: DEVICE,
                busy: 0,
                kernel: 0,
                in_flight,
            });
        }
    }

    fn run(mut self, seconds: u64) -> Self {
        for _ in 0..seconds * 1000 {
            self.now += 1;
            while self.arbiter.deadline().is_some_and(|at| at <= self.now * MS) {
                self.tell(Event::Time);
            }
            (0..self.tenants.len()).for_each(|one| self.act(one));
            let now = self.now * MS;
            let uses = |tenant: &Tenant| match tenant.does {
                Does::Greedy => tenant.until.is_some_and(|until| until > now),
                Does::Long(_) => tenant.left > 0,
                Does::Keeps { .. } => tenant.until.is_some() && self.now >= tenant.away,
                Does::Lump => false,
            };
            let using: Vec<bool> = self.tenants.iter().map(uses).collect();
            let turns = using.iter().filter(|uses| **uses).count() as u64;
            for (tenant, uses) in self.tenants.iter_mut().zip(using) {
                tenant.had.push(if uses { 1000 / turns } else { 0 });
                tenant.left -= u64::from(uses && tenant.left > 0);
            }
        }
        self
    }

    /// The part of the device that a tenant had, and its owner's later ones, from a fifth of the time on; in percent.
    fn percent(&self, one: usize) -> f64 {
        let had = &self.tenants[one].had;
        let had = &had[had.len() / 5..];
        had.iter().sum::<u64>() as f64 / 10.0 / had.len() as f64
    }

    /// The longest time in milliseconds for which it had nothing.
    fn longest_wait(&self, one: usize) -> usize {
        let waits = self.tenants[one].had.split(|had| *had > 0);
        waits.map(<[u64]>::len).max().unwrap_or(0)
    }
}

fn terms(percent: u16, cap: Cap, class: Class) -> Terms {
    Terms {
        cap,
        class,
        ..Terms::soft(share(percent))
    }
}

const ALL: [(Cap, Class); 4] = [
    (Cap::Hard, Class::BestEffort),
    (Cap::Soft, Class::BestEffort),
    (Cap::Hard, Class::LATENCY),
    (Cap::Soft, Class::LATENCY),
];

/// It was 96 % at a cap of 30, and 52 % at a cap of 10 without a word about work in flight.
#[test]
fn slices_that_follow_each_other_have_one_share_whatever_each_says() {
    for (percent, says, stuck) in [
        (30, Nanos::MAX, 0),
        (30, Nanos::MAX, 5000),
        (10, 0, 5000),
        (10, 0, 0),
    ] {
        for (cap, class) in ALL {
            let attacker = Tenant {
                lives: 0,
                ..tenant(Does::Keeps { says, stuck }, terms(percent, cap, class), 7)
            };
            let other = tenant(Does::Greedy, terms(100 - percent, cap, Class::BestEffort), 8);
            let world = World::new(vec![attacker, other]).run(200);
            let had = world.percent(0);
            assert!(
                had <= f64::from(percent) + 1.5,
                "{percent} % {cap:?} {class:?}, says {says}, stuck for {stuck} ms: {had} %"
            );
        }
    }
}

/// Jobs of a queue: 300 ms lie between them.
#[test]
fn honest_slices_that_follow_each_other_have_their_share_at_each() {
    for (lives, does) in [
        (3000, Does::Greedy),
        (3000, Does::Long(20)),
        (10_000, Does::Long(300)),
        (60_000, Does::Long(1000)),
    ] {
        for (cap, class) in ALL {
            let jobs = Tenant {
                lives,
                ..tenant(does, terms(30, cap, class), 7)
            };
            let other = tenant(Does::Greedy, terms(70, cap, Class::BestEffort), 8);
            let world = World::new(vec![jobs, other]).run(200);
            let had = world.percent(0);
            let due = 30.0 * lives as f64 / (lives as f64 + 300.0);
            assert!(
                had >= due - 2.0 && had <= 31.5,
                "{cap:?} {class:?} {does:?} of {lives} ms: {had} % of {due}"
            );
        }
    }
}

/// The debt of an owner stays where most of its part is.
#[test]
fn a_small_slice_takes_over_no_large_ones_debt_and_a_resize_frees_none() {
    let hard = |percent| Terms::hard(share(percent));
    let debt = |world: &World, one: usize| {
        let view = world.arbiter.view(world.tenants[one].id, DEVICE);
        view.expect("it is there").debt
    };
    let owes = || {
        let keeps = Does::Keeps {
            says: 0,
            stuck: u64::MAX,
        };
        let one = tenant(keeps, hard(30), 7);
        let world = World::new(vec![one, tenant(Does::Greedy, hard(70), 8)]).run(10);
        assert!(debt(&world, 0) > 6 * SECOND);
        world
    };
    // One of a hundredth comes first, and ends.
    let mut world = owes();
    let died = world.tenants[0].id;
    world.tell(Event::Died { tenant: died });
    world.tenants[0].terms = hard(1);
    world.arrive(0);
    assert!(debt(&world, 0) < 300 * MS, "{}", debt(&world, 0));
    world.tenants.push(tenant(Does::Greedy, hard(29), 7));
    world.arrive(2);
    assert!(debt(&world, 2) > 5 * SECOND, "{}", debt(&world, 2));
    // It is made small, and another comes beside it.
    let mut world = owes();
    let small = world.tenants[0].id;
    world.tell(Event::Resized {
        tenant: small,
        terms: hard(1),
    });
    world.tenants.push(tenant(Does::Greedy, hard(29), 7));
    world.arrive(2);
    assert!(debt(&world, 2) > 5 * SECOND, "{}", debt(&world, 2));
    // The other one ends, and the first has all again.
    let other = world.tenants[2].id;
    world.tell(Event::Died { tenant: other });
    world.tell(Event::Resized {
        tenant: small,
        terms: hard(30),
    });
    assert!(debt(&world, 0) > 5 * SECOND, "{}", debt(&world, 0));
    // Another user's slice owes nothing of it.
    let mut world = owes();
    world.tell(Event::Died {
        tenant: world.tenants[0].id,
    });
    world.tenants[0].owner = 9;
    world.arrive(0);
    assert_eq!(debt(&world, 0), 0);
}

/// A hog of 30 % had 38 % with three of its own, and a neighbour waited for 32 s.
#[test]
fn slices_that_are_stuck_on_purpose_win_no_time_for_another() {
    for owner in [7, 9] {
        let keeps = Does::Keeps {
            says: Nanos::MAX,
            stuck: 0,
        };
        let mut tenants = vec![
            Tenant {
                lives: u64::MAX,
                ..tenant(keeps, Terms::hard(share(30)), 7)
            },
            tenant(Does::Greedy, Terms::hard(share(60)), 8),
        ];
        tenants.extend((0..3).map(|_| tenant(Does::Lump, Terms::hard(share(1)), owner)));
        let world = World::new(tenants).run(600);
        let had = world.percent(0);
        assert!(had <= 34.0, "{had} % beside those of owner {owner}");
        let waited = world.longest_wait(1);
        assert!(waited <= 8100, "{waited} ms");
    }
}

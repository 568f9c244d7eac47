//! Which tenant may run next: leases of GPU time by virtual time. No clock, no I/O, no other crate of Divvy's.
//!
//! An [`Arbiter`] is told [`Event`]s with the time they happened and answers with [`Decision`]s. [`Arbiter::deadline`]
//! says when it wants to be woken if nothing happens. The same events at the same times always lead to the same
//! decisions. docs/adr/0014 argues the design, docs/compute.md explains it to readers.
//!
//! - [`Terms`], [`Share`], [`Settings`]: what a tenant was promised, and how the machine is set.
//! - [`Promises`]: which shares fit on one device, as a pure function.
//! - [`Arbiter`], [`Event`], [`Decision`], [`View`]: the arbiter.
//! - [`sim`]: a model device with programs, a gate and an agent's loop, for tests and benches. No decision uses it.
//!
//! ```
//! use divvy_arbiter::{Arbiter, Decision, DeviceId, Event, FOREVER, MILLISECOND, Settings, Share, TenantId, Terms};
//!
//! let mut arbiter = Arbiter::new(Settings::default(), 1);
//! let tenant = TenantId(7);
//! let terms = Terms::soft(Share::new(3000).expect("30 %"));
//! arbiter.handle(0, &Event::Arrived { tenant, devices: vec![DeviceId(0)], terms })?;
//! let decisions = arbiter.handle(MILLISECOND, &Event::Ready { tenant })?;
//! // No other tenant wants the device: the lease has no end.
//! assert!(matches!(decisions[..], [Decision::Grant { until: FOREVER, .. }]));
//! # Ok::<(), divvy_arbiter::Refused>(())
//! ```
//!
//! # What stands around it
//!
//! **The agent's loop** owns the clock and the pages. It must
//! - call [`Arbiter::handle`] for every event, one at a time, and at [`Arbiter::deadline`] with [`Event::Time`]. The
//!   clock is monotonic (the device clock where there is one);
//! - write each [`Decision::Grant`] into the tenant's grant page (epoch, end, in-flight bound) and wake it; write
//!   [`Decision::Revoke`] at once, without waiting for anything; report [`Decision::Overdue`] and
//!   [`Decision::Expire`] to the user;
//! - send [`Event::Ready`] when a gate waits for a lease;
//! - send [`Event::Idle`] when a holder has had nothing in flight and launched nothing for 100 µs;
//! - send [`Event::Released`] when a lease has ended and nothing of it is in flight any more. The loop does so on the
//!   tenant's behalf too, when its page shows it, because a stopped program cannot say so itself;
//! - send [`Event::Died`] when the liveness lock is free, which the kernel does after the device context is gone;
//! - send [`Event::Report`] now and then while a lease lasts, and when it ends with work in flight: the in-flight bound
//!   follows the kernels by it, and the arbiter knows for how long to wait.
//!
//! **The gate** in the limiter holds a launch back unless the lease holds, and
//! - the work in flight would end before the lease does by the gate's estimate, and
//! - the estimate of what is in flight and of this launch fit the in-flight bound. A launch may also pass when what is
//!   in flight ends so soon (within 1/64 of the bound) that the device would run dry before a launch could arrive.
//!
//! So one kernel of any length may always run, and only that kernel can outlast a lease. A grant with the epoch of the
//! one before changes its end or its bound, either way. The gate lets go of a lease it does not use and reports busy
//! time that only grows.
//!
//! **A device** runs the work in flight to its end: nothing here needs preemption. A lease that has expired with work
//! in flight shares the device with the next holder by the hardware's own time-slicing, if any.

#![forbid(unsafe_code)]

mod admission;
mod arbiter;
mod bucket;
mod change;
mod charge;
mod clock;
mod debts;
mod decision;
mod device;
mod event;
mod gang;
mod holding;
mod longest;
mod owner;
mod pick;
mod place;
mod server;
mod settings;
pub mod sim;
mod tenant;
mod terms;
mod timers;
mod view;
mod virtual_time;

pub use admission::{Overcommitted, Promises};
pub use arbiter::Arbiter;
pub use decision::Decision;
pub use event::{Event, Refused};
pub use settings::Settings;
pub use terms::{Cap, Class, Part, Share, Terms};
pub use view::{Standing, View};

/// Nanoseconds: a duration, or a time on the caller's clock.
pub type Nanos = u64;

/// One microsecond in nanoseconds.
pub const MICROSECOND: Nanos = 1_000;
/// One millisecond in nanoseconds.
pub const MILLISECOND: Nanos = 1_000_000;
/// One second in nanoseconds.
pub const SECOND: Nanos = 1_000_000_000;

/// The end of a lease that lasts until another tenant wants the device, and the bound of work that nothing bounds.
pub const FOREVER: Nanos = Nanos::MAX;

/// A tenant, as its owner numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u64);

/// A device, by its place in the arbiter's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

//! MIG: which layouts a device can have, how to get from one to another with the fewest changes, and doing it.

mod alone;
mod apply;
mod compute;
mod contents;
mod driver;
mod file;
mod geometry;
mod goal;
mod nvml;
mod plan;
mod pool;
mod request;
mod room;
mod strategy;
mod with_timeout;

pub use alone::Alone;
pub use apply::{Change, DevicePlan, Outcome, Step, apply, occupancy, plan_devices};
pub use compute::{Filled, fill, part_name};
pub use driver::{ComputeInstance, GpuInstance, MigDevice, MigDriver, NewInstance, Tenant};
pub use file::{ConfigEntry, Devices, MigFile, Target, targets};
pub use geometry::{Geometry, Layout, Profile, Shapes};
pub use goal::goal;
pub use nvml::NvmlMig;
pub use plan::{Chosen, Goal, Occupancy, best};
pub use pool::{Placed, PoolPlan, Unplaced, plan_pool};
pub use request::{Wanted, parse_list};
pub use room::{Least, room_for};
pub use strategy::{Strategy, resources};
pub use with_timeout::MigWithTimeout;

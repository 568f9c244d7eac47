//! A model of devices shared by programs: for tests and benches, and to compare ways of sharing.
//!
//! Its devices run kernels to their end, and its programs launch by the rules of a gate. Messages between programs and
//! agent take time, and so does everything that a host does late. [`run`] plays a [`Scenario`] and returns what each
//! actor got. The same seed gives the same run. Nothing the arbiter decides depends on anything here.

mod agent;
mod device;
mod engine;
mod gate;
mod learnt;
mod load;
mod outcome;
mod play;
mod program;
mod random;
mod scenario;
mod script;
mod world;

pub use load::{Lengths, Load};
pub use outcome::{Actor as ActorOutcome, Outcome, percentile};
pub use play::{run, run_timed};
pub use random::Random;
pub use scenario::{Actor, Host, Scenario, Sharing, Step, Turn};

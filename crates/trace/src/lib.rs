//! What a program asks of CUDA, recorded: calls with their arguments, kernels and copies, and device memory in use.
//!
//! A process is traced where `DIVVY_TRACE` names a folder. Its libraries (the emulated driver's, the runtime's) write there
//! into files of their own, through mappings: a process that is killed loses nothing that was written, and no descriptor
//! of the program is taken. `divvy emulate trace` reads while the program runs. See docs/adr/0057.
//!
//! - `event`: what is recorded, and its bytes
//! - `sink`: the files of this process; `chunk`: the parts that they consist of
//! - `show`: an argument as text, `roles`: what each is for
//! - `call`: a call that is recorded; [`through!`] puts it into a drop-in's exports
//! - `origin`: which call a kernel came from, and how much memory is in use
//! - `follow`: the other side, which reads

mod call;
mod chunk;
mod clock;
mod event;
mod follow;
#[doc(hidden)]
pub mod fuzzing;
mod origin;
mod roles;
mod show;
mod sink;

#[doc(hidden)]
pub use call::{Entered, Given, Outcome, aside};
pub use clock::now_ns;
#[doc(hidden)]
pub use divvy_abi::guard;
pub use event::{Call, Event, Kernel, Operation};
pub use follow::{Follower, Heard, LOST};
pub use origin::{Origin, device, memory_by, operation, origin};
#[doc(hidden)]
pub use show::{AsBytes, AsDebug, AsPointer, Probe};
pub use sink::{FOLDER, begin, is_on};

/// The names of all functions that can be recorded: the driver's, and both runtimes'.
pub fn functions() -> impl Iterator<Item = &'static str> {
    use divvy_abi::{Symbol, runtime};
    let driver = Symbol::ALL.iter().map(|symbol| symbol.name());
    let (old, new) = (runtime::v12::Symbol::ALL, runtime::v13::Symbol::ALL);
    let old = old.iter().map(|symbol| symbol.name());
    driver.chain(old).chain(new.iter().map(|symbol| symbol.name()))
}

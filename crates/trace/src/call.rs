//! A call that is recorded, and the macro that puts this into a drop-in's exports.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use divvy_abi::runtime::{cudaChannelFormatDesc, cudaError_t, cudaErrorNotReady, cudaSuccess};
use divvy_abi::{CUDA_ERROR_NOT_READY, CUDA_SUCCESS, CUresult, c_char, c_void};

use crate::clock::now_ns;
use crate::event::{Call, Event};
use crate::origin::{self, Origin};
use crate::roles::role;
use crate::show::{self, How, Printer};
use crate::sink;

/// An argument of a call.
#[derive(Debug, Clone, Copy)]
pub struct Given {
    /// Its name.
    pub name: &'static str,
    /// Its type, as Rust spells it.
    pub of: &'static str,
    /// Where it lies.
    pub at: *const (),
    /// Its size in bytes.
    pub bytes: usize,
    /// What writes it.
    pub print: Printer,
}

/// What a call answered.
pub trait Outcome {
    /// Its text.
    fn text(&self) -> String;
    /// Whether it is an error. That something is not ready yet is none.
    fn failed(&self) -> bool {
        false
    }
}

impl Outcome for CUresult {
    fn text(&self) -> String {
        format!("{self:?}")
    }

    fn failed(&self) -> bool {
        ![CUDA_SUCCESS, CUDA_ERROR_NOT_READY].contains(self)
    }
}

impl Outcome for cudaError_t {
    fn text(&self) -> String {
        format!("{self:?}")
    }

    fn failed(&self) -> bool {
        ![cudaSuccess, cudaErrorNotReady].contains(self)
    }
}

impl Outcome for () {
    fn text(&self) -> String {
        String::new()
    }
}

/// A text of the library's own.
impl Outcome for *const c_char {
    fn text(&self) -> String {
        show::text(*self as u64)
    }
}

macro_rules! plain {
    ($($of:ty)*) => {$(
        impl Outcome for $of {
            fn text(&self) -> String {
                let text: &dyn Debug = self;
                format!("{text:?}")
            }
        }
    )*};
}

plain! { u32 c_char *mut *mut c_void cudaChannelFormatDesc }

/// A call that has begun.
#[derive(Debug)]
pub struct Entered {
    origin: Origin,
    outer: Option<Origin>,
}

impl Entered {
    /// A function is called.
    pub fn new(name: &'static str) -> Entered {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let origin = Origin {
            tid: sink::tid(),
            begin: now_ns(),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            name,
        };
        sink::write(&Event::Enter {
            at: origin.begin,
            tid: origin.tid,
            name: name.to_owned(),
        });
        Entered {
            outer: origin::set(Some(origin)),
            origin,
        }
    }

    /// It has answered.
    pub fn left(self, answer: &impl Outcome, given: &[Given]) {
        let end = now_ns();
        let Origin {
            tid,
            begin,
            number,
            name,
        } = self.origin;
        let succeeded = !answer.failed();
        let arguments = given
            .iter()
            .map(|argument| {
                (
                    Cow::Borrowed(argument.name),
                    text(name, argument, given, succeeded),
                )
            })
            .collect();
        sink::write(&Event::Call(Call {
            tid,
            begin,
            end,
            number,
            failed: !succeeded,
            name: name.into(),
            result: answer.text(),
            arguments,
        }));
        origin::memory();
        origin::set(self.outer);
    }
}

fn text(function: &str, argument: &Given, given: &[Given], succeeded: bool) -> String {
    let mut text = String::new();
    let role = role(function, argument.name, argument.of);
    // Lists without a length, of pointers without a type; code and variables that are declared as texts.
    let is_untyped = [
        "kernelParams",
        "extra",
        "args",
        "hostFun",
        "hostVar",
        "deviceAddress",
    ]
    .contains(&argument.name);
    let how = How {
        of: argument.of,
        role,
        count: match role.count {
            Some(counted) => given.iter().find(|other| other.name == counted).map_or(1, number),
            None => 1,
        },
        succeeded,
    };
    match is_untyped && argument.bytes == size_of::<u64>() {
        // SAFETY: an argument of eight bytes lies there, for the length of the call.
        true => match unsafe { argument.at.cast::<u64>().read_unaligned() } {
            0 => text.push_str("null"),
            address => text.push_str(&format!("{address:#x}")),
        },
        // SAFETY: the printer is of the argument's type (`through!`).
        false => unsafe { (argument.print)(argument.at, &how, &mut text) },
    }
    text
}

/// A number that is an argument.
fn number(argument: &Given) -> u64 {
    // SAFETY: an argument of this size lies there, for the length of the call.
    unsafe {
        match argument.bytes {
            4 => u64::from(argument.at.cast::<u32>().read_unaligned()),
            8 => argument.at.cast::<u64>().read_unaligned(),
            _ => 1,
        }
    }
}

/// Keeps what is seldom run out of the way.
#[cold]
#[inline(never)]
pub fn aside<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// What an export of a drop-in does, for `divvy_abi::export_table!(TABLE, through [divvy_trace::through])`: calls the
/// function, and records the call where this process is traced. A panic ends here.
#[macro_export]
macro_rules! through {
    ($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty = $function:ident) => {{
        if $crate::is_on() {
            return $crate::aside(|| {
                #[allow(unused_imports)]
                use $crate::{AsBytes as _, AsDebug as _, AsPointer as _};
                let entered = $crate::Entered::new(stringify!($name));
                let answer: $result = $crate::guard(|| {
                    // SAFETY: the arguments are handed on as they came; the caller vouches for them.
                    unsafe { $function($($parameter),*) }
                });
                entered.left(&answer, &[$($crate::Given {
                    name: stringify!($parameter),
                    of: stringify!($of),
                    at: (&raw const $parameter).cast(),
                    bytes: size_of::<$of>(),
                    print: (&&&$crate::Probe::<$of>::NEW).printer(),
                }),*]);
                answer
            });
        }
        $crate::guard(|| {
            // SAFETY: the arguments are handed on as they came; the caller vouches for them.
            unsafe { $function($($parameter),*) }
        })
    }};
}

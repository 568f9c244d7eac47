//! The generated calls: each one's message is read, checked, made into a call of the driver below, and answered.

use divvy_abi::*;

use super::arena::Spot;
use super::arguments::Count;
use super::{Call, Stop};
use crate::handle::{Kind, Word};
use crate::wire::Pointee;

macro_rules! size {
    ($of:ty) => {
        size_of::<<$of as Pointee>::To>()
    };
}

macro_rules! offsets {
    ($of:ty, [$($member:ident)*]) => {
        &[$(std::mem::offset_of!(<$of as Pointee>::To, $member)),*]
    };
}

macro_rules! number {
    ($call:ident $literal:literal) => {
        $literal
    };
    ($call:ident $argument:ident) => {
        Count::count(&$argument, $call.arena)
    };
}

macro_rules! product {
    ($call:ident $($factor:tt)*) => {
        1_u64$(.saturating_mul(number!($call $factor)))*
    };
}

macro_rules! parent {
    ($call:ident) => {
        None
    };
    ($call:ident current) => {
        $call.current()
    };
    ($call:ident of $argument:ident) => {
        $argument.id()
    };
    ($call:ident $argument:ident) => {
        $argument.id()
    };
}

/// Reads an argument. Nothing here depends on another one.
macro_rules! read {
    ($call:ident value $of:ty, $needs:tt) => {
        $call.message.plain::<$of>()?
    };
    ($call:ident device $of:ty, $needs:tt) => {
        $call.message.plain::<$of>()?
    };
    ($call:ident input $of:ty, $needs:tt) => {
        $call.input(size!($of), offsets!($of, $needs))?
    };
    ($call:ident inout $of:ty, $needs:tt) => {
        $call.input(size!($of), &[])?
    };
    ($call:ident inputs $of:ty, $needs:tt) => {
        $call.inputs(size!($of))?
    };
    ($call:ident string $of:ty, $needs:tt) => {
        $call.string()?
    };
    ($call:ident handle $of:ty, [$kind:ident]) => {
        $call.handle(Kind::$kind)?
    };
    ($call:ident destroy $of:ty, [$kind:ident]) => {
        $call.ended(Kind::$kind)?
    };
    ($call:ident create $of:ty, [$kind:ident $($parent:tt)*]) => {
        $call.made(Kind::$kind)?
    };
    ($call:ident handles $of:ty, [$kind:ident; $($count:tt)*]) => {
        $call.handles(Kind::$kind)?
    };
    ($call:ident memory $of:ty, $needs:tt) => {
        $call.message.plain::<u64>()?
    };
    ($call:ident rows $of:ty, $needs:tt) => {
        $call.message.plain::<u64>()?
    };
    ($call:ident free_memory $of:ty, $needs:tt) => {
        $call.beginning()?
    };
    ($call:ident null $of:ty, $needs:tt) => {
        Spot::NULL
    };
    ($call:ident output $of:ty, $needs:tt) => {
        $call.wanted(size!($of) as u64)?
    };
    ($call:ident find $of:ty, $needs:tt) => {
        $call.wanted(8)?
    };
    ($call:ident find_device $of:ty, $needs:tt) => {
        $call.wanted(size!($of) as u64)?
    };
    ($call:ident new_memory $of:ty, $needs:tt) => {
        $call.new_memory()?
    };
    ($call:ident outputs $of:ty, $needs:tt) => {
        $call.wants()?
    };
    ($call:ident finds $of:ty, $needs:tt) => {
        $call.wants()?
    };
}

/// Checks an argument against the others, and makes room for the lists that the driver writes.
macro_rules! check {
    ($call:ident inputs $p:ident $of:ty, [$($count:tt)*]) => {
        $call.must_have($p, product!($call $($count)*), size!($of))?;
    };
    ($call:ident handles $p:ident $of:ty, [$kind:ident; $($count:tt)*]) => {
        $call.must_have($p, product!($call $($count)*), 8)?;
    };
    ($call:ident memory $p:ident $of:ty, [$($count:tt)*]) => {
        $call.within($p, within!($call $($count)*))?;
    };
    ($call:ident rows $p:ident $of:ty, [$rows:tt, $pitch:tt, $($width:tt)*]) => {
        let (rows, pitch) = (number!($call $rows), number!($call $pitch));
        $call.rows_within($p, rows, pitch, product!($call $($width)*))?;
    };
    ($call:ident outputs $p:ident $of:ty, [$($count:tt)*]) => {
        let $p = $call.room($p, product!($call $($count)*), size!($of))?;
    };
    ($call:ident finds $p:ident $of:ty, [$kind:ident $(of $parent:ident)?; $($count:tt)*]) => {
        let $p = $call.room($p, product!($call $($count)*), 8)?;
    };
    ($call:ident $role:ident $p:ident $of:ty, $needs:tt) => {};
}

/// Bytes behind an address: one at least where the role names no count.
macro_rules! within {
    ($call:ident) => { 0 };
    ($call:ident $($count:tt)+) => { product!($call $($count)+) };
}

/// What the driver is given.
macro_rules! pass {
    (value $p:ident $base:ident) => {
        $p
    };
    (device $p:ident $base:ident) => {
        $p
    };
    (handle $p:ident $base:ident) => {
        Word::from_bits($p.real)
    };
    (destroy $p:ident $base:ident) => {
        Word::from_bits($p.real)
    };
    (create $p:ident $base:ident) => {
        $p.spot.pointer($base)
    };
    (memory $p:ident $base:ident) => {
        Word::from_bits($p)
    };
    (rows $p:ident $base:ident) => {
        Word::from_bits($p)
    };
    (free_memory $p:ident $base:ident) => {
        Word::from_bits($p.address)
    };
    (null $p:ident $base:ident) => {
        Word::from_bits(0)
    };
    ($role:ident $p:ident $base:ident) => {
        $p.pointer($base)
    };
}

/// After a call that succeeded: what the tables and the client learn.
macro_rules! settle {
    ($call:ident $full:ident destroy $p:ident $of:ty, $needs:tt) => {
        if let Some(id) = $p.id() {
            $call.server.tables().remove(id);
        }
    };
    ($call:ident $full:ident create $p:ident $of:ty, [$kind:ident $($parent:tt)*]) => {
        let parent = parent!($call $($parent)*);
        $call.enter($p, parent);
    };
    ($call:ident $full:ident find $p:ident $of:ty, [$kind:ident $($parent:tt)*]) => {
        $full = $full.and($call.find(Kind::$kind, $p, parent!($call $($parent)*)));
    };
    ($call:ident $full:ident finds $p:ident $of:ty, [$kind:ident $(of $parent:ident)?; $($count:tt)*]) => {
        $full = $full.and($call.finds(Kind::$kind, $p, parent!($call $(of $parent)?)));
    };
    ($call:ident $full:ident new_memory $p:ident $of:ty, [$($parent:ident)?; $($count:tt)*]) => {
        let parent = parent!($call $($parent)?);
        let bytes = product!($call $($count)*);
        $call.enter_memory($p, bytes, parent);
    };
    ($call:ident $full:ident free_memory $p:ident $of:ty, $needs:tt) => {
        $call.end_free(&$p, true);
    };
    ($call:ident $full:ident output $p:ident $of:ty, $needs:tt) => {
        $call.output($p, offsets!($of, $needs));
    };
    ($call:ident $full:ident find_device $p:ident $of:ty, $needs:tt) => {
        $call.output($p, &[]);
    };
    ($call:ident $full:ident outputs $p:ident $of:ty, $needs:tt) => {
        $call.outputs($p, size!($of));
    };
    ($call:ident $full:ident $role:ident $p:ident $of:ty, $needs:tt) => {};
}

/// Before the call: an object that it destroys is no other call's any more.
macro_rules! begin {
    ($call:ident destroy $p:ident) => {
        if let Some(id) = $p.id() {
            $call.begin_end(id)?;
        }
    };
    ($call:ident free_memory $p:ident) => {
        $call.begin_free(&$p)?;
    };
    ($call:ident $role:ident $p:ident) => {};
}

/// After a call that failed: an object that it was to destroy is there as before.
macro_rules! undo {
    ($call:ident destroy $p:ident) => {
        if let Some(id) = $p.id() {
            $call.server.tables().keep(id);
        }
    };
    ($call:ident free_memory $p:ident) => {
        $call.end_free(&$p, false);
    };
    ($call:ident $role:ident $p:ident) => {};
}

/// After every call: what the driver may have changed.
macro_rules! changed {
    ($call:ident inout $p:ident) => {
        $call.output($p, &[]);
    };
    ($call:ident $role:ident $p:ident) => {};
}

macro_rules! dispatch {
    ([] $($name:ident $id:literal [$how:ident] ($($p:ident: $of:ty = $role:ident $needs:tt),*);)*) => {
        $(
            #[allow(non_snake_case)]
            fn $name(call: &mut Call<'_>) -> Result<CUresult, Stop> {
                $(
                    #[allow(unused_variables)]
                    let $p = read!(call $role $of, $needs);
                )*
                call.message.end()?;
                $(check!(call $role $p $of, $needs);)*
                call.begin_part(Symbol::$name)?;
                $(begin!(call $role $p);)*
                #[allow(unused_variables)]
                let base = call.arena.base();
                // SAFETY: each pointer is null or one to the arena, which is this call's alone, with as many bytes as the
                // roles say. Handles came from the driver, and a call that destroys one waits for this call. Addresses lie
                // in memory that the driver gave.
                let code = unsafe { (call.driver.$name)($(pass!($role $p base)),*) };
                #[allow(unused_mut)]
                let mut full: Result<(), Stop> = Ok(());
                if code == CUDA_SUCCESS {
                    $(settle!(call full $role $p $of, $needs);)*
                } else {
                    $(undo!(call $role $p);)*
                }
                // Whatever the tables have no room for: the driver has made the call.
                call.end_part(code);
                full?;
                $(changed!(call $role $p);)*
                Ok(code)
            }
        )*

        /// Makes a generated call; nothing where no generated call has this id.
        pub fn generated(call: &mut Call<'_>, id: u32) -> Option<Result<CUresult, Stop>> {
            match id {
                $($id => Some($name(call)),)*
                _ => None,
            }
        }
    };
}

divvy_abi::driver_roles! { [dispatch] }

//! Every entry point, through the limiter, with a driver below that records: arguments and results arrive unchanged.

use std::cell::RefCell;
use std::mem::MaybeUninit;

use divvy_abi::{CUresult, Symbol, Table};
use divvy_limiter::{TABLE, below};

thread_local! {
    static RECORDED: RefCell<Vec<(Symbol, Vec<Vec<u8>>)>> = const { RefCell::new(Vec::new()) };
}

/// A value of any driver type, each of whose bytes differs from its neighbours and from the bytes of every other
/// argument.
fn pattern<T>(seed: &mut u8, bytes: &mut Vec<Vec<u8>>) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    let mut own = Vec::new();
    for _ in 0..size_of::<T>() {
        *seed = seed.wrapping_mul(5).wrapping_add(113);
        own.push(*seed);
    }
    // Never a null function pointer, and no float that is a signalling NaN.
    own[0] |= 1;
    if let Some(last) = own.last_mut() {
        *last &= 0x3f;
    }
    // SAFETY: the bytes fit; driver types are made of integers, floats, raw pointers and optional function pointers,
    // which any bytes are a value of, and no code follows or calls these.
    let value = unsafe {
        value.as_mut_ptr().cast::<u8>().copy_from(own.as_ptr(), own.len());
        value.assume_init()
    };
    bytes.push(own);
    value
}

fn bytes_of<T>(value: &T) -> Vec<u8> {
    // SAFETY: the value came from `pattern`, which initialised each of its bytes.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }.to_vec()
}

fn answer(symbol: Symbol) -> CUresult {
    CUresult(10_000 + symbol.index() as u32)
}

macro_rules! recorder {
    ([] $($name:ident ($public:literal, $since:literal, $stream:ident) ($($parameter:ident: $of:ty),*);)*) => {
        #[allow(non_snake_case)]
        mod record {
            use super::*;
            $(pub unsafe extern "C-unwind" fn $name($($parameter: $of),*) -> CUresult {
                let arguments = vec![$(bytes_of(&$parameter)),*];
                RECORDED.with_borrow_mut(|recorded| recorded.push((Symbol::$name, arguments)));
                answer(Symbol::$name)
            })*
        }

        static RECORDER: Table = Table { $($name: record::$name),* };

        #[allow(non_snake_case, unused_mut)]
        mod call {
            use super::*;
            $(pub fn $name() -> (CUresult, Vec<Vec<u8>>) {
                let mut seed = Symbol::$name.index() as u8;
                let mut sent: Vec<Vec<u8>> = Vec::new();
                $(let $parameter: $of = pattern(&mut seed, &mut sent);)*
                let _ = seed;
                // SAFETY: the driver below reads its arguments and follows none; the limiter follows pointers only
                // after a success, which this driver never answers.
                let result = unsafe { (TABLE.$name)($($parameter),*) };
                (result, sent)
            })*
        }

        static CALLS: &[fn() -> (CUresult, Vec<Vec<u8>>)] = &[$(call::$name),*];
    };
}

divvy_abi::driver_functions! { [recorder] }

#[test]
fn arguments_and_results_pass_unchanged() {
    below::stand_on(&RECORDER);
    assert_eq!(CALLS.len(), Symbol::COUNT);
    for symbol in Symbol::ALL {
        RECORDED.with_borrow_mut(Vec::clear);
        let (result, sent) = CALLS[symbol.index()]();
        assert_eq!(result, answer(*symbol), "{symbol}");
        let recorded = RECORDED.take();
        assert_eq!(recorded.len(), 1, "{symbol}: {recorded:?}");
        assert_eq!(recorded[0].0, *symbol);
        assert_eq!(recorded[0].1, sent, "{symbol}");
    }
}

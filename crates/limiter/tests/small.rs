//! Arrays and modules' variables share pages with each other and with small allocations, which no call reports. The
//! device never holds more than the limit for them.

mod emulated;
mod support;

use divvy_abi::*;
use emulated::{alone, code, cu, get, held};
use support::Slice;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 256 * MIB;

fn array(width: usize) -> Result<CUarray, CUresult> {
    let described = CUDA_ARRAY_DESCRIPTOR {
        Width: width,
        Height: 8,
        Format: CU_AD_FORMAT_FLOAT,
        NumChannels: 2,
    };
    let mut array = std::ptr::null_mut();
    match code!(cuArrayCreate_v2(&raw mut array, &raw const described)) {
        CUDA_SUCCESS => Ok(array),
        code => Err(code),
    }
}

fn module(bytes: usize) -> Result<CUmodule, CUresult> {
    let text = format!(
        ".version 6.4\n.target sm_75\n.address_size 64\n.visible .global .align 8 .b8 big[{bytes}];\n\
         .visible .entry k(){{ret;}}\n\0"
    );
    let mut module = std::ptr::null_mut();
    match code!(cuModuleLoadData(&raw mut module, text.as_ptr().cast())) {
        CUDA_SUCCESS => Ok(module),
        code => Err(code),
    }
}

fn memory(bytes: usize) -> Result<CUdeviceptr, CUresult> {
    let mut pointer = 0;
    match code!(cuMemAlloc_v2(&raw mut pointer, bytes)) {
        CUDA_SUCCESS => Ok(pointer),
        code => Err(code),
    }
}

fn until_refused<T>(mut one: impl FnMut() -> Result<T, CUresult>) -> Vec<T> {
    let mut all = Vec::new();
    loop {
        match one() {
            Ok(thing) => all.push(thing),
            Err(code) => {
                assert_eq!(code, CUDA_ERROR_OUT_OF_MEMORY);
                return all;
            }
        }
    }
}

/// All but one in sixteen.
fn thinned<T>(all: Vec<T>, end: impl Fn(T)) -> Vec<T> {
    let mut kept = Vec::new();
    for (at, thing) in all.into_iter().enumerate() {
        if at % 16 == 5 {
            kept.push(thing);
        } else {
            end(thing);
        }
    }
    kept
}

#[test]
fn pages_that_small_things_share_are_inside_the_limit() {
    alone(
        "pages_that_small_things_share_are_inside_the_limit",
        LIMIT,
        shared_pages,
    );
}

fn shared_pages(slice: &Slice) {
    let _context: CUcontext = get!(cuCtxCreate_v2(0, 0));
    let inside = |what: &str| {
        let (held, used) = (held(), slice.used());
        assert!(
            held <= used && used <= LIMIT,
            "{what}: {held} held, {used} charged"
        );
    };
    let free = |pointer| cu!(cuMemFree_v2(pointer));
    let destroy = |array| cu!(cuArrayDestroy(array));
    let unload = |module| cu!(cuModuleUnload(module));

    // Many small ones share pages, and an endless loop that makes and destroys them takes no more.
    let few: Vec<_> = (0..100).map(|_| array(64).expect("room")).collect();
    assert_eq!(slice.used(), 2 * MIB);
    for _ in 0..1000 {
        destroy(array(64).expect("room"));
    }
    assert_eq!(slice.used(), 2 * MIB);
    few.into_iter().for_each(destroy);
    assert_eq!((slice.used(), held()), (0, 0));

    let arrays = until_refused(|| array(2048));
    inside("arrays");
    assert!(arrays.len() > 600, "{}", arrays.len());
    let arrays = thinned(arrays, destroy);
    inside("few arrays");
    let large = until_refused(|| memory(2 << 20));
    inside("pages beside arrays");
    large.into_iter().for_each(free);
    let halves = until_refused(|| array(16384));
    inside("larger arrays in between");
    halves.into_iter().chain(arrays).for_each(destroy);
    assert_eq!((slice.used(), held()), (0, 0));

    let modules: Vec<_> = (0..500).map_while(|_| module(130_000).ok()).collect();
    inside("modules");
    let modules = thinned(modules, unload);
    // Each is one variable, and keeps one page at most.
    let kept = modules.len() as u64 * (2 << 20);
    assert!(
        slice.used() <= kept,
        "{} charged for {}",
        slice.used(),
        modules.len()
    );
    let large = until_refused(|| memory(2 << 20));
    inside("pages beside modules");
    large.into_iter().for_each(free);
    modules.into_iter().for_each(unload);
    assert_eq!((slice.used(), held()), (0, 0));

    // Arrays fill the gaps that small allocations leave in their pages; then the allocations end.
    let small: Vec<_> = (0..1024).map(|_| memory(130_000).expect("room")).collect();
    let (gaps, small): (Vec<_>, Vec<_>) = small.into_iter().enumerate().partition(|(at, _)| at % 16 == 5);
    gaps.into_iter().for_each(|(_, pointer)| free(pointer));
    let arrays: Vec<_> = (0..60).map(|_| array(2048).expect("room")).collect();
    inside("arrays beside small allocations");
    small.into_iter().for_each(|(_, pointer)| free(pointer));
    inside("arrays that small allocations left");
    let large = until_refused(|| memory(2 << 20));
    inside("pages beside those");
    large.into_iter().for_each(free);
    arrays.into_iter().for_each(destroy);
    assert_eq!((slice.used(), held()), (0, 0));
}

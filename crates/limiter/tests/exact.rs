//! What the device holds for a slice, seen from outside. Every page with an allocation in it is charged. At no moment
//! does the device hold more than the limit, whatever pools, graphs and small allocations do.

mod emulated;
mod support;

use std::collections::BTreeSet;
use std::process::Stdio;
use std::ptr::null_mut;

use divvy_abi::*;
use divvy_ledger::Terms;
use divvy_ledger::attach::connect;
use divvy_limiter::below;
use divvy_limiter::tenant;
use emulated::{Gate, alone, code, context, cu, get, held};
use support::Slice;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const PAGE: u64 = 2 << 20;

fn try_allocate(bytes: u64) -> Option<CUdeviceptr> {
    let mut pointer = 0;
    match code!(cuMemAlloc_v2(&raw mut pointer, bytes as usize)) {
        CUDA_SUCCESS => Some(pointer),
        code => {
            assert_eq!(code, CUDA_ERROR_OUT_OF_MEMORY);
            None
        }
    }
}

fn all_of(bytes: u64) -> Vec<CUdeviceptr> {
    std::iter::from_fn(|| try_allocate(bytes)).collect()
}

/// Frees all but the first allocation of each page; returns the others.
fn thin_out(pointers: Vec<CUdeviceptr>) -> Vec<CUdeviceptr> {
    let mut pages = BTreeSet::new();
    let (kept, freed): (Vec<_>, Vec<_>) = pointers
        .into_iter()
        .partition(|pointer| pages.insert(pointer / PAGE));
    for pointer in freed {
        cu!(cuMemFree_v2(pointer));
    }
    kept
}

fn own_pool() -> CUmemoryPool {
    let mut properties = CUmemPoolProps {
        allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
        ..Default::default()
    };
    properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
    get!(cuMemPoolCreate(&raw const properties))
}

#[test]
fn a_page_is_charged_while_anything_lies_in_it() {
    alone("a_page_is_charged_while_anything_lies_in_it", GIB, |slice| {
        context();
        for bytes in [690 * KIB, 512, MIB, MIB - 512, 100 * KIB] {
            // A program with many small allocations gets as many as fit into a slice's pages on the device.
            let count = if bytes < MIB / 2 { 5_000 } else { usize::MAX };
            let all: Vec<_> = std::iter::from_fn(|| try_allocate(bytes)).take(count).collect();
            assert_eq!(slice.used(), held(), "{bytes} each");
            assert!(held() <= GIB);
            let kept = thin_out(all);
            assert_eq!(
                (slice.used(), held()),
                (kept.len() as u64 * PAGE, kept.len() as u64 * PAGE)
            );
            let rest = all_of(PAGE);
            assert_eq!((slice.used(), held()), (GIB, GIB), "and the rest in whole pages");
            // Only the driver knows whether it would use a gap: without headroom for a page it is not called.
            assert_eq!(try_allocate(512), None);
            assert_eq!(try_allocate(MIB + 512), None);
            for pointer in kept.into_iter().chain(rest) {
                cu!(cuMemFree_v2(pointer));
            }
            assert_eq!((slice.used(), held()), (0, 0));
        }
    });
}

#[test]
fn pages_stay_charged_until_their_last_free_has_come_to_pass() {
    alone(
        "pages_stay_charged_until_their_last_free_has_come_to_pass",
        GIB,
        |slice| {
            static GATES: [Gate; 2] = [Gate::new(), Gate::new()];
            let current = context() as usize;
            let streams: Vec<CUstream> = (0..2)
                .map(|_| get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0)))
                .collect();
            let all: Vec<CUdeviceptr> = (0..12).map(|_| get!(cuMemAlloc_v2(500 << 10))).collect();
            assert_eq!((slice.used(), held()), (3 * PAGE, 3 * PAGE));
            for (stream, gate) in streams.iter().zip(&GATES) {
                gate.block(*stream);
            }
            // Of each page, one allocation is freed in either stream, and two by other threads.
            for (number, pointer) in all.iter().enumerate() {
                match number % 4 {
                    0 => cu!(cuMemFreeAsync(*pointer, streams[0])),
                    1 => cu!(cuMemFreeAsync_ptsz(*pointer, streams[1])),
                    _ => {}
                }
            }
            // A gate blocks every thread that waits for the context, as a synchronous free does.
            std::thread::scope(|scope| {
                for part in [2, 3] {
                    let all = &all;
                    scope.spawn(move || {
                        cu!(cuCtxSetCurrent(current as CUcontext));
                        for pointer in all.iter().skip(part).step_by(4) {
                            cu!(cuMemFreeAsync(*pointer, CU_STREAM_PER_THREAD));
                        }
                        cu!(cuStreamSynchronize(CU_STREAM_PER_THREAD));
                    });
                }
            });
            assert_eq!((slice.used(), held()), (3 * PAGE, 3 * PAGE), "two of each wait");
            GATES[0].open();
            cu!(cuStreamSynchronize(streams[0]));
            assert_eq!((slice.used(), held()), (3 * PAGE, 3 * PAGE), "one of each waits");
            GATES[1].open();
            cu!(cuStreamSynchronize(streams[1]));
            assert_eq!((slice.used(), held()), (0, 0));
        },
    );
}

#[test]
fn a_destroyed_pool_keeps_the_pages_of_what_is_in_use() {
    alone(
        "a_destroyed_pool_keeps_the_pages_of_what_is_in_use",
        GIB,
        |slice| {
            context();
            let pool = own_pool();
            let all: Vec<CUdeviceptr> = (0..300)
                .map(|_| get!(cuMemAllocFromPoolAsync(690 << 10, pool, null_mut())))
                .collect();
            assert_eq!((slice.used(), held()), (150 * PAGE, 150 * PAGE));
            // Between them are some that belong to no pool: they lie elsewhere.
            let direct = get!(cuMemAlloc_v2(512));
            let kept = thin_out(all);
            assert_eq!((slice.used(), held()), (151 * PAGE, 151 * PAGE));
            cu!(cuMemPoolDestroy(pool));
            assert_eq!((slice.used(), held()), (151 * PAGE, 151 * PAGE));
            for pointer in kept {
                cu!(cuMemFreeAsync(pointer, null_mut()));
            }
            cu!(cuStreamSynchronize(null_mut()));
            assert_eq!((slice.used(), held()), (PAGE, PAGE));
            cu!(cuMemFree_v2(direct));
            assert_eq!((slice.used(), held()), (0, 0));
        },
    );
}

const HAMMERS: u64 = 3;
const THREADS: u64 = 3;
const ROUNDS: u64 = 400;

/// Takes and frees memory in every way in which a driver takes memory by itself.
fn hammer(number: u64, thread: u64) {
    let stream: CUstream = get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0));
    let own = own_pool();
    let default: CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
    let mut random = (number * THREADS + thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut below = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) % bound
    };
    let mut mine: Vec<CUdeviceptr> = Vec::new();
    for _ in 0..ROUNDS {
        let bytes = match below(4) {
            0 => 512 + below(PAGE),
            1 => PAGE * (1 + below(4)) - 512 + below(1024),
            _ => 1 + below(160 * MIB),
        } as usize;
        let mut pointer = 0;
        let result = match below(8) {
            0 | 1 => code!(cuMemAllocAsync(&raw mut pointer, bytes, stream)),
            2 => code!(cuMemAllocAsync_ptsz(&raw mut pointer, bytes, null_mut())),
            3 | 4 => code!(cuMemAllocFromPoolAsync(&raw mut pointer, bytes, own, stream)),
            5 => code!(cuMemAlloc_v2(&raw mut pointer, bytes)),
            6 => {
                graph(bytes, stream);
                CUDA_ERROR_OUT_OF_MEMORY
            }
            _ => {
                let pool = if below(2) == 0 { own } else { default };
                match below(4) {
                    0 => cu!(cuMemPoolTrimTo(pool, below(100 * MIB) as usize)),
                    1 => cu!(cuDeviceGraphMemTrim(0)),
                    2 => cu!(cuStreamSynchronize(stream)),
                    _ => {
                        let mut keep = below(2) * 400 * MIB;
                        let which = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                        cu!(cuMemPoolSetAttribute(pool, which, (&raw mut keep).cast()));
                    }
                }
                CUDA_ERROR_OUT_OF_MEMORY
            }
        };
        if result == CUDA_SUCCESS {
            mine.push(pointer);
        }
        while mine.len() > 4 || (!mine.is_empty() && below(3) == 0) {
            let pointer = mine.swap_remove(below(mine.len() as u64) as usize);
            match below(4) {
                0 => cu!(cuMemFree_v2(pointer)),
                _ => cu!(cuMemFreeAsync(pointer, stream)),
            }
        }
    }
    for pointer in mine {
        cu!(cuMemFreeAsync(pointer, stream));
    }
    cu!(cuStreamSynchronize(stream));
    cu!(cuMemPoolTrimTo(own, 0));
}

fn graph(bytes: usize, stream: CUstream) {
    let graph: CUgraph = get!(cuGraphCreate(0));
    for part in [bytes, 1 + bytes / 3] {
        let mut wanted = CUDA_MEM_ALLOC_NODE_PARAMS::default();
        wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.poolProps.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        wanted.bytesize = part;
        let node: CUgraphNode = get!(cuGraphAddMemAllocNode(
            graph,
            std::ptr::null(),
            0,
            &raw mut wanted
        ));
        let _free: CUgraphNode = get!(cuGraphAddMemFreeNode(graph, &raw const node, 1, wanted.dptr));
    }
    let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
    for _ in 0..2 {
        let result = code!(cuGraphLaunch(exec, stream));
        assert!(
            result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY,
            "{result:?}"
        );
    }
    cu!(cuStreamSynchronize(stream));
    cu!(cuGraphExecDestroy(exec));
    cu!(cuGraphDestroy(graph));
}

fn hammer_as_member(number: u64) {
    below::stand_on(&divvy_emulator::TABLE);
    let socket = std::env::var_os("SOCKET").expect("the slice's socket");
    tenant::enter(vec![connect(socket.as_ref(), 0).expect("the server answers")]);
    cu!(cuInit(0));
    let current = context() as usize;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                cu!(cuCtxSetCurrent(current as CUcontext));
                hammer(number, thread);
            });
        }
    });
    cu!(cuCtxSynchronize());
    cu!(cuDeviceGraphMemTrim(0));
    let default: CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
    cu!(cuMemPoolTrimTo(default, 0));
    cu!(cuCtxDestroy_v2(current as CUcontext));
}

#[test]
fn the_device_never_holds_more_than_the_limit() {
    if let Ok(number) = std::env::var("WORKER") {
        return hammer_as_member(number.parse().expect("a number"));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let uuid = emulated::uuid_in(folder.path());
    let slice = Slice::with(&[(GIB, uuid)], Terms::default());
    let mut workers: Vec<_> = (0..HAMMERS)
        .map(|number| {
            divvy_own_process::command("the_device_never_holds_more_than_the_limit")
                .env_remove("CUDA_VISIBLE_DEVICES")
                .env("WORKER", number.to_string())
                .env("SOCKET", &slice.socket)
                .env("DIVVY_EMULATED", "h100")
                .env("DIVVY_RUN_DIR", folder.path())
                .stdout(Stdio::null())
                .spawn()
                .expect("this program starts again")
        })
        .collect();
    let device = &divvy_device::devices("h100", folder.path()).expect("a device")[0];
    let (mut most, mut looks) = (0, 0_u64);
    while workers
        .iter_mut()
        .any(|worker| worker.try_wait().expect("our own").is_none())
    {
        let usage = divvy_device::usage_in(folder.path(), &device.uuid.to_string()).expect("its page");
        most = most.max(usage.used_bytes);
        looks += 1;
    }
    for mut worker in workers {
        assert!(worker.wait().expect("it ends").success());
    }
    assert!(looks > 100, "{looks} looks");
    assert!(most > GIB / 2, "{most} bytes at most: that is no pressure");
    assert!(most <= GIB, "{} bytes beyond the limit", most.saturating_sub(GIB));
    assert_eq!(slice.used(), 0);
}

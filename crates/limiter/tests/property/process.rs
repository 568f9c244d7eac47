//! A process of the slice: its threads, and its reports to the test at the end of each phase.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, RwLock};

use divvy_abi::*;
use divvy_ledger::attach::connect;
use divvy_limiter::below;
use divvy_limiter::tenant::{self, Tenant};

use crate::emulated::{self, cu, get, held};
use crate::worker::Worker;
use crate::{LIMIT, PHASES, STEPS, THREADS, seed};

/// Bytes that this process has allocated and not freed by a call, in whole units as requested.
pub static LIVE: AtomicU64 = AtomicU64::new(0);
/// Of those, managed memory, which the emulated device does not count: charged bytes.
pub static MANAGED: AtomicU64 = AtomicU64::new(0);
/// Allocations that other processes made and that were opened here.
pub static OPENED: AtomicU64 = AtomicU64::new(0);
/// The same for pointers.
pub static OPENED_POINTERS: AtomicU64 = AtomicU64::new(0);
/// The same for pools' pointers.
pub static OPENED_POOLED: AtomicU64 = AtomicU64::new(0);
/// The same for descriptors as external memory.
pub static OPENED_EXTERNAL: AtomicU64 = AtomicU64::new(0);
/// Steps run under the read lock; invariants between them are checked under the write lock.
pub static STEP: RwLock<()> = RwLock::new(());

/// Bytes in the ledger: this process's, and the total.
pub fn ledger() -> (u64, u64) {
    let Some(Tenant::Member(member)) = tenant::known() else {
        panic!("a member")
    };
    let slot = member.first().slot();
    (
        slot.used().expect("not a child"),
        slot.total_used().expect("not a child"),
    )
}

pub fn work(number: u64) {
    below::stand_on(&divvy_emulator::TABLE);
    let socket = std::env::var_os("SOCKET").expect("the slice's socket");
    tenant::enter(vec![connect(socket.as_ref(), 0).expect("the server answers")]);
    cu!(cuInit(0));
    let context = emulated::context() as usize;
    let barrier = Barrier::new(THREADS as usize);
    let mut lines = std::io::stdin().lines();
    let mut next = || lines.next().expect("the parent lives").expect("text");
    std::thread::scope(|scope| {
        let (go, done) = (&barrier, &barrier);
        let (told, tell) = std::sync::mpsc::channel::<()>();
        for thread in 0..THREADS {
            let told = told.clone();
            scope.spawn(move || {
                cu!(cuCtxSetCurrent(context as CUcontext));
                let mut worker = Worker::new(seed() * 64 + 1 + number * THREADS + thread);
                for phase in 0..=PHASES {
                    for step in 0..STEPS {
                        if phase < PHASES {
                            let _stepping = STEP.read().expect("no panic");
                            worker.step();
                        }
                        if step % 8 == 0 {
                            let _stopped = STEP.write().expect("no panic");
                            let ((own, total), live) = (ledger(), LIVE.load(Ordering::Relaxed));
                            assert!(own >= live, "{own} charged, {live} live");
                            assert!(total <= LIMIT, "{total} charged to the slice");
                        }
                    }
                    go.wait();
                    worker.settle(phase == PHASES);
                    done.wait();
                    told.send(()).expect("the main thread lives");
                    PHASE.wait_for(phase + 1);
                }
            });
        }
        for phase in 0..=PHASES {
            for _ in 0..THREADS {
                tell.recv().expect("no worker has panicked");
            }
            cu!(cuDeviceGraphMemTrim(0));
            let pool: CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
            cu!(cuMemPoolTrimTo(pool, 0));
            cu!(cuCtxSynchronize());
            say(&format!("settled {}", MANAGED.load(Ordering::Relaxed)));
            while next() == "measure" {
                let (mut free, mut total) = (0, 0);
                cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
                say(&format!("{} {free} {total}", held()));
            }
            PHASE.set(phase + 1);
        }
    });
    cu!(cuCtxDestroy_v2(context as CUcontext));
    assert_eq!(ledger().0, 0);
    let opened = [&OPENED, &OPENED_POINTERS, &OPENED_POOLED, &OPENED_EXTERNAL];
    let counts = opened.map(|count| count.load(Ordering::Relaxed).to_string());
    say(&format!("end {}", counts.join(" ")));
}

/// The phase that the threads may begin.
pub struct Phase(AtomicU64);
pub static PHASE: Phase = Phase(AtomicU64::new(0));

impl Phase {
    pub fn set(&self, phase: u64) {
        self.0.store(phase, Ordering::Release);
    }

    pub fn wait_for(&self, phase: u64) {
        while self.0.load(Ordering::Acquire) < phase {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

pub fn say(line: &str) {
    println!("\n@{line}");
    std::io::stdout().flush().expect("the parent lives");
}

//! The gate thread: one for each account whose agent leases, from the first launch on. It finds out what is over, tells
//! the agent, and wakes who waits.

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use core::time::Duration;

use divvy_abi::CU_STREAM_CAPTURE_MODE_RELAXED;
use divvy_ledger::attach::Attached;
use divvy_ledger::{Gate as Says, GateWord, monotonic_ns};
use rustix::thread::futex;

use super::{Gate, NOTHING_SEEN, leave};
use crate::below::forward;
use crate::books::locked;
use crate::log;

/// Enough for a driver's own frames.
const STACK_BYTES: usize = 256 << 10;
/// A lease that nothing has used for so many nanoseconds is given back.
const IDLE_NS: u64 = 100_000;
/// How long to sleep at a word where nothing is in flight: until a new grant is looked for, or, under a lease, in case
/// a launch's wake was missed.
const AT_REST: Duration = Duration::from_millis(500);
const IN_LEASE: Duration = Duration::from_millis(5);
/// What was launched uncounted cannot be waited for now: again after so many nanoseconds.
const AGAIN_NS: u64 = 1_000_000;

/// The thread, as those who wake it see it.
#[derive(Debug)]
pub(super) struct Thread {
    started: AtomicBool,
    /// Futex word: raised by whoever wakes it.
    kick: AtomicU32,
    sleeps: AtomicU8,
    /// When it means to wake by itself.
    planned_ns: AtomicU64,
}

const AWAKE: u8 = 0;
/// On its own futex word.
const DOZES: u8 = 1;
/// On the gate's.
const RESTS: u8 = 2;

enum Sleep {
    /// Until then, by the clock.
    Until(u64),
    /// Until the gate says something else.
    At(GateWord, Duration),
}

impl Thread {
    pub const fn new() -> Self {
        Self {
            started: AtomicBool::new(false),
            kick: AtomicU32::new(0),
            sleeps: AtomicU8::new(AWAKE),
            planned_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Starts the thread where an agent leases and nobody has.
    pub fn start(&self, gate: &'static Gate, attached: &'static Attached, word: GateWord) {
        let leases = word != GateWord::default() || attached.grant().beat_ns() != 0;
        if !leases || self.started.load(SeqCst) || self.started.swap(true, SeqCst) {
            return;
        }
        leave::at_exit();
        let thread = std::thread::Builder::new()
            .name("divvy-gate".to_owned())
            .stack_size(STACK_BYTES);
        let spawned = without_signals(|| thread.spawn(move || gate.run(attached)));
        if let Err(error) = spawned {
            log::line(format_args!("No gate thread: {error}"));
            self.started.store(false, SeqCst);
        }
    }

    /// Has the thread look now, if it means to sleep on.
    pub fn wake(&self, attached: &Attached) {
        self.kick.fetch_add(1, SeqCst);
        match self.sleeps.load(SeqCst) {
            DOZES => {
                let _woken = futex::wake(&self.kick, futex::Flags::PRIVATE, 1);
            }
            RESTS => attached.grant().wake_gate(),
            _ => {}
        }
    }

    /// Has the thread look at `at`, by the clock.
    pub fn wake_by(&self, attached: &Attached, at: u64) {
        if self.planned_ns.load(SeqCst) > at {
            self.wake(attached);
        }
    }

    fn sleep(&self, attached: &Attached, seen: u32, sleep: &Sleep) {
        match *sleep {
            Sleep::Until(at) => {
                let ns = at.saturating_sub(monotonic_ns()).min(AT_REST.as_nanos() as u64);
                if ns == 0 {
                    return;
                }
                let limit = futex::Timespec {
                    tv_sec: 0,
                    tv_nsec: ns as _,
                };
                self.planned_ns.store(at, SeqCst);
                self.sleeps.store(DOZES, SeqCst);
                let _why = futex::wait(&self.kick, futex::Flags::PRIVATE, seen, Some(&limit));
            }
            Sleep::At(word, limit) => {
                self.planned_ns.store(u64::MAX, SeqCst);
                self.sleeps.store(RESTS, SeqCst);
                if self.kick.load(SeqCst) == seen {
                    let _word = attached.grant().wait_gate(word, limit);
                }
            }
        }
        self.sleeps.store(AWAKE, SeqCst);
        self.planned_ns.store(0, SeqCst);
    }
}

/// Runs `make` with all signals blocked: what it starts never handles any of the program's.
fn without_signals<T>(make: impl FnOnce() -> T) -> T {
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: valid out-parameters, filled in before they are used; the mask is this thread's own, and set back below.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let made = make();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    made
}

impl Gate {
    fn run(&self, attached: &'static Attached) {
        // SAFETY: concerns this thread alone: its short sleeps end in time.
        let _precise = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
        let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: a valid in- and out-parameter.
        let _relaxed = unsafe { forward::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        while !leave::is_exiting() && attached.is_ours() {
            let seen = self.thread.kick.load(SeqCst);
            let sleep = self.step(attached);
            self.thread.sleep(attached, seen, &sleep);
        }
    }

    /// Looks at everything once; answers until when there is nothing to do.
    fn step(&self, attached: &Attached) -> Sleep {
        let word = attached.gate();
        self.note(word);
        if word.gate() != Says::Open && self.uncounted.load(SeqCst) && !self.settle() {
            return Sleep::Until(monotonic_ns() + AGAIN_NS);
        }
        let mut news = self.watch();
        let now = monotonic_ns();
        let until_ns = match word.gate() {
            Says::Open => u64::MAX,
            Says::Closed => 0,
            Says::Leased => attached.grant().lease().until_ns,
        };
        let mut books = locked(&self.books);
        if books.alarm_ns <= now {
            books.alarm_ns = u64::MAX;
            news = true;
        }
        if news {
            self.make_progress();
        }
        if now >= until_ns && self.seen.load(SeqCst) != NOTHING_SEEN {
            self.seen.store(NOTHING_SEEN, SeqCst);
            books.reclaim_all(&self.lanes);
        }
        if !books.is_drained(&self.lanes) {
            if now < until_ns {
                self.acknowledge(attached, &mut books, word);
            }
            self.report(attached, &mut books, now);
            drop(books);
            let next = self.next_look(now);
            return Sleep::Until(if now < until_ns { next.min(until_ns) } else { next });
        }
        books.set_running(false, now);
        if now >= until_ns {
            let released = core::mem::take(&mut books.busy);
            self.report(attached, &mut books, now);
            let news = self.acknowledge(attached, &mut books, word);
            drop(books);
            if released || news {
                attached.slot().ring();
            }
            return Sleep::At(word, AT_REST);
        }
        self.acknowledge(attached, &mut books, word);
        self.report(attached, &mut books, now);
        if word.gate() == Says::Open {
            return Sleep::At(word, AT_REST);
        }
        if self.waiting.load(SeqCst) > 0 || now < books.active_ns + IDLE_NS {
            return Sleep::Until((books.active_ns + IDLE_NS).max(now + IDLE_NS / 4).min(until_ns));
        }
        books.reclaim_all(&self.lanes);
        if !books.is_drained(&self.lanes) {
            return Sleep::Until(now);
        }
        let released = core::mem::take(&mut books.busy);
        self.report(attached, &mut books, now);
        drop(books);
        if released {
            attached.slot().ring();
        }
        Sleep::At(word, IN_LEASE.min(Duration::from_nanos(until_ns - now)))
    }

    /// Tells the agent that its word has been seen. Answers whether that is news.
    fn acknowledge(&self, attached: &Attached, books: &mut super::books::Books, word: GateWord) -> bool {
        if books.acknowledged == Some(word.bits()) {
            return false;
        }
        books.acknowledged = Some(word.bits());
        if let Some(line) = attached.slot().presence() {
            line.acknowledge(word);
        }
        true
    }
}

"""A CUDA program in plain Python, as worker pools of frameworks start them: the part is named on the command line.

It speaks as the probe does: one JSON object per line, the first with its process id; between two lines it waits for a
line of standard input. Nothing but the standard library, and the driver by its SONAME.
"""

import atexit
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
import time

MIB = 1 << 20
# What says where drivers and their devices are: each level of isolation its own.
OF_THE_DRIVERS = ("DIVVY_", "LD_", "CUDA_", "GPU_", "HIP_", "ROCR_", "OMP_", "ZE_", "ONEAPI_", "OPENCL_")


def say(**what):
    # One write: a line of another process never comes between it and its end.
    os.write(1, (json.dumps(what) + "\n").encode())


def wait():
    return sys.stdin.readline()


class Device:
    """The first device, with its primary context."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.error = self.driver.cuInit(0)
        context = ctypes.c_void_p()
        for call in (
            lambda: self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
            lambda: self.driver.cuCtxSetCurrent(context),
        ):
            self.error = self.error or call()

    def allocate(self, size):
        """The address, or 0; `error` says why."""
        pointer = ctypes.c_uint64()
        self.error = self.driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def free(self, pointer):
        return self.driver.cuMemFree_v2(ctypes.c_uint64(pointer))


def fork_after_use():
    """A forked child has no context, as CUDA has it, and neither its attempts nor its end change the parent's charges."""
    device = Device()
    kept = device.allocate(100 * MIB)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        device.allocate(MIB)
        answers = [device.error, device.free(kept)]
        os.write(write, json.dumps(answers).encode())
        os._exit(0)
    os.waitpid(child, 0)
    more = device.allocate(100 * MIB)
    say(pid=os.getpid(), child=json.loads(os.read(read, 100)), more=more != 0)
    wait()
    say(freed=[device.free(kept), device.free(more)])


def fork_before_use():
    """A parent that has not called CUDA is any parent: its children each come into the slice by themselves."""
    children = []
    for _ in range(3):
        told, tell = os.pipe()
        heard, hear = os.pipe()
        child = os.fork()
        if child == 0:
            device = Device()
            device.allocate(400 * MIB)
            os.write(hear, bytes([device.error]))
            os.read(told, 1)
            os._exit(0)
        children.append((child, tell, os.read(heard, 1)[0]))
    say(pid=os.getpid(), errors=sorted(error for _, _, error in children))
    wait()
    for child, tell, _ in children:
        os.write(tell, b".")
        os.waitpid(child, 0)
    say(ended=True)


def work(barrier, size, results):
    device = Device()
    device.allocate(size)
    results.put(device.error)
    barrier.wait()
    barrier.wait()


def pool(method):
    """Workers as PyTorch's DataLoader and multiprocessing start them."""
    context = multiprocessing.get_context(method)
    workers = 4
    barrier, results = context.Barrier(workers + 1), context.Queue()
    processes = [
        context.Process(target=work, args=(barrier, 300 * MIB, results)) for _ in range(workers)
    ]
    for process in processes:
        process.start()
    barrier.wait()
    say(pid=os.getpid(), errors=sorted(results.get() for _ in range(workers)))
    wait()
    barrier.wait()
    for process in processes:
        process.join()
    say(ended=all(process.exitcode == 0 for process in processes))


def execute():
    """A process that becomes another program gives everything back and joins again."""
    device = Device()
    device.allocate(700 * MIB)
    first = device.error
    os.execv(sys.executable, [sys.executable, __file__, "executed", str(first)])


def executed(first):
    device = Device()
    device.allocate(800 * MIB)
    say(pid=os.getpid(), first=int(first), second=device.error)
    wait()
    say(ended=True)


def report(use):
    """What a process sees of itself: the same with a limiter in it as without."""
    ends = []
    atexit.register(lambda: print(f"at exit: {ends}", flush=True))
    atexit.register(lambda: ends.append("second"))
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    os.umask(0o027)
    if use == "yes":
        device = Device()
        pointers = [device.allocate(MIB) for _ in range(10)]
        error = device.error
        freed = [device.free(pointer) for pointer in pointers]
    else:
        error, freed = 0, [0] * 10
    # Not SigQ: it counts the signals of all processes of the user.
    names = ("SigPnd", "SigBlk", "SigIgn", "SigCgt", "Shd", "Threads")
    masks = [line for line in open("/proc/self/status") if line.startswith(names)]
    handlers = {str(number): str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)}
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    say(
        error=error,
        freed=freed,
        status=masks,
        handlers=handlers,
        umask=os.umask(0),
        home=os.getcwd(),
        descriptors=len(os.listdir("/proc/self/fd")),
        own=libc.getenv(b"OWN").decode(),
        environment=sorted(name for name in os.environ if not name.startswith(OF_THE_DRIVERS)),
    )
    sys.exit(41)


def hold(*sizes):
    """Takes so many MiB each, and gives them back when told to; what it is told it has, in MiB, is the device's."""
    device = Device()
    pointers, errors = [], []
    for size in sizes:
        pointers.append(device.allocate(int(size) * MIB))
        errors.append(device.error)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    device.driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    usable = [device.driver.cuMemsetD8_v2(ctypes.c_uint64(p), 7, ctypes.c_size_t(MIB)) for p in pointers if p]
    say(pid=os.getpid(), errors=errors, usable=usable, free=free.value // MIB, total=total.value // MIB)
    wait()
    say(freed=[device.free(pointer) for pointer in pointers if pointer])
    wait()


def past(size, path):
    """A tenant that opens the driver below by its path, and never asks the limiter."""
    driver = ctypes.CDLL(path)
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    error = driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    error = error or driver.cuCtxSetCurrent(context)
    error = error or driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size) * MIB))
    say(pid=os.getpid(), error=error)
    wait()
    say(ended=True)


def subordinate(size, path):
    """A tenant with a namespace of users of its own. Once that has users, it becomes one of them, and takes memory then."""
    NEWUSER = 0x10000000
    driver, libc = ctypes.CDLL(path), ctypes.CDLL(None)
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    # A process with several threads may not do this: the driver starts some.
    error = libc.unshare(NEWUSER)
    say(pid=os.getpid(), error=error)
    wait()
    error = driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    error = error or driver.cuCtxSetCurrent(context)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    error = error or driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size) * MIB))
    say(error=error)
    wait()


def both(counted, uncounted, path):
    """A tenant that uses the limiter, and the driver below it by its path as well."""
    device = Device()
    device.allocate(int(counted) * MIB)
    below, pointer = ctypes.CDLL(path), ctypes.c_uint64()
    error = device.error or below.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(uncounted) * MIB))
    say(pid=os.getpid(), error=error)
    wait()
    device.allocate(int(counted) * MIB)
    say(error=device.error, freed=below.cuMemFree_v2(pointer))
    wait()


def corrupt():
    """A tenant that writes over its own ledger: it says that nothing is in use."""
    device = Device()
    kept = device.allocate(600 * MIB)
    say(pid=os.getpid(), error=device.error, kept=kept != 0)
    wait()
    for line in open("/proc/self/maps"):
        if "memfd:divvy-ledger" in line:
            start = int(line.split("-")[0], 16)
            # The accounting word, and every record of the first process slots.
            ctypes.memset(start + 64, 0, 8)
            ctypes.memset(start + 4096 + 64, 0, 8 * 576 - 64)
    device.allocate(300 * MIB)
    say(error=device.error)
    wait()
    say(ended=True)


def forge(size):
    """A tenant that takes memory through the limiter, and says in its ledger each time that nothing is in use."""
    device = Device()
    say(pid=os.getpid(), error=device.error)
    ledgers = [line for line in open("/proc/self/maps") if "memfd:divvy-ledger" in line]
    starts = [int(line.split("-")[0], 16) for line in ledgers]
    held = 0
    while held < int(size):
        for start in starts:
            ctypes.memset(start + 64, 0, 8)
            ctypes.memset(start + 4096 + 64, 0, 8 * 576 - 64)
        held += 250 if device.allocate(250 * MIB) else 0
    say(held=held)
    while True:
        wait()


def breed(size, path):
    """A tenant that takes memory of the driver below in a child, and another each time that one is ended."""
    say(pid=os.getpid(), error=0)
    while True:
        child = os.fork()
        if child == 0:
            # Below neither the parent nor its session.
            os.setsid()
            if os.fork() == 0:
                driver = ctypes.CDLL(path)
                context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
                driver.cuInit(0)
                driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
                driver.cuCtxSetCurrent(context)
                driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size) * MIB))
                signal.pause()
            os._exit(0)
        os.waitpid(child, 0)
        # The grandchild's end cannot be waited for: another comes now and then.
        signal.sigtimedwait([], 0.3)


SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .u64 %rd<5>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [nanoseconds];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra again;
    ret;
}
\0"""


def churn(path, kernels, count):
    """A tenant whose children use the driver below, a few kernels of 5 ms each, and end: so many at a time."""

    def child():
        driver = ctypes.CDLL(path)
        context, module, spin = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        driver.cuInit(0)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        driver.cuCtxSetCurrent(context)
        driver.cuModuleLoadData(ctypes.byref(module), SPIN)
        driver.cuModuleGetFunction(ctypes.byref(spin), module, b"spin")
        length = ctypes.c_uint64(5_000_000)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(length), ctypes.c_void_p))
        for _ in range(int(kernels)):
            driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        driver.cuCtxSynchronize()
        os._exit(0)

    say(pid=os.getpid())
    living = 0
    while True:
        if living == int(count):
            os.wait()
            living -= 1
        if os.fork() == 0:
            child()
        living += 1


def without_main_thread(work):
    """The kernel shows a process by its main thread: as one that has ended, though others of its threads go on."""
    threading.Thread(target=work).start()
    ctypes.CDLL(None).pthread_exit(None)


def headless(size, path):
    """A tenant whose main thread ends first. Another takes memory of the driver below."""

    def work():
        past(size, path)
        signal.pause()

    without_main_thread(work)


def traced(size, path):
    """A tenant that traces a child of its own. The child takes memory, and once it is killed its tracer never lets it end."""
    TRACEME, CONT, SETOPTIONS = 0, 7, 0x4200
    OF_CLONES, OF_ENDS, ENDS, ALL = 1 << 3, 1 << 6, 6, 0x40000000
    trace = ctypes.CDLL(None).ptrace
    trace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    child = os.fork()
    if child == 0:
        trace(TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        past(size, path)
        signal.pause()
    os.waitpid(child, 0)
    trace(SETOPTIONS, child, None, OF_CLONES | OF_ENDS)
    trace(CONT, child, None, None)
    while True:
        thread, status = os.waitpid(-1, ALL)
        if not os.WIFSTOPPED(status):
            continue
        event, number = status >> 16, os.WSTOPSIG(status)
        if event != ENDS:
            trace(CONT, thread, None, None if event or number == signal.SIGSTOP else number)


def inflate(is_endless):
    """Reports that this process uses the device all the time, in each ledger of its slice: crates/ledger has the places.

    Or else that it wants the device, and that its launches never end: its lease is then never given back.
    """
    slots, header, slot_size, activity_size = 2048, 4096, 576, 64
    ranges = set()
    for line in open("/proc/self/maps"):
        if "memfd:divvy-ledger" in line:
            ranges.add(tuple(int(word, 16) for word in line.split()[0].split("-")))
    libc, begin = ctypes.CDLL(None), time.monotonic_ns()
    while True:
        for start, end in ranges:
            activities = end - slots * activity_size
            taken = min(ctypes.c_uint32.from_address(start + 20).value, slots)
            for slot in range(taken):
                if ctypes.c_uint32.from_address(start + header + slot * slot_size).value:
                    activity = activities + slot * activity_size
                    if is_endless:
                        # The bits of a thread that waits, and of work in flight.
                        ctypes.c_uint32.from_address(activity).value = 3
                        continue
                    busy = ctypes.c_uint64.from_address(activity + 16)
                    busy.value = time.monotonic_ns() - begin + 1
            news = start + 384
            ctypes.c_uint32.from_address(news).value += 1
            # FUTEX_WAKE: the agent reads it at once.
            libc.syscall(202, ctypes.c_void_p(news), 1, 0x7FFFFFFF, None, None, 0)
        time.sleep(0.005)


def spin(path, way):
    """A tenant that launches kernels of 5 ms past the gate, on and on: in which way is named."""

    def work():
        ledgers = []
        if way == "forge":
            Device()
            ledgers = [line for line in open("/proc/self/maps") if "memfd:divvy-ledger" in line]
        starts = [int(line.split("-")[0], 16) for line in ledgers]
        if way in ("inflate", "endless"):
            Device()
            threading.Thread(target=inflate, args=(way == "endless",), daemon=True).start()
        driver = ctypes.CDLL(path)
        context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        driver.cuInit(0)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        driver.cuCtxSetCurrent(context)
        error = driver.cuModuleLoadData(ctypes.byref(module), SPIN)
        error = error or driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin")
        length = ctypes.c_uint64(5_000_000)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(length), ctypes.c_void_p))
        say(pid=os.getpid(), error=error)
        while True:
            for start in starts:
                ctypes.memset(start + 64, 0, 8)
                ctypes.memset(start + 4096 + 64, 0, 8 * 576 - 64)
            for _ in range(4):
                driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
            driver.cuCtxSynchronize()

    if way == "headless":
        without_main_thread(work)
    if way != "fork":
        work()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            work()
        os._exit(0)
    signal.pause()


def outlive(size, path):
    """A tenant that ends as soon as a child of its has left its session. The child takes memory after that."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        say(pid=os.getpid())
        # No program reads what it says once the tenant has ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.close(write)
        # This pipe ends with the tenant.
        os.read(read, 1)
        signal.sigtimedwait([], 1)
        past(size, path)
        signal.pause()
    wait()


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


def share(size):
    """A tenant that says what others may open its memory by."""
    device, handle = Device(), IpcHandle()
    pointer = device.allocate(int(size) * MIB)
    error = device.error or device.driver.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(pointer))
    say(pid=os.getpid(), error=error, handle=bytes(handle).hex())
    wait()


def open_shared(handle):
    """A tenant that opens another's memory, and never calls the driver again."""
    device, pointer = Device(), ctypes.c_uint64()
    handle = IpcHandle.from_buffer_copy(bytes.fromhex(handle))
    error = device.error or device.driver.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), handle, 1)
    say(pid=os.getpid(), error=error)
    wait()


def load(path):
    """A library of this name or path, and no CUDA at all."""
    library = ctypes.CDLL(path)
    say(pid=os.getpid(), entry=hasattr(library, "__gxx_personality_v0"))
    wait()
    say(ended=True)


if __name__ == "__main__":
    part, *arguments = sys.argv[1:]
    globals()[part](*arguments)

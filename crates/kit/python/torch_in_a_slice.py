"""PyTorch in a slice of 4 GiB: a training step and a captured one; by a word, one of its three back ends: what it sees, its own
error, its retry. A context takes 512 MiB of the slice."""

import sys
import time

import torch
from said import LIMIT, fact, is_look, is_loop, loop, promise, refuses, version

MIB = 1 << 20


def out_of_memory(check):
    held = []

    def too_much():
        for _ in range(80):
            held.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))

    refuses(check, too_much, torch.cuda.OutOfMemoryError, lambda error: "out of memory" in str(error).lower())
    got = len(held) * 64 * MIB
    promise(f"{check}.limit", got <= LIMIT, "what was got stays inside the slice", bytes=got)
    held.clear()
    torch.cuda.empty_cache()


def backend(name):
    """One of the allocator's back ends, which are chosen once in a process."""
    free, total = torch.cuda.mem_get_info()
    promise(f"{name}.total", total == LIMIT, "the slice is all the memory that PyTorch sees", bytes=total)
    out_of_memory(f"{name}.refused")
    # Three blocks are cached, and one that none of them has room for fits only when PyTorch gives them back.
    cached = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(3)]
    del cached
    again = torch.empty(5 << 29, dtype=torch.uint8, device="cuda")
    retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    # The other back ends give back a part at a time, and count nothing.
    right = again.numel() == 5 << 29 and (name != "native" or retries > 0)
    promise(f"{name}.retry", right, f"cached memory is given back and got again; {retries} retries are counted")
    del again
    torch.cuda.empty_cache()


def step_of(width, batch):
    """A step of a training: a model of two layers learns to answer what it is given."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, 4 * width), torch.nn.ReLU(), torch.nn.Linear(4 * width, width)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    values = torch.randn(batch, width, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(values), values)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def side_by_side():
    """A training beside another one."""
    step = step_of(2048, 2048)
    first, last = step().item(), [None]

    def again():
        last[0] = step()

    loop(again, torch.cuda.synchronize, lambda: last[0].item() < first)


def timed(step):
    """Seconds of a step, in the least of ten windows: the machine's other work disturbs that one least."""
    least = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(50):
            step()
        torch.cuda.synchronize()
        least = min(least, (time.perf_counter() - begin) / 50)
    return least


def captured_step(step):
    """The same step as a graph that is launched."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def training(name):
    step = step_of(1024, 512)
    first = step().item()
    for _ in range(20):
        last = step()
    promise(f"{name}.learns", last.item() < first, f"the loss goes from {first:.4f} to {last.item():.4f}")
    each = timed(step)
    fact(f"{name}.step", f"a training step takes {each * 1e6:.1f} us", seconds=each)
    each = timed(captured_step(step))
    fact(f"{name}.captured", f"a captured training step takes {each * 1e6:.1f} us", seconds=each)


def captured():
    values = torch.randn(1024, 1024, device="cuda")
    result = torch.empty_like(values)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.mm(values, values, out=result)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mm(values, values, out=result)
    result.zero_()
    graph.replay()
    torch.cuda.synchronize()
    promise("captured", torch.allclose(result, values @ values, rtol=1e-3, atol=1e-2), "a captured graph computes")


def main():
    if is_look():
        raise SystemExit(torch.ones(8, device="cuda").sum().item() != 8)
    if is_loop():
        side_by_side()
        return
    if sys.argv[1:] == ["training"]:
        training("training")
        return
    if len(sys.argv) > 1:
        backend(sys.argv[1])
        return
    version(torch)
    training("training")
    captured()


main()

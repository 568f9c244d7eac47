"""Triton in a slice of 4 GiB: its own compiler and launcher."""

import torch
import triton
import triton.language as language
from said import is_look, is_loop, loop, promise, version


@triton.jit
def add(a, b, result, count, block: language.constexpr):
    at = language.program_id(0) * block + language.arange(0, block)
    inside = at < count
    language.store(result + at, language.load(a + at, mask=inside) + language.load(b + at, mask=inside), mask=inside)


def side_by_side():
    a = torch.ones(1 << 26, dtype=torch.float32, device="cuda")
    result = torch.empty_like(a)
    loop(
        lambda: add[(triton.cdiv(a.numel(), 1024),)](a, a, result, a.numel(), block=1024),
        torch.cuda.synchronize,
        lambda: (result == 2).all(),
    )


if is_look():
    few = torch.ones(8, dtype=torch.float32, device="cuda")
    add[(1,)](few, few, few, 8, block=8)
    raise SystemExit(few.sum().item() != 16)
if is_loop():
    side_by_side()
    raise SystemExit

version(triton)
a = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
b = torch.ones_like(a)
result = torch.empty_like(a)
add[(triton.cdiv(a.numel(), 1024),)](a, b, result, a.numel(), block=1024)
promise("computes", torch.equal(result, a + b), "a kernel computes the right numbers")
